"""BaseFinetuning and BackboneFinetuning: parts of a module that are trained from a certain epoch on only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer

Layers = nn.Module | Iterable[nn.Module]


class BaseFinetuning(Callback):
    """Override `freeze_before_training`, and `finetune_function`, which is called as each epoch starts.

    A fit that goes on from a checkpoint has the optimizers' parameter groups as they were.
    """

    def __init__(self) -> None:
        self._groups: dict[int, list[dict[str, Any]]] = {}
        self._trainer: Trainer | None = None
        self._done_epoch = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_trainer": None}

    def freeze_before_training(self, pl_module: Module) -> None:
        """Freeze what is not trained at first; called before the optimizers are made."""
        raise NotImplementedError

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze what is trained from this epoch on; called with each optimizer."""
        raise NotImplementedError

    # -- tools ----------------------------------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(layers: Layers) -> list[nn.Module]:
        """All layers in some, that have parameters of their own."""
        roots = [layers] if isinstance(layers, nn.Module) else list(layers)
        every = {id(layer): layer for root in roots for layer in root.modules()}
        return [layer for layer in every.values() if next(layer.parameters(recurse=False), None) is not None]

    @classmethod
    def filter_params(cls, layers: Layers, train_bn: bool = True, requires_grad: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of some layers that need gradients, or do not.

        Args:
            layers: a layer, or several.
            train_bn: whether those of BatchNorm layers are among them.
            requires_grad: which.
        """
        for layer in cls.flatten_modules(layers):
            if isinstance(layer, _BatchNorm) and not train_bn:
                continue
            for parameter in layer.parameters(recurse=False):
                if parameter.requires_grad == requires_grad:
                    yield parameter

    @classmethod
    def freeze(cls, layers: Layers, train_bn: bool = True) -> None:
        """Let layers need no gradients.

        Args:
            layers: a layer, or several.
            train_bn: leave BatchNorm layers as they are; else they are frozen and keep their statistics, too.
        """
        for layer in cls.flatten_modules(layers):
            is_bn = isinstance(layer, _BatchNorm)
            if isinstance(layer, _BatchNorm) and not train_bn:
                layer.track_running_stats = False
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(is_bn and train_bn)

    @classmethod
    def make_trainable(cls, layers: Layers) -> None:
        """Let layers need gradients."""
        for layer in cls.flatten_modules(layers):
            if isinstance(layer, _BatchNorm):
                layer.track_running_stats = True
            for parameter in layer.parameters(recurse=False):
                parameter.requires_grad_(True)

    @classmethod
    def unfreeze_and_add_param_group(
        cls,
        layers: Layers,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Let layers need gradients, and give them to an optimizer that does not have them yet.

        Args:
            layers: a layer, or several.
            optimizer: gets a parameter group for them.
            lr: of that group; by default that of the first group, divided by `initial_denom_lr`.
            initial_denom_lr: see `lr`.
            train_bn: whether BatchNorm layers are among them.
        """
        cls.make_trainable(layers)
        rate = optimizer.param_groups[0]["lr"] / initial_denom_lr if lr is None else lr
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        new = [p for p in cls.filter_params(layers, train_bn) if id(p) not in known]
        if new:
            optimizer.add_param_group({"params": new, "lr": rate})

    # -- hooks ----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Freeze."""
        self._trainer = trainer
        if stage == "fit":
            self.freeze_before_training(pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Unfreeze what is due, once in an epoch that is gone on with."""
        if trainer.current_epoch == self._done_epoch:
            return
        self._done_epoch = trainer.current_epoch
        for index, optimizer in enumerate(trainer.optimizers):
            before = len(optimizer.param_groups)
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
            if len(optimizer.param_groups) > before:
                self._note_groups(pl_module, index, optimizer)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Note the parameter groups that there are."""
        for index, optimizer in enumerate(trainer.optimizers):
            self._note_groups(pl_module, index, optimizer)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Let go of the run."""
        self._trainer = None

    def state_dict(self) -> dict[str, Any]:
        """The names of the parameters in each group of each optimizer."""
        return {
            "groups": {str(index): groups for index, groups in self._groups.items()},
            "done_epoch": self._done_epoch,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the optimizers the parameter groups of the checkpoint, whose states are about to be loaded."""
        self._groups = {int(index): groups for index, groups in state_dict["groups"].items()}
        self._done_epoch = state_dict["done_epoch"]
        trainer = self._trainer
        if trainer is None or trainer.lightning_module is None:
            return
        parameters = dict(trainer.lightning_module.named_parameters())
        for index, groups in self._groups.items():
            optimizer = trainer.optimizers[index]
            for group in groups[len(optimizer.param_groups) :]:
                for name in group["params"]:
                    parameters[name].requires_grad_(True)
                options = {name: value for name, value in group.items() if name != "params"}
                optimizer.add_param_group({**options, "params": [parameters[name] for name in group["params"]]})

    def _note_groups(self, module: Module, index: int, optimizer: Optimizer) -> None:
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._groups[index] = [
            {"lr": float(group["lr"]), "params": [names[id(p)] for p in group["params"] if id(p) in names]}
            for group in optimizer.param_groups
        ]


class BackboneFinetuning(BaseFinetuning):
    """Trains `module.backbone` from an epoch on, with a learning rate that grows until it is that of the rest.

    `configure_optimizers` has to leave out what needs no gradients: `filter(lambda p: p.requires_grad, parameters)`.

    Args:
        unfreeze_backbone_at_epoch: counted from 0; 10 by default.
        lambda_func: by how much the backbone's learning rate grows with each epoch after that one: a factor, as a
            function of the epoch; 2 by default.
        backbone_initial_ratio_lr: the backbone's first learning rate, as a share of the other one; 0.1 by default.
        backbone_initial_lr: the same as a number.
        should_align: stop growing at the learning rate of the rest.
        initial_denom_lr: what a learning rate that is given is divided by at first; 10 by default.
        train_bn: whether BatchNorm layers of the backbone are trained all along.

    Raises:
        MisconfigurationError: when a fit starts: the module has no `backbone`.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = lambda epoch: 2.0,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        super().__init__()
        if type(unfreeze_backbone_at_epoch) is not int or unfreeze_backbone_at_epoch < 0:
            raise MisconfigurationError(
                f"`BackboneFinetuning(unfreeze_backbone_at_epoch={unfreeze_backbone_at_epoch!r})`: use an int from 0."
            )
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.previous_backbone_lr: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """The backbone's learning rate, and the groups."""
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
        super().load_state_dict(state_dict)

    def freeze_before_training(self, pl_module: Module) -> None:
        """Freeze the backbone."""
        if not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            raise MisconfigurationError(
                f"BackboneFinetuning needs a torch module `backbone`, which {type(pl_module).__name__} does not have."
            )
        self.freeze(pl_module.backbone, train_bn=self.train_bn)

    def finetune_function(self, pl_module: Module, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze the backbone in its epoch, and let its learning rate grow in those after."""
        current_lr = optimizer.param_groups[0]["lr"]
        if epoch == self.unfreeze_backbone_at_epoch and self.previous_backbone_lr is None:
            own = self.backbone_initial_lr
            rate = current_lr * self.backbone_initial_ratio_lr if own is None else own
            self.previous_backbone_lr = rate
            self.unfreeze_and_add_param_group(
                pl_module.backbone,
                optimizer,
                rate,
                initial_denom_lr=self.initial_denom_lr,
                train_bn=self.train_bn,
            )
        elif epoch > self.unfreeze_backbone_at_epoch and self.previous_backbone_lr is not None:
            grown = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            if self.should_align and grown > current_lr:
                grown = current_lr
            optimizer.param_groups[-1]["lr"] = self.previous_backbone_lr = grown
