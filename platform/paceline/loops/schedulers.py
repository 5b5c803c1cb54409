"""Stepping learning-rate schedulers, where and as often as their configurations say."""

from __future__ import annotations

import warnings
from typing import Any

from paceline.errors import MisconfigurationError
from paceline.hooks import overridden
from paceline.loops.optimizers import SchedulerConfig
from paceline.loops.run import Run
from paceline.values import Values


class Schedulers:
    """The schedulers of one fit; those of manual optimization are stepped by the module.

    Args:
        run: whose schedulers.
    """

    def __init__(self, run: Run) -> None:
        configs = run.scheduler_configs if run.module.automatic_optimization else []
        self._per_step = [c for c in configs if c.interval == "step"]
        self._per_epoch = [c for c in configs if c.interval == "epoch" and not c.reduce_on_plateau]
        self._on_plateau = [c for c in configs if c.interval == "epoch" and c.reduce_on_plateau]
        self._progress = run.progress
        self._metrics = run.metrics
        self._own_step = run.module.lr_scheduler_step if overridden(run.module, "lr_scheduler_step") else None
        self._seen = list(run.progress.optimizer_steps)

    def after_optimizer_step(self) -> None:
        """Step those that go by steps of an optimizer that has just stepped."""
        if not self._per_step:
            return
        before, self._seen = self._seen, list(self._progress.optimizer_steps)
        for config in self._per_step:
            steps = self._seen[config.optimizer_idx]
            if steps == before[config.optimizer_idx] or steps % config.frequency:
                continue
            if not config.reduce_on_plateau:
                self._step(config)
            elif config.monitor in self._metrics.values.callback:
                self._step(config, self._metrics.values.callback[config.monitor])

    def after_last_batch(self) -> None:
        """Step those that go by epochs, once an optimizer has stepped at all."""
        for config in self._per_epoch:
            if self._is_due(config):
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
            if config.monitor in values.fresh and self._is_due(config):
                self._step(config, values.callback[config.monitor])
        if missing_is_final:
            for config in (*self._on_plateau, *self._per_step):
                if config.reduce_on_plateau and config.monitor not in values.callback:
                    _complain(config, values)
        values.fresh.clear()

    def _is_due(self, config: SchedulerConfig) -> bool:
        has_stepped = self._progress.optimizer_steps[config.optimizer_idx] > 0
        return has_stepped and (self._progress.current_epoch + 1) % config.frequency == 0

    def _step(self, config: SchedulerConfig, metric: Any = None) -> None:
        self._progress.scheduler.total.ready += 1
        if self._own_step is not None:
            self._own_step(config.scheduler, metric)
        elif metric is None:
            config.scheduler.step()
        else:
            config.scheduler.step(metric)
        self._progress.scheduler.total.completed += 1


def _complain(config: SchedulerConfig, values: Values) -> None:
    text = f"A scheduler monitors `{config.monitor}`, which was not logged. Logged were: {sorted(values.callback)}."
    if config.strict:
        raise MisconfigurationError(text)
    warnings.warn(text, stacklevel=2)
