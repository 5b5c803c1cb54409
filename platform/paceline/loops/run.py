"""Run: the parts of one live run on one worker. Loops work on them; the Trainer in hooks shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.callbacks.callback import Callback
from paceline.checkpoint import state
from paceline.checkpoint.writer import CheckpointWriter
from paceline.config import TrainerConfig
from paceline.hooks import Hooks
from paceline.loggers.logger import Logger
from paceline.loops.link import Link
from paceline.loops.optimizers import SchedulerConfig
from paceline.metrics import Metrics
from paceline.module import Module
from paceline.progress import FitProgress, RunState
from paceline.strategies.base import Strategy
from paceline.values import EpochValue


@dataclass
class Run:
    """One entry point's run on one worker.

    Attributes:
        run_key: names the run in checkpoints and loggers; a restart keeps it.
        seed: of data order and random numbers.
        attempt: 0, or how often the run was restarted after a worker's death.
        config: the Trainer's arguments.
        stop_requests: who asked training to stop.
        stop_agreed: all workers know of the request.
        items_per_step: by how much the position in the training data moves with each batch, all workers together.
        ckpt_path: the checkpoint that the run began from.
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
    hooks: Hooks = field(init=False)
    state: RunState = field(default_factory=RunState)
    progress: FitProgress = field(default_factory=FitProgress)
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    optimizers: list[Any] = field(default_factory=list)
    scheduler_configs: list[SchedulerConfig] = field(default_factory=list)
    resumed_random_state: dict[str, Any] | None = None
    epoch_random_state: dict[str, Any] | None = None
    stop_requests: set[str] = field(default_factory=set)
    stop_agreed: bool = False
    looked_at: set[str] = field(default_factory=set)
    items_per_step: int = 1
    ckpt_path: str | None = None
    loop: Any = None
    train_loader: Any = None
    val_loaders: list[Any] = field(default_factory=list)

    def announce(self, hook: str, checkpoint: dict[str, Any]) -> None:
        """Let callbacks and module see, and change, a checkpoint."""
        for call in self.hooks[hook]:
            call(checkpoint)

    def log_row(self, values: dict[str, float], step: int | None = None) -> None:
        """Send one row of values to the loggers, by default at the newest training step."""
        if values and self.strategy.is_global_zero:
            if step is None:
                step = max(self.progress.stepped_batches - 1, 0)
            row = {**values, "epoch": float(self.progress.current_epoch)}
            for logger in self.loggers:
                logger.log_metrics(row, step)

    def log_epoch(self, values: list[EpochValue]) -> None:
        """Send epoch values to the loggers."""
        self.log_row({value.name: value.value for value in values if value.logger})

    def save_checkpoint(self, path: str, weights_only: bool = False, then: Callable[[], None] | None = None) -> None:
        """Capture the state now, and write it while training goes on. All workers have to call it.

        Args:
            path: path or URL.
            weights_only: leave out what only training needs.
            then: called in rank 0's writing thread once the file is complete.
        """
        checkpoint = state.capture(self, weights_only)
        if self.strategy.is_global_zero:
            self.writer.write(checkpoint, path, then)

    def tell(self, text: str) -> None:
        """Say something to the user, once for all workers."""
        if self.strategy.is_global_zero:
            self.link.tell(text)
