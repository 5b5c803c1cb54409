"""The progress bar: workers say how far they are, the driver's terminal shows it."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from paceline.callbacks.callback import Callback

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class TQDMProgressBar(Callback):
    """Shows epoch, batches and the values logged with `prog_bar=True`.

    In a terminal it is a bar; elsewhere one line is printed per epoch.

    Args:
        refresh_every_s: seconds between two updates.
    """

    def __init__(self, refresh_every_s: float = 0.2) -> None:
        self.refresh_every_s = refresh_every_s
        self._next_s = 0.0
        self._what = ""
        self._done = 0
        self._total = 0.0
        self._train_total = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A new bar."""
        self._train_total = trainer.fit_loop.feed.num_batches

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Move the bar, if the last time is long enough ago."""
        now = time.perf_counter()
        if now >= self._next_s:
            self._next_s = now + self.refresh_every_s
            self._show(trainer, f"Epoch {trainer.current_epoch}", batch_idx + 1, self._train_total)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The epoch's values."""
        done = trainer.run.progress.batches_in_epoch
        self._show(trainer, f"Epoch {trainer.current_epoch}", done, self._train_total, is_over=True)

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a validation runs."""
        self._begin(trainer, "Sanity check" if trainer.sanity_checking else "Validating")

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a test runs."""
        self._begin(trainer, "Testing")

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Say that a prediction runs."""
        self._begin(trainer, "Predicting")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Move the bar."""
        self._advance(trainer)

    def _begin(self, trainer: Trainer, what: str) -> None:
        self._what, self._done = what, 0
        loop = getattr(trainer.run.loop, "validation", trainer.run.loop)
        self._total = sum(feed.num_batches for feed in loop.feeds)

    def _advance(self, trainer: Trainer) -> None:
        self._done += 1
        now = time.perf_counter()
        if now >= self._next_s:
            self._next_s = now + self.refresh_every_s
            self._show(trainer, self._what, self._done, self._total)

    def _show(self, trainer: Trainer, what: str, done: int, total: float, is_over: bool = False) -> None:
        if trainer.is_global_zero:
            values = dict(trainer.run.metrics.values.progress_bar)
            known = total if total != math.inf else None
            trainer.run.link.show({"what": what, "done": done, "total": known, "values": values, "is_over": is_over})


class Display:
    """The driver's side: draws what workers show and prints what they tell, on the standard error stream."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._what = ""
        self._is_terminal = sys.stderr.isatty()

    def show(self, progress: dict[str, Any]) -> None:
        """Draw the bar; where there is no terminal, print a line when an epoch is over."""
        values = {name: f"{value:.4g}" for name, value in progress["values"].items()}
        if not self._is_terminal:
            if progress["is_over"]:
                self.tell("  ".join([progress["what"], *(f"{name}={value}" for name, value in values.items())]))
            return
        if self._bar is None:
            self._bar = tqdm(leave=False, dynamic_ncols=True)
        if self._what != progress["what"]:
            self._what = progress["what"]
            self._bar.reset(progress["total"])
        self._bar.set_description(self._what, refresh=False)
        self._bar.n = progress["done"]
        self._bar.set_postfix(values, refresh=False)
        self._bar.refresh()

    def tell(self, text: str) -> None:
        """Print lines above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
