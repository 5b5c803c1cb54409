"""Which samples a worker reads in which order: a pure function of (seed, epoch), from any position on."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from paceline.seed import derive, isolated_random_state
from paceline.strategies.base import Placement


class ShardedBatches:
    """The batches of one worker in one epoch, for use as the `batch_sampler` of a DataLoader.

    The user's own sampler gives the order of all samples; nothing in it is replaced. Then

    - training deals samples out by turns: worker r of W takes every W-th one from r on, so that one step of all
      workers together reads the same samples as one step of a single worker with a batch W times as large;
    - evaluation, and training with a batch sampler of the user's own, deals out whole batches by turns, so that each
      batch is the same for every number of workers.

    Args:
        loader: a DataLoader over a map-style data set.
        placement: this worker's rank and the number of workers.
        seed: of the run.
        training: whether all workers have to take the same number of steps.
        shard: False leaves everything to this worker, whose user has sharded it already.
        fixed_order: every epoch has the order of the data set, or of the first epoch where samplers are the user's.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        placement: Placement,
        seed: int,
        training: bool,
        shard: bool,
        fixed_order: bool = False,
    ) -> None:
        own = loader.batch_sampler
        self._source: Any = own if own is not None else loader.sampler
        sampler = own.sampler if type(own) is BatchSampler else None
        if isinstance(sampler, DistributedSampler):
            shard = False
        self.world = placement.world_size if shard else 1
        self.rank = placement.global_rank if shard else 0
        self._by_sample = training and sampler is not None
        if self._by_sample:
            assert isinstance(own, BatchSampler)
            self._source, self._batch_size, self._drop_last = sampler, own.batch_size, own.drop_last
        self._training = training
        self._seed = seed
        self._fixed_order = fixed_order
        if fixed_order:
            self._stop_shuffling(loader)
        # A sampler with a generator of its own draws from it: its seed takes part in the order of each epoch.
        self._generators = [
            (generator, generator.initial_seed())
            for generator in {id(g): g for g in _generators(loader.batch_sampler, loader.sampler)}.values()
        ]
        self._batches: Iterator[Any] = iter(())
        self.dealt: list[Any] | None = None

    @property
    def items_per_step(self) -> int:
        """How many samples, or batches, all workers together take in one step."""
        return self.world * (self._batch_size if self._by_sample else 1)

    @property
    def loses(self) -> int:
        """Batches of a user's batch sampler that training leaves out, because they do not go into the workers."""
        if not self._training or self._by_sample or not self.is_sized:
            return 0
        return len(self._source) % self.world

    @property
    def total_batches(self) -> int:
        """Batches of all workers, where whole batches are dealt out."""
        return len(self._source)

    def begin(self, epoch: int, start: int = 0) -> float:
        """The next iteration is of `epoch`, without the first `start` items of all workers together.

        Returns:
            How many batches it will have; infinity when only reading on tells.
        """
        epoch = 0 if self._fixed_order else epoch
        for source in (self._source, getattr(self._source, "sampler", None)):
            set_epoch = getattr(source, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        for generator, initial_seed in self._generators:
            generator.manual_seed(derive(initial_seed, epoch))
        if not self.is_sized:
            with isolated_random_state(derive(self._seed, epoch)):
                items = iter(self._source)
            self.dealt, self._batches = None, self._deal_stream(itertools.islice(items, start, None))
            return math.inf
        # All at once: what is drawn later would depend on what training draws in between.
        if type(self._source) is SequentialSampler:
            order: Sequence[Any] = range(len(self._source))  # which draws nothing
        else:
            with isolated_random_state(derive(self._seed, epoch)):
                order = list(self._source)
        self.dealt = list(self._deal(order[start:]))
        self._batches = iter(self.dealt)
        return len(self.dealt)

    @property
    def is_sized(self) -> bool:
        """Whether the user's sampler says how many samples or batches it has."""
        return hasattr(self._source, "__len__")

    def __len__(self) -> int:
        """Batches of this worker in a whole epoch."""
        items = len(self._source)
        if self._by_sample:
            return (items // self.items_per_step) if self._drop_last else math.ceil(items / self.items_per_step)
        if self._training:
            return items // self.world
        return len(range(self.rank, items, self.world))

    def __iter__(self) -> Iterator[Any]:
        return self._batches

    def _deal(self, items: Sequence[Any]) -> Iterator[Any]:
        step = self.items_per_step
        for first in range(0, len(items), step):
            yield from self._mine(items[first : first + step])

    def _deal_stream(self, items: Iterator[Any]) -> Iterator[Any]:
        while together := list(itertools.islice(items, self.items_per_step)):
            yield from self._mine(together)

    def _mine(self, together: Sequence[Any]) -> tuple[Any, ...]:
        """This worker's batch, if it has one, of what all workers read in one step."""
        is_whole = len(together) == self.items_per_step
        if self._by_sample:
            if not is_whole and self._drop_last:
                return ()
            # The last step of an epoch may have fewer samples than workers: who has none repeats one, since
            # every worker has to take part in it.
            return (list(together[self.rank :: self.world]) or [together[self.rank % len(together)]],)
        if not is_whole and self._training:
            return ()
        return (together[self.rank],) if self.rank < len(together) else ()

    def _stop_shuffling(self, loader: DataLoader[Any]) -> None:
        own = loader.batch_sampler
        shuffling = own.sampler if type(own) is BatchSampler else loader.sampler
        if not isinstance(shuffling, RandomSampler):
            return
        warnings.warn("`overfit_batches` is set: the loader that shuffles gives the data in order.", stacklevel=2)
        in_order = SequentialSampler(loader.dataset)  # type: ignore[arg-type]
        if self._by_sample or own is None:
            self._source = in_order
        else:
            assert isinstance(own, BatchSampler)
            self._source = BatchSampler(in_order, own.batch_size, own.drop_last)


def _generators(*samplers: Any) -> Iterator[Any]:
    for sampler in samplers:
        for owner in (sampler, getattr(sampler, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                yield generator
