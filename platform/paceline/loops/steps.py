"""Calling a module's steps: with the arguments that their signatures name, on batches that are on the device."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.data.transfer import to_device
from paceline.hooks import overridden
from paceline.loops.run import Run
from paceline.strategies.precision import Precision

_ARGUMENTS = ("batch", "batch_idx", "dataloader_idx", "optimizer_idx")


def module_step(run: Run, stage: str, third: str = "dataloader_idx") -> Callable[..., Any]:
    """A function of (batch, batch_idx, dataloader_idx, optimizer_idx) that calls the module's step of a stage.

    It goes through everything that a run puts around a step: compilation, the strategy's wrapper, the precision.

    Args:
        run: the parts of the run.
        stage: "training", "validation", "test" or "predict".
        third: what the step's third argument is, if its name does not say so.
    """
    step = getattr(run.module, f"{stage}_step")
    call = run.compiled(step)
    call = run.strategy.wrap(run.module, call, stage == "training")
    call = run.span(f"[Module]{type(run.module).__name__}.{stage}_step", call)
    precision = run.strategy.precision
    if type(precision).forward is not Precision.forward:
        call = partial(_within, precision, run.strategy.device, call)
    return step_call(step, call, third)


def _within(precision: Precision, device: Any, call: Callable[..., Any], *args: Any) -> Any:
    with precision.forward(device):
        return call(*args)


def step_call(
    step: Callable[..., Any], call: Callable[..., Any] | None = None, third: str = "dataloader_idx"
) -> Callable[..., Any]:
    """A function of (batch, batch_idx, dataloader_idx, optimizer_idx) that passes on those that `step` takes.

    Args:
        step: the user's function, whose signature is looked at once, here.
        call: what to call in its place, such as a wrapper around it; `step` itself by default.
        third: what the third argument is, if its name does not say so.
    """
    call = call or step
    match _taken(step, third):
        case (0, 1):
            return lambda batch, batch_idx, _dataloader_idx, _optimizer_idx=0: call(batch, batch_idx)
        case (0,):
            return lambda batch, _batch_idx, _dataloader_idx, _optimizer_idx=0: call(batch)
        case taken:
            return lambda *given: call(*(given[index] for index in taken))


def takes(step: Callable[..., Any], argument: str) -> bool:
    """Whether a step takes one of batch, batch_idx, dataloader_idx and optimizer_idx."""
    return _ARGUMENTS.index(argument) in _taken(step, argument)


def _taken(step: Callable[..., Any], third: str) -> tuple[int, ...]:
    """Which of the arguments a step takes: by their names, else by their places."""
    places = ("batch", "batch_idx", third)
    taken = []
    for place, parameter in enumerate(inspect.signature(step).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (0, 1)
        if parameter.name in _ARGUMENTS:
            taken.append(_ARGUMENTS.index(parameter.name))
        elif parameter.default is parameter.empty and place < len(places):
            taken.append(_ARGUMENTS.index(places[place]))
    return tuple(taken)


def transfer_call(run: Run) -> Callable[[Any, int], Any] | None:
    """A function of (batch, dataloader_idx) that brings a batch to the device; None where there is nothing to do.

    The hooks are the data module's where it overrides one, else the module's.
    """

    def own(name: str) -> Callable[..., Any] | None:
        owners = [owner for owner in (run.datamodule, run.module) if owner is not None and overridden(owner, name)]
        if len(owners) == 2:
            warnings.warn(f"Module and data module both have `{name}`: the data module's is used.", stacklevel=4)
        return getattr(owners[0], name) if owners else None

    before, move, after = map(own, ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"))
    device, precision = run.strategy.device, run.strategy.precision
    if device.type == "cpu" and not (before or move or after or precision.changes_batches):
        return None

    def transfer(batch: Any, dataloader_idx: int) -> Any:
        if before is not None:
            batch = before(batch, dataloader_idx)
        batch = move(batch, device, dataloader_idx) if move is not None else to_device(batch, device)
        if after is not None:
            batch = after(batch, dataloader_idx)
        return precision.convert_batch(batch)

    return run.span("batch_to_device", transfer)
