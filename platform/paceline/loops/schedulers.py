"""Stepping learning-rate schedulers, where and as often as their configurations say."""

from __future__ import annotations

import warnings

from paceline.errors import MisconfigurationError
from paceline.loops.optimizers import SchedulerConfig
from paceline.progress import FitProgress
from paceline.values import Values


class Schedulers:
    """The schedulers of one fit."""

    def __init__(self, configs: list[SchedulerConfig], progress: FitProgress) -> None:
        self._per_step = [c for c in configs if c.interval == "step" and not c.on_plateau]
        self._per_epoch = [c for c in configs if c.interval == "epoch" and not c.on_plateau]
        self._on_plateau = [c for c in configs if c.on_plateau]
        self._progress = progress

    def after_optimizer_step(self) -> None:
        """Step those that go by optimizer steps."""
        for config in self._per_step:
            if self._progress.global_step % config.frequency == 0:
                self._step(config)

    def after_last_batch(self) -> None:
        """Step those that go by epochs, once an optimizer has stepped at all."""
        for config in self._per_epoch:
            if (self._progress.current_epoch + 1) % config.frequency == 0 and self._progress.global_step:
                self._step(config)

    def after_epoch(self, values: Values, missing_is_final: bool) -> None:
        """Step those on a plateau whose metric is new.

        Args:
            values: what was logged.
            missing_is_final: whether a metric that is not there yet will not come either.

        Raises:
            MisconfigurationError: a strict scheduler's metric was never logged.
        """
        for config in self._on_plateau:
            assert config.monitor is not None
            if config.monitor in values.fresh:
                if (self._progress.current_epoch + 1) % config.frequency == 0 or config.interval == "step":
                    self._step(config, values.callback[config.monitor])
            elif config.monitor not in values.callback and missing_is_final:
                text = (
                    f"A scheduler monitors `{config.monitor}`, which was not logged. "
                    f"Logged were: {sorted(values.callback)}."
                )
                if config.strict:
                    raise MisconfigurationError(text)
                warnings.warn(text, stacklevel=2)
        values.fresh.clear()

    def _step(self, config: SchedulerConfig, *metric: float) -> None:
        self._progress.scheduler.ready()
        config.scheduler.step(*metric)
        self._progress.scheduler.completed()
