"""How much is trained and validated, and when: every expected count was worked out by hand, in the tables."""

import time
from datetime import timedelta

import pytest
import torch
from tests.unit.models import Liar, Line, Stream, indexed, quiet_trainer

from paceline import DataModule
from paceline.callbacks import Callback
from paceline.errors import MisconfigurationError


class Events(Line):
    """Writes down what happens: "t" a training batch, "v" a validation batch, "|" the end of a training epoch."""

    def __init__(self):
        super().__init__()
        self.events = ""

    def training_step(self, batch, batch_idx):
        self.events += "t"
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.events += "v"

    def on_train_epoch_end(self):
        self.events += "|"


def run(root, train, val=2, **arguments):
    """Fit on `train` and `val` batches, or on loaders; what happened, and the steps taken."""
    module = Events()
    trainer = quiet_trainer(root, **{"num_sanity_val_steps": 0, "max_epochs": 1, **arguments})
    loaders = [indexed(one) if isinstance(one, int) else one for one in (train, val)]
    trainer.fit(module, *loaders)
    return module.events, trainer.global_step


# Ten training batches and two validation batches, but where a row says otherwise.
T10 = "t" * 10
TABLE = [
    # -- limits of batches
    ({}, T10 + "vv|", 10),
    ({"limit_train_batches": 3}, "tttvv|", 3),
    ({"limit_train_batches": 10}, T10 + "vv|", 10),
    ({"limit_train_batches": 99}, T10 + "vv|", 10),
    ({"limit_train_batches": 0.35}, "tttvv|", 3),
    ({"limit_train_batches": 0.39}, "tttvv|", 3),
    ({"limit_train_batches": 1.0}, T10 + "vv|", 10),
    ({"limit_train_batches": 0}, "", 0),
    ({"limit_train_batches": 0.0}, "", 0),
    ({"limit_val_batches": 1}, T10 + "v|", 10),
    ({"limit_val_batches": 0.5}, T10 + "v|", 10),
    ({"limit_val_batches": 0}, T10 + "|", 10),
    ({"limit_val_batches": 0.0}, T10 + "|", 10),
    ({"limit_train_batches": 4, "max_epochs": 2}, "ttttvv|" * 2, 8),
    # -- epochs and steps
    ({"max_epochs": 0}, "", 0),
    ({"max_steps": 0}, "", 0),
    ({"max_epochs": 2}, (T10 + "vv|") * 2, 20),
    ({"max_epochs": -1, "max_steps": 4}, "tttt|", 4),
    ({"max_epochs": -1, "max_steps": 10}, T10 + "vv|", 10),
    ({"max_epochs": -1, "max_steps": 12}, T10 + "vv|tt|", 12),
    ({"max_epochs": 1, "max_steps": 12}, T10 + "vv|", 10),
    ({"max_epochs": 5, "max_steps": 3, "accumulate_grad_batches": 2}, "tttttt|", 3),
    ({"max_epochs": 5, "max_steps": 3, "min_steps": 9}, "ttt|", 3),
    # -- accumulation: 10 batches in groups of 3 are 4 steps, in groups of 4 are 3
    ({"accumulate_grad_batches": 3}, T10 + "vv|", 4),
    ({"accumulate_grad_batches": 4, "max_epochs": 2}, (T10 + "vv|") * 2, 6),
    ({"accumulate_grad_batches": 20}, T10 + "vv|", 1),
    ({"accumulate_grad_batches": {1: 5}, "max_epochs": 3}, (T10 + "vv|") * 3, 10 + 2 + 2),
    ({"accumulate_grad_batches": {0: 2, 2: 10}, "max_epochs": 4}, (T10 + "vv|") * 4, 5 + 5 + 1 + 1),
    # -- when validation runs
    ({"val_check_interval": 0.5}, "tttttvv" * 2 + "|", 10),
    ({"val_check_interval": 0.25}, "ttvv" * 5 + "|", 10),
    ({"val_check_interval": 0.33}, "tttvv" * 3 + "t|", 10),
    ({"val_check_interval": 0.01}, "tvv" * 10 + "|", 10),
    ({"val_check_interval": 0.0}, "tvv" * 10 + "|", 10),
    ({"val_check_interval": 3}, "tttvv" * 3 + "t|", 10),
    ({"val_check_interval": 10}, T10 + "vv|", 10),
    ({"val_check_interval": 1}, "tvv" * 10 + "|", 10),
    ({"val_check_interval": 4, "max_epochs": 2}, ("ttttvv" * 2 + "tt|") * 2, 20),
    ({"val_check_interval": 4, "limit_train_batches": 6}, "ttttvvtt|", 6),
    ({"val_check_interval": 0.5, "limit_train_batches": 6}, "tttvv" * 2 + "|", 6),
    ({"val_check_interval": 4, "accumulate_grad_batches": 5}, "ttttvv" * 2 + "tt|", 2),
    ({"check_val_every_n_epoch": 2, "max_epochs": 4}, (T10 + "|" + T10 + "vv|") * 2, 40),
    ({"check_val_every_n_epoch": 3, "max_epochs": 4}, (T10 + "|") * 2 + T10 + "vv|" + T10 + "|", 40),
    ({"check_val_every_n_epoch": 2, "val_check_interval": 5, "max_epochs": 2}, T10 + "|" + "tttttvv" * 2 + "|", 20),
    ({"check_val_every_n_epoch": 9}, T10 + "|", 10),
    (
        {"check_val_every_n_epoch": None, "val_check_interval": 4, "max_epochs": 2},
        "ttttvvttttvvtt|ttvvttttvvttttvv|",
        20,
    ),
    (
        {"check_val_every_n_epoch": None, "val_check_interval": 15, "max_epochs": 3},
        T10 + "|tttttvvttttt|" + T10 + "vv|",
        30,
    ),
    # -- all batches the same few
    ({"overfit_batches": 3}, "tttvv|", 3),
    ({"overfit_batches": 1, "max_epochs": 2}, "tv|" * 2, 2),
    ({"overfit_batches": 0.2, "max_epochs": 2}, "ttvv|" * 2, 4),
    ({"overfit_batches": 2, "limit_train_batches": 7, "limit_val_batches": 1}, "ttvv|", 2),
    # -- a run to find mistakes
    ({"fast_dev_run": True}, "tv|", 1),
    ({"fast_dev_run": 1}, "tv|", 1),
    ({"fast_dev_run": 2, "max_epochs": 7, "max_steps": 1}, "ttvv|", 2),
    ({"fast_dev_run": 4, "check_val_every_n_epoch": 3, "val_check_interval": 2}, "ttttvv|", 4),
    ({"fast_dev_run": 99}, T10 + "vv|", 10),
    ({"fast_dev_run": 0}, T10 + "vv|", 10),
    ({"fast_dev_run": False}, T10 + "vv|", 10),
    ({"fast_dev_run": 2, "overfit_batches": 4}, "ttttvv|", 4),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("arguments", "events", "steps"), TABLE, ids=[str(arguments) for arguments, _, _ in TABLE])
def test_ten_training_and_two_validation_batches(tmp_path, arguments, events, steps):
    assert run(tmp_path, 10, **arguments) == (events, steps)


# Loaders that say nothing, or something wrong, of their length.
UNSIZED = [
    (Stream(5), {}, "tttttvv|", 5),
    (Stream(5), {"limit_train_batches": 3}, "tttvv|", 3),
    (Stream(5), {"limit_train_batches": 9}, "tttttvv|", 5),
    (Stream(5), {"val_check_interval": 2}, "ttvvttvvt|", 5),
    (Stream(5), {"val_check_interval": 2, "limit_train_batches": 4}, "ttvv" * 2 + "|", 4),
    (Stream(5), {"val_check_interval": 9, "check_val_every_n_epoch": None, "max_epochs": 2}, "ttttt|ttttvvt|", 10),
    (Stream(10), {"accumulate_grad_batches": 4}, T10 + "vv|", 3),
    (Stream(5), {"max_steps": 7, "max_epochs": 9}, "tttttvv|tt|", 7),
    (Stream(0), {}, "|", 0),
    (Liar(6, said=10), {}, "ttttttvv|", 6),
    (Liar(6, said=10), {"val_check_interval": 0.5}, "tttttvvt|", 6),
    (Liar(6, said=10), {"accumulate_grad_batches": 4}, "ttttttvv|", 2),
    (Liar(6, said=4), {}, "ttttvv|", 4),
    (Liar(6, said=10), {"limit_train_batches": 5}, "tttttvv|", 5),
    (Liar(6, said=10), {"max_epochs": 2}, "ttttttvv|" * 2, 12),
    (iter([torch.ones(1, 1)] * 3), {}, "tttvv|", 3),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("loader", "arguments", "events", "steps"), UNSIZED)
def test_training_loaders_of_unknown_or_wrong_length(tmp_path, loader, arguments, events, steps):
    assert run(tmp_path, loader, **arguments) == (events, steps)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("loader", "arguments", "validated"),
    [
        (Stream(3), {}, 3),
        (Stream(3), {"limit_val_batches": 2}, 2),
        (Stream(3), {"limit_val_batches": 9}, 3),
        (Liar(2, said=5), {}, 2),
        (Liar(5, said=2), {}, 2),
        ([indexed(2), indexed(3)], {}, 5),
        ([indexed(2), indexed(3)], {"limit_val_batches": 2}, 4),
        ([indexed(2), indexed(4)], {"limit_val_batches": 0.5}, 1 + 2),
        ([indexed(2), Stream(4)], {"limit_val_batches": 3}, 2 + 3),
        ([indexed(2), None], {}, 2),
        ({"a": indexed(2), "b": indexed(1)}, {}, 3),
        ([], {}, 0),
        (indexed(0), {}, 0),
    ],
)
def test_validation_loaders_of_all_kinds(tmp_path, loader, arguments, validated):
    assert run(tmp_path, 1, loader, **arguments)[0] == "t" + "v" * validated + "|"


def test_a_wrong_length_is_told_with_both_numbers(tmp_path):
    with pytest.warns(UserWarning, match="ended after 6 batches; its length said 10"):
        run(tmp_path, Liar(6, said=10))


REFUSED = [
    (Stream(9), {"limit_train_batches": 0.5}, "`limit_train_batches=0.5` is a share of a loader that has no length"),
    (Stream(9), {"overfit_batches": 0.5}, "`overfit_batches=0.5` is a share of a loader that has no length"),
    (Stream(9), {"val_check_interval": 0.5}, "`val_check_interval=0.5` is a share of a training loader that has no le"),
    (10, {"limit_train_batches": 0.05}, "`limit_train_batches=0.05` of 10 batches is less than one batch. .* 0.1"),
    (10, {"limit_val_batches": 0.4}, "`limit_val_batches=0.4` of 2 batches is less than one batch. .* 0.5"),
    (10, {"val_check_interval": 11}, "`val_check_interval=11` is more than the 10 training batches of an epoch"),
    (10, {"val_check_interval": 4, "limit_train_batches": 3}, "`val_check_interval=4` is more than the 3 training"),
]


@pytest.mark.parametrize(("train", "arguments", "words"), REFUSED)
def test_limits_that_make_no_sense_for_these_loaders_are_refused_before_training(tmp_path, train, arguments, words):
    module = Events()
    started = []
    module.on_fit_start = lambda: started.append(True)
    trainer = quiet_trainer(tmp_path, max_epochs=1, **arguments)
    with pytest.raises(MisconfigurationError, match=words):
        trainer.fit(module, indexed(train) if isinstance(train, int) else train, indexed(2))
    assert module.events == ""
    assert not started


def test_an_interval_longer_than_the_epoch_is_no_matter_where_nothing_is_validated(tmp_path):
    assert run(tmp_path, 10, val_check_interval=11, limit_val_batches=0) == (T10 + "|", 10)


def test_the_other_stages_have_limits_of_their_own(tmp_path):
    trainer = quiet_trainer(tmp_path, limit_test_batches=2, limit_predict_batches=0.5)
    module = Line()
    module.test_step = lambda batch, batch_idx: module.log("n", 1.0, reduce_fx="sum")
    assert trainer.test(module, indexed(5), verbose=False) == [{"n": 2.0}]
    assert len(trainer.predict(module, indexed(5))) == 2
    assert trainer.num_test_batches == [2]
    assert trainer.num_predict_batches == [2]


# -- requests to stop -------------------------------------------------------------------------------------------------


class Asks(Callback):
    """Asks to stop at the end of one batch of the run."""

    def __init__(self, at):
        self.at, self.seen = at, 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen += 1
        if self.seen == self.at:
            trainer.should_stop = True


@pytest.mark.parametrize(
    ("at", "arguments", "events"),
    [
        # A stop in the middle of an epoch validates first, as the epoch's end would have.
        (3, {}, "tttvv|"),
        (3, {"limit_val_batches": 0}, "ttt|"),
        (3, {"min_steps": 5}, "tttttvv|"),
        (3, {"min_steps": 2}, "tttvv|"),
        (3, {"min_epochs": 1}, T10 + "vv|"),
        (3, {"min_epochs": 2}, (T10 + "vv|") * 2),
        (3, {"min_epochs": 1, "min_steps": 12}, T10 + "vv|" + "ttvv|"),
        (3, {"min_epochs": 2, "min_steps": 12}, (T10 + "vv|") * 2),
        (3, {"min_epochs": 9, "max_epochs": 2}, (T10 + "vv|") * 2),
        (3, {"min_steps": 99, "max_steps": 4}, "tttt|"),
        (3, {"accumulate_grad_batches": 2}, "ttttvv|"),
        (3, {"accumulate_grad_batches": 2, "min_steps": 3}, "ttttttvv|"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_request_to_stop_waits_for_the_minimum(tmp_path, at, arguments, events):
    assert run(tmp_path, 10, callbacks=[Asks(at)], **{"max_epochs": 5, **arguments})[0] == events


def test_a_stop_before_the_first_batch_trains_nothing(tmp_path):
    module = Events()
    module.on_fit_start = lambda: setattr(module.trainer, "should_stop", True)
    quiet_trainer(tmp_path, max_epochs=3).fit(module, indexed(4), indexed(2))
    assert module.events == ""


def test_minus_one_from_a_batch_start_ends_the_epoch(tmp_path):
    class Skips(Events):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    module = Skips()
    trainer = quiet_trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(module, indexed(10), indexed(2))
    assert module.events == "tt|tt|"
    assert trainer.global_step == 4


def test_a_batch_that_is_none_is_passed_over_and_told(tmp_path):
    ends = []

    class Watches(Events):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            ends.append((batch_idx, batch is None, outputs is None))

    module = Watches()
    one = torch.ones(1, 1)
    with pytest.warns(UserWarning, match="gave None as a batch"):
        quiet_trainer(tmp_path, max_epochs=1).fit(module, [one, None, one])
    assert module.events == "tt|"
    assert ends == [(0, False, False), (1, True, True), (2, False, False)]


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_time", ["00:00:00:01", timedelta(seconds=1), {"seconds": 1}])
def test_max_time_ends_a_fit_without_other_limits(tmp_path, max_time):
    class Slow(Events):
        def training_step(self, batch, batch_idx):
            time.sleep(0.05)
            return super().training_step(batch, batch_idx)

    module = Slow()
    trainer = quiet_trainer(tmp_path, max_time=max_time)
    begin = time.monotonic()
    trainer.fit(module, indexed(1000))
    assert 0.9 < time.monotonic() - begin < 5
    assert 2 <= trainer.global_step <= 20


# -- the same data in every epoch -------------------------------------------------------------------------------------


def test_overfitting_switches_shuffling_off_and_says_so(tmp_path):
    module = Line()
    trainer = quiet_trainer(tmp_path, overfit_batches=3, max_epochs=2)
    with pytest.warns(UserWarning, match="overfit_batches"):
        trainer.fit(module, indexed(10, shuffle=True), indexed(10, shuffle=True))
    assert module.seen == [[0.0], [1.0], [2.0]] * 2
    assert module.validated[-3:] == [[0.0], [1.0], [2.0]]


# -- loaders that are asked for again ---------------------------------------------------------------------------------


class Counting(DataModule):
    """Its loaders' batches say how often the hook was called."""

    def __init__(self):
        self.calls = {"train": [], "val": []}

    def _loader(self, kind):
        self.calls[kind].append(self.trainer.current_epoch)
        return [torch.tensor([[float(len(self.calls[kind]))]])]

    def train_dataloader(self):
        return self._loader("train")

    def val_dataloader(self):
        return self._loader("val")


@pytest.mark.parametrize(
    ("every", "arguments", "train", "val"),
    [
        (0, {}, [0], [0]),
        (1, {}, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (2, {}, [0, 2, 4], [0, 2, 4]),
        (3, {}, [0, 3], [0, 3]),
        # Epoch 0 has no validation, so the loaders of its sanity check are not those of the first one.
        (1, {"check_val_every_n_epoch": 2}, [0, 1, 2, 3, 4], [0, 1, 3]),
        (2, {"check_val_every_n_epoch": 2}, [0, 2, 4], [0, 1, 3]),
        (9, {}, [0], [0]),
    ],
)
def test_loader_hooks_are_asked_again(tmp_path, every, arguments, train, val):
    data, module = Counting(), Line()
    trainer = quiet_trainer(tmp_path, max_epochs=5, reload_dataloaders_every_n_epochs=every, **arguments)
    trainer.fit(module, datamodule=data)
    assert data.calls == {"train": train, "val": val}
    assert [seen[0] for seen in module.seen] == [float(sum(e <= epoch for e in train)) for epoch in range(5)]


def test_a_stream_that_gives_nothing_ends_the_fit(tmp_path):
    with pytest.warns(UserWarning, match="gave no batches"):
        assert run(tmp_path, Stream(0), max_epochs=-1, max_steps=5) == ("|", 0)


def test_given_loaders_are_not_asked_for_again(tmp_path):
    assert run(tmp_path, 2, reload_dataloaders_every_n_epochs=1, max_epochs=3)[1] == 6


# -- numbers that users look at ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "arguments", "estimate"),
    [
        (10, {"max_epochs": 3}, 30),
        (10, {"max_epochs": 3, "accumulate_grad_batches": 4}, 9),
        (10, {"max_epochs": 3, "max_steps": 7}, 7),
        (10, {"max_epochs": 3, "max_steps": 99}, 30),
        (10, {"max_epochs": -1, "max_steps": 7}, 7),
        (10, {"max_epochs": 3, "limit_train_batches": 0.5}, 15),
        (10, {"max_epochs": 3, "limit_train_batches": 4, "accumulate_grad_batches": 3}, 6),
        (10, {"fast_dev_run": 3}, 3),
        (10, {"max_epochs": 3, "accumulate_grad_batches": {0: 2}}, 15),
        (Stream(4), {"max_epochs": 1}, float("inf")),
        (Stream(4), {"max_epochs": 1, "max_steps": 3}, 3),
        (Stream(4), {"max_epochs": 2, "limit_train_batches": 3}, 6),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_number_of_steps_is_known_when_optimizers_are_made(tmp_path, loader, arguments, estimate):
    found = []

    class Plans(Line):
        def configure_optimizers(self):
            found.append(self.trainer.estimated_stepping_batches)
            return super().configure_optimizers()

    trainer = quiet_trainer(tmp_path, **arguments)
    trainer.fit(Plans(), indexed(loader) if isinstance(loader, int) else loader)
    assert found == [estimate]
    if estimate < float("inf"):
        assert type(found[0]) is int
        assert trainer.global_step == estimate


def test_no_number_of_steps_is_guessed_with_an_accumulation_schedule(tmp_path):
    class Plans(Line):
        def configure_optimizers(self):
            return self.trainer.estimated_stepping_batches

    trainer = quiet_trainer(tmp_path, max_epochs=2, accumulate_grad_batches={1: 2})
    with pytest.raises(MisconfigurationError, match="not estimated with an accumulation schedule such as {0: 1, 1: 2}"):
        trainer.fit(Plans(), indexed(4))


def test_numbers_of_batches_are_shown_during_and_after_a_fit(tmp_path):
    seen = []

    class Looks(Line):
        def on_fit_start(self):
            t = self.trainer
            seen.append((t.num_training_batches, t.num_val_batches, t.num_sanity_val_batches, t.enable_validation))

    trainer = quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=0.5, limit_val_batches=3)
    assert (trainer.num_training_batches, trainer.num_val_batches) == (0, [])
    trainer.fit(Looks(), indexed(9), [indexed(5), indexed(1)])
    assert seen == [(4, [3, 1], [2, 1], True)]
    assert trainer.num_training_batches == 4
    assert trainer.num_val_batches == [3, 1]
    trainer = quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=-1)
    trainer.fit(Looks(), Stream(2), Stream(3))
    assert seen[-1] == (float("inf"), [float("inf")], [float("inf")], True)
