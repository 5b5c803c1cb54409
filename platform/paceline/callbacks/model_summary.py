"""ModelSummary: a table of the module's layers before training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from paceline.callbacks.callback import Callback
from paceline.data.transfer import to_device
from paceline.errors import MisconfigurationError
from paceline.evaluation_mode import evaluation_mode
from paceline.seed import isolated_random_state

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class ModelSummary(Callback):
    """Prints the module's layers and their parameters when a fit starts.

    With an `example_input_array` of the module the table has the sizes of what goes into each layer and comes out.

    Args:
        max_depth: levels of nested layers to show; -1 all, 0 nothing.

    Raises:
        MisconfigurationError: the depth is no int, or less than -1.
    """

    def __init__(self, max_depth: int = 1) -> None:
        _check_depth(max_depth)
        self.max_depth = max_depth

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Print the table."""
        if self.max_depth == 0:
            return
        strategy, example = trainer.strategy, pl_module.example_input_array
        if example is not None:
            example = strategy.precision.convert_batch(to_device(example, strategy.device))
        with strategy.precision.forward(strategy.device):
            trainer.run.tell(summarize(pl_module, self.max_depth, example))


def summarize(module: nn.Module, max_depth: int = 1, example: Any = None) -> str:
    """The table: name, type and number of parameters of each layer, and totals.

    The module stays as it is: the sizes come from one forward pass in evaluation mode, without gradients, that leaves
    the random state alone. A pass that fails is a warning, and the table has no sizes; likewise lazy layers, whose
    parameters such a pass would make.

    Args:
        module: may be compiled, in whole or in part.
        max_depth: levels of nested layers to show; -1 all, 0 the totals alone.
        example: what the forward pass takes, on the module's device: a tuple of arguments, a dict of named ones, or
            the only one. By default the module's `example_input_array`; without either the table has no sizes.

    Raises:
        MisconfigurationError: the depth is no int, or less than -1.
    """
    _check_depth(max_depth)
    module = _uncompiled(module)
    layers = list(_layers(module, max_depth))
    if example is None:
        example = getattr(module, "example_input_array", None)
    sizes = _sizes(module, [layer for _, layer in layers], example) if example is not None and layers else {}
    header = ["layer", "type", "parameters", *(["in", "out"] if sizes else [])]
    rows = [
        [name, type(layer).__name__, _count(layer.parameters()), *(sizes.get(layer, ("-", "-")) if sizes else ())]
        for name, layer in layers
    ]
    return "\n".join([*(_aligned([header, *rows]) if rows else ()), _totals(module)])


def _check_depth(max_depth: int) -> None:
    if not isinstance(max_depth, int) or isinstance(max_depth, bool) or max_depth < -1:
        raise MisconfigurationError(
            f"`max_depth={max_depth!r}` of a summary: use a number of levels, -1 for all, or 0 for none."
        )


def _uncompiled(module: nn.Module) -> nn.Module:
    """What is inside a compiled module."""
    inside = getattr(module, "_orig_mod", module)
    return inside if isinstance(inside, nn.Module) else module


def _layers(module: nn.Module, depth: int, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Name and layer, so many levels deep; -1 for all."""
    if depth == 0:
        return
    for name, child in module.named_children():
        layer = _uncompiled(child)
        yield prefix + name, layer
        yield from _layers(layer, depth - 1, f"{prefix}{name}.")


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Columns of equal width; numbers, which are in the third, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(w) if at == 2 else cell.ljust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def _count(parameters: Iterable[nn.Parameter]) -> str:
    """How many numbers; with a + where lazy layers will have more."""
    parameters = list(parameters)
    return f"{sum(p.numel() for p in _known(parameters)):,}" + ("+" if any(map(is_lazy, parameters)) else "")


def _known(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    return (parameter for parameter in parameters if not is_lazy(parameter))


def _totals(module: nn.Module) -> str:
    parameters = list(module.parameters())
    trainable = _count(p for p in parameters if p.requires_grad)
    frozen = _count(p for p in parameters if not p.requires_grad)
    megabytes = sum(p.numel() * p.element_size() for p in _known(parameters)) / 1e6
    text = f"{_count(parameters)} parameters, {trainable} of them trainable, {frozen} not; {megabytes:,.3f} MB"
    lazy = any(map(is_lazy, parameters))
    return text + ("\n+ lazy layers get their parameters in the first forward pass" if lazy else "")


def _sizes(module: nn.Module, layers: list[nn.Module], example: Any) -> dict[nn.Module, tuple[str, str]]:
    """For each layer that the forward pass uses the sizes of what goes in and comes out, at its last use."""
    if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
        return {}
    sizes: dict[nn.Module, tuple[str, str]] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = [*args, *kwargs.values()]
        sizes[layer] = (_size(given[0] if len(given) == 1 else given), _size(output))

    with ExitStack() as stack:
        for layer in set(layers):
            stack.callback(layer.register_forward_hook(note, with_kwargs=True).remove)
        stack.enter_context(isolated_random_state())
        stack.enter_context(evaluation_mode(module))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_uncompiled_calls())
        try:
            if isinstance(example, Mapping):
                module(**example)
            else:
                module(*(example if isinstance(example, tuple) else (example,)))
        except Exception as error:  # a table is no reason to end a run
            warnings.warn(f"The summary has no sizes, since the example's forward pass failed: {error}", stacklevel=3)
            return {}
    return sizes


def _size(value: Any) -> str:
    """Such as "[32, 10]"; of several values a list of them."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    if isinstance(value, Mapping):
        value = list(value.values())
    return f"[{', '.join(map(_size, value))}]" if isinstance(value, list | tuple) else type(value).__name__


def _uncompiled_calls() -> AbstractContextManager[Any]:
    """Compiled parts run as they were written, since compiling them for one pass, hooks included, takes long."""
    # Nobody has a compiled part who did not import this, which takes more than a second.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
