"""Strategies by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.errors import MisconfigurationError, nearest
from paceline.strategies.base import Strategy
from paceline.strategies.ddp import DDPStrategy
from paceline.strategies.fsdp import FSDPStrategy
from paceline.strategies.single_device import SingleDeviceStrategy

_STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "single_device": SingleDeviceStrategy,
    "ddp": DDPStrategy,
    "ddp_find_unused_parameters_true": lambda: DDPStrategy(find_unused_parameters=True),
    "fsdp": FSDPStrategy,
}


def register_strategy(name: str, factory: Callable[[], Strategy]) -> None:
    """Let `Trainer(strategy=name)` use a strategy of one's own.

    Args:
        name: what the Trainer will call it; one that is there already is replaced, unless it is paceline's.
        factory: makes one; a class without arguments, or a function.

    Raises:
        MisconfigurationError: paceline has a strategy of that name.
    """
    if name in (*_OWN, "auto"):
        raise MisconfigurationError(f"`{name}` is a strategy of paceline's: choose another name.")
    _STRATEGIES[name] = factory


_OWN = tuple(_STRATEGIES)


def make_strategy(choice: Any, num_workers: int) -> Strategy:
    """The strategy that `Trainer(strategy=)` asks for; "auto" goes by the number of workers.

    Raises:
        MisconfigurationError: no strategy has that name.
    """
    if isinstance(choice, Strategy):
        return choice
    if choice == "auto":
        choice = "ddp" if num_workers > 1 else "single_device"
    if choice not in _STRATEGIES:
        names = [*_STRATEGIES, "auto"]
        raise MisconfigurationError(
            f"`strategy={choice!r}` is not known. Use one of {', '.join(names)}, or a Strategy."
            f"{nearest(str(choice), names)}"
        )
    return _STRATEGIES[choice]()
