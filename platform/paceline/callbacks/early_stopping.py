"""EarlyStopping: ends training when a value stops improving."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError
from paceline.values import not_logged

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class EarlyStopping(Callback):
    """Asks to stop when a logged value has not improved for a while.

    The decision is made anew at every check: a value that recovers before `min_epochs` lets training go on.

    Args:
        monitor: the logged name.
        min_delta: an improvement is a change by more than this.
        patience: checks without improvement after which training stops.
        mode: "min" or "max": which values are better.
        strict: a missing value is an error; else a warning.
        check_finite: stop when the value is not finite.
        stopping_threshold: stop once the value is better than this.
        divergence_threshold: stop once the value is worse than this.
        check_on_train_epoch_end: check at the end of training epochs, not of validations; by default only where
            there is no validation.
        verbose: say when the value improves.

    Attributes:
        best_score: the best value so far; infinite before the first.
        wait_count: checks since it improved.
        stopped_epoch: the epoch in which it asked to stop; 0 if it did not.
        stopping_reason: in words; "" if it did not.
    """

    reads_metrics: ClassVar[bool] = True

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
        verbose: bool = False,
    ) -> None:
        if mode not in ("min", "max"):
            raise MisconfigurationError(f'`EarlyStopping(mode={mode!r})`: use "min" or "max".')
        if type(patience) is not int or patience < 0:
            raise MisconfigurationError(f"`EarlyStopping(patience={patience!r})`: use an int of at least 0.")
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self.patience = patience
        self.mode = mode
        self.strict = strict
        self.check_finite = check_finite
        self.stopping_threshold = stopping_threshold
        self.divergence_threshold = divergence_threshold
        self.check_on_train_epoch_end = check_on_train_epoch_end
        self.verbose = verbose
        self.best_score = math.inf if mode == "min" else -math.inf
        self.wait_count = 0
        self.stopped_epoch = 0
        self.stopping_reason = ""

    @property
    def state_key(self) -> str:
        """By what it goes, so that two that go by different values both keep their state."""
        return f"{type(self).__qualname__}{{'monitor': {self.monitor!r}, 'mode': {self.mode!r}}}"

    def state_dict(self) -> dict[str, Any]:
        """Counts and best value; not the arguments, which the constructor says."""
        return {
            "wait_count": self.wait_count,
            "best_score": self.best_score,
            "stopped_epoch": self.stopped_epoch,
            "stopping_reason": self.stopping_reason,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self.wait_count = state_dict["wait_count"]
        self.best_score = float(state_dict["best_score"])
        self.stopped_epoch = state_dict["stopped_epoch"]
        self.stopping_reason = state_dict.get("stopping_reason", "")

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Check after a validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not self._at_train_epoch_end(trainer):
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Check after a training epoch."""
        if self._at_train_epoch_end(trainer):
            self._check(trainer)

    def _at_train_epoch_end(self, trainer: Trainer) -> bool:
        if self.check_on_train_epoch_end is not None:
            return self.check_on_train_epoch_end
        return trainer.fit_loop.validation is None

    def _check(self, trainer: Trainer) -> None:
        if trainer.config.fast_dev_run:
            return
        values = trainer.run.metrics.values.callback
        if self.monitor not in values:
            text = not_logged("EarlyStopping", self.monitor, values)
            if self.strict:
                raise MisconfigurationError(text)
            warnings.warn(text, stacklevel=2)
            return
        reason = self.judge(values[self.monitor])
        if reason:
            self.stopped_epoch = trainer.current_epoch
            trainer.run.stop_requests.add(self.state_key)
            trainer.run.tell(f"EarlyStopping: {reason}")
        elif self.stopping_reason:
            # It asked before, was not allowed to yet, and the value has recovered since.
            self.stopped_epoch = 0
            trainer.run.stop_requests.discard(self.state_key)
        self.stopping_reason = reason

    def judge(self, value: float) -> str:
        """Take one value in; why to stop after it, or "" to go on."""
        if self.check_finite and not math.isfinite(value):
            return f"{self.monitor} = {value} is not finite; its best was {self.best_score:.5g}."
        if self.stopping_threshold is not None and self._better(value, self.stopping_threshold):
            return f"{self.monitor} = {value:.5g} has reached the threshold {self.stopping_threshold}."
        if self.divergence_threshold is not None and self._better(self.divergence_threshold, value):
            return f"{self.monitor} = {value:.5g} is worse than the threshold {self.divergence_threshold}."
        margin = self.min_delta if self.mode == "min" else -self.min_delta
        if self._better(value + margin, self.best_score):
            self.best_score = value
            self.wait_count = 0
            return ""
        self.wait_count += 1
        if self.wait_count >= self.patience:
            return (
                f"{self.monitor} has not improved on its best, {self.best_score:.5g}, "
                f"in {self.wait_count} checks; it is {value:.5g}."
            )
        return ""

    def _better(self, value: float, than: float) -> bool:
        return value < than if self.mode == "min" else value > than
