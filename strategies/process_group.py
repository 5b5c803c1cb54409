"""What strategies for several workers have in common: the workers agree through torch's process group."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import MisconfigurationError
from paceline.strategies.base import Strategy

_MEET_S = 10.0

# How often the workers of this process group have met; the store outlives a run.
_meetings: Counter[str] = Counter()

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

    def unanimous(self, what: str, advice: str) -> None:
        """Meet the others in the store that the process group was formed through, not in a collective.

        For those who do not come are in a collective of another kind, or on their way to one.
        """
        if not self._has_others:
            return
        store = dist.distributed_c10d._get_default_store()
        _meetings[what] += 1
        place = f"paceline/{what}/{_meetings[what]}"
        store.add(place, 1)
        give_up_s = time.monotonic() + _MEET_S
        while store.add(place, 0) < self.placement.world_size:
            if time.monotonic() > give_up_s:
                raise MisconfigurationError(
                    f"{what} on worker {self.placement.global_rank}, but not on all of them within {_MEET_S:.0f} s, "
                    f"where all have to do the same. {advice}"
                )
            time.sleep(0.001)

    def barrier(self) -> None:
        """Wait for all workers."""
        if self._has_others:
            dist.barrier()
