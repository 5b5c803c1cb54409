"""WeightAveraging: a running average of the weights, which is validated, saved and kept in place of the newest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from paceline.callbacks.callback import Callback
from paceline.checkpoint.weights import load_weights, plain_names
from paceline.checkpoint.writer import copy_to_cpu
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.strategies import Strategy
    from paceline.trainer import Trainer

_CURRENT = "current_model_state"
_UPDATES = "averaging_updates"


class WeightAveraging(Callback):
    """Averages the weights over optimizer steps, with `torch.optim.swa_utils.AveragedModel`.

    Validations within a fit use the average, checkpoints hold it as `state_dict` (and the newest weights beside it, for
    a resume to be exact), and after the fit the module has it; a second `fit` begins a new average from there. Without
    arguments it is the plain mean of stochastic weight averaging (Izmailov et al., 2018); `ema_decay` makes it an
    exponential moving average.

    Args:
        ema_decay: of an exponential moving average: how much of it stays at each update, from 0 to 1.
        update_every_n_steps: optimizer steps between two updates.
        update_starting_at_step: no update before so many steps.
        update_starting_at_epoch: no update before this epoch, counted from 0.
        use_buffers: average buffers, such as BatchNorm's statistics, as well; else the newest are taken.
        device: where the average is kept; that of the module by default.
        avg_fn: in place of the mean: a function of the average, the newest weights and the number of updates before.

    Raises:
        MisconfigurationError: an argument makes no sense.
    """

    def __init__(
        self,
        ema_decay: float | None = None,
        update_every_n_steps: int = 1,
        update_starting_at_step: int = 0,
        update_starting_at_epoch: int = 0,
        use_buffers: bool = True,
        device: torch.device | str | None = None,
        avg_fn: Callable[[Tensor, Tensor, Tensor | int], Tensor] | None = None,
    ) -> None:
        if ema_decay is not None and not 0 <= ema_decay <= 1:
            raise MisconfigurationError(f"`WeightAveraging(ema_decay={ema_decay!r})`: use a share from 0 to 1.")
        if ema_decay is not None and avg_fn is not None:
            raise MisconfigurationError("`WeightAveraging` takes `ema_decay` or `avg_fn`, not both.")
        if type(update_every_n_steps) is not int or update_every_n_steps < 1:
            raise MisconfigurationError(
                f"`WeightAveraging(update_every_n_steps={update_every_n_steps!r})`: use an int of at least 1."
            )
        self.ema_decay = ema_decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch
        self.use_buffers = use_buffers
        self.device = device
        self.avg_fn = avg_fn
        self._average: AveragedModel | None = None
        self._resumed: dict[str, Any] | None = None
        self._looked_at_step = 0
        self._is_swapped = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_average": None, "_resumed": None}

    def should_update(self, step_idx: int, epoch_idx: int) -> bool:
        """Whether the average takes in the weights as they are.

        Args:
            step_idx: optimizer steps taken.
            epoch_idx: the epoch, counted from 0.
        """
        has_begun = step_idx >= self.update_starting_at_step and epoch_idx >= self.update_starting_at_epoch
        return has_begun and step_idx % self.update_every_n_steps == 0

    # -- the average ----------------------------------------------------------------------------------------------

    def on_fit_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Begin with the weights as they are, or as a checkpoint had them."""
        self._average = AveragedModel(
            _Parts(pl_module, trainer.strategy),
            device=self.device,  # type: ignore[arg-type]
            avg_fn=self.avg_fn,
            multi_avg_fn=get_ema_multi_avg_fn(self.ema_decay) if self.ema_decay is not None else None,  # type: ignore
            use_buffers=self.use_buffers,
        )
        self._looked_at_step = trainer.global_step
        if self._resumed is not None:
            # What was loaded as the module's weights is the average; the newest ones stand beside it.
            _load(pl_module, trainer.strategy, self._resumed[_CURRENT])
            self._average.n_averaged.fill_(self._resumed[_UPDATES])
            self._resumed = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update the average after a step."""
        if trainer.global_step == self._looked_at_step:
            return
        self._looked_at_step = trainer.global_step
        if self.should_update(trainer.global_step, trainer.current_epoch):
            assert self._average is not None
            self._average.update_parameters(_Parts(pl_module, trainer.strategy))

    def on_train_end(self, trainer: Trainer, pl_module: Module) -> None:
        """The module keeps the average."""
        if self._has_average:
            self._swap(pl_module, trainer.strategy)

    def teardown(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Let go of the weights."""
        self._average, self._is_swapped = None, False

    # -- in its place ---------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Validate the average."""
        if trainer.state.fn == "fit" and self._has_average:
            self._swap(pl_module, trainer.strategy)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Go on with the newest weights."""
        if self._is_swapped:
            self._swap(pl_module, trainer.strategy)

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """A validation may have failed in between."""
        if self._is_swapped:
            self._swap(pl_module, trainer.strategy)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """The average is what the checkpoint holds."""
        if not self._has_average:
            return
        assert self._average is not None
        average, newest = self._whole_average(pl_module, trainer.strategy), checkpoint["state_dict"]
        if self._is_swapped:
            average, newest = newest, average
        checkpoint["state_dict"] = average
        if "optimizer_states" in checkpoint:
            checkpoint[_CURRENT] = newest
            checkpoint[_UPDATES] = int(self._average.n_averaged)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Module, checkpoint: dict[str, Any]) -> None:
        """Keep the newest weights, to go on with."""
        if trainer.state.fn == "fit" and _CURRENT in checkpoint:
            self._resumed = copy_to_cpu({_CURRENT: checkpoint[_CURRENT], _UPDATES: checkpoint[_UPDATES]})

    @property
    def _has_average(self) -> bool:
        return self._average is not None and int(self._average.n_averaged) > 0

    def _swap(self, module: nn.Module, strategy: Strategy) -> None:
        """Exchange the module's weights and the average, in place: optimizers hold on to the parameters."""
        assert self._average is not None
        own, average = _Parts(module, strategy), self._average.module
        with torch.no_grad():
            for name, value in own.state_dict().items():
                kept = value.clone()
                value.copy_(average.state_dict()[name])
                average.state_dict()[name].copy_(kept)
        self._is_swapped = not self._is_swapped

    def _whole_average(self, module: nn.Module, strategy: Strategy) -> dict[str, Any]:
        """The average as a module's `state_dict`. All workers have to call it."""
        assert self._average is not None
        state = module.state_dict(keep_vars=True)
        parts = self._average.module.state_dict()
        averaged = {id(value): parts[key] for key, value in _distinct_tensors(state)}
        whole = {
            name: strategy.whole(strategy.from_own_part(averaged[id(value)], value.detach()))
            if id(value) in averaged
            else value
            for name, value in state.items()
        }
        return plain_names(whole)


class _Parts(nn.Module):
    """This worker's part of a module's weights, each tensor once, sharing its memory."""

    def __init__(self, module: nn.Module, strategy: Strategy) -> None:
        super().__init__()
        for key, value in _distinct_tensors(module.state_dict(keep_vars=True)):
            part = strategy.own_part(value.detach())
            if isinstance(value, nn.Parameter):
                self.register_parameter(key, nn.Parameter(part, requires_grad=False))
            else:
                self.register_buffer(key, part)


def _distinct_tensors(state: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor of a state once, under a name without dots."""
    seen = set()
    for value in state.values():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield f"tensor_{len(seen)}", value


def _load(module: nn.Module, strategy: Strategy, state: dict[str, Any]) -> None:
    """Load whole weights into a module that may be sharded."""
    own = plain_names(module.state_dict())
    load_weights(module, {name: strategy.shard(value, own.get(name)) for name, value in state.items()})
