"""Which worker reads which samples in which order: given by (seed, epoch) alone, whatever the number of workers."""

import collections
import dataclasses
import math
import os
import random
import warnings

import numpy as np
import pytest
import torch
from tests.unit.models import IndexData, Liar, Stream, indexed, worker
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from paceline import DataModule
from paceline.data import CombinedLoader, advice
from paceline.data.feed import Feed
from paceline.data.sources import evaluation_loaders
from paceline.data.transfer import to_device
from paceline.errors import MisconfigurationError

SEED = 11


def feeds(make, workers, training=True, limit=1.0, seed=SEED, shard=True):
    """One Feed per worker, each over a loader of its own, as in separate processes."""
    return [
        Feed(make(), worker(rank=rank, world_size=workers), seed, limit, "limit", training, shard)
        for rank in range(workers)
    ]


def samples(batch):
    return [int(i) for i in batch.flatten().tolist()]


def read(feed, epoch=0, done=0):
    return [samples(batch) for batch in feed.epoch(epoch, done)]


def read_all(make, workers, epoch=0, training=True, **options):
    """For each worker its batches, each a list of sample numbers."""
    return [read(feed, epoch) for feed in feeds(make, workers, training, **options)]


def loader(length, batch_size, **options):
    return lambda: indexed(length, batch_size, **options)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("length", [12, 17, 25])
def test_a_step_of_all_workers_reads_what_one_worker_would_with_the_whole_batch(workers, shuffle, drop_last, length):
    own = read_all(loader(length, 2, shuffle=shuffle, drop_last=drop_last), workers)
    (alone,) = read_all(loader(length, 2 * workers, shuffle=shuffle, drop_last=drop_last), 1)
    assert {len(batches) for batches in own} == {len(alone)}
    for step, whole in enumerate(alone):
        together = [sample for batches in own for sample in batches[step]]
        assert set(together) == set(whole)
        # No sample counts twice unless there are fewer than workers.
        assert len(together) == max(len(whole), workers)


def test_each_sample_is_read_once_in_an_epoch():
    for workers in (1, 2, 3):
        own = read_all(loader(12, 2, shuffle=True), workers)
        assert sorted(sample for batches in own for batch in batches for sample in batch) == list(range(12))


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    make = loader(20, 3, shuffle=True)
    torch.manual_seed(1)
    first = read_all(make, 1, epoch=4)
    torch.manual_seed(2)
    torch.rand(7)
    (feed,) = feeds(make, 1)
    for epoch in (0, 7, 3):
        read(feed, epoch)
    assert [read(feed, 4)] == first
    assert read(feed, 4) == first[0]
    orders = [tuple(map(tuple, read(feed, epoch))) for epoch in range(5)]
    assert len(set(orders)) == 5
    assert read_all(make, 1, epoch=4, seed=SEED + 1) != first


@pytest.mark.parametrize(
    "make",
    [
        loader(10, 2, shuffle=True),
        lambda: DataLoader(IndexData(10), sampler=WeightedRandomSampler([1.0] * 10, 10)),
        lambda: DataLoader(IndexData(10), sampler=SubsetRandomSampler(range(10))),
        loader(10, 2, shuffle=True, num_workers=1),
    ],
    ids=["shuffled", "weighted", "subset", "loading process"],
)
def test_reading_draws_none_of_the_users_random_numbers(make):
    def drawn():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    def seed():
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)

    seed()
    expected = drawn()
    seed()
    read_all(make, 1)
    assert drawn() == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    "make",
    [
        loader(14, 2, shuffle=True),
        loader(14, 2, shuffle=True, drop_last=True),
        lambda: DataLoader(IndexData(14), batch_size=None, shuffle=True),
        lambda: DataLoader(IndexData(14), batch_sampler=Pairs(14)),
    ],
    ids=["shuffled", "drop_last", "no batches", "own batch sampler"],
)
def test_reading_may_begin_at_any_batch(workers, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for whole, fresh in zip(feeds(make, workers), feeds(make, workers), strict=True):
            batches = read(whole, 2)
            for done in range(len(batches) + 1):
                assert read(fresh, 2, done) == batches[done:]
                assert fresh.is_last


def test_another_number_of_workers_goes_on_at_the_same_sample():
    # Four steps of two workers with batches of 3 are twenty-four samples: eight steps of one with batches of 3.
    two, (one,) = feeds(loader(60, 3, shuffle=True), 2), feeds(loader(60, 3, shuffle=True), 1)
    read_by_two = {sample for feed in two for batch in read(feed, 1)[:4] for sample in batch}
    assert two[0].items_per_step == 2 * one.items_per_step == 6
    rest = {sample for batch in read(one, 1, done=8) for sample in batch}
    assert read_by_two | rest == set(range(60))
    assert not read_by_two & rest


class Pairs:
    """A batch sampler of the user's: neighbours, the pairs in another order each time; knows its epoch."""

    def __init__(self, length):
        self.length = length
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __len__(self):
        return self.length // 2

    def __iter__(self):
        for start in torch.randperm(self.length // 2).tolist():
            yield [2 * start, 2 * start + 1]


class OwnBatchSampler(BatchSampler):
    """Batches of falling size."""

    def __iter__(self):
        yield from ([0, 1, 2], [3, 4], [5])

    def __len__(self):
        return 3


def test_the_users_batches_are_dealt_out_whole():
    make = lambda: DataLoader(IndexData(12), batch_sampler=Pairs(12))  # noqa: E731
    (alone,) = read_all(make, 1)
    assert sorted(alone) == [[i, i + 1] for i in range(0, 12, 2)]
    for workers in (2, 3):
        own = read_all(make, workers)
        assert [own[i % workers][i // workers] for i in range(6)] == alone


def test_batches_that_do_not_go_evenly_into_the_workers_are_left_out_with_a_warning():
    make = lambda: DataLoader(IndexData(14), batch_sampler=Pairs(14))  # noqa: E731
    with pytest.warns(UserWarning, match="3 workers: 1 of them are left out"):
        own = read_all(make, 3)
    assert [len(batches) for batches in own] == [2, 2, 2]


def test_a_subclass_of_the_batch_sampler_is_the_users_own():
    make = lambda: DataLoader(IndexData(6), batch_sampler=OwnBatchSampler(SequentialSampler(range(6)), 3, False))  # noqa: E731
    assert read_all(make, 1) == [[[0, 1, 2], [3, 4], [5]]]


def test_a_sampler_is_told_the_epoch():
    pairs = Pairs(4)
    (feed,) = feeds(lambda: DataLoader(IndexData(4), batch_sampler=pairs), 1)
    read(feed, 3)
    read(feed, 8)
    assert list(dict.fromkeys(pairs.epochs)) == [3, 8]


def test_a_sampler_with_a_generator_of_its_own_has_an_order_by_epoch_as_well():
    def make(seed=5):
        return DataLoader(IndexData(30), batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(seed))

    (feed,) = feeds(make, 1)
    first = read(feed, 0)
    assert read(feed, 1) != first
    assert read(feed, 0) == first
    (fresh,) = feeds(make, 1)
    read(fresh, 6)
    assert read(fresh, 0) == first
    # All workers together read the same order as one alone.
    whole = [sample for batch in read_all(lambda: make_with(10, make), 1)[0] for sample in batch]
    own = read_all(make, 2)
    assert [set(a) | set(b) for a, b in zip(*own, strict=True)] == [set(whole[i : i + 10]) for i in (0, 10, 20)]
    # The generator's own seed takes part.
    assert read_all(lambda: make(6), 1)[0] != first


def make_with(batch_size, make):
    original = make()
    return DataLoader(original.dataset, batch_size=batch_size, shuffle=True, generator=original.generator)


def test_a_distributed_sampler_of_the_users_is_not_sharded_again():
    def make(rank):
        sampler = DistributedSampler(IndexData(8), num_replicas=2, rank=rank, shuffle=False)
        return DataLoader(IndexData(8), batch_size=2, sampler=sampler)

    for rank in range(2):
        feed = Feed(make(rank), worker(rank=rank, world_size=2), SEED)
        assert read(feed) == [[rank, rank + 2], [rank + 4, rank + 6]]


def test_sharding_can_be_switched_off():
    for batches in read_all(loader(6, 2), 3, shard=False):
        assert batches == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loader_without_batches_gives_samples(workers):
    own = read_all(lambda: DataLoader(IndexData(6), batch_size=None), workers)
    assert own == [[[i] for i in range(rank, 6, workers)] for rank in range(workers)]


def test_a_sampler_with_replacement_keeps_its_number_of_samples():
    make = lambda: DataLoader(  # noqa: E731
        IndexData(4), batch_size=2, sampler=RandomSampler(IndexData(4), replacement=True, num_samples=10)
    )
    (batches,) = read_all(make, 1)
    assert [len(batch) for batch in batches] == [2] * 5
    assert {sample for batch in batches for sample in batch} <= set(range(4))


class Doubling(DataLoader):
    """A DataLoader of the user's with an attribute, an `__iter__` and a constructor of its own."""

    def __init__(self, factor):
        super().__init__(IndexData(6), batch_size=2, collate_fn=lambda items: torch.stack(items) + 100)
        self.factor = factor

    def __iter__(self):
        for batch in super().__iter__():
            yield batch * self.factor


class Sifting(DataLoader):
    """A DataLoader of the user's that leaves batches out."""

    def __iter__(self):
        return (batch for batch in super().__iter__() if int(batch[0]) % 3)


def test_a_subclass_of_the_data_loader_keeps_what_it_does():
    assert read_all(lambda: Doubling(2), 1) == [[[200, 202], [204, 206], [208, 210]]]
    own = read_all(lambda: Doubling(2), 3)
    assert own == [[[200, 206]], [[202, 208]], [[204, 210]]]


def test_a_subclass_of_the_data_loader_that_gives_fewer_batches_is_read_to_its_true_end():
    (feed,) = feeds(lambda: Sifting(IndexData(8)), 1)
    expected = [[1], [2], [4], [5], [7]]  # of eight
    with pytest.warns(UserWarning, match="A Sifting ended after 5 batches; its length said 8"):
        got = [(samples(batch), feed.is_last) for batch in feed.epoch(0)]
    assert got == [*((batch, False) for batch in expected[:4]), (expected[4], True)]
    with pytest.warns(UserWarning, match="A Sifting cannot start in the middle: 2 batches are skipped"):
        assert read(feed, done=2) == expected[2:]


class Raises(IndexData):
    def __getitem__(self, index):
        if index == 3:
            raise StopIteration
        return super().__getitem__(index)


def stop_iteration(items):
    raise StopIteration


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(Raises(6)),
        lambda: DataLoader(Raises(6), num_workers=1),
        lambda: DataLoader(IndexData(6), collate_fn=stop_iteration),
        lambda: {"a": DataLoader(Raises(6)), "b": indexed(2)},
    ],
    ids=["data set", "loading process", "collate_fn", "one of several loaders"],
)
def test_a_users_stop_iteration_is_an_error_and_no_end_of_the_epoch(make):
    (feed,) = feeds(make, 1)
    with pytest.raises(RuntimeError, match="DataLoader ended before all its batches.*raised StopIteration"):
        list(feed.epoch(0))


def test_the_users_loader_stays_as_it_was():
    given = indexed(8, 2, shuffle=True)
    sampler, generator = given.batch_sampler, given.generator
    (feed,) = feeds(lambda: given, 1)
    read(feed)
    assert given.batch_sampler is sampler
    assert given.generator is generator
    assert sorted(sample for batch in given for sample in samples(batch)) == list(range(8))


class WorkerSeeds(IndexData):
    """What each of the libraries draws first in a loading process."""

    def __getitem__(self, index):
        assert get_worker_info() is not None
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])


def test_each_loading_process_has_seeds_of_its_own_by_epoch_and_rank_for_every_library():
    def drawn(epoch, rank=0, seed=SEED):
        data = DataLoader(WorkerSeeds(4), num_workers=2)
        feed = Feed(data, worker(rank=rank, world_size=2), seed)
        return [batch.tolist()[0] for batch in feed.epoch(epoch)]

    alike, others = drawn(0), [drawn(0), drawn(1), drawn(0, rank=1), drawn(0, seed=SEED + 1)]
    assert others[0] == alike
    for library in range(3):
        distinct = {batch[library] for batches in others for batch in batches}
        assert len(distinct) == 8, "two processes in each of four settings"


def _numpy_by_hand(worker_id):
    np.random.seed(100 + worker_id)


def test_a_worker_init_fn_of_the_users_has_the_last_word():
    (feed,) = feeds(lambda: DataLoader(WorkerSeeds(1), num_workers=1, worker_init_fn=_numpy_by_hand), 1)
    (batch,) = feed.epoch(0)
    assert batch[0, 1].item() == pytest.approx(np.random.RandomState(100).rand())


def test_a_loading_process_gives_the_same_batches():
    assert read_all(loader(9, 2, shuffle=True, num_workers=1), 1) == read_all(loader(9, 2, shuffle=True), 1)


def test_loading_processes_that_persist_follow_epoch_and_position():
    (kept,) = feeds(loader(9, 2, shuffle=True, num_workers=1, persistent_workers=True), 1)
    (plain,) = feeds(loader(9, 2, shuffle=True), 1)
    for epoch, done in ((0, 0), (1, 2), (0, 1)):
        assert read(kept, epoch, done) == read(plain, epoch, done)


# -- the same data in every epoch ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (loader(5, 2, shuffle=True), [[0, 1], [2, 3], [4]]),
        (loader(5, 2, shuffle=True, drop_last=True), [[0, 1], [2, 3]]),
        (lambda: DataLoader(IndexData(3), batch_size=None, shuffle=True), [[0], [1], [2]]),
    ],
    ids=["batches", "drop_last", "samples"],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_fixed_order_is_that_of_the_data_where_the_loader_shuffles(make, expected, training):
    with pytest.warns(UserWarning, match="`overfit_batches` is set: the loader that shuffles gives the data in order"):
        feed = Feed(make(), worker(rank=0, world_size=1), SEED, training=training, fixed_order=True)
    assert read(feed, 0) == read(feed, 3) == expected
    assert read(feed, 3, done=1) == expected[1:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(IndexData(12), batch_sampler=Pairs(12)),
        lambda: DataLoader(IndexData(12), sampler=WeightedRandomSampler([1.0] * 12, 12)),
        loader(12, 2),
    ],
    ids=["own batch sampler", "own sampler", "in order"],
)
def test_a_fixed_order_of_the_users_own_sampler_is_that_of_the_first_epoch(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed = Feed(make(), worker(rank=0, world_size=1), SEED, fixed_order=True)
    (free,) = feeds(make, 1)
    assert read(feed, 0) == read(feed, 3) == read(free, 0)


# -- evaluation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize(("length", "batch_size"), [(5, 1), (10, 3), (12, 2), (2, 1), (1, 4)])
def test_evaluation_reads_each_sample_once_in_the_batches_of_one_device(workers, length, batch_size):
    make = loader(length, batch_size)
    (alone,) = read_all(make, 1, training=False)
    assert alone == [list(range(length))[i : i + batch_size] for i in range(0, length, batch_size)]
    merged = {}
    for feed in feeds(make, workers, training=False):
        batches = read(feed)
        assert feed.num_batches == len(batches)
        merged |= {feed.index_in_data(own): batch for own, batch in enumerate(batches)}
    assert [merged[i] for i in sorted(merged)] == alone
    assert sorted(merged) == list(range(len(alone)))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("limit", "batches"), [(3, 3), (0.5, 5), (1, 1), (0, 0), (99, 10), (0.25, 2)])
def test_a_limit_of_evaluation_is_of_all_workers_together(workers, limit, batches):
    own = read_all(loader(10, 1), workers, training=False, limit=limit)
    assert sorted(batch for one in own for batch in one) == [[i] for i in range(batches)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("limit", "steps"), [(3, 3), (0.5, None), (99, None)])
def test_a_limit_of_training_is_of_each_worker(workers, limit, steps):
    whole = 12 // workers
    expected = steps or {0.5: whole // 2, 99: whole}[limit]
    assert [len(batches) for batches in read_all(loader(12, 1), workers, limit=limit)] == [expected] * workers


def test_a_shuffled_evaluation_reads_each_sample_once():
    own = read_all(loader(7, 2, shuffle=True), 2, training=False)
    assert sorted(sample for batches in own for batch in batches for sample in batch) == list(range(7))


ONE, TWO = [torch.zeros(1)], Stream(2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (TWO, [TWO]),
        ([ONE, TWO], [ONE, TWO]),
        ((ONE, TWO), [ONE, TWO]),
        ({"a": ONE, "b": TWO}, [ONE, TWO]),
        ([], []),
        (CombinedLoader({"a": ONE, "b": [TWO]}, "sequential"), [ONE, TWO]),
    ],
)
def test_an_evaluation_reads_its_loaders_one_after_the_other(given, expected):
    loaders = evaluation_loaders(given)
    assert len(loaders) == len(expected)
    assert all(one is other for one, other in zip(loaders, expected, strict=True))


def test_loaders_that_are_none_are_left_out_of_an_evaluation_with_a_warning():
    with pytest.warns(UserWarning, match="1 of 2 loaders are None, and left out"):
        assert evaluation_loaders([None, TWO]) == [TWO]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_of_combined_loaders_in_evaluation_is_of_all_workers_together(workers):
    def make():
        return CombinedLoader([indexed(6), indexed(9)], "min_size")

    own = {
        feed.index_in_data(i): [samples(one) for one in batch]
        for feed in feeds(make, workers, training=False, limit=3)
        for i, batch in enumerate(feed.epoch(0))
    }
    assert own == {i: [[i], [i]] for i in range(3)}


# -- advice -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(advice, "_said", set())


def said(make, training=True, workers=1):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            feeds(make, workers, training)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("make", "cpus", "workers", "is_advised"),
    [
        (loader(4, 1), 16, 1, True),
        (loader(4, 1), 16, 2, True),
        (loader(4, 1), 2, 1, False),
        (loader(4, 1), 16, 16, False),
        (loader(4, 1, num_workers=1), 16, 1, False),
        (lambda: DataLoader(TensorDataset(torch.zeros(4))), 16, 1, False),
    ],
    ids=["many CPUs", "two workers", "few CPUs", "CPUs all taken", "loading process", "in memory"],
)
def test_loading_processes_are_advised_once_where_cpus_are_to_spare(
    make, cpus, workers, is_advised, monkeypatch, nothing_said
):
    monkeypatch.setattr(os, "cpu_count", lambda: cpus)
    texts = said(make, workers=workers)
    assert len(texts) == is_advised
    assert all(f"`num_workers=0`, though this machine has {cpus - workers} CPUs to spare" in text for text in texts)


def test_a_shuffled_evaluation_is_told_once(monkeypatch, nothing_said):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    (text,) = said(loader(4, 1, shuffle=True), training=False)
    assert "A loader for evaluation or prediction shuffles: use `shuffle=False`" in text
    assert said(loader(4, 1), training=False) == said(loader(4, 1, shuffle=True)) == []


# -- other iterables --------------------------------------------------------------------------------------------------


class Numbers(IterableDataset):
    def __iter__(self):
        return (torch.tensor([float(i)]) for i in range(5))


@pytest.mark.parametrize(
    ("make", "expected", "known"),
    [
        (lambda: Stream(3), [[0], [1], [2]], float("inf")),
        (lambda: [torch.tensor([7.0]), torch.tensor([8.0])], [[7], [8]], 2),
        (lambda: DataLoader(Numbers(), batch_size=2), [[0, 1], [2, 3], [4]], float("inf")),
        (lambda: Liar(3, said=2), [[0], [1]], 2),
        (lambda: [], [], 0),
        (lambda: Stream(0), [], float("inf")),
    ],
    ids=["stream", "list", "iterable data set", "says too few", "empty list", "empty stream"],
)
def test_any_iterable_is_read_and_its_last_batch_is_known(make, expected, known):
    (feed,) = feeds(make, 1)
    assert feed.num_batches == known
    for _ in range(2):
        got, last = [], []
        for batch in feed.epoch(0):
            got.append(samples(batch))
            last.append(feed.is_last)
        assert got == expected
        assert last == [False] * (len(expected) - 1) + [True] * bool(expected)
        assert feed.is_last


def test_an_iterable_in_the_middle_is_skipped_forward_with_a_warning():
    (feed,) = feeds(lambda: Stream(5), 1)
    with pytest.warns(UserWarning, match="A Stream cannot start in the middle: 3 batches are skipped"):
        assert read(feed, done=3) == [[3], [4]]


class Noise:
    """Batches drawn from torch's own generator."""

    def __iter__(self):
        return (torch.rand(1) for _ in range(4))


@pytest.mark.parametrize("combined", [False, True])
def test_what_is_skipped_is_read_before_the_first_batch_is_asked_for(combined):
    (feed,) = feeds(lambda: {"a": Noise()} if combined else Noise(), 1)
    with pytest.warns(UserWarning, match="A Noise cannot start in the middle"):
        rest = feed.epoch(0, done=2)
    torch.manual_seed(3)
    batch = next(rest)
    torch.manual_seed(3)
    assert torch.equal(batch["a"] if combined else batch, torch.rand(1)), "as if nothing had been skipped"


def test_an_iterable_on_several_workers_has_to_be_shared_by_the_user():
    with pytest.warns(UserWarning, match=r"read by all 2 workers.*trainer.global_rank"):
        own = read_all(lambda: Stream(3), 2)
    assert own == [[[0], [1], [2]]] * 2


def test_a_share_of_no_known_length_is_an_error():
    with pytest.raises(MisconfigurationError, match=r"limit=0.5.*no length"):
        feeds(lambda: Stream(5), 1, limit=0.5)


# -- data modules and devices -----------------------------------------------------------------------------------------


def test_a_data_module_is_made_of_data_sets():
    data = DataModule.from_datasets(IndexData(20), [IndexData(2), IndexData(3)], IndexData(4), batch_size=4)
    train = data.train_dataloader()
    assert isinstance(train.sampler, RandomSampler)
    assert train.batch_size == 4
    assert [len(one.dataset) for one in data.val_dataloader()] == [2, 3]
    assert isinstance(data.test_dataloader().sampler, SequentialSampler)
    assert data.predict_dataloader() is None
    assert DataModule.from_datasets(Numbers()).train_dataloader().dataset.__class__ is Numbers


class HasTo:
    def __init__(self):
        self.moved = None

    def to(self, device):
        self.moved = device
        return self


def test_a_nested_batch_is_brought_over_whole_and_keeps_its_types():
    pair = collections.namedtuple("pair", "x y")
    own = HasTo()
    device = torch.device("meta")
    batch = {"a": torch.ones(1), "b": [torch.ones(2), ("text", 3)], "c": pair(torch.ones(1), None), "d": own}
    moved = to_device(collections.OrderedDict(batch), device)
    assert type(moved) is collections.OrderedDict
    assert moved["a"].device.type == moved["b"][0].device.type == moved["c"].x.device.type == "meta"
    assert moved["b"][1] == ("text", 3)
    assert type(moved["c"]) is pair
    assert moved["c"].y is None
    assert moved["d"].moved == device


@dataclasses.dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    name: str
    area: int = dataclasses.field(init=False, default=4)


Edge = collections.namedtuple("Edge", "of to")


def test_containers_of_every_kind_are_brought_over():
    device = torch.device("meta")
    sample = to_device(Sample(torch.ones(2), "a"), device)
    assert (type(sample), sample.image.device, sample.name, sample.area) == (Sample, device, "a", 4)
    lists = collections.defaultdict(list, a=torch.ones(1))
    moved = to_device(lists, device)
    assert (moved["a"].device, moved["new"], lists["a"].device.type) == (device, [], "cpu")
    assert to_device(collections.Counter("aab"), device) == {"a": 2, "b": 1}
    packed = to_device(torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)]), device)
    assert (packed.data.device, packed.batch_sizes.device.type) == (device, "cpu")  # as torch wants them
    assert to_device(Edge(torch.ones(1), torch.ones(1)), device).to.device == device
    assert to_device("text", device) == "text"


def epochs_of_workers(length, batch_size, world, done, position, shuffle=True, drop_last=False):
    """What each worker reads of an epoch from a position on, and how many batches it counts."""
    loader = DataLoader(IndexData(length), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    feeds = [Feed(loader, worker(rank=rank, world_size=world), seed=1) for rank in range(world)]
    read = [[samples(batch) for batch in feed.epoch(4, done, position)] for feed in feeds]
    assert len({feed.end for feed in feeds}) == 1
    return read, feeds[0].end


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2), (3, 1)])
@pytest.mark.parametrize("steps", [1, 3])
def test_an_epoch_goes_on_with_another_number_of_workers(before, after, steps):
    whole, _ = epochs_of_workers(61, 4, 1, 0, 0)
    order = [index for batch in whole[0] for index in batch]
    position = steps * before * 4
    read, end = epochs_of_workers(61, 4, after, steps, position)
    together = [index for step in zip(*read, strict=True) for worker in step for index in worker]
    rest = order[position:]
    assert set(together) == set(rest)
    assert len(together) - len(rest) < after  # the last step of an epoch may lack a sample for a worker
    assert end == steps + math.ceil(len(rest) / (4 * after))


def test_the_limit_of_an_epoch_counts_from_where_another_number_of_workers_stopped():
    loader = DataLoader(IndexData(96), batch_size=4)
    feed = Feed(loader, worker(world_size=3), seed=1, limit=6)  # 6 steps of 12 samples
    assert [samples(batch) for batch in feed.epoch(0, 9, 36)] == [[36, 39, 42, 45], [48, 51, 54, 57], [60, 63, 66, 69]]
    assert feed.end == 12


def test_an_iterable_goes_on_with_another_number_of_workers_by_its_share():
    feed = Feed(range(20), worker(world_size=2), seed=1)
    with pytest.warns(UserWarning, match="3 batches are skipped by reading them"):
        assert list(feed.epoch(0, 6, 6)) == list(range(3, 20))
