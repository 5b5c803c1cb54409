"""Where batches come from: map-style DataLoaders, whose order paceline knows, and any other iterable."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from paceline.data.advice import warn_of_loader
from paceline.data.combined import CombinedLoader, length_of
from paceline.data.members import Member, combined_length, read, seek
from paceline.data.sampler import ShardedBatches
from paceline.data.structure import holds_loaders
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

    is_equal_for_all: bool
    """Whether the number of batches in training is certain to be that of all other workers."""

    def share_of(self, total: float) -> float:
        """How many of the first `total` batches are this worker's, where whole batches are dealt out."""

    def index_in_data(self, own_idx: int) -> int:
        """The place among all workers' batches of this worker's `own_idx`-th, where whole batches are dealt out."""

    def batches(self, epoch: int, start: int) -> tuple[Iterator[Any], float]:
        """An epoch's batches for this worker from a position of all on, and how many; infinity if that is unknown."""

    def samples_of(self, own_idx: int) -> list[int] | None:
        """The indices of the samples in a batch given since `batches`; None if they are unknown."""


class LoaderSource:
    """A DataLoader over a map-style data set.

    The user's loader is not rebuilt: a shallow copy of it, which shares everything else, is given another batch
    sampler. So subclasses, collate functions, loading processes and pinned memory stay what they are.
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
        self._sampler = ShardedBatches(loader, placement, seed, training, shard, fixed_order)
        self._loader = copy.copy(loader)
        # Through __dict__, for a DataLoader refuses to have these set after it was built.
        vars(self._loader)["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._sampler
        vars(self._loader)["_iterator"] = None
        self._loader.generator = torch.Generator()
        # A subclass with an `__iter__` of its own need not give the batches that its sampler deals out.
        self._is_stock = type(loader).__iter__ is DataLoader.__iter__
        self._is_batched = loader.batch_sampler is not None
        self._seed = derive(seed, placement.global_rank)
        sized = self._sampler.is_sized
        self.length: float = len(self._sampler) if sized else math.inf
        self.total: float = self._sampler.total_batches if sized else math.inf
        self.items_per_step = self._sampler.items_per_step
        self.is_exact = sized and self._is_stock
        self.is_equal_for_all = self.is_exact and self._sampler.world == placement.world_size
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

    def samples_of(self, own_idx: int) -> list[int] | None:
        """The indices that the sampler dealt out."""
        dealt = self._sampler.dealt
        return list(dealt[own_idx]) if dealt is not None and self._is_batched else None

    def batches(self, epoch: int, start: int) -> tuple[Iterator[Any], float]:
        """The batches of an epoch from a position on; what comes before is not read."""
        count = self._sampler.begin(epoch, start if self._is_stock else 0)
        # Loading processes are seeded from this generator, never from the one that training draws from.
        assert self._loader.generator is not None
        self._loader.generator.manual_seed(derive(self._seed, epoch))
        batches: Iterator[Any] = iter(self._loader)
        if not self._is_stock:
            return _read_forward(batches, start // self.items_per_step, self._loader), math.inf
        if count < math.inf:
            # Called only if it is asked for more before all that are counted have come.
            batches = itertools.chain(batches, map(_ended_early, [self._loader]))
        return batches, count


class IterableSource:
    """Any iterable: its order and its share for this worker are the user's."""

    def __init__(self, iterable: Any, placement: Placement, seed: int) -> None:
        self._iterable = iterable
        self._seed = derive(seed, placement.global_rank)
        # Each worker reads a batch of its own, as far as anybody knows.
        self.items_per_step = placement.world_size
        self.is_equal_for_all = placement.world_size == 1
        if isinstance(iterable, DataLoader):
            # A copy with a generator of its own, from which loading processes are seeded: not from that of training.
            self._iterable = copy.copy(iterable)
            vars(self._iterable)["_iterator"] = None
            self._iterable.generator = torch.Generator()
        self.length: float = length_of(iterable)
        self.total = self.length

    def share_of(self, total: float) -> float:
        """All of it: the user has shared it already."""
        return total

    def index_in_data(self, own_idx: int) -> int:
        """Its own order is all that is known."""
        return own_idx

    def samples_of(self, own_idx: int) -> list[int] | None:
        """Nothing is known of them."""
        return None

    def batches(self, epoch: int, start: int) -> tuple[Iterator[Any], float]:
        """The batches of an epoch; this worker's share of those before a position are read and passed over."""
        if isinstance(self._iterable, DataLoader):
            assert self._iterable.generator is not None
            self._iterable.generator.manual_seed(derive(self._seed, epoch))
        return _read_forward(iter(self._iterable), start // self.items_per_step, self._iterable), math.inf


class CombinedSource:
    """Several loaders read as one, each of them a source of its own.

    Args:
        combined: what is read, and how.
        open_member: gives the source of one loader.
        share: how many batches of one source this worker reads in one reading.
        placement: this worker's rank and the number of workers. The members have positions of their own; together
            they count the steps of each worker.
        deals_steps: the steps are dealt out by turns to the workers, each of which reads all members.
    """

    def __init__(
        self,
        combined: CombinedLoader,
        open_member: Callable[[Any], Source],
        share: Callable[[Source], float],
        placement: Placement,
        deals_steps: bool,
    ) -> None:
        self._combined = combined
        self.items_per_step = placement.world_size
        self._turn = (placement.global_rank, placement.world_size) if deals_steps else (0, 1)
        self._sources = [open_member(loader) for loader in combined.flattened]
        self._lengths = [share(source) for source in self._sources]
        self.is_equal_for_all = all(source.is_equal_for_all for source in self._sources)
        self.total = combined_length(self._members(0), combined.mode)
        self.length = self.share_of(self.total)

    def share_of(self, total: float) -> float:
        """Every W-th step where steps are dealt out; else the members have been shared."""
        return total if total == math.inf else len(range(self._turn[0], int(total), self._turn[1]))

    def index_in_data(self, own_idx: int) -> int:
        """Every W-th step where steps are dealt out."""
        return own_idx * self._turn[1] + self._turn[0]

    def samples_of(self, own_idx: int) -> list[int] | None:
        """They are of several data sets."""
        return None

    def batches(self, epoch: int, start: int) -> tuple[Iterator[Any], float]:
        """The steps of an epoch from a position on; in "sequential" mode pairs of a batch and its loader's index."""
        done, rest = divmod(start, self.items_per_step)
        if rest:
            warnings.warn(
                f"Several loaders go on at step {done} of {self.items_per_step} workers; on as many as before they "
                f"would be {rest} batches further, which are read again.",
                stacklevel=3,
            )
        members = self._members(epoch)
        for member, loader in zip(members, self._combined.flattened, strict=True):
            if done and not member.is_exact:
                _warn_of_reading(loader, f"up to {done}")
        seek(members, self._combined.mode, done)
        steps = itertools.islice(read(members, self._combined.mode, done), self._turn[0], None, self._turn[1])
        is_certain = all(member.is_exact for member in members)
        left = max(self.length - done, 0) if is_certain else math.inf
        if self._combined.mode == "sequential":
            return ((batch, index) for batch, _, index in steps), left
        return (self._combined.rebuild(iter(batch)) for batch, _, _ in steps), left

    def _members(self, epoch: int) -> list[Member]:
        return [
            Member(path, length, partial(_reading, source, epoch, length), is_exact=_is_exact(source))
            for path, source, length in zip(self._combined.paths, self._sources, self._lengths, strict=True)
        ]


def _is_exact(source: Source) -> bool:
    return isinstance(source, LoaderSource) and source.is_exact


def _read_forward(batches: Iterator[Any], done: int, loader: Any) -> Iterator[Any]:
    if done:
        _warn_of_reading(loader, str(done))
        next(itertools.islice(batches, done, done), None)
    return batches


def _warn_of_reading(loader: Any, count: str) -> None:
    warnings.warn(
        f"A {type(loader).__name__} cannot start in the middle: {count} batches are skipped by reading them.",
        stacklevel=3,
    )


def _ended_early(loader: Any) -> NoReturn:
    raise RuntimeError(
        f"A {type(loader).__name__} ended before all its batches had come: its data set or `collate_fn` raised "
        "StopIteration. Raise another exception there, or use an IterableDataset, which may end at any time."
    )


def _reading(source: Source, epoch: int, length: float, reading: int, start: int) -> Iterator[Any]:
    # Each time that a member starts over in an epoch, its order is another one.
    batches, _ = source.batches(derive(epoch, reading) if reading else epoch, start * source.items_per_step)
    return batches if length == math.inf else itertools.islice(batches, int(length) - start)


def open_source(
    loader: Any, placement: Placement, seed: int, training: bool, shard: bool, fixed_order: bool = False
) -> Source:
    """The source for one loader.

    Args:
        loader: a DataLoader, or any iterable.
        placement: this worker's rank and the number of workers.
        seed: of the run.
        training: whether all workers have to take the same number of steps.
        shard: whether a map-style loader's samples are shared among the workers.
        fixed_order: whether every epoch has the same order.
    """
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        warn_of_loader(loader, training or fixed_order, placement)
        return LoaderSource(loader, placement, seed, training, shard, fixed_order)
    if placement.world_size > 1 and placement.global_rank == 0:
        warnings.warn(
            f"A {type(loader).__name__} is read by all {placement.world_size} workers: give each its own part of the "
            "data, by `trainer.global_rank` and `trainer.world_size`.",
            stacklevel=2,
        )
    return IterableSource(loader, placement, seed)


def evaluation_loaders(given: Any) -> list[Any]:
    """The loaders that an evaluation reads one after the other.

    Args:
        given: one loader, a list, tuple or dict of them, or a CombinedLoader; those that are None are left out.
    """
    if isinstance(given, CombinedLoader) and given.mode == "sequential":
        given = given.flattened
    elif isinstance(given, Mapping):
        given = list(given.values())
    elif not isinstance(given, list | tuple):
        given = [given]
    present = [loader for loader in given if loader is not None]
    if len(present) < len(given) and len(given) > 1:
        warnings.warn(f"{len(given) - len(present)} of {len(given)} loaders are None, and left out.", stacklevel=3)
    return present


def training_structure(given: Any, mode: str) -> Any:
    """What is trained on: a CombinedLoader of the loaders in lists, tuples and dicts, or the one loader itself."""
    if isinstance(given, Mapping) or (isinstance(given, list | tuple) and holds_loaders(given)):
        return CombinedLoader(given, mode)
    return given
