"""Time of one training step of a tiny MLP: `python -m tests.benchmarks.step_time` prints seconds of each contender.

A step takes less time than a shared machine's moods do. So the contenders take turns of a fraction of a second in one
process, and each one's figure is the median over its turns.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from tests.benchmarks import tasks
from tests.benchmarks.measure import Measure, last_line
from torch import nn

BATCHES = 500
WARM_UP_EPOCHS = 1
EPOCHS = 4
TURNS = 6
REPETITIONS = 7


class Clock:
    """Takes the time of every epoch, from one beginning to the next."""

    def __init__(self) -> None:
        self._begins: list[float] = []

    def epoch_begins(self) -> None:
        """Also called once at the end of the last."""
        self._begins.append(time.perf_counter())

    def per_step(self) -> float:
        """Seconds, of the median epoch after the warm-up: what else the machine does falls on some epochs only."""
        epochs = [end - begin for begin, end in itertools.pairwise(self._begins)][WARM_UP_EPOCHS:]
        return statistics.median(epochs) / BATCHES


def bare() -> float:
    """A loop as one writes it, which keeps the loss."""
    clock, net, loader = Clock(), tasks.network(), tasks.loader(BATCHES)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = None
    for _ in range(EPOCHS):
        clock.epoch_begins()
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(net(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept = loss.detach()
    clock.epoch_begins()
    assert kept is not None
    return clock.per_step()


QUIET: dict[str, Any] = {
    "max_epochs": EPOCHS,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def paceline(logs: bool) -> float:
    """The Trainer, with everything off but the loop and the log."""
    from paceline import Trainer

    clock = Clock()
    Trainer(callbacks=[_times(clock)], **QUIET).fit(tasks.TinyModule(logs), tasks.loader(BATCHES))
    return clock.per_step()


def _times(clock: Clock) -> Any:
    from paceline.callbacks import LambdaCallback

    return LambdaCallback(
        on_train_epoch_start=lambda *_: clock.epoch_begins(), on_train_end=lambda *_: clock.epoch_begins()
    )


def paceline_in_use(root: str) -> float:
    """The Trainer as people use it: progress bar, a checkpoint after each epoch, a learning-rate scheduler, a log."""
    from paceline import Trainer

    clock = Clock()
    arguments = {**QUIET, "enable_checkpointing": True, "enable_progress_bar": True, "default_root_dir": root}
    with contextlib.redirect_stderr(io.StringIO()):
        Trainer(callbacks=[_times(clock)], **arguments).fit(
            tasks.TinyModule(True, schedules=True), tasks.loader(BATCHES)
        )
    return clock.per_step()


def lightning() -> float:
    """Lightning's Trainer, likewise."""
    import lightning as pl

    clock = Clock()

    class Times(pl.Callback):
        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            clock.epoch_begins()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            clock.epoch_begins()

    class Tiny(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = tasks.network()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    pl.Trainer(callbacks=[Times()], accelerator="cpu", devices=1, **QUIET).fit(Tiny(), tasks.loader(BATCHES))
    return clock.per_step()


CONTENDERS: dict[str, Callable[[], float]] = {
    "bare": bare,
    "paceline": lambda: paceline(logs=True),
    "paceline-without-log": lambda: paceline(logs=False),
    "paceline-in-use": lambda: _in_a_folder(paceline_in_use),
    "lightning": lightning,
}


def _in_a_folder(contender: Callable[[str], float]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return contender(folder)


def run(say: Callable[[str], None]) -> list[Measure]:
    """All contenders, in a few processes."""
    figures: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repetition in range(REPETITIONS):
        for name, seconds in json.loads(last_line("tests.benchmarks.step_time")).items():
            figures[name].append(seconds)
            say(f"step of {name}, {repetition + 1} of {REPETITIONS}: {seconds * 1e6:.0f} µs")
    own, bare_, unlogged = figures["paceline"], figures["bare"], figures["paceline-without-log"]
    in_use = figures["paceline-in-use"]
    step = {"unit": "µs", "scale": 1e6}
    return [
        Measure("step of a tiny MLP, one metric logged", "a bare loop", 1.10, own, bare_, **step),
        Measure("the same, nothing logged", "a bare loop", 1.05, unlogged, bare_, **step),
        Measure("the same with progress bar, ModelCheckpoint, scheduler", "a bare loop", 1.20, in_use, bare_, **step),
        Measure("the same, one metric logged", "Lightning 2.6", 0.35, own, figures["lightning"], **step),
    ]


def take_turns() -> dict[str, float]:
    """Seconds per step of each contender."""
    turns = [{name: contender() for name, contender in CONTENDERS.items()} for _ in range(TURNS)]
    return {name: statistics.median(turn[name] for turn in turns) for name in CONTENDERS}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(take_turns()))
