"""Feed: one loader's batches for this worker, or several loaders' as one, within limits, from any position."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

from paceline.data.combined import CombinedLoader
from paceline.data.limits import limited
from paceline.data.sources import CombinedSource, Source, open_source, training_structure
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
        mode: how several training loaders are read as one; a CombinedLoader has its own.
        fixed_order: whether every epoch has the same order, unshuffled.

    Attributes:
        num_batches: batches in an epoch; infinity when unknown.
        end: the same for the running epoch, which differs if it was begun on another number of workers.
        is_last: whether the batch that was given last ends the epoch.
        dataloader_idx: of the loader that it came from, where several are read one after the other.

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
        mode: str = "max_size_cycle",
        fixed_order: bool = False,
    ) -> None:
        def open_one(one: Any) -> Source:
            return open_source(one, placement, seed, training, shard, fixed_order)

        def share(source: Source) -> float:
            if training:
                return limited(source.length, limit, limit_name)
            return source.share_of(limited(source.total, limit, limit_name))

        self.loader = training_structure(loader, mode) if training else loader
        self._source: Source
        if isinstance(self.loader, CombinedLoader):
            self._source = CombinedSource(self.loader, open_one, share, placement.world_size)
            self.num_batches = self._source.length
        else:
            self._source = open_one(self.loader)
            self.num_batches = share(self._source)
        self._gives_pairs = isinstance(self.loader, CombinedLoader) and self.loader.mode == "sequential"
        if (self._source.length if training else self._source.total) == 0:
            warnings.warn(
                f"A {type(self.loader).__name__} has no batches: there is nothing to do for it.", stacklevel=3
            )
        self.end = self.num_batches
        self.is_last = False
        self.dataloader_idx = 0

    @property
    def items_per_step(self) -> int:
        """By how much the position of all workers together moves with each batch."""
        return self._source.items_per_step

    def index_in_data(self, own_idx: int) -> int:
        """The place among all workers' batches of one that this worker reads in evaluation."""
        return self._source.index_in_data(own_idx)

    def samples_of(self, own_idx: int) -> list[int] | None:
        """The indices in the data set of the samples in a batch of this epoch; None if they are unknown."""
        return self._source.samples_of(own_idx)

    def epoch(self, epoch: int, done: int = 0, position: int | None = None) -> Iterator[Any]:
        """The batches of an epoch, without the first `done` of this worker.

        What has to be read to get there is read before this returns, so that the caller may set random state after it.

        Args:
            epoch: its index.
            done: how many batches this worker counts already.
            position: how many items all workers together have done with; by default those of `done` batches, which
                is right unless some of them were read on another number of workers.
        """
        position = done * self.items_per_step if position is None else position
        self._expected = self.end = done + self._batches_after(position)
        self.is_last = done >= self.end
        if self.is_last:
            return iter(())
        batches, left = self._source.batches(epoch, position)
        if left == math.inf:
            batches = self._one_ahead(batches, done)
        else:
            self.end = int(min(self.end, done + left))
            batches = self._counted(batches, done, self.end)
        return self._without_index(batches) if self._gives_pairs else batches

    def _batches_after(self, position: int) -> float:
        """This worker's batches of an epoch from a position on, going by the number of all."""
        if self.num_batches == math.inf:
            return math.inf
        items = self.num_batches * self.items_per_step
        return max(math.ceil((items - position) / self.items_per_step), 0)

    def _without_index(self, pairs: Iterator[Any]) -> Iterator[Any]:
        for batch, self.dataloader_idx in pairs:
            yield batch

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
            following = next(batches, end) if count < self.end else end
            self.is_last = following is end
            yield batch
            batch = following
        self.is_last = True
        self._warn_of_length(count)

    def _warn_of_length(self, count: int) -> None:
        if count < self._expected < math.inf:
            warnings.warn(
                f"A {type(self.loader).__name__} ended after {count} batches; its length said {self._expected}.",
                stacklevel=2,
            )
