"""Callback: code that runs at a run's hooks, apart from the module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class Callback:
    """Override the hooks you need. On several workers each has its own copy, and every hook runs on all of them.

    Attributes:
        reads_metrics: True for a callback whose hooks run after the module's, to see what those logged.
    """

    _defines_hooks = True
    reads_metrics: ClassVar[bool] = False

    @property
    def state_key(self) -> str:
        """Under which name checkpoints keep this callback's state; two callbacks must not share one."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep of this callback, and what comes back to the driver after a run on workers."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """A run of `stage` ("fit", "validate", "test" or "predict") begins."""

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """The run is over, or has failed."""

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """The run ends with this exception."""

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A fit begins."""

    def on_fit_end(self, trainer: Trainer, pl_module: Module) -> None:
        """A fit is over."""

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Module) -> None:
        """The validation before training begins."""

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The validation before training is over."""

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Training begins."""

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Training is over."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """A training epoch begins."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """A training epoch is over."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> int | None:
        """A training batch begins; returning -1 ends the epoch."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A training batch is over; `outputs` is what `training_step` returned."""

    def on_before_zero_grad(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """Gradients are about to be cleared."""

    def on_before_backward(self, trainer: Trainer, pl_module: Module, loss: Tensor) -> None:
        """The backward pass is about to begin."""

    def on_after_backward(self, trainer: Trainer, pl_module: Module) -> None:
        """The backward pass is over."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Module, optimizer: Optimizer) -> None:
        """The optimizer is about to step; gradients are whole and not yet clipped."""

    def on_validation_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Validation begins."""

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Validation is over and its values are reduced."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the validation loaders begins."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the validation loaders is over."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch begins."""

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A validation batch is over."""

    def on_test_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Testing begins."""

    def on_test_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Testing is over and its values are reduced."""

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the test loaders begins."""

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the test loaders is over."""

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch begins."""

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A test batch is over."""

    def on_predict_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Prediction begins."""

    def on_predict_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Prediction is over."""

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the loaders begins."""

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The pass over the loaders is over."""

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch to predict begins."""

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """A batch is predicted."""

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Change the checkpoint before it is written."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Look at, or change, a checkpoint before it is loaded."""
