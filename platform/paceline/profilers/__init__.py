"""What takes how long in a run."""

from __future__ import annotations

from typing import Any

from paceline.errors import ArgumentTypeError, MisconfigurationError, nearest
from paceline.profilers.advanced import AdvancedProfiler
from paceline.profilers.profiler import Profiler
from paceline.profilers.pytorch import PyTorchProfiler
from paceline.profilers.simple import SimpleProfiler

__all__ = ["AdvancedProfiler", "Profiler", "PyTorchProfiler", "SimpleProfiler", "make_profiler"]

_BY_NAME: dict[str, type[Profiler]] = {
    "simple": SimpleProfiler,
    "advanced": AdvancedProfiler,
    "pytorch": PyTorchProfiler,
}


def make_profiler(choice: Any) -> Profiler | None:
    """The profiler that `Trainer(profiler=)` asks for.

    Args:
        choice: None for none; "simple", "advanced" or "pytorch", in capitals or not; or a Profiler.

    Raises:
        MisconfigurationError: there is none of that name.
        ArgumentTypeError: it is neither a name nor a Profiler.
    """
    if choice is None or isinstance(choice, Profiler):
        return choice
    known = ", ".join(f'"{name}"' for name in _BY_NAME)
    if not isinstance(choice, str):
        raise ArgumentTypeError(f"`profiler={choice!r}` is no Profiler. Use {known}, a Profiler object, or None.")
    kind = _BY_NAME.get(choice.lower())
    if kind is None:
        raise MisconfigurationError(
            f"`profiler={choice!r}` is unknown. Use {known}, a Profiler, or None.{nearest(choice.lower(), _BY_NAME)}"
        )
    return kind()
