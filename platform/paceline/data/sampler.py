"""Which samples a worker reads in which order: a pure function of (seed, epoch), from any position on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

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
    """

    def __init__(self, loader: DataLoader[Any], placement: Placement, seed: int, training: bool, shard: bool) -> None:
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
        # A sampler with a generator of its own draws from it: its seed takes part in the order of each epoch.
        self._generators = [
            (generator, generator.initial_seed())
            for generator in {id(g): g for g in _generators(loader.batch_sampler, loader.sampler)}.values()
        ]
        self._batches: Iterator[Any] = iter(())

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
        for source in (self._source, getattr(self._source, "sampler", None)):
            set_epoch = getattr(source, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        for generator, initial_seed in self._generators:
            generator.manual_seed(derive(initial_seed, epoch))
        with isolated_random_state(derive(self._seed, epoch)):
            # All at once: what is drawn later would depend on what training draws in between. Only an order that has
            # no end cannot be had at once.
            items = list(self._source) if self.is_sized else self._source
        self._batches = self._deal(itertools.islice(items, start, None))
        if not self.is_sized:
            return math.inf
        dealt = list(self._batches)
        self._batches = iter(dealt)
        return len(dealt)

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

    def _deal(self, items: Iterator[Any]) -> Iterator[Any]:
        while together := list(itertools.islice(items, self.items_per_step)):
            is_whole = len(together) == self.items_per_step
            if self._by_sample:
                if not is_whole and self._drop_last:
                    return
                # The last step of an epoch may have fewer samples than workers: who has none repeats one, since
                # every worker has to take part in it.
                yield together[self.rank :: self.world] or [together[self.rank % len(together)]]
            else:
                if not is_whole and self._training:
                    return
                if self.rank < len(together):
                    yield together[self.rank]


def _generators(*samplers: Any) -> Iterator[Any]:
    for sampler in samplers:
        for owner in (sampler, getattr(sampler, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if generator is not None:
                yield generator
