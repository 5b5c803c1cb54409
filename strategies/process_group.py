"""What strategies for several workers have in common: the workers agree through torch's process group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.strategies.base import Strategy

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


class ProcessGroupStrategy(Strategy):
    """Base of the strategies whose workers form a process group; alone, a worker asks nobody."""

    spans_workers = True

    @property
    def inference_tensors_work(self) -> bool:
        """Gloo's collectives cannot take tensors of the inference mode."""
        return not self._has_others or dist.get_backend() != "gloo"

    @property
    def _has_others(self) -> bool:
        return self.placement.world_size > 1

    def gather_objects(self, value: Any) -> list[Any]:
        """Every worker's object, in rank order."""
        if not self._has_others:
            return [value]
        gathered: list[Any] = [None] * self.placement.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's object."""
        if not self._has_others:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def largest(self, values: list[int]) -> list[int]:
        """Each number's largest value over all workers."""
        if not self._has_others:
            return values
        tensor = torch.tensor(values, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [int(value) for value in tensor.tolist()]

    def reduce(self, tensor: Tensor, op: str = "mean") -> Tensor:
        """The tensor's "mean", "sum", "min" or "max" over all workers, element by element."""
        operation = _OPERATIONS.get(op)
        if operation is None or not self._has_others:
            return super().reduce(tensor, op)
        reduced = tensor.detach().clone()
        dist.all_reduce(reduced, op=operation)
        return reduced / self.placement.world_size if op == "mean" else reduced

    def all_gather(self, tensor: Tensor, sync_grads: bool = False) -> Tensor:
        """Every worker's tensor, stacked in rank order."""
        if not self._has_others:
            return super().all_gather(tensor, sync_grads)
        if sync_grads:
            from torch.distributed.nn.functional import all_gather

            return torch.stack(all_gather(tensor))  # type: ignore[no-untyped-call]
        parts = [torch.empty_like(tensor) for _ in range(self.placement.world_size)]
        dist.all_gather(parts, tensor.detach().contiguous())
        return torch.stack(parts)

    def barrier(self) -> None:
        """Wait for all workers."""
        if self._has_others:
            dist.barrier()
