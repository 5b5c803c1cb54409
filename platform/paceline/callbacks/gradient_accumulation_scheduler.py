"""GradientAccumulationScheduler: how many batches make an optimizer step, by epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class GradientAccumulationScheduler(Callback):
    """Changes the number of batches whose gradients make one optimizer step.

    Args:
        scheduling: from which epoch on, counted from 0, how many batches; 1 until the first of them.

    Raises:
        MisconfigurationError: an epoch is no int from 0, or a number no int from 1, or there is none.
    """

    def __init__(self, scheduling: Mapping[int, int]) -> None:
        for epoch, batches in scheduling.items():
            if type(epoch) is not int or epoch < 0 or type(batches) is not int or batches < 1:
                raise MisconfigurationError(
                    f"`GradientAccumulationScheduler({dict(scheduling)!r})`: use epochs from 0 as keys and numbers of "
                    "batches from 1 as values, as in {0: 1, 4: 2}."
                )
        if not scheduling:
            raise MisconfigurationError("`GradientAccumulationScheduler({})` has no epoch. Use a dict such as {4: 2}.")
        self.scheduling = {0: 1, **scheduling}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Set the number for this epoch."""
        begun = [epoch for epoch in self.scheduling if epoch <= trainer.current_epoch]
        trainer.accumulate_grad_batches = self.scheduling[max(begun)]
