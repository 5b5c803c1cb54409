"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.errors import MisconfigurationError, nearest
from paceline.strategies.base import Strategy
from paceline.strategies.ddp import DDPStrategy
from paceline.strategies.single_device import SingleDeviceStrategy

_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "single_device": SingleDeviceStrategy,
    "ddp": DDPStrategy,
    "ddp_find_unused_parameters_true": lambda: DDPStrategy(find_unused_parameters=True),
}


def make_strategy(choice: Any, num_workers: int) -> Strategy:
    """The strategy that `Trainer(strategy=)` asks for; "auto" goes by the number of workers.

    Raises:
        MisconfigurationError: no strategy has that name, or it cannot run on so many workers.
    """
    if isinstance(choice, Strategy):
        strategy = choice
    else:
        if choice == "auto":
            choice = "ddp" if num_workers > 1 else "single_device"
        if choice not in _STRATEGIES:
            names = [*_STRATEGIES, "auto"]
            raise MisconfigurationError(
                f"`strategy={choice!r}` is not known. Use one of {', '.join(names)}, or a Strategy."
                f"{nearest(str(choice), names)}"
            )
        strategy = _STRATEGIES[choice]()
    if num_workers > 1 and not strategy.spans_workers:
        raise MisconfigurationError(
            f'`strategy="{strategy.name}"` runs on one device, but {num_workers} are asked for. Use "ddp" or "auto".'
        )
    return strategy
