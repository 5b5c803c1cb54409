"""ValidationSchedule: after which training batches a fit validates."""

from __future__ import annotations

import math

from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.progress import FitProgress


class ValidationSchedule:
    """What `check_val_every_n_epoch` and `val_check_interval` mean for epochs of a certain length.

    Args:
        config: has the two arguments.
        epoch_length: training batches in an epoch; infinity when unknown.

    Raises:
        MisconfigurationError: the interval is longer than an epoch, or a share of an epoch of unknown length.
    """

    def __init__(self, config: TrainerConfig, epoch_length: float) -> None:
        self._every_n_epochs = config.check_val_every_n_epoch
        self._interval = _batches(config.val_check_interval, epoch_length)
        if self._interval is not None and self._interval > epoch_length and self._every_n_epochs is not None:
            raise MisconfigurationError(
                f"`val_check_interval={self._interval}` is more than the {int(epoch_length)} training batches of an "
                "epoch: no validation would run. Use a smaller number, or `check_val_every_n_epoch=None` to count "
                "across epochs."
            )

    def includes(self, epoch: int) -> bool:
        """Whether validations run in an epoch, counted from 0."""
        return self._every_n_epochs is None or (epoch + 1) % self._every_n_epochs == 0

    def is_due(self, progress: FitProgress, is_last: bool) -> bool:
        """Whether a validation belongs after the batch that was trained on last.

        Args:
            progress: where the fit stands.
            is_last: whether that batch was the last of its epoch.
        """
        if self._every_n_epochs is None:
            assert self._interval is not None  # which the configuration sees to
            return progress.batch.total.processed % self._interval == 0
        if not self.includes(progress.current_epoch):
            return False
        return is_last if self._interval is None else progress.batches_in_epoch % self._interval == 0


def _batches(interval: int | float, epoch_length: float) -> int | None:
    """Training batches between two validations; None for one at the end of each epoch, wherever that is."""
    if isinstance(interval, int):
        return interval
    if interval == 1.0:
        return None
    if epoch_length == math.inf:
        raise MisconfigurationError(
            f"`val_check_interval={interval}` is a share of a training loader that has no length. Use an int number of "
            "batches, or 1.0 for the end of each epoch."
        )
    return max(1, int(epoch_length * interval))
