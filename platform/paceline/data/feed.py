"""Feed: one loader's batches for this worker, within its limit, from any position, on the device."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.data.sources import open_source
from paceline.errors import MisconfigurationError
from paceline.strategies.base import Placement


class Feed:
    """The batches that one worker reads from one loader.

    Args:
        loader: a DataLoader, or any iterable.
        placement: this worker's rank and the number of workers.
        seed: of the run; with the epoch it gives the order.
        limit: batches per epoch: an int, or a float share. In training of each worker, since every step is one of
            all workers; in evaluation of all workers together, so that they see the same samples as one would.
        limit_name: the Trainer argument that the limit comes from.
        training: whether all workers have to take the same number of steps.
        shard: whether a map-style loader's samples are shared among the workers.

    Attributes:
        num_batches: batches in an epoch; infinity when unknown.
        is_last: whether the batch that was given last ends the epoch.

    Raises:
        MisconfigurationError: the limit is a share that makes no batch, or of a loader without length.
    """

    def __init__(
        self,
        loader: Any,
        placement: Placement,
        seed: int,
        limit: int | float = 1.0,
        limit_name: str = "limit_train_batches",
        training: bool = True,
        shard: bool = True,
    ) -> None:
        self.loader = loader
        self._source = open_source(loader, placement, seed, training, shard)
        if training:
            self.num_batches = limited(self._source.length, limit, limit_name)
        else:
            self.num_batches = self._source.share_of(limited(self._source.total, limit, limit_name))
        self.is_last = False

    @property
    def items_per_step(self) -> int:
        """By how much the position of all workers together moves with each batch."""
        return self._source.items_per_step

    def index_in_data(self, own_idx: int) -> int:
        """The place among all workers' batches of one that this worker reads in evaluation."""
        return self._source.index_in_data(own_idx)

    def epoch(self, epoch: int, done: int = 0) -> Iterator[Any]:
        """The batches of an epoch, without the first `done` of this worker, which are not read again."""
        self.is_last = False
        if done >= self.num_batches:
            self.is_last = True
            return
        batches, left = self._source.batches(epoch, done * self._source.items_per_step)
        if left == math.inf:
            batches = self._one_ahead(batches, done)
        else:
            batches = self._counted(batches, done, int(min(self.num_batches, done + left)))
        yield from batches

    def _counted(self, batches: Iterator[Any], done: int, end: int) -> Iterator[Any]:
        self.is_last = done == end
        if not self.is_last:
            for count, batch in enumerate(batches, done + 1):
                self.is_last = count == end
                yield batch
                if self.is_last:
                    break
        self._warn_of_length(end)

    def _one_ahead(self, batches: Iterator[Any], done: int) -> Iterator[Any]:
        # What an iterable says of its length may be wrong. Only the attempt to read on tells which batch is the last.
        end = object()
        count = done
        batch = next(batches, end)
        while batch is not end:
            count += 1
            following = next(batches, end) if count < self.num_batches else end
            self.is_last = following is end
            yield batch
            batch = following
        self.is_last = True
        self._warn_of_length(count)

    def _warn_of_length(self, count: int) -> None:
        if count < self.num_batches < math.inf:
            warnings.warn(
                f"A {type(self.loader).__name__} ended after {count} batches; its length said {self.num_batches}.",
                stacklevel=2,
            )


def limited(length: float, limit: int | float, name: str) -> float:
    """How many of `length` batches a limit leaves.

    Raises:
        MisconfigurationError: the limit is a share that makes no batch, or of an unknown number.
    """
    if limit == 0:
        return 0
    if isinstance(limit, int):
        return min(length, limit)
    if limit == 1.0:
        return length
    if length == math.inf:
        raise MisconfigurationError(
            f"`{name}={limit}` is a share of a loader that has no length. Use an int number of batches, or 1.0 for all."
        )
    count = int(length * limit)
    if count == 0 and length > 0:
        raise MisconfigurationError(
            f"`{name}={limit}` of {int(length)} batches is less than one batch. Use at least "
            f"{_share_of_one(length)}, an int, or 0 to switch this stage off."
        )
    return count


def _share_of_one(length: float) -> float:
    """The smallest share of three digits that makes a batch of so many."""
    digits = 2 - math.floor(math.log10(1 / length))
    return float(math.ceil(10**digits / length) / 10**digits)


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device: tensors and objects with `to`, in nested lists, tuples and mappings; the rest as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch
