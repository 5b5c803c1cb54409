"""Which callbacks a run has: those given, those the module brings, and defaults where none of a kind is there."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from paceline.callbacks.callback import Callback
from paceline.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.callbacks.model_summary import ModelSummary
from paceline.callbacks.progress_bar import TQDMProgressBar
from paceline.callbacks.timer import Timer
from paceline.config import TrainerConfig
from paceline.errors import ArgumentTypeError, MisconfigurationError


def with_defaults(config: TrainerConfig) -> list[Callback]:
    """The trainer's callbacks: those given and the defaults, checkpoints last.

    Raises:
        ArgumentTypeError: one is no Callback.
        MisconfigurationError: one was given whose kind is switched off.
    """
    given = _as_list(config.callbacks)
    for callback in given:
        if not isinstance(callback, Callback):
            what = callback if isinstance(callback, type) else type(callback)
            raise ArgumentTypeError(f"`callbacks` holds {what.__name__}, which is no Callback object.")
    chosen = list(given)
    for kind, argument in (
        (TQDMProgressBar, "enable_progress_bar"),
        (ModelSummary, "enable_model_summary"),
        (ModelCheckpoint, "enable_checkpointing"),
    ):
        is_there = any(isinstance(callback, kind) for callback in given)
        is_enabled = getattr(config, argument)
        if is_there and not is_enabled:
            raise MisconfigurationError(
                f"`{argument}=False`, but `callbacks` holds a {kind.__name__}: remove one of the two."
            )
        if is_enabled and not is_there:
            chosen.append(kind())
    _refuse_two_bars(chosen)
    return in_order([*_for_arguments(config, chosen), *chosen])


def _refuse_two_bars(callbacks: list[Callback]) -> None:
    bars = [type(callback).__name__ for callback in callbacks if isinstance(callback, TQDMProgressBar)]
    if len(bars) > 1:
        raise MisconfigurationError(f"`callbacks` holds {len(bars)} progress bars, {', '.join(bars)}: keep one.")


def _for_arguments(config: TrainerConfig, callbacks: list[Callback]) -> list[Callback]:
    """The callbacks that do what an argument of the trainer asks for."""
    added: list[Callback] = []
    if isinstance(config.accumulate_grad_batches, dict):
        added.append(GradientAccumulationScheduler(config.accumulate_grad_batches))
    if config.accumulate_grad_batches != 1 and any(isinstance(c, GradientAccumulationScheduler) for c in callbacks):
        raise MisconfigurationError(
            "`accumulate_grad_batches` and a GradientAccumulationScheduler were both given: give one of them."
        )
    if config.max_time is not None:
        if any(isinstance(callback, Timer) for callback in callbacks):
            warnings.warn("`max_time` is ignored, since `callbacks` holds a Timer.", stacklevel=5)
        else:
            added.append(Timer(config.max_time, interval="step"))
    return added


def with_module_callbacks(callbacks: list[Callback], module: Any) -> list[Callback]:
    """The callbacks with those of the module's `configure_callbacks`, which take the place of others of their type."""
    own = _as_list(module.configure_callbacks())
    kinds = {type(callback) for callback in own}
    return in_order([callback for callback in callbacks if type(callback) not in kinds] + own)


def in_order(callbacks: list[Callback]) -> list[Callback]:
    """The callbacks as they were given, checkpoints last, so that these see the others' newest state.

    Raises:
        MisconfigurationError: two have the same `state_key`.
    """
    counts = Counter(callback.state_key for callback in callbacks)
    twice = [key for key, count in counts.items() if count > 1]
    if twice:
        raise MisconfigurationError(
            f"Two callbacks have the state key `{twice[0]}`: checkpoints could not tell them apart. Give one of them "
            "other arguments, or a `state_key` of its own."
        )
    return sorted(callbacks, key=lambda callback: isinstance(callback, ModelCheckpoint))


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
