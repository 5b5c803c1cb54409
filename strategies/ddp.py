"""Data parallel training: every worker holds the whole module, gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.strategies.base import Strategy


class _Step(nn.Module):
    """Lets DistributedDataParallel see a training step as the forward of a module."""

    def __init__(self, module: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(*args, **kwargs)


class DDPStrategy(Strategy):
    """Trains on several workers with `torch.nn.parallel.DistributedDataParallel`.

    Args:
        options: passed on to DistributedDataParallel, such as `find_unused_parameters=True`.
    """

    name = "ddp"
    spans_workers = True

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._wrapped: DistributedDataParallel | None = None

    @property
    def inference_tensors_work(self) -> bool:
        """Gloo's collectives cannot take tensors of the inference mode."""
        return self.placement.world_size == 1 or dist.get_backend() != "gloo"

    def setup(self, module: nn.Module) -> None:
        """Bring the module to the device, with BatchNorm layers that see the whole batch if that is wanted."""
        if self.sync_batchnorm:
            nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        super().setup(module)

    def wrap(self, module: nn.Module, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step inside DistributedDataParallel, which averages the gradients in the backward pass."""
        if self.placement.world_size == 1 or not any(p.requires_grad for p in module.parameters()):
            return step
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        self._wrapped = DistributedDataParallel(_Step(module, step), device_ids=device_ids, **self._options)
        return self._wrapped

    def teardown(self, module: nn.Module) -> None:
        """Let go of the wrapper, and leave the module on the CPU."""
        self._wrapped = None
        super().teardown(module)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are gathered on each worker only."""
        if self._wrapped is None:
            yield
        else:
            with self._wrapped.no_sync():
                yield

    def gather_objects(self, value: Any) -> list[Any]:
        """Every worker's object, in rank order."""
        if self.placement.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.placement.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's object."""
        if self.placement.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def largest(self, values: list[int]) -> list[int]:
        """Each number's largest value over all workers."""
        if self.placement.world_size == 1:
            return values
        tensor = torch.tensor(values, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [int(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        """Wait for all workers."""
        if self.placement.world_size > 1:
            dist.barrier()
