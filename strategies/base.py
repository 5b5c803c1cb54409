"""Strategy: what differs between training on one device and on many, behind the same few verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.strategies.accelerators import Accelerator
from paceline.strategies.precision import Precision


@dataclass(frozen=True)
class Placement:
    """Where one worker stands among all.

    Attributes:
        global_rank: 0 to world_size - 1, by node, then by device.
        local_rank: its index on its node.
        node_rank: its node's index.
        world_size: number of workers.
        num_nodes: number of nodes.
    """

    global_rank: int = 0
    local_rank: int = 0
    node_rank: int = 0
    world_size: int = 1
    num_nodes: int = 1


class Strategy:
    """Runs a module on this worker's device, and agrees with the other workers.

    This base class is complete for a world of one worker; a strategy for several overrides the verbs that differ.

    Attributes:
        name: what `Trainer(strategy=)` calls it.
        spans_workers: whether it can run several workers.
        steps_together: whether each forward pass takes all workers, so that one without a batch has to `stand_in`.
        device: this worker's device.
        placement: this worker's rank and the number of workers.
        precision: the number formats that the module runs in.
        sync_batchnorm: whether BatchNorm goes over the batches of all workers together.
    """

    name = "base"
    spans_workers = False
    steps_together = False

    def __init__(self) -> None:
        self.placement = Placement()
        self.device = torch.device("cpu")
        self.precision = Precision()
        self.sync_batchnorm = False

    def connect(self, placement: Placement, device: torch.device) -> None:
        """Take this worker's place; the process group, if one is needed, is there already."""
        self.placement = placement
        self.device = device

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the worker that writes files and rows."""
        return self.placement.global_rank == 0

    @property
    def inference_tensors_work(self) -> bool:
        """Whether evaluation may run under `torch.inference_mode`."""
        return True

    def refuse(self, config: TrainerConfig, num_workers: int) -> None:
        """Look, on the driver and before anything starts, for what this strategy cannot do.

        Args:
            config: the Trainer's arguments.
            num_workers: workers that the run will have.

        Raises:
            MisconfigurationError: the configuration asks for something that it cannot do.
        """
        if num_workers > 1 and not self.spans_workers:
            raise MisconfigurationError(
                f'`strategy="{self.name}"` runs on one device, but {num_workers} are asked for. Use "ddp" or "auto".'
            )

    def backend(self, accelerator: Accelerator) -> str:
        """The backend of the process group that workers form for this strategy."""
        return accelerator.backend

    # -- the module -----------------------------------------------------------------------------------------------

    def setup(self, module: nn.Module) -> None:
        """Bring the module to its number format and to the device."""
        self.precision.convert_module(module)
        module.to(self.device)

    def wrap(self, module: nn.Module, step: Callable[..., Any], training: bool) -> Callable[..., Any]:
        """What the loop calls in place of one of the module's steps, with whatever this strategy puts around it.

        Args:
            module: after `setup`.
            step: the step.
            training: whether a backward pass follows.
        """
        return step

    def stand_in(self) -> None:
        """Take part in the forward pass of the others, without a batch."""

    def teardown(self, module: nn.Module) -> None:
        """Let go of the module, and leave it on the CPU."""
        module.to("cpu")

    # -- a step ---------------------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Around batches whose gradients are only gathered: the workers do not exchange them."""
        yield

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute the gradients."""
        scaler = self.precision.scaler
        (loss if scaler is None else self.precision.scale(loss)).backward(*args, **kwargs)  # type: ignore

    def clip_gradients(self, optimizer: Optimizer, limit: float, algorithm: str) -> None:
        """Clip the gradients of the optimizer's parameters, by their common "norm" or each "value"."""
        self.precision.unscale(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if algorithm == "norm":
            nn.utils.clip_grad_norm_(parameters, limit)
        else:
            nn.utils.clip_grad_value_(parameters, limit)

    # -- state, where a worker may hold a part of it only -----------------------------------------------------------

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which each worker may hold a part, in one piece. All workers have to call it."""
        return tensor

    def own_part(self, tensor: Tensor) -> Tensor:
        """What this worker holds of a tensor."""
        return tensor

    def from_own_part(self, part: Tensor, like: Tensor) -> Tensor:
        """The tensor that `own_part` was taken from; it lies as `like` does."""
        return part.to(like.device)

    def shard(self, whole: Any, like: Any) -> Any:
        """A whole tensor as this strategy keeps it, as it keeps `like`; anything else as it is."""
        return whole

    def load_optimizer(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load an optimizer's state, in which every tensor is whole."""
        optimizer.load_state_dict(state)

    # -- the other workers ----------------------------------------------------------------------------------------

    def gather_objects(self, value: Any) -> list[Any]:
        """Every worker's object, in rank order, on every worker. All workers have to call it."""
        return [value]

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's object on every worker. All workers have to call it."""
        return value

    def largest(self, values: list[int]) -> list[int]:
        """Each number's largest value over all workers. All workers have to call it."""
        return values

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        """The tensor's "mean", "sum", "min" or "max" over all workers, element by element. All have to call it.

        Raises:
            MisconfigurationError: there is no such operation.
        """
        if op not in ("mean", "sum", "min", "max"):
            raise MisconfigurationError(f'`op={op!r}` is not known. Use "mean", "sum", "min" or "max".')
        return tensor.detach()

    def all_gather(self, tensor: Tensor, sync_grads: bool = False) -> Tensor:
        """Every worker's tensor, all of one shape, stacked in rank order to (workers, ...). All have to call it.

        Args:
            tensor: this worker's.
            sync_grads: let gradients flow back to the worker that a tensor comes from.
        """
        return (tensor if sync_grads else tensor.detach()).unsqueeze(0)

    def unanimous(self, what: str, advice: str) -> None:
        """Go on if all workers come here at the same time; for what is right only if all do it.

        It costs nothing where nobody calls it.

        Args:
            what: happened on this worker, for the message.
            advice: what to do instead, likewise.

        Raises:
            MisconfigurationError: some workers did not come within 10 s.
        """

    def barrier(self) -> None:
        """Wait until all workers are here."""
