"""Where batches come from: map-style DataLoaders, whose order paceline knows, and any other iterable."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.data.sampler import ShardedBatches
from paceline.seed import derive
from paceline.strategies.base import Placement


class Source(Protocol):
    """Batches of one worker."""

    length: float
    """This worker's batches in an epoch; infinity when unknown."""

    total: float
    """All workers' batches in an epoch, where whole batches are dealt out to them."""

    items_per_step: int
    """By how much the position of all workers together moves in one step."""

    def share_of(self, total: float) -> float:
        """How many of the first `total` batches are this worker's, where whole batches are dealt out."""

    def index_in_data(self, own_idx: int) -> int:
        """The place among all workers' batches of this worker's `own_idx`-th, where whole batches are dealt out."""

    def batches(self, epoch: int, position: int) -> tuple[Iterator[Any], float]:
        """The batches of an epoch from a position on, and how many there are; infinity when reading on tells."""


class LoaderSource:
    """A DataLoader over a map-style data set.

    The user's loader is not rebuilt: a shallow copy of it, which shares everything else, is given another batch
    sampler. So subclasses, collate functions, loading processes and pinned memory stay what they are.
    """

    def __init__(self, loader: DataLoader[Any], placement: Placement, seed: int, training: bool, shard: bool) -> None:
        self._sampler = ShardedBatches(loader, placement, seed, training, shard)
        self._loader = copy.copy(loader)
        # Through __dict__, for a DataLoader refuses to have these set after it was built.
        vars(self._loader)["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._sampler
        vars(self._loader)["_iterator"] = None
        self._loader.generator = torch.Generator()
        self._seed = derive(seed, placement.global_rank)
        sized = self._sampler.is_sized
        self.length: float = len(self._sampler) if sized else math.inf
        self.total: float = self._sampler.total_batches if sized else math.inf
        self.items_per_step = self._sampler.items_per_step
        if self._sampler.loses:
            warnings.warn(
                f"The batch sampler's batches do not go evenly into {placement.world_size} workers: "
                f"{self._sampler.loses} of them are left out in each epoch.",
                stacklevel=2,
            )

    def share_of(self, total: float) -> float:
        """Every W-th batch is this worker's."""
        return total if total == math.inf else len(range(self._sampler.rank, int(total), self._sampler.world))

    def index_in_data(self, own_idx: int) -> int:
        """Every W-th batch is this worker's."""
        return own_idx * self._sampler.world + self._sampler.rank

    def batches(self, epoch: int, position: int) -> tuple[Iterator[Any], float]:
        """The batches of an epoch from a position on; nothing before it is read."""
        count = self._sampler.begin(epoch, position)
        # Loading processes are seeded from this generator, never from the one that training draws from.
        assert self._loader.generator is not None
        self._loader.generator.manual_seed(derive(self._seed, epoch))
        return iter(self._loader), count


class IterableSource:
    """Any iterable: its order and its share for this worker are the user's."""

    items_per_step = 1

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable
        try:
            self.length: float = len(iterable)
        except (TypeError, NotImplementedError):
            self.length = math.inf
        self.total = self.length

    def share_of(self, total: float) -> float:
        """All of it: the user has shared it already."""
        return total

    def index_in_data(self, own_idx: int) -> int:
        """Its own order is all that is known."""
        return own_idx

    def batches(self, epoch: int, position: int) -> tuple[Iterator[Any], float]:
        """The batches of an epoch; those before the position are read and passed over."""
        if position:
            warnings.warn(
                f"A {type(self._iterable).__name__} cannot start in the middle: {position} batches are skipped by "
                "reading them.",
                stacklevel=2,
            )
        return itertools.islice(iter(self._iterable), position, None), math.inf


def open_source(loader: Any, placement: Placement, seed: int, training: bool, shard: bool) -> Source:
    """The source for a loader.

    Args:
        loader: a DataLoader, or any iterable.
        placement: this worker's rank and the number of workers.
        seed: of the run.
        training: whether all workers have to take the same number of steps.
        shard: whether a map-style loader's samples are shared among the workers.
    """
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        return LoaderSource(loader, placement, seed, training, shard)
    if placement.world_size > 1 and placement.global_rank == 0:
        warnings.warn(
            f"A {type(loader).__name__} is read by all {placement.world_size} workers: give each its own part of the "
            "data, by `trainer.global_rank` and `trainer.world_size`.",
            stacklevel=2,
        )
    return IterableSource(loader)
