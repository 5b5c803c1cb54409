"""ThroughputMonitor: how many batches and samples pass per second."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError
from paceline.values import batch_size_of

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class ThroughputMonitor(Callback):
    """Logs the speed of training, validation, test and prediction, over the last batches.

    The names are `<stage>/batches_per_second` and `<stage>/samples_per_second`, with several workers of all of them
    together under `<stage>/global/...` as well, and `<stage>/items_per_second` where lengths are given. Rows come with
    those of the steps, each `log_every_n_steps`.

    Args:
        batch_size_fn: the samples in a batch; by default the size of the first tensor in it.
        length_fn: the items in a batch, such as tokens; None leaves them out.
        window_size: batches that the speed is taken over.

    Raises:
        MisconfigurationError: the window is smaller than 2 batches; and, when a run starts, there is no logger.
    """

    def __init__(
        self,
        batch_size_fn: Callable[[Any], int] | None = None,
        length_fn: Callable[[Any], int] | None = None,
        window_size: int = 100,
    ) -> None:
        if window_size < 2:
            raise MisconfigurationError(f"`ThroughputMonitor(window_size={window_size})`: use at least 2 batches.")
        self.batch_size_fn = batch_size_fn
        self.length_fn = length_fn
        self.window_size = window_size
        self._ends: deque[tuple[float, int, int]] = deque(maxlen=window_size + 1)
        self._batches = self._samples = self._items = 0

    def _begin(self, trainer: Trainer) -> None:
        if not trainer.loggers and not trainer.config.fast_dev_run:
            raise MisconfigurationError(
                "ThroughputMonitor has nowhere to log to: give the Trainer a logger, or leave it out."
            )
        self._ends.clear()
        self._batches = self._samples = self._items = 0
        self._ends.append((time.perf_counter(), 0, 0))

    def _count(self, batch: Any) -> None:
        self._batches += 1
        self._samples += self.batch_size_fn(batch) if self.batch_size_fn else (batch_size_of(batch) or 1)
        self._items += self.length_fn(batch) if self.length_fn else 0
        self._ends.append((time.perf_counter(), self._samples, self._items))

    def _log(self, trainer: Trainer, stage: str, step: int) -> None:
        every = trainer.config.log_every_n_steps
        if not every or self._batches % every or len(self._ends) < 2:
            return
        (begin, samples_before, items_before), (end, samples, items) = self._ends[0], self._ends[-1]
        seconds = max(end - begin, 1e-9)
        values = {
            f"{stage}/batches_per_second": (len(self._ends) - 1) / seconds,
            f"{stage}/samples_per_second": (samples - samples_before) / seconds,
        }
        if self.length_fn is not None:
            values[f"{stage}/items_per_second"] = (items - items_before) / seconds
        if trainer.world_size > 1:
            # Workers take their steps together.
            whole = {name.replace("/", "/global/"): value * trainer.world_size for name, value in values.items()}
            values |= whole
        trainer.run.log_row(values, step)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._begin(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """What passes between epochs is not training."""
        self._ends.clear()
        self._ends.append((time.perf_counter(), self._samples, self._items))

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """One more batch."""
        self._count(batch)
        self._log(trainer, "train", max(trainer.run.progress.stepped_batches - 1, 0))

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._begin(trainer)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """One more batch."""
        self._count(batch)
        self._log(trainer, "test", self._batches - 1)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The time of a validation within a fit is none of training's."""
        if trainer.state.fn == "fit":
            self._ends.clear()
            self._ends.append((time.perf_counter(), self._samples, self._items))

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._begin(trainer)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """One more batch."""
        self._count(batch)
        self._log(trainer, "predict", self._batches - 1)
