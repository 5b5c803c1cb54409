"""BasePredictionWriter: predictions go to storage while, or after, they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError, nearest

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer

_INTERVALS = ("batch", "epoch", "batch_and_epoch")


class BasePredictionWriter(Callback):
    """Override `write_on_batch_end`, `write_on_epoch_end` or both. Every worker writes its own predictions.

    Args:
        write_interval: "batch", "epoch" or "batch_and_epoch": which of the two is called.

    Raises:
        MisconfigurationError: it is another one.
    """

    def __init__(self, write_interval: str = "batch") -> None:
        if write_interval not in _INTERVALS:
            raise MisconfigurationError(
                f"`{type(self).__name__}(write_interval={write_interval!r})`: use one of {', '.join(_INTERVALS)}."
                f"{nearest(str(write_interval), _INTERVALS)}"
            )
        self.write_interval = write_interval

    @property
    def writes_batches(self) -> bool:
        """Whether `write_on_batch_end` is called."""
        return self.write_interval != "epoch"

    @property
    def writes_epochs(self) -> bool:
        """Whether `write_on_epoch_end` is called, which needs all predictions in memory until then."""
        return self.write_interval != "batch"

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the predictions of one batch.

        Args:
            trainer: the live trainer.
            pl_module: the module.
            prediction: what `predict_step` returned.
            batch_indices: of the batch's samples in the data set; None where the loader does not tell.
            batch: the batch.
            batch_idx: its index among this worker's batches.
            dataloader_idx: its loader's index.
        """

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: Module,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write all predictions of this worker.

        Args:
            trainer: the live trainer.
            pl_module: the module.
            predictions: for each loader a list with what `predict_step` returned for each batch, on the CPU.
            batch_indices: for each loader a list with the indices of each batch's samples, as above.
        """

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Hand one batch on."""
        if self.writes_batches:
            indices = trainer.predict_loop.batch_indices
            self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Hand everything on."""
        if self.writes_epochs:
            loop = trainer.predict_loop
            predictions = [[prediction for _, prediction in one] for one in loop.predictions]
            self.write_on_epoch_end(trainer, pl_module, predictions, loop.epoch_batch_indices)
