"""Feed: one loader's batches for this worker, or several loaders' as one, within limits, from any position."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from paceline.data.combined import CombinedLoader
from paceline.data.limits import limited
from paceline.data.sources import CombinedSource, Source, open_source, training_structure
from paceline.strategies.base import Placement, Strategy

_END = object()


class Feed:
    """The batches that one worker reads from one loader.

    Args:
        loader: a DataLoader, or any iterable.
        workers: this worker's place among all, and the way to agree with them.
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
        workers: Strategy,
        seed: int,
        limit: int | float = 1.0,
        limit_name: str = "limit_train_batches",
        training: bool = True,
        shard: bool = True,
        mode: str = "max_size_cycle",
        fixed_order: bool = False,
    ) -> None:
        placement = workers.placement
        self.loader = training_structure(loader, mode) if training else loader
        is_combined = isinstance(self.loader, CombinedLoader)
        # Evaluation deals out whole steps over several loaders: a member's batches alone would be other combinations.
        member_placement = Placement() if is_combined and not training else placement

        def open_one(one: Any) -> Source:
            return open_source(one, member_placement, seed, training, shard, fixed_order)

        def share(source: Source) -> float:
            if training:
                return limited(source.length, limit, limit_name)
            return source.share_of(limited(source.total, limit, limit_name))

        self._source: Source
        if isinstance(self.loader, CombinedLoader):
            self._source = CombinedSource(self.loader, open_one, share, placement, deals_steps=not training)
            self.num_batches = self._source.length
        else:
            self._source = open_one(self.loader)
            self.num_batches = share(self._source)
        self._gives_pairs = isinstance(self.loader, CombinedLoader) and self.loader.mode == "sequential"
        if (self._source.length if training else self._source.total) == 0:
            warnings.warn(
                f"A {type(self.loader).__name__} has no batches: there is nothing to do for it.", stacklevel=3
            )
        self._vote: Callable[[list[int]], list[int]] | None = None
        self._workers = workers
        self._told = False
        if training and placement.world_size > 1:
            self._agree_on_length()
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
        if left == math.inf or self._vote is not None:
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
        count = done
        batch = self._read(batches, count)
        is_over = self._anybody(batch is _END)
        while not is_over:
            count += 1
            following = self._read(batches, count)
            self.is_last = is_over = self._anybody(following is _END)
            yield batch
            batch = following
        self.is_last = True
        if self._vote is not None:
            self._tell_who_ended(count, batch is _END)
        else:
            self._warn_of_length(count)

    def _read(self, batches: Iterator[Any], count: int) -> Any:
        return next(batches, _END) if count < self.end else _END

    def _anybody(self, is_so: bool) -> bool:
        """Whether it is so on this worker, or on any where they have to agree."""
        return is_so if self._vote is None else bool(self._vote([int(is_so)])[0])

    def _agree_on_length(self) -> None:
        """Find out whether all workers have the same number of batches; if not, they look at each batch together."""
        own = -1 if self.num_batches == math.inf else int(self.num_batches)
        is_unsure, most, least = self._workers.largest([int(not self._source.is_equal_for_all), own, -own])
        if is_unsure or most != -least:
            self._vote = self._workers.largest
            # An epoch is as long as the shortest; where one does not know, nobody does.
            self.num_batches = math.inf if least == 1 else -least

    def _tell_who_ended(self, count: int, is_at_end: bool) -> None:
        ended = self._workers.gather_objects(is_at_end)
        if all(ended) or self._told or not self._workers.is_global_zero:
            return
        self._told = True
        who = ", ".join(str(rank) for rank, is_over in enumerate(ended) if is_over)
        others = ", ".join(str(rank) for rank, is_over in enumerate(ended) if not is_over)
        warnings.warn(
            f"The training data of worker {who} ended after {count} batches, while worker {others} had more: the epoch "
            f"ends for all after {count}.",
            stacklevel=2,
        )

    def _warn_of_length(self, count: int) -> None:
        if count < self._expected < math.inf:
            warnings.warn(
                f"A {type(self.loader).__name__} ended after {count} batches; its length said {self._expected}.",
                stacklevel=2,
            )
