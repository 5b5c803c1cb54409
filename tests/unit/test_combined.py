"""Several loaders read as one: what comes, how much of it, what is drawn from whom, and going on in the middle."""

import collections
import itertools
import math

import pytest
import torch
from tests.unit.models import Liar, Line, Stream, indexed, quiet_trainer, worker
from torch.utils.data import DataLoader

from paceline.data import CombinedLoader
from paceline.data.feed import Feed
from paceline.errors import MisconfigurationError

MODES = ("max_size_cycle", "min_size", "max_size", "sequential")


class Counted:
    """Numbers 0 to n - 1, with or without a length; counts what is drawn and how often it is begun."""

    def __init__(self, n, said=None):
        self.n, self.drawn, self.begun = n, 0, 0
        if said is not None:
            self.said = said

    def __iter__(self):
        self.begun += 1
        for i in range(self.n):
            self.drawn += 1
            yield i


class Sized(Counted):
    def __len__(self):
        return getattr(self, "said", self.n)


def batches(loader):
    return [batch for batch, _, _ in loader]


# Members of 2, 3 and 5 batches: what comes in each mode, with no limit, and with 4 batches of each at most.
A, B, C = [0, 1], [10, 11, 12], [20, 21, 22, 23, 24]
EXPECTED = {
    ("max_size_cycle", None): [[0, 10, 20], [1, 11, 21], [0, 12, 22], [1, 10, 23], [0, 11, 24]],
    ("max_size_cycle", 4): [[0, 10, 20], [1, 11, 21], [0, 12, 22], [1, 10, 23]],
    ("min_size", None): [[0, 10, 20], [1, 11, 21]],
    ("min_size", 4): [[0, 10, 20], [1, 11, 21]],
    ("max_size", None): [[0, 10, 20], [1, 11, 21], [None, 12, 22], [None, None, 23], [None, None, 24]],
    ("max_size", 4): [[0, 10, 20], [1, 11, 21], [None, 12, 22], [None, None, 23]],
    ("sequential", None): [*A, *B, *C],
    ("sequential", 4): [*A, *B, *C[:4]],
}


@pytest.mark.parametrize(("mode", "limit"), list(EXPECTED))
def test_members_of_unequal_lengths_twice_in_a_row(mode, limit):
    loader = CombinedLoader([A, B, C], mode)
    loader.limits = limit
    assert len(loader) == len(EXPECTED[mode, limit])
    for _ in range(2):
        assert batches(loader) == EXPECTED[mode, limit]
        assert len(loader) == len(EXPECTED[mode, limit])


def test_indices_count_steps_and_restart_with_each_member_in_sequence():
    assert [(i, d) for _, i, d in CombinedLoader([A, B], "sequential")] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1)]
    for mode in MODES[:3]:
        indices = [(i, d) for _, i, d in CombinedLoader([A, B], mode)]
        assert indices == [(i, 0) for i in range(len(indices))]


@pytest.mark.parametrize(
    ("mode", "lengths", "drawn"),
    [
        # In a cycle each is drawn from once per step; 2 and 3 start over.
        ("max_size_cycle", (2, 3, 5), (5, 5, 5)),
        ("max_size_cycle", (5, 2), (5, 5)),
        ("min_size", (5, 2, 3), (2, 2, 2)),
        ("min_size", (3, 3), (3, 3)),
        ("max_size", (2, 3, 5), (2, 3, 5)),
        ("sequential", (2, 3, 5), (2, 3, 5)),
    ],
)
@pytest.mark.parametrize("kind", [Sized, Counted])
def test_nothing_is_drawn_for_a_step_that_does_not_come(mode, lengths, drawn, kind):
    members = [kind(n) for n in lengths]
    for repeat in (1, 2):
        list(CombinedLoader(members, mode))
        if mode != "min_size" or kind is Sized:
            assert [member.drawn for member in members] == [n * repeat for n in drawn]


def test_a_member_without_length_is_drawn_from_first_so_that_the_others_lose_nothing():
    sized, unsized = Sized(5), Counted(3)
    assert batches(CombinedLoader([sized, unsized], "min_size")) == [[0, 0], [1, 1], [2, 2]]
    assert sized.drawn == 3


def test_only_the_member_at_work_is_begun_in_sequence():
    one, two = Sized(2), Sized(2)
    steps = iter(CombinedLoader([one, two], "sequential"))
    next(steps), next(steps)
    assert (one.begun, two.begun) == (1, 0)
    next(steps)
    assert (one.begun, two.begun) == (1, 1)


@pytest.mark.parametrize(
    ("mode", "members", "length", "count"),
    [
        ("max_size_cycle", [Sized(2), Counted(5)], math.inf, 5),
        ("max_size_cycle", [Sized(6), Counted(5)], math.inf, 6),
        ("max_size_cycle", [Counted(2), Counted(5)], math.inf, 5),
        ("min_size", [Sized(2), Counted(5)], 2, 2),
        ("min_size", [Sized(7), Counted(5)], 7, 5),
        ("min_size", [Counted(7), Counted(5)], math.inf, 5),
        ("max_size", [Sized(2), Counted(5)], math.inf, 5),
        ("max_size", [Sized(7), Counted(5)], math.inf, 7),
        ("sequential", [Sized(2), Counted(5)], math.inf, 7),
        # Lengths that are not true: too long a one ends early, too short a one bounds.
        ("max_size_cycle", [Sized(2, said=9), Sized(4)], 9, 4),
        ("max_size_cycle", [Sized(6, said=3), Sized(2)], 3, 3),
        ("min_size", [Sized(2, said=9), Sized(4)], 4, 2),
        ("max_size", [Sized(6, said=3), Sized(2)], 3, 3),
        ("sequential", [Sized(6, said=3), Sized(2, said=9)], 12, 5),
    ],
)
def test_members_without_a_length_or_with_a_wrong_one(mode, members, length, count):
    loader = CombinedLoader(members, mode)
    assert loader.num_batches == length
    for _ in range(2):
        assert len(list(loader)) == count
    if length == math.inf:
        with pytest.raises(TypeError, match="has no length, since one of its loaders has none"):
            len(loader)


@pytest.mark.parametrize(
    ("mode", "members", "expected"),
    [
        ("min_size", [[], [1, 2, 3]], []),
        ("max_size", [[], [1, 2]], [[None, 1], [None, 2]]),
        ("sequential", [[], [1, 2], []], [1, 2]),
        *((mode, [[], []], []) for mode in MODES),
        *((mode, [], []) for mode in MODES),
    ],
)
def test_empty_members(mode, members, expected):
    loader = CombinedLoader(members, mode)
    assert batches(loader) == expected
    assert len(loader) == len(expected)


def test_an_empty_member_cannot_start_over():
    with pytest.raises(MisconfigurationError, match=r"member \[0\] .* has no batches.* use \"max_size\""):
        CombinedLoader([[], [1, 2, 3]], "max_size_cycle")
    with pytest.raises(MisconfigurationError, match=r"member \['a'\]\['b'\]"):
        CombinedLoader({"a": {"b": []}, "c": [1]}, "max_size_cycle")
    late = CombinedLoader([Counted(0), [1, 2, 3]], "max_size_cycle")
    with pytest.raises(MisconfigurationError, match=r"member \[0\] .* has no batches"):
        list(late)


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("structure", "first"),
    [
        (range(3), 0),
        ([range(3)], [0]),
        ((range(3), range(3)), (0, 0)),
        ({"a": range(3), "b": [range(3), {"c": range(3)}]}, {"a": 0, "b": [0, {"c": 0}]}),
        (Pair(range(3), {"x": range(3)}), Pair(0, {"x": 0})),
        # Plain lists are loaders of batches, wherever they stand; so are lists of tensors.
        ([[1, 2], [3, 4]], [1, 3]),
        ({"a": [1, 2], "b": (3, 4)}, {"a": 1, "b": 3}),
        ([[(1, 2), (3, 4)], range(3)], [(1, 2), 0]),
        (collections.OrderedDict(a=range(3)), collections.OrderedDict(a=0)),
    ],
)
def test_batches_have_the_structure_of_the_loaders(structure, first):
    for mode in MODES[:3]:
        batch = batches(CombinedLoader(structure, mode))[0]
        assert batch == first
        assert type(batch) is type(first)


def test_what_is_no_loader_or_no_mode_is_refused():
    with pytest.raises(MisconfigurationError, match=r"member \['a'\] .* is a int, which cannot be iterated"):
        CombinedLoader({"a": 3})
    with pytest.raises(MisconfigurationError, match="mode='max_size_cycl'.*Did you mean `max_size_cycle`"):
        CombinedLoader([A], "max_size_cycl")
    with pytest.raises(MisconfigurationError, match="There are 2 limits for 3 loaders"):
        CombinedLoader([A, B, C]).limits = [1, 2]


def test_shares_limit_each_member_and_need_its_length():
    loader = CombinedLoader([A, C], "max_size")
    loader.limits = [1, 0.5]
    assert batches(loader) == [[0, 20], [None, 21]]
    loader = CombinedLoader([Counted(3)], "max_size")
    loader.limits = 0.5
    with pytest.raises(MisconfigurationError, match="share of a loader that has no length"):
        list(loader)


def test_a_shuffling_member_is_shuffled_anew_when_it_starts_over():
    torch.manual_seed(0)
    loader = CombinedLoader([indexed(12, shuffle=True), range(24)], "max_size_cycle")
    seen = [batch[0].item() for batch in batches(loader)]
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12] != seen[12:]


class Resumable(Sized):
    """Knows its own place, and goes on from one that it is told."""

    at = first = 0

    def __iter__(self):
        first, self.first = self.first, 0
        return self.run_from(first)

    def run_from(self, first):
        for i in range(first, self.n):
            self.drawn += 1
            self.at = i + 1
            yield i

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.first = state["at"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Sized, Counted, Resumable])
def test_a_state_brings_a_new_loader_to_the_same_place(mode, kind):
    whole = list(CombinedLoader([kind(2), kind(3), kind(5)], mode))
    for done in range(len(whole) + 1):
        first = CombinedLoader([kind(2), kind(3), kind(5)], mode)
        steps = iter(first)
        assert list(itertools.islice(steps, done)) == whole[:done]
        members = [kind(2), kind(3), kind(5)]
        second = CombinedLoader(members, mode)
        second.load_state_dict(first.state_dict())
        assert list(second) == whole[done:]
        if kind is Resumable:
            per_step = 1 if mode == "sequential" else 3
            assert sum(member.drawn for member in members) <= per_step * len(whole[done:]), "nothing is read forward"
        assert list(second) == whole, "the pass after it starts anew"


def test_the_state_of_other_loaders_is_refused():
    state = CombinedLoader([A, B]).state_dict()
    with pytest.raises(MisconfigurationError, match="of 2 loaders, but there are 3"):
        CombinedLoader([A, B, C]).load_state_dict(state)


# -- as the data of a fit ---------------------------------------------------------------------------------------------

SEED = 5


def feed(loader, mode="max_size_cycle", rank=0, workers=1, **options):
    return Feed(loader, worker(rank=rank, world_size=workers), SEED, mode=mode, **options)


def plain(batch):
    if isinstance(batch, torch.Tensor):
        return batch.flatten().tolist()
    if isinstance(batch, dict):
        return {key: plain(value) for key, value in batch.items()}
    return [plain(one) for one in batch] if isinstance(batch, list | tuple) else batch


def epoch(one, number=0, done=0):
    return [(plain(batch), one.is_last, one.dataloader_idx) for batch in one.epoch(number, done)]


def structure():
    return {"a": indexed(7, 2, shuffle=True), "b": [indexed(3, shuffle=True), indexed(11, 2)]}  # 4, 3 and 6 batches


@pytest.mark.parametrize(
    ("mode", "length"), [("max_size_cycle", 6), ("min_size", 3), ("max_size", 6), ("sequential", 13)]
)
def test_a_fit_reads_a_structure_from_any_step_on(mode, length):
    one = feed(structure(), mode)
    assert one.num_batches == length
    for number in (0, 1):
        whole = epoch(one, number)
        assert len(whole) == length
        assert [last for _, last, _ in whole] == [False] * (length - 1) + [True]
        for done in range(length + 1):
            assert epoch(feed(structure(), mode), number, done) == whole[done:]
    assert epoch(one, 0) != epoch(one, 1), "each epoch has its own order"


@pytest.mark.parametrize("mode", MODES)
def test_a_structure_with_members_of_unknown_length_is_read_from_any_step_on(mode):
    def make():
        return [indexed(3, shuffle=True), Stream(5)]

    whole = epoch(feed(make(), mode))
    assert [last for _, last, _ in whole] == [False] * (len(whole) - 1) + [True]
    assert len(whole) == {"max_size_cycle": 5, "min_size": 3, "max_size": 5, "sequential": 8}[mode]
    for done in range(1, len(whole)):
        with pytest.warns(UserWarning, match=f"A Stream cannot start in the middle: up to {done} batches"):
            assert epoch(feed(make(), mode), 0, done) == whole[done:]


def test_a_step_in_the_middle_of_map_style_members_reads_nothing_before_it():
    read = []

    class Watched(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            read.append(index)
            return torch.tensor([float(index)])

    one = feed([DataLoader(Watched()), DataLoader(Watched(), batch_size=2)])
    assert len(epoch(one, 0, done=4)) == 2
    assert read == [4, 2, 3, 5, 4, 5]  # steps 4 and 5: the second member is in the middle of its second reading


@pytest.mark.parametrize(
    ("mode", "limit", "steps"),
    [
        ("max_size_cycle", 2, 2),
        ("min_size", 2, 2),
        ("max_size", 5, 5),
        ("sequential", 2, 6),
        ("max_size_cycle", 0.5, 3),
        ("min_size", 0.5, 1),
        ("sequential", 0.5, 2 + 1 + 3),
    ],
)
def test_limits_are_those_of_each_member(mode, limit, steps):
    one = feed(structure(), mode, limit=limit)
    assert one.num_batches == steps
    assert len(epoch(one)) == steps


def test_a_share_of_a_member_without_length_is_refused_by_name():
    with pytest.raises(MisconfigurationError, match="`limit_train_batches=0.5` is a share of a loader that has no len"):
        feed([indexed(3), Stream(3)], limit=0.5)


def test_two_workers_share_every_member_and_take_the_same_steps():
    def make():
        return {"a": indexed(8, 2), "b": indexed(4)}

    mine = [epoch(feed(make(), "max_size_cycle", rank, 2)) for rank in (0, 1)]
    assert [step[0] for step in mine[0]] == [{"a": [0.0, 2.0], "b": [0.0]}, {"a": [4.0, 6.0], "b": [2.0]}]
    assert [step[0] for step in mine[1]] == [{"a": [1.0, 3.0], "b": [1.0]}, {"a": [5.0, 7.0], "b": [3.0]}]


class Takes(Line):
    def __init__(self):
        super().__init__()
        self.seen = []

    def training_step(self, batch, batch_idx, dataloader_idx=0):
        self.seen.append((plain(batch), batch_idx, dataloader_idx))
        return self.layer(torch.ones(1, 1)).sum()


def one_fit(tmp_path, loaders, **arguments):
    module = Takes()
    trainer = quiet_trainer(tmp_path, max_epochs=1, **arguments)
    trainer.fit(module, loaders)
    return module.seen, trainer


def test_a_fit_combines_what_it_is_given(tmp_path):
    loaders = {"a": indexed(2), "b": (indexed(3), Stream(1))}
    seen, trainer = one_fit(tmp_path, loaders)
    assert [batch for batch, _, _ in seen] == [
        {"a": [0.0], "b": [[0.0], [0.0]]},
        {"a": [1.0], "b": [[1.0], [0.0]]},
        {"a": [0.0], "b": [[2.0], [0.0]]},
    ]
    assert trainer.train_dataloader is loaders
    assert trainer.num_training_batches == math.inf


def test_the_mode_is_the_trainers_unless_a_combined_loader_has_its_own(tmp_path):
    pair = [indexed(2), indexed(3)]
    seen, trainer = one_fit(tmp_path, pair, multiple_trainloader_mode="min_size")
    assert len(seen) == trainer.num_training_batches == 2
    seen, _ = one_fit(tmp_path, CombinedLoader(pair, "max_size"), multiple_trainloader_mode="min_size")
    assert [batch for batch, _, _ in seen] == [[[0.0], [0.0]], [[1.0], [1.0]], [None, [2.0]]]


def test_a_sequence_of_loaders_tells_which_one_is_read(tmp_path):
    seen, _ = one_fit(tmp_path, [indexed(2), indexed(3)], multiple_trainloader_mode="sequential")
    assert seen == [([0.0], 0, 0), ([1.0], 1, 0), ([0.0], 2, 1), ([1.0], 3, 1), ([2.0], 4, 1)]


def test_a_plain_list_of_batches_is_one_loader(tmp_path):
    ones = [torch.ones(1, 1), torch.ones(1, 1)]
    assert [batch for batch, _, _ in one_fit(tmp_path, ones)[0]] == [[1.0], [1.0]]


def test_evaluation_reads_a_combined_loader_as_its_mode_says(tmp_path):
    seen = []

    class Looks(Line):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            seen.append((plain(batch), batch_idx, dataloader_idx))
            self.log("x", 1.0, reduce_fx="sum")

    trainer = quiet_trainer(tmp_path)
    pair = [indexed(1), indexed(2)]
    results = trainer.validate(Looks(), CombinedLoader(pair, "sequential"), verbose=False)
    assert seen == [([0.0], 0, 0), ([0.0], 0, 1), ([1.0], 1, 1)]
    assert results == [{"x/dataloader_idx_0": 1.0}, {"x/dataloader_idx_1": 2.0}]
    seen.clear()
    assert trainer.validate(Looks(), CombinedLoader(pair, "max_size"), verbose=False) == [{"x": 2.0}]
    assert seen == [([[0.0], [0.0]], 0, 0), ([None, [1.0]], 1, 0)]


@pytest.mark.parametrize("mode", MODES)
def test_a_fit_on_combined_loaders_goes_on_exactly(tmp_path, mode):
    class Trains(Line):
        path = None

        def training_step(self, batch, batch_idx):
            parts = batch if isinstance(batch, list) else [batch]
            return sum(self.loss(part) for part in parts if part is not None)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            if self.path and self.trainer.global_step == self.stop_at:
                self.trainer.save_checkpoint(self.path)

    def fit(module, **options):
        loaders = [indexed(3, shuffle=True), indexed(5, 2, shuffle=True)]
        torch.manual_seed(1)
        trainer = quiet_trainer(tmp_path, max_epochs=2, multiple_trainloader_mode=mode)
        trainer.fit(module, loaders, **options)
        return module

    whole = fit(Trains())
    for stop_at in range(1, 6):
        first = Trains()
        first.path, first.stop_at = str(tmp_path / f"{stop_at}.ckpt"), stop_at
        fit(first)
        second = fit(Trains(), ckpt_path=first.path)
        assert all(torch.equal(p, q) for p, q in zip(second.parameters(), whole.parameters(), strict=True))


def test_an_empty_loader_is_told_and_its_stage_left_out(tmp_path):
    for empty, name in (([], "list"), (indexed(0), "DataLoader"), (Liar(0, said=0), "Liar"), ({}, "CombinedLoader")):
        with pytest.warns(UserWarning, match=f"A {name} has no batches"):
            seen, trainer = one_fit(tmp_path, empty)
        assert seen == []
        assert trainer.global_step == 0
