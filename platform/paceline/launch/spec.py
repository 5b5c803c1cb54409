"""RunSpec and RunResult: all that goes to the workers of a run, and all that comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from paceline.callbacks.callback import Callback
from paceline.checkpoint import storage
from paceline.checkpoint.io import CheckpointIO
from paceline.checkpoint.resolve import newest
from paceline.checkpoint.weights import load_weights
from paceline.config import TrainerConfig
from paceline.loggers.logger import Logger
from paceline.loops.loop import Loop
from paceline.loops.predict import in_data_order
from paceline.module import Module
from paceline.profilers.profiler import Profiler
from paceline.progress import FitProgress
from paceline.strategies.accelerators import Accelerator
from paceline.strategies.base import Strategy


@dataclass
class RunSpec:
    """One entry point's run, as the driver wants it.

    Attributes:
        fn: "fit", "validate", "test" or "predict".
        trainer_class: makes the trainer that hooks see in a worker; never the driver's object.
        loaders: given training loader, and given evaluation loaders; None where data module or module has them.
        num_workers: workers on all nodes together; the largest number, where it may change.
        run_key: names the run in checkpoints and loggers.
        log_dir: folder or URL of the run's files.
        restart_dir: folder or URL of the run's restart checkpoints.
        checkpoint: the state that an earlier fit of this trainer ended with, to go on from.
        ckpt_path: a checkpoint to go on from.
        attempt: how often this run was started again, after a worker's death or with another number of workers.
        failures: how often after a death.
        return_predictions: whether predictions come back.
        loop: the entry point's loop, of which each worker connects a copy.
        profiler: measures what takes how long; None for nothing.
        progress: of the fit before, whose counts an evaluation shows and records its values at; None before any.
        checkpoint_io: reads and writes checkpoints.
        compile: what `torch.compile` made of the module; None when it is not compiled.
    """

    fn: str
    trainer_class: Any
    config: TrainerConfig
    module: Module
    datamodule: Any
    train_loader: Any
    eval_loaders: Any
    callbacks: list[Callback]
    loggers: list[Logger]
    strategy: Strategy
    accelerator: Accelerator
    num_workers: int
    run_key: str
    seed: int
    log_dir: str
    restart_dir: str
    loop: Loop
    profiler: Profiler | None = None
    progress: FitProgress | None = None
    checkpoint_io: CheckpointIO = field(default_factory=CheckpointIO)
    compile: Any = None
    checkpoint: dict[str, Any] | None = None
    ckpt_path: str | None = None
    attempt: int = 0
    failures: int = 0
    return_predictions: bool = True

    def newest_restart(self) -> str | None:
        """The file of the run's newest restart checkpoint; None where there is none."""
        return newest(storage.find(f"{self.restart_dir}/*.ckpt")) if self.fn == "fit" else None

    def go_on_from(self, path: str | None, attempt: int, failures: int = 0) -> RunSpec:
        """The run's next attempt.

        Args:
            path: the restart checkpoint that it goes on from; None for where the first attempt began.
            attempt: its number.
            failures: how many attempts ended in a worker's death.
        """
        return replace(
            self,
            attempt=attempt,
            failures=failures,
            ckpt_path=path or self.ckpt_path,
            checkpoint=None if path else self.checkpoint,
        )


@dataclass
class RunResult:
    """What a run has come to; plain data and tensors on the CPU.

    Attributes:
        checkpoint: the whole state at the end: weights, optimizers, counters, callbacks' states.
        metrics: the newest values under the trainer's three headings.
        results: of validate and test: a dict of values per loader.
        predictions: of predict: from a worker its own, per loader, each with its place in the data; from a launcher
            all of them, per loader, in the order of the data.
        num_batches: batches of each kind of loader.
        stopped_by: the signal that ended the run early, or RESIZE; 0 for none.
        num_workers: how many workers there were.
    """

    checkpoint: dict[str, Any] = field(default_factory=dict)
    metrics: Any = None
    results: list[dict[str, float]] = field(default_factory=list)
    predictions: Any = None
    num_batches: dict[str, list[float]] = field(default_factory=dict)
    stopped_by: int = 0
    num_workers: int = 1

    def give_back(self, spec: RunSpec) -> None:
        """Put what workers elsewhere have come to into the driver's own module, data module and callbacks."""
        if not self.checkpoint:
            return
        spec.strategy.precision.convert_module(spec.module)
        load_weights(spec.module, self.checkpoint["state_dict"])
        states = self.checkpoint.get("callbacks", {})
        for callback in spec.callbacks:
            if callback.state_key in states:
                callback.load_state_dict(states[callback.state_key])
        if spec.datamodule is not None:
            state = self.checkpoint.get(type(spec.datamodule).__qualname__)
            if state is not None:
                spec.datamodule.load_state_dict(state)


def merge(results: list[RunResult], spec: RunSpec) -> RunResult:
    """One result of those of all workers, in rank order; the driver's own objects get what theirs have come to."""
    result = results[0]
    if result.predictions is not None:
        result.predictions = in_data_order([one.predictions for one in results])
    result.give_back(spec)
    return result
