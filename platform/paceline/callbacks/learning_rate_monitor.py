"""LearningRateMonitor: learning rates, and what else changes with them, as curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer

_INTERVALS = (None, "step", "epoch")


class LearningRateMonitor(Callback):
    """Logs the learning rate of each parameter group of each optimizer.

    The names are `lr-SGD`, with `-1`, `-2`, ... for further optimizers of a kind, and `/pg1`, `/pg2`, ... where there
    are several groups; a group's own "name", or that of the scheduler's configuration, takes its place.

    Args:
        logging_interval: "step" (when rows of steps are logged), "epoch" (as epochs begin), or None: "step" where a
            scheduler goes by steps, and else "epoch".
        log_momentum: log momentum, or Adam's first beta, as well, under `<name>-momentum`.
        log_weight_decay: log weight decay as well, under `<name>-weight_decay`.

    Raises:
        MisconfigurationError: another interval; and, when a fit starts, there is no logger.
    """

    def __init__(
        self, logging_interval: str | None = None, log_momentum: bool = False, log_weight_decay: bool = False
    ) -> None:
        if logging_interval not in _INTERVALS:
            raise MisconfigurationError(
                f'`LearningRateMonitor(logging_interval={logging_interval!r})`: use "step", "epoch" or None.'
            )
        self.logging_interval = logging_interval
        self.log_momentum = log_momentum
        self.log_weight_decay = log_weight_decay
        self._by_step = False
        self._steps = 0

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """See whether there is a logger, and how the schedulers go."""
        if not trainer.loggers and not trainer.config.fast_dev_run:
            raise MisconfigurationError(
                "LearningRateMonitor has nowhere to log to: give the Trainer a logger, or leave it out."
            )
        schedulers = trainer.lr_scheduler_configs
        self._by_step = self.logging_interval == "step" or (
            self.logging_interval is None and any(config.interval == "step" for config in schedulers)
        )
        self._steps = trainer.run.progress.stepped_batches

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """One row at the beginning of each epoch."""
        if not self._by_step:
            trainer.run.log_row(self._values(trainer), trainer.run.progress.stepped_batches)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """One row with those of the steps; a step may take several batches."""
        every, steps = trainer.config.log_every_n_steps, trainer.run.progress.stepped_batches
        if self._by_step and every and steps > self._steps and steps % every == 0:
            trainer.run.log_row(self._values(trainer))
        self._steps = steps

    def _values(self, trainer: Trainer) -> dict[str, float]:
        values = {}
        for group, name in _named_groups(trainer):
            values[name] = float(group["lr"])
            if self.log_momentum:
                values[f"{name}-momentum"] = float(
                    group["betas"][0] if "betas" in group else group.get("momentum", 0.0)
                )
            if self.log_weight_decay:
                values[f"{name}-weight_decay"] = float(group.get("weight_decay", 0.0))
        return values


def _named_groups(trainer: Trainer) -> Iterator[tuple[dict[str, Any], str]]:
    """Every parameter group that there is now, with its name: groups may be added while training goes on."""
    own = {config.optimizer_idx: config.name for config in trainer.lr_scheduler_configs if config.name}
    kinds: Counter[str] = Counter()
    for index, optimizer in enumerate(trainer.optimizers):
        base = own.get(index) or f"lr-{type(optimizer).__name__}"
        earlier = kinds[base]
        kinds[base] += 1
        if earlier:
            base = f"{base}-{earlier}"
        groups = optimizer.param_groups
        for place, group in enumerate(groups, 1):
            is_alone = len(groups) == 1 and "name" not in group
            yield group, base if is_alone else f"{base}/{group.get('name', f'pg{place}')}"
