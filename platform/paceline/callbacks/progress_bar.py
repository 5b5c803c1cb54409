"""The progress bar: workers say how far they are, the driver's terminal shows it."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class TQDMProgressBar(Callback):
    """Shows epoch, batches and the values logged with `prog_bar=True`.

    In a terminal it is a bar, with one below it for a validation within a fit; elsewhere one line is printed per epoch.

    Args:
        refresh_every_s: seconds between two updates; 0 updates with each batch.

    Raises:
        MisconfigurationError: the seconds are negative.
    """

    def __init__(self, refresh_every_s: float = 0.2) -> None:
        if refresh_every_s < 0:
            raise MisconfigurationError(
                f"`TQDMProgressBar(refresh_every_s={refresh_every_s})`: use 0, to update with each batch, or more."
            )
        self.refresh_every_s = refresh_every_s
        self._next_s = 0.0
        self._what = ""
        self._done = 0
        self._total = 0.0
        self._train_total = 0.0

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """The clock of this process, which may be another than that of the last run."""
        self._next_s = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A new bar."""
        self._train_total = trainer.num_training_batches
        done = trainer.run.progress.batches_in_epoch
        self._show(trainer, f"Epoch {trainer.current_epoch}", done, self._train_total)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the bar, if the last time is long enough ago."""
        if self._is_due():
            self._show(trainer, f"Epoch {trainer.current_epoch}", batch_idx + 1, self._train_total)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The epoch's values."""
        done = trainer.run.progress.batches_in_epoch
        self._show(trainer, f"Epoch {trainer.current_epoch}", done, self._train_total, is_over=True)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a validation runs."""
        if trainer.sanity_checking:
            self._begin(trainer, "Sanity check", trainer.num_sanity_val_batches)
        else:
            self._begin(trainer, "Validating", trainer.num_val_batches)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """All batches, and the values of the pass."""
        self._show(trainer, self._what, self._done, self._total)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a test runs."""
        self._begin(trainer, "Testing", trainer.num_test_batches)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        """All batches, and the values of the pass."""
        self._show(trainer, self._what, self._done, self._total)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a prediction runs."""
        self._begin(trainer, "Predicting", trainer.num_predict_batches)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        """All batches."""
        self._show(trainer, self._what, self._done, self._total)

    def _begin(self, trainer: Trainer, what: str, batches: list[float]) -> None:
        self._what, self._done, self._total = what, 0, sum(batches)
        self._show(trainer, what, 0, self._total)

    def _advance(self, trainer: Trainer) -> None:
        self._done += 1
        if self._is_due():
            self._show(trainer, self._what, self._done, self._total)

    def _is_due(self) -> bool:
        now = time.perf_counter()
        if now < self._next_s:
            return False
        self._next_s = now + self.refresh_every_s
        return True

    def _show(self, trainer: Trainer, what: str, done: int, total: float, is_over: bool = False) -> None:
        if trainer.is_global_zero:
            values = dict(trainer.run.metrics.values.progress_bar)
            known = total if total != math.inf else None
            level = int(trainer.state.fn == "fit" and trainer.validating)
            trainer.run.link.show(
                {"what": what, "done": done, "total": known, "values": values, "is_over": is_over, "level": level}
            )


class Display:
    """The driver's side: draws what workers show and prints what they tell, on the standard error stream."""

    def __init__(self) -> None:
        self._bars: list[tqdm[Any]] = []
        self._is_terminal = sys.stderr.isatty()

    def show(self, progress: dict[str, Any]) -> None:
        """Draw a bar; where there is no terminal, print a line when an epoch is over."""
        what, done, total = progress["what"], progress["done"], progress["total"]
        values = {name: f"{value:.4g}" for name, value in progress["values"].items()}
        if not self._is_terminal:
            if progress["is_over"]:
                self.tell("  ".join([what, *(f"{name}={value}" for name, value in values.items())]))
            return
        level = min(progress["level"], len(self._bars))
        self._remove(level + 1)
        bar = self._bars[level] if level < len(self._bars) else None
        if bar is not None and bar.desc == what and bar.total == total and bar.n <= done:
            bar.n = done
            bar.set_postfix(values)
            return
        self._remove(level)
        bar = tqdm(desc=what, total=total, initial=done, postfix=values, position=level, dynamic_ncols=True)
        self._bars.append(bar)

    def tell(self, text: str) -> None:
        """Print lines above the bars."""
        if self._bars:
            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """The upper bar stays in the terminal as it stands."""
        self._remove(1)
        for bar in self._bars:
            bar.close()
        self._bars.clear()

    def _remove(self, level: int) -> None:
        """Clear the bars from a level down."""
        while len(self._bars) > level:
            bar = self._bars.pop()
            bar.leave = False
            bar.close()
