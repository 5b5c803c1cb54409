"""RunView: what a Trainer shows of a run, live in its hooks and afterwards; read-only but for a few settings."""

from __future__ import annotations

import os
from typing import Any

import torch

from paceline.callbacks.callback import Callback
from paceline.callbacks.early_stopping import EarlyStopping
from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.callbacks.prediction_writer import BasePredictionWriter
from paceline.callbacks.progress_bar import TQDMProgressBar
from paceline.config import TrainerConfig, make_config
from paceline.data_view import DataView
from paceline.datamodule import DataModule
from paceline.loggers.logger import Logger
from paceline.loop_view import LoopView, default_loops
from paceline.loops.run import Run
from paceline.module import Module
from paceline.progress import FitProgress, RunState
from paceline.strategies.base import Strategy
from paceline.values import Values


class RunView(DataView, LoopView):
    """The properties of `Trainer`, besides those of its data and its loops.

    Attributes:
        config: the trainer's arguments.
        callbacks: those given, those of the module and the defaults.
        loggers: those that record runs.
        state: what the trainer is doing: `fn`, `status` and `stage`.
        datamodule: of the current or last run.
    """

    def __init__(
        self, config: TrainerConfig, callbacks: list[Callback], loggers: list[Logger], strategy: Strategy, workers: int
    ) -> None:
        self.config = config
        self.callbacks = callbacks
        self.loggers = loggers
        self.state = RunState()
        self.datamodule: DataModule | None = None
        self._arguments: dict[str, Any] = {}
        self._strategy = strategy
        self._num_workers = workers
        self._live_run: Run | None = None
        self._progress = FitProgress()
        self._values = Values()
        self._module: Module | None = None
        self._compiled: Any = None
        self._ckpt_path: str | None = None
        self._loaders: dict[str, Any] = {}
        self._num_batches: dict[str, list[float]] = {}
        self._loops = default_loops()

    # -- the live run ---------------------------------------------------------------------------------------------

    def attach(self, run: Run) -> None:
        """Show a live run."""
        self._live_run = run
        self.state = run.state
        self._progress = run.progress

    def detach(self) -> None:
        """The run is over; what it came to stays visible."""
        if self._live_run is not None:
            self._values = self._live_run.metrics.values
            self._loaders |= self._live_run.loaders
            self._num_batches |= self._live_run.num_batches
        self._live_run = None

    @property
    def run(self) -> Run:
        """The parts of the live run that this worker has.

        Raises:
            RuntimeError: there is no live run.
        """
        if self._live_run is None:
            raise RuntimeError("There is no live run: this exists in the hooks of one.")
        return self._live_run

    # -- places ---------------------------------------------------------------------------------------------------

    @property
    def default_root_dir(self) -> str:
        """Folder or URL for whatever has no place of its own."""
        return self.config.root_dir

    @property
    def log_dir(self) -> str:
        """Folder or URL of this run's files: the first logger's, else the root itself."""
        if self._live_run is not None:
            return self._live_run.log_dir
        logger = self.logger
        if logger is None:
            return self.default_root_dir
        return logger.log_dir or f"{self.default_root_dir}/{logger.name}/{logger.version}"

    @property
    def _restart_root(self) -> str:
        experiment = self.logger.name if self.logger is not None else "default"
        return f"{self.default_root_dir}/.paceline/restart/{experiment}"

    @property
    def _checkpoint_folders(self) -> str:
        """A pattern of the folders where runs of this experiment keep checkpoints."""
        if self.logger is None:
            return f"{self.default_root_dir}/checkpoints"
        return f"{self.log_dir.rpartition('/')[0]}/*/checkpoints"

    @property
    def _spool_root(self) -> str:
        # On a local disk, wherever the rest goes: what is not sent yet must not depend on a network.
        root = self.default_root_dir if "://" not in self.default_root_dir else os.getcwd()
        return f"{root}/.paceline/spool"

    # -- what a run is at -----------------------------------------------------------------------------------------

    @property
    def global_step(self) -> int:
        """Optimizer steps taken."""
        return self._progress.global_step

    @property
    def current_epoch(self) -> int:
        """Training epochs completed: the index of the one that runs."""
        return self._progress.current_epoch

    @property
    def max_epochs(self) -> int | None:
        """The limit of epochs; may be raised between two calls of `fit`."""
        return self.config.max_epochs

    @max_epochs.setter
    def max_epochs(self, value: int) -> None:
        self._arguments = {**self._arguments, "max_epochs": value}
        self.config = make_config(self._arguments)

    @property
    def max_steps(self) -> int:
        """The limit of optimizer steps; may be raised between two calls of `fit`."""
        return self.config.max_steps

    @max_steps.setter
    def max_steps(self, value: int) -> None:
        self._arguments = {**self._arguments, "max_steps": value}
        self.config = make_config(self._arguments)

    @property
    def min_epochs(self) -> int | None:
        """Epochs that a request to stop waits for."""
        return self.config.min_epochs

    @property
    def min_steps(self) -> int | None:
        """Optimizer steps that a request to stop waits for."""
        return self.config.min_steps

    @property
    def should_stop(self) -> bool:
        """Whether somebody asked training to stop; set it in a hook to ask."""
        return self._live_run is not None and bool(self._live_run.stop_requests)

    @should_stop.setter
    def should_stop(self, value: bool) -> None:
        if self._live_run is not None:
            if value:
                self._live_run.stop_requests.add("user")
            else:
                self._live_run.stop_requests.clear()

    @property
    def training(self) -> bool:
        """Whether training batches are at work."""
        return self.state.stage == "train"

    @property
    def validating(self) -> bool:
        """Whether validation batches are at work."""
        return self.state.stage == "validate"

    @property
    def testing(self) -> bool:
        """Whether test batches are at work."""
        return self.state.stage == "test"

    @property
    def predicting(self) -> bool:
        """Whether predictions are at work."""
        return self.state.stage == "predict"

    @property
    def evaluating(self) -> bool:
        """Whether validation or test batches are at work."""
        return self.validating or self.testing

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation before training is at work."""
        return self.state.stage == "sanity_check"

    @property
    def interrupted(self) -> bool:
        """Whether the last run ended early."""
        return self.state.status == "interrupted"

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """The newest value of every logged name, as tensors on the CPU."""
        return {name: torch.tensor(value) for name, value in self._current_values.callback.items()}

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """Those that go to the loggers."""
        return {name: torch.tensor(value) for name, value in self._current_values.logged.items()}

    @property
    def progress_bar_metrics(self) -> dict[str, float]:
        """Those that the progress bar shows."""
        return dict(self._current_values.progress_bar)

    @property
    def ckpt_path(self) -> str | None:
        """The checkpoint that the current or last run began from."""
        return self._ckpt_path

    # -- what a run has -------------------------------------------------------------------------------------------

    @property
    def lightning_module(self) -> Module | None:
        """The module, bare of any wrapper."""
        return self._module

    @property
    def model(self) -> Any:
        """The module, inside its wrapper if it is compiled."""
        return self._compiled if self._compiled is not None else self._module

    @property
    def strategy(self) -> Strategy:
        """How the module runs on its devices."""
        return self._strategy

    @property
    def precision(self) -> str:
        """The number formats, such as "bf16-mixed"."""
        return self._strategy.precision.name

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        """The gradient scaler of "16-mixed"."""
        return self._strategy.precision.scaler

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The live run's optimizers."""
        return self.run.optimizers

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The live run's schedulers and how they are stepped."""
        return self.run.scheduler_configs

    @property
    def logger(self) -> Logger | None:
        """The first logger."""
        return self.loggers[0] if self.loggers else None

    @property
    def checkpoint_callbacks(self) -> list[ModelCheckpoint]:
        """All ModelCheckpoints."""
        return [callback for callback in self.callbacks if isinstance(callback, ModelCheckpoint)]

    @property
    def checkpoint_callback(self) -> ModelCheckpoint | None:
        """The first ModelCheckpoint."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def early_stopping_callbacks(self) -> list[EarlyStopping]:
        """All EarlyStoppings."""
        return [callback for callback in self.callbacks if isinstance(callback, EarlyStopping)]

    @property
    def early_stopping_callback(self) -> EarlyStopping | None:
        """The first EarlyStopping."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def prediction_writer_callbacks(self) -> list[BasePredictionWriter]:
        """All BasePredictionWriters."""
        return [callback for callback in self.callbacks if isinstance(callback, BasePredictionWriter)]

    @property
    def progress_bar_callback(self) -> TQDMProgressBar | None:
        """The progress bar."""
        return next((callback for callback in self.callbacks if isinstance(callback, TQDMProgressBar)), None)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._num_workers

    @property
    def num_devices(self) -> int:
        """Devices on each node."""
        return self._num_workers // self.num_nodes

    @property
    def num_nodes(self) -> int:
        """Nodes that share the workers evenly; 1 for any nodes."""
        return self.config.num_nodes

    @property
    def device_ids(self) -> list[int]:
        """Indices of this node's devices, counted among those that it shows."""
        devices = self.config.devices
        return list(devices) if isinstance(devices, list) else list(range(self.num_devices))

    @property
    def global_rank(self) -> int:
        """This worker's rank among all; 0 on the driver."""
        return self._strategy.placement.global_rank if self._live_run is not None else 0

    @property
    def local_rank(self) -> int:
        """This worker's rank on its node."""
        return self._strategy.placement.local_rank if self._live_run is not None else 0

    @property
    def node_rank(self) -> int:
        """This worker's node."""
        return self._strategy.placement.node_rank if self._live_run is not None else 0

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the worker that writes files and rows."""
        return self.global_rank == 0

    @property
    def _current_values(self) -> Values:
        return self._live_run.metrics.values if self._live_run is not None else self._values
