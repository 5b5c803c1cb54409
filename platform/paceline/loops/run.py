"""Run: the parts of one live run on one worker. Loops work on them; the Trainer in hooks shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.callbacks.callback import Callback
from paceline.callbacks.gradient_accumulation_scheduler import GradientAccumulationScheduler
from paceline.checkpoint import state
from paceline.checkpoint.writer import CheckpointWriter
from paceline.config import TrainerConfig
from paceline.hooks import Hooks
from paceline.loggers.logger import Logger
from paceline.loops.link import Link
from paceline.loops.optimizers import SchedulerConfig
from paceline.metrics import Metrics
from paceline.module import Module
from paceline.profilers.profiler import Profiler
from paceline.progress import FitProgress, RunState
from paceline.strategies.base import Strategy
from paceline.values import EpochValue


@dataclass
class Run:
    """One entry point's run on one worker.

    Attributes:
        run_key: names the run in checkpoints and loggers; a restart keeps it.
        seed: of data order and random numbers.
        attempt: 0, or how often the run was started again, after a worker's death or with other workers.
        config: the Trainer's arguments.
        stop_requests: who asked training to stop.
        stop_agreed: all workers know of the request.
        items_per_step: by how much the position in the training data moves with each batch, all workers together.
        known_position: batches of this epoch after which the position is known, and the position; on another number
            of workers it had moved at another pace before.
        ckpt_path: the checkpoint that the run began from.
        compile: what `torch.compile` made of the module, to do the same to its steps; None when it is not compiled.
        frequencies: for how many batches in a row each optimizer is used; empty when all are used for each.
        trainer_optimizers: the optimizers as the module's own code sees them.
        restart_dir: folder or URL of the run's restart checkpoints.
        keeps_predictions: whether predictions are returned, or somebody writes them at the end.
        num_batches: batches of each kind of loader ("train", "val", "test", "predict"), one number per loader.
    """

    run_key: str
    seed: int
    attempt: int
    config: TrainerConfig
    module: Module
    datamodule: Any
    callbacks: list[Callback]
    loggers: list[Logger]
    strategy: Strategy
    link: Link
    metrics: Metrics
    log_dir: str
    restart_dir: str
    keeps_predictions: bool = False
    profiler: Profiler | None = None
    compile: Callable[[Any], Any] | None = None
    hooks: Hooks = field(init=False)
    state: RunState = field(default_factory=RunState)
    progress: FitProgress = field(default_factory=FitProgress)
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    trainer_optimizers: list[Any] = field(default_factory=list)
    frequencies: list[int] = field(default_factory=list)
    scheduler_configs: list[SchedulerConfig] = field(default_factory=list)
    resumed_random_state: dict[str, Any] | None = None
    epoch_random_state: dict[str, Any] | None = None
    stop_requests: set[str] = field(default_factory=set)
    stop_agreed: bool = False
    looked_at: set[str] = field(default_factory=set)
    items_per_step: int = 1
    known_position: tuple[int, int] = (0, 0)
    ckpt_path: str | None = None
    loop: Any = None
    loaders: dict[str, Any] = field(default_factory=dict)
    num_batches: dict[str, list[float]] = field(default_factory=dict)

    def span(self, action: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that the profiler measures under a name; the function itself when there is no profiler."""
        if self.profiler is None:
            return call
        profile = self.profiler.profile

        def profiled(*args: Any, **kwargs: Any) -> Any:
            with profile(action):
                return call(*args, **kwargs)

        return profiled

    @property
    def may_use_inference_mode(self) -> bool:
        """Whether `torch.inference_mode` is wanted and works here; compiled code may not take its tensors."""
        return self.config.inference_mode and self.strategy.inference_tensors_work and self.compile is None

    @property
    def accumulation_schedule(self) -> dict[int, int]:
        """From which epoch on how many batches make a step, where callbacks change it."""
        return {
            epoch: batches
            for callback in self.callbacks
            if isinstance(callback, GradientAccumulationScheduler)
            for epoch, batches in callback.scheduling.items()
        }

    @property
    def accumulates(self) -> bool:
        """Whether an optimizer step may take several batches."""
        batches = self.config.accumulate_grad_batches
        return batches != 1 or any(n != 1 for n in self.accumulation_schedule.values())

    def compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step of the module, compiled if the module is."""
        return self.compile(step) if self.compile is not None else step

    @property
    def position(self) -> int:
        """How many items of the training data all workers together have done with in this epoch."""
        batches, items = self.known_position
        return items + (self.progress.batches_in_epoch - batches) * self.items_per_step

    def announce(self, hook: str, checkpoint: dict[str, Any]) -> None:
        """Let callbacks and module see, and change, a checkpoint."""
        for call in self.hooks[hook]:
            call(checkpoint)

    def log_row(self, values: dict[str, float], step: int | None = None) -> None:
        """Send one row of values to the loggers, by default at the newest training step."""
        if values and self.strategy.is_global_zero:
            if step is None:
                # A fit's rows share the x of its last step; an evaluation after it comes one further.
                step = max(self.progress.stepped_batches - (self.state.fn == "fit"), 0)
            row = {"epoch": float(self.progress.current_epoch), **values}
            step = int(row.pop("step", step))  # a value of that name is the x axis
            for logger in self.loggers:
                logger.log_metrics(row, step)

    def log_epoch(self, values: list[EpochValue]) -> None:
        """Send epoch values to the loggers."""
        self.log_row({value.name: value.value for value in values if value.logger})

    def save_checkpoint(
        self,
        path: str,
        weights_only: bool = False,
        then: Callable[[], None] | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Capture the state now, and write it while training goes on. All workers have to call it.

        Args:
            path: path or URL.
            weights_only: leave out what only training needs.
            then: called in rank 0's writing thread once the file is complete.
            storage_options: for the fsspec file system of the URL.
        """
        checkpoint = self.span("save_checkpoint", state.capture)(self, weights_only)
        if self.strategy.is_global_zero:
            self.writer.write(checkpoint, path, then, storage_options)

    def tell(self, text: str) -> None:
        """Say something to the user, once for all workers."""
        if self.strategy.is_global_zero:
            self.link.tell(text)
