"""Module: a model, its steps, its optimizers and its hooks in one `torch.nn.Module`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.checkpoint.storage import load
from paceline.errors import MisconfigurationError
from paceline.hyperparameters import HasHyperParameters, build

if TYPE_CHECKING:
    from paceline.metrics import Metrics
    from paceline.trainer import Trainer
    from paceline.values import Reduce


class Module(HasHyperParameters, nn.Module):
    """Base of everything that a `Trainer` trains.

    Override `training_step` and `configure_optimizers` at least. Steps take `batch`, `batch_idx` and `dataloader_idx`,
    whichever of them their signature names.

    Attributes:
        example_input_array: an example of what `forward` takes, for the model that is exported; None by default.
        prepare_data_per_node: True (default): `prepare_data` runs once on each node; False: once in the cluster.
    """

    _defines_hooks = True
    _trainer: Trainer | None = None
    _metrics: Metrics | None = None
    example_input_array: Any = None
    prepare_data_per_node: bool = True

    # -- to override ----------------------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of training.

        Returns:
            The loss, a tensor of one element with a gradient; a dict with it under "loss"; or None to skip the batch.
        """

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of validation; log what should be measured."""

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of testing; log what should be measured."""

    def predict_step(self, batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
        """The predictions for one batch; calls the module itself by default."""
        return self(batch)

    def configure_optimizers(self) -> Any:
        """The optimizers and learning-rate schedulers.

        Returns:
            An optimizer; a list of them; a list of optimizers and a list of schedulers; a dict with "optimizer" and
            maybe "lr_scheduler"; or None to train without any. A scheduler may be given as a dict with "scheduler",
            "interval" ("epoch" by default, or "step"), "frequency" (1), "monitor", "strict" (True) and "name".
        """

    def configure_callbacks(self) -> Any:
        """Callbacks that this module brings; each takes the place of the trainer's callbacks of the same type."""
        return []

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients before a step; by default as the trainer's arguments say."""
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def prepare_data(self) -> None:
        """Download or write data: called in one process, before `setup`; set no attributes here."""

    def setup(self, stage: str) -> None:
        """Get ready, in every process; `stage` is "fit", "validate", "test" or "predict"."""

    def configure_model(self) -> None:
        """Build layers that are too large to be built before."""

    def teardown(self, stage: str) -> None:
        """Clean up after a run, also after one that failed."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Bring a batch to the device."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch before it is brought to the device."""
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch after it was brought to the device."""
        return batch

    def train_dataloader(self) -> Any:
        """The training loader, where the data belong to the module."""

    def val_dataloader(self) -> Any:
        """The validation loader, or a list of them."""

    def test_dataloader(self) -> Any:
        """The test loader, or a list of them."""

    def predict_dataloader(self) -> Any:
        """The loader to predict on, or a list of them."""

    def on_fit_start(self) -> None:
        """A fit begins."""

    def on_fit_end(self) -> None:
        """A fit is over."""

    def on_train_start(self) -> None:
        """Training begins."""

    def on_train_end(self) -> None:
        """Training is over."""

    def on_train_epoch_start(self) -> None:
        """A training epoch begins."""

    def on_train_epoch_end(self) -> None:
        """A training epoch is over; values logged here are seen by checkpoint and early-stopping callbacks."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; returning -1 ends the epoch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A training batch is over; `outputs` is what `training_step` returned."""

    def on_before_zero_grad(self, optimizer: Optimizer) -> None:
        """Gradients are about to be cleared."""

    def on_before_backward(self, loss: Tensor) -> None:
        """The backward pass is about to begin."""

    def on_after_backward(self) -> None:
        """The backward pass is over."""

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """The optimizer is about to step; gradients are whole and not yet clipped."""

    def on_validation_start(self) -> None:
        """Validation begins."""

    def on_validation_end(self) -> None:
        """Validation is over."""

    def on_validation_epoch_start(self) -> None:
        """The pass over the validation loaders begins."""

    def on_validation_epoch_end(self) -> None:
        """The pass over the validation loaders is over; values may still be logged."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch begins."""

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A validation batch is over."""

    def on_test_start(self) -> None:
        """Testing begins."""

    def on_test_end(self) -> None:
        """Testing is over."""

    def on_test_epoch_start(self) -> None:
        """The pass over the test loaders begins."""

    def on_test_epoch_end(self) -> None:
        """The pass over the test loaders is over; values may still be logged."""

    def on_test_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch begins."""

    def on_test_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A test batch is over."""

    def on_predict_start(self) -> None:
        """Prediction begins."""

    def on_predict_end(self) -> None:
        """Prediction is over."""

    def on_predict_epoch_start(self) -> None:
        """The pass over the loaders begins."""

    def on_predict_epoch_end(self) -> None:
        """The pass over the loaders is over."""

    def on_predict_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A batch to predict begins."""

    def on_predict_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """A batch is predicted."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Change the checkpoint before it is written."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Look at, or change, a checkpoint before it is loaded."""

    # -- to call --------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Reduce = "mean",
        sync_dist: bool | None = None,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        rank_zero_only: bool = False,
    ) -> None:
        """Record one value. It stays on its device; nothing waits for it until a row is due.

        Args:
            name: what charts and monitors call it.
            value: a number, a tensor of one element, or a metric object with `compute` and `reset`.
            prog_bar: show it in the progress bar.
            logger: send it to the loggers.
            on_step: log the value of single steps; by default in training.
            on_epoch: log one value per epoch; by default in validation and test. With both, the names are
                `name_step` and `name_epoch`.
            reduce_fx: how an epoch's values become one: "mean" (weighted by batch size), "sum", "min", "max" or a
                function of a 1-d tensor.
            sync_dist: None reduces epoch values over all workers and leaves step values to each; True reduces both,
                False neither.
            batch_size: weight in the epoch's mean; by default the size of the first tensor in the batch.
            add_dataloader_idx: append `/dataloader_idx_N` when there are several validation or test loaders.
            rank_zero_only: only the first worker's value counts.

        Raises:
            MisconfigurationError: the value is no single number, or the name was used with another meaning.
        """
        if self._metrics is None:
            warnings.warn(f"`log({name!r})` was called outside a run: nothing is recorded.", stacklevel=2)
            return
        self._metrics.log(
            name,
            value,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            sync_dist,
            batch_size,
            add_dataloader_idx,
            rank_zero_only,
        )

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """Record several values with the same options; see `log`."""
        for name, value in values.items():
            self.log(name, value, **options)

    @property
    def trainer(self) -> Trainer:
        """The live trainer.

        Raises:
            RuntimeError: the module is in no run.
        """
        if self._trainer is None:
            raise RuntimeError(f"{type(self).__name__} is in no run: `self.trainer` exists in the hooks of one.")
        return self._trainer

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the CPU for a module without any."""
        first = next(self.parameters(), None)
        return first.device if first is not None else torch.device("cpu")

    @property
    def current_epoch(self) -> int:
        """Index of the training epoch; 0 outside a run."""
        return self._trainer.current_epoch if self._trainer is not None else 0

    @property
    def global_step(self) -> int:
        """Optimizer steps so far; 0 outside a run."""
        return self._trainer.global_step if self._trainer is not None else 0

    @property
    def global_rank(self) -> int:
        """This worker's rank; 0 outside a run."""
        return self._trainer.global_rank if self._trainer is not None else 0

    def optimizers(self) -> Any:
        """The optimizer, or the list of them."""
        optimizers = self.trainer.optimizers
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """The scheduler, the list of them, or None."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return schedulers[0] if len(schedulers) == 1 else (schedulers or None)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer's parameters.

        Args:
            optimizer: the one about to step.
            gradient_clip_val: the largest norm, or the largest absolute value; None or 0 does nothing.
            gradient_clip_algorithm: "norm" (default) or "value".
        """
        if gradient_clip_val:
            self.trainer.strategy.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm or "norm")

    @classmethod
    def load_from_checkpoint(
        cls, checkpoint_path: str, map_location: Any = "cpu", strict: bool = True, **overrides: Any
    ) -> Self:
        """A module built from a checkpoint's hyperparameters, with its weights.

        Args:
            checkpoint_path: path or URL.
            map_location: where tensors go, the CPU by default.
            strict: every weight must be there, and no other.
            overrides: constructor arguments that replace or complete the saved ones.

        Raises:
            FileNotFoundError: there is no such file.
            MisconfigurationError: the constructor needs arguments that were not saved.
        """
        checkpoint = load(checkpoint_path, map_location=map_location)
        try:
            module = build(cls, checkpoint.get("hyper_parameters", {}), overrides)
        except TypeError as error:
            raise MisconfigurationError(
                f"{cls.__name__} cannot be built from {checkpoint_path}: {error}. Pass what is missing as "
                "`load_from_checkpoint(path, name=value)`, or call `self.save_hyperparameters()` in its constructor."
            ) from error
        module.configure_model()
        module.on_load_checkpoint(checkpoint)
        module.load_state_dict(checkpoint["state_dict"], strict=strict)
        return module

    # -- the run's side -------------------------------------------------------------------------------------------

    def bind(self, trainer: Trainer | None, metrics: Metrics | None) -> None:
        """Join a run, or leave it with None."""
        self._trainer = trainer
        self._metrics = metrics

    def __getstate__(self) -> dict[str, Any]:
        # A copy of a module, or a module that travels to a worker, is in no run.
        return {name: value for name, value in vars(self).items() if name not in ("_trainer", "_metrics")}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        vars(clone).update(copy.deepcopy(self.__getstate__(), memo))
        return clone
