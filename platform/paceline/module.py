"""Module: a model, its steps, its optimizers and its hooks in one `torch.nn.Module`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from paceline.checkpoint.storage import load
from paceline.checkpoint.weights import load_weights
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
        automatic_optimization: True (default): the trainer steps the optimizers; False: `training_step` does.
        prepare_data_per_node: True (default): `prepare_data` runs once on each node; False: once in the cluster.
    """

    _defines_hooks = True
    _trainer: Trainer | None = None
    _metrics: Metrics | None = None
    _toggled: Sequence[tuple[nn.Parameter, bool]] = ()
    example_input_array: Any = None
    automatic_optimization: bool = True
    prepare_data_per_node: bool = True

    # -- to override ----------------------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """One batch of training.

        With several optimizers it is called for each, and takes `optimizer_idx` as well.

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
            "interval" ("epoch" by default, or "step"), "frequency" (1), "monitor", "strict" (True), "name" and
            "reduce_on_plateau". Several dicts may each have a "frequency": for how many batches in a row that
            optimizer is used before the next takes its turn.
        """

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """Step an optimizer: override it to do so in another way, or not at all.

        Args:
            epoch: index of the epoch.
            batch_idx: within the epoch.
            optimizer: the one to step; its hooks, clipping and precision happen in its `step`.
            optimizer_closure: computes the loss and its gradients; to be called, or handed to `optimizer.step`.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Clear the gradients of an optimizer's parameters."""
        optimizer.zero_grad()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients of the loss, which is divided and scaled already."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler; `metric` is what one on a plateau monitors, else None."""
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

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
            why = "outside a run" if self._trainer is None else "under `barebones=True`"
            warnings.warn(f"`log({name!r})` was called {why}: nothing is recorded.", stacklevel=2)
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
        """The optimizer, or the list of them; what they do in `step` counts as the trainer's."""
        optimizers = self.trainer.run.trainer_optimizers
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """The scheduler, the list of them, or None."""
        schedulers = [config.scheduler for config in self.trainer.lr_scheduler_configs]
        return schedulers[0] if len(schedulers) == 1 else (schedulers or None)

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass of manual optimization, with hooks, precision and strategy.

        Raises:
            MisconfigurationError: the trainer optimizes by itself.
        """
        if self.automatic_optimization:
            raise MisconfigurationError(
                "`manual_backward` is for manual optimization: set `self.automatic_optimization = False`, or return "
                "the loss."
            )
        self.trainer.fit_loop.optimization.backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Any) -> None:
        """Let only this optimizer's parameters need gradients, until `untoggle_optimizer`."""
        optimizer = getattr(optimizer, "optimizer", optimizer)
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        others = [p for one in self.trainer.optimizers for group in one.param_groups for p in group["params"]]
        self._toggled = [(p, p.requires_grad) for p in {id(p): p for p in others}.values() if id(p) not in own]
        for parameter, _ in self._toggled:
            parameter.requires_grad_(False)

    def untoggle_optimizer(self, optimizer: Any) -> None:
        """Undo `toggle_optimizer`."""
        for parameter, needs_gradient in self._toggled:
            parameter.requires_grad_(needs_gradient)
        self._toggled = []

    def clip_gradients(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer's parameters.

        Args:
            optimizer: the one about to step.
            gradient_clip_val: the largest norm, or the largest absolute value; None takes the trainer's, 0 does
                nothing.
            gradient_clip_algorithm: "norm" or "value"; None takes the trainer's.

        Raises:
            MisconfigurationError: the trainer was told otherwise.
        """
        config = self.trainer.config
        for name, given in (
            ("gradient_clip_val", gradient_clip_val),
            ("gradient_clip_algorithm", gradient_clip_algorithm),
        ):
            if config.gradient_clip_val and given is not None and given != getattr(config, name):
                raise MisconfigurationError(
                    f"`clip_gradients({name}={given!r})`, but the Trainer has `{name}={getattr(config, name)!r}`: give "
                    "it in one of the two places."
                )
        limit = config.gradient_clip_val if gradient_clip_val is None else gradient_clip_val
        if limit:
            algorithm = gradient_clip_algorithm or config.gradient_clip_algorithm
            self.trainer.strategy.clip_gradients(getattr(optimizer, "optimizer", optimizer), limit, algorithm)

    def all_gather(self, data: Any, sync_grads: bool = False) -> Any:
        """What every worker has, stacked in rank order. All workers have to call it, with tensors of the same shapes.

        Args:
            data: a tensor, or tensors in nested lists, tuples and dicts.
            sync_grads: let gradients flow back to the worker that a tensor comes from, as contrastive losses need.

        Returns:
            The same structure; each tensor has the shape (workers, ...).
        """
        gather = self.trainer.strategy.all_gather
        return tree_map(lambda one: gather(one, sync_grads) if isinstance(one, Tensor) else one, data)

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
        load_weights(module, checkpoint["state_dict"], strict=strict)
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
