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
    together under `<stage>/global/...` as well, and `<stage>/items_per_second` where lengths are given; stages are
    "train", "validate", "test" and "predict". Rows come every `log_every_n_steps` steps, outside training every so
    many batches. What passes between epochs, and a validation within a fit, is none of training's time.

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
        # When each of the last batches ended, and the samples and items in it; the first entry is where the clock
        # started.
        self._ends: deque[tuple[float, int, int]] = deque(maxlen=window_size + 1)
        self._steps = self._predicted = 0

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """See whether there is a logger."""
        if not trainer.loggers and not trainer.config.fast_dev_run:
            raise MisconfigurationError(
                "ThroughputMonitor has nowhere to log to: give the Trainer a logger, or leave it out."
            )
        self._predicted = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start()
        self._steps = trainer.run.progress.stepped_batches

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """One more batch; a step may take several."""
        self._count(batch)
        steps = trainer.run.progress.stepped_batches
        if steps > self._steps:
            self._log(trainer, "train", steps - 1)
        self._steps = steps

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """One more batch."""
        self._count(batch)
        if not trainer.sanity_checking:
            self._log(trainer, "validate", trainer.run.progress.evaluated_batches)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Training, if there is any, goes on."""
        self._start()

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start()

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """One more batch."""
        self._count(batch)
        self._log(trainer, "test", trainer.run.progress.evaluated_batches)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._start()

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """One more batch."""
        self._count(batch)
        self._log(trainer, "predict", self._predicted)
        self._predicted += 1

    def _start(self) -> None:
        self._ends.clear()
        self._ends.append((time.perf_counter(), 0, 0))

    def _count(self, batch: Any) -> None:
        if batch is None:  # training passes over such batches
            return
        samples = self.batch_size_fn(batch) if self.batch_size_fn else (batch_size_of(batch) or 1)
        self._ends.append((time.perf_counter(), samples, self.length_fn(batch) if self.length_fn else 0))

    def _log(self, trainer: Trainer, stage: str, step: int) -> None:
        every = trainer.config.log_every_n_steps
        if not every or (step + 1) % every or not trainer.is_global_zero:
            return
        (start_s, _, _), *batches = self._ends
        seconds = max(batches[-1][0] - start_s, 1e-9)
        values = {
            f"{stage}/batches_per_second": len(batches) / seconds,
            f"{stage}/samples_per_second": sum(samples for _, samples, _ in batches) / seconds,
        }
        if self.length_fn is not None:
            values[f"{stage}/items_per_second"] = sum(items for _, _, items in batches) / seconds
        if trainer.world_size > 1:
            # Workers take their steps together.
            values |= {name.replace("/", "/global/"): value * trainer.world_size for name, value in values.items()}
        trainer.run.log_row(values, step)
