"""ModelSummary: a table of the module's layers before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from paceline.callbacks.callback import Callback

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class ModelSummary(Callback):
    """Prints the module's layers and their parameters when a fit starts.

    Args:
        max_depth: levels of nested layers to show; -1 all, 0 nothing.
    """

    def __init__(self, max_depth: int = 1) -> None:
        self.max_depth = max_depth

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Print the table."""
        if self.max_depth:
            trainer.run.tell(summarize(pl_module, self.max_depth))


def summarize(module: nn.Module, max_depth: int = 1) -> str:
    """The table: name, type and number of parameters of each layer, and totals."""
    layers = [
        (name, layer)
        for name, layer in module.named_modules()
        if name and (max_depth == -1 or name.count(".") < max_depth)
    ]
    rows = [(name, type(layer).__name__, f"{_count(layer):,}") for name, layer in layers]
    widths = [max(len(row[column]) for row in [*rows, ("layer", "type", "parameters")]) for column in range(3)]
    lines = [
        f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {count:>{widths[2]}}"
        for name, kind, count in [("layer", "type", "parameters"), *rows]
    ]
    trainable = sum(p.numel() for p in module.parameters() if p.requires_grad)
    size = sum(p.numel() * p.element_size() for p in module.parameters()) / 1e6
    lines.append(f"{_count(module):,} parameters, {trainable:,} of them trainable, {size:.1f} MB")
    return "\n".join(lines)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
