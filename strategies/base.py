"""Strategy: what differs between training on one device and on many, behind the same few verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
        device: this worker's device.
        placement: this worker's rank and the number of workers.
        precision: the number formats that the module runs in.
        sync_batchnorm: whether BatchNorm goes over the batches of all workers together.
    """

    name = "base"
    spans_workers = False

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

    # -- the module -----------------------------------------------------------------------------------------------

    def setup(self, module: nn.Module) -> None:
        """Bring the module to its number format and to the device."""
        self.precision.convert_module(module)
        module.to(self.device)

    def wrap(self, module: nn.Module, step: Callable[..., Any]) -> Callable[..., Any]:
        """What the loop calls for a training step: `step`, with whatever this strategy puts around it."""
        return step

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

    def barrier(self) -> None:
        """Wait until all workers are here."""
