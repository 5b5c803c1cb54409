"""Timer: measures how long stages take, and ends training when its time is up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from paceline.callbacks.callback import Callback
from paceline.durations import parse_duration
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer

_STAGES = ("train", "validate", "test")


class Timer(Callback):
    """Measures training, validation and test, and asks training to stop after a while.

    The time of validations within a fit is part of its training time. A fit that goes on from a checkpoint goes on
    counting from there.

    Args:
        duration: of training: "DD:HH:MM:SS", a timedelta, or a dict of its keywords; None only measures.
        interval: look at the clock after each "step", or each "epoch".
        verbose: say it when time is up.

    Raises:
        MisconfigurationError: the duration or the interval is not understood.
    """

    def __init__(
        self,
        duration: str | timedelta | Mapping[str, float] | None = None,
        interval: str = "step",
        verbose: bool = True,
    ) -> None:
        if interval not in ("step", "epoch"):
            raise MisconfigurationError(f'`Timer(interval={interval!r})`: use "step" or "epoch".')
        self.duration = None if duration is None else parse_duration(duration, "duration")
        self.interval = interval
        self.verbose = verbose
        self._start = dict.fromkeys(_STAGES, 0.0)
        self._end = dict.fromkeys(_STAGES, 0.0)
        self._offset_s = 0.0

    def start_time(self, stage: str = "train") -> float | None:
        """When a stage began, in seconds of `time.monotonic`; None if it did not yet."""
        return self._start[stage] or None

    def end_time(self, stage: str = "train") -> float | None:
        """When a stage ended; None if it did not yet."""
        return self._end[stage] or None

    def time_elapsed(self, stage: str = "train") -> float:
        """Seconds that "train", "validate" or "test" took so far, those before a resume included."""
        start, end = self._start[stage], self._end[stage]
        offset = self._offset_s if stage == "train" else 0.0
        return offset + ((end or time.monotonic()) - start if start else 0.0)

    def time_remaining(self) -> float | None:
        """Seconds until training is asked to stop; None without a duration."""
        return None if self.duration is None else self.duration.total_seconds() - self.time_elapsed()

    def state_dict(self) -> dict[str, Any]:
        """The time that training took."""
        return {"time_elapsed": {"train": self.time_elapsed()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._offset_s = float(state_dict["time_elapsed"]["train"])
        self._start["train"] = self._end["train"] = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A second fit goes on counting; there may be no time left for it."""
        self._offset_s, self._start["train"], self._end["train"] = self.time_elapsed(), 0.0, 0.0
        self._stop_if_over(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start["train"] = time.monotonic()

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Stop the clock."""
        self._end["train"] = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Look at the clock."""
        if self.interval == "step":
            self._stop_if_over(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Look at the clock."""
        if self.interval == "epoch":
            self._stop_if_over(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start["validate"], self._end["validate"] = time.monotonic(), 0.0

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Stop the clock."""
        self._end["validate"] = time.monotonic()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start["test"], self._end["test"] = time.monotonic(), 0.0

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Stop the clock."""
        self._end["test"] = time.monotonic()

    def _stop_if_over(self, trainer: Trainer) -> None:
        remaining = self.time_remaining()
        if remaining is None or remaining > 0 or "Timer" in trainer.run.stop_requests:
            return
        trainer.run.stop_requests.add("Timer")
        if self.verbose:
            trainer.run.tell(f"Timer: {self.duration} of training are over.")
