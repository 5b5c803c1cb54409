"""A fit does what a bare PyTorch loop does, as often as its limits say, and leaves everything as one expects."""

import math
import random
import time
import warnings

import numpy as np
import pytest
import torch
from tests.unit.models import (
    Calls,
    IndexData,
    Liar,
    Line,
    Rows,
    Scores,
    Stream,
    Validates,
    assert_equal_weights,
    indexed,
    quiet_trainer,
    weights,
)
from torch import nn
from torch.utils.data import DataLoader, Sampler

from paceline import DataModule, Module
from paceline.callbacks import ModelCheckpoint
from paceline.errors import MisconfigurationError

# -- against a bare loop ----------------------------------------------------------------------------------------------


class Net(Module):
    """Two layers with dropout, from a fixed start; `make` builds what `configure_optimizers` returns."""

    def __init__(self, make, dropout=0.0):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.Dropout(dropout), nn.Tanh(), nn.Linear(4, 1))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.make = make

    def loss(self, batch):
        return nn.functional.mse_loss(self.layers(batch / 10), torch.sin(batch))

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def configure_optimizers(self):
        return self.make(self)


def sgd(module, **options):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, **options)


def adam(module):
    return torch.optim.Adam(module.parameters(), lr=0.05)


def clip_by_norm(module):
    nn.utils.clip_grad_norm_(module.parameters(), 0.05)


def clip_by_value(module):
    nn.utils.clip_grad_value_(module.parameters(), 0.02)


def bare_loop(module, optimizer, loader, epochs, group=1, clip=None, per_step=None, per_epoch=None):
    batches = loader if isinstance(loader, list) else list(loader)
    module.train()
    steps = 0
    for epoch in range(epochs):
        for begin in range(0, len(batches), group):
            optimizer.zero_grad()
            for batch in batches[begin : begin + group]:
                loss = module.loss(batch)
                if group > 1:
                    loss = loss / len(batches[begin : begin + group])
                loss.backward()
            if clip is not None:
                clip(module)
            optimizer.step()
            steps += 1
            if per_step is not None:
                per_step(steps)
        if per_epoch is not None:
            per_epoch(epoch + 1)


@pytest.mark.parametrize(
    ("make", "group", "clip", "arguments"),
    [
        (sgd, 1, None, {}),
        (adam, 1, None, {}),
        (sgd, 2, None, {}),
        # 11 batches in groups of 4: the last group has 3.
        (adam, 4, None, {}),
        (sgd, 20, None, {}),
        (sgd, 1, clip_by_norm, {"gradient_clip_val": 0.05}),
        (sgd, 1, clip_by_value, {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}),
        (adam, 3, clip_by_norm, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "norm"}),
        (sgd, 1, None, {"gradient_clip_val": 0}),
    ],
    ids=["sgd", "adam", "by 2", "by 4", "by all", "norm", "value", "by 3 with norm", "clip 0"],
)
def test_weights_are_those_of_a_bare_loop_to_the_last_bit(tmp_path, make, group, clip, arguments):
    mine, bare = Net(make, dropout=0.3), Net(make, dropout=0.3)
    loader = indexed(21, batch_size=2)
    batches = list(loader)  # outside the comparison: to iterate over a DataLoader draws a random number
    torch.manual_seed(5)
    bare_loop(bare, make(bare), batches, 3, group, clip)
    torch.manual_seed(5)
    trainer = quiet_trainer(tmp_path, max_epochs=3, accumulate_grad_batches=group, **arguments)
    trainer.fit(mine, loader)
    assert_equal_weights(mine, bare)
    assert trainer.global_step == 3 * math.ceil(11 / group)


@pytest.mark.parametrize(("interval", "frequency"), [("step", 1), ("step", 3), ("epoch", 1), ("epoch", 2)])
@pytest.mark.parametrize("group", [1, 2])
def test_schedulers_are_stepped_by_steps_or_epochs_at_their_frequency(tmp_path, interval, frequency, group):
    def with_scheduler(module):
        optimizer = sgd(module)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": interval, "frequency": frequency},
        }

    mine, bare = Net(with_scheduler), Net(with_scheduler)
    parts = with_scheduler(bare)
    scheduler = parts["lr_scheduler"]["scheduler"]

    def count(number):
        if number % frequency == 0:
            scheduler.step()

    loader = indexed(7)
    bare_loop(bare, parts["optimizer"], loader, 4, group, **{f"per_{interval}": count})
    quiet_trainer(tmp_path, max_epochs=4, accumulate_grad_batches=group).fit(mine, loader)
    assert_equal_weights(mine, bare)


def plateau(module, **options):
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.0)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "score", **options}}


@pytest.mark.parametrize(
    ("scores", "every", "options", "rates"),
    [
        # It never improves on 1.0: halved at each look but the first.
        ([1.0] * 4, 1, {}, [1.0, 0.5, 0.25, 0.125]),
        ([1.0, 0.9, 0.8, 0.9], 1, {}, [1.0, 1.0, 1.0, 0.5]),
        # H25: two looks, after the second and the fourth epoch, the second without improvement.
        ([9.0, 1.0, 9.0, 1.0], 2, {}, [1.0, 1.0, 1.0, 0.5]),
        ([1.0] * 4, 1, {"frequency": 2}, [1.0, 1.0, 1.0, 0.5]),
    ],
    ids=["flat", "better, then worse", "every second epoch", "frequency 2"],
)
def test_a_plateau_scheduler_looks_once_at_each_new_value(tmp_path, scores, every, options, rates):
    class Watched(Validates):
        def configure_optimizers(self):
            return plateau(self, **options)

    seen = []
    note = Calls(on_train_epoch_start=lambda trainer, _: seen.append(trainer.optimizers[0].param_groups[0]["lr"]))
    trainer = quiet_trainer(tmp_path, max_epochs=4, check_val_every_n_epoch=every, callbacks=[note])
    module = Watched(scores)
    final = []
    note.on_train_end = lambda trainer, _: final.append(trainer.optimizers[0].param_groups[0]["lr"])
    trainer.fit(module, indexed(2), indexed(1))
    assert seen[1:] + final == rates


@pytest.mark.parametrize("strict", [True, False])
def test_a_plateau_scheduler_whose_value_is_never_logged_says_what_was(tmp_path, strict):
    class Watched(Scores):
        def configure_optimizers(self):
            return plateau(self, strict=strict, monitor="scoer")

    trainer, module = quiet_trainer(tmp_path, max_epochs=1), Watched([1.0])
    if strict:
        with pytest.raises(MisconfigurationError, match=r"monitors `scoer`, which was not logged.*score"):
            trainer.fit(module, indexed(2))
    else:
        with pytest.warns(UserWarning, match=r"monitors `scoer`, which was not logged.*score"):
            trainer.fit(module, indexed(2))


def test_a_scheduler_is_not_stepped_before_the_first_optimizer_step(tmp_path):
    class Skips(Line):
        def training_step(self, batch, batch_idx):
            return self.loss(batch) if self.current_epoch == 2 else None

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)]

    rates = []
    note = Calls(on_train_epoch_end=lambda trainer, _: rates.append(trainer.optimizers[0].param_groups[0]["lr"]))
    with warnings.catch_warnings():
        # Torch's own word on a scheduler that comes before its optimizer.
        warnings.filterwarnings("error", message=r".*lr_scheduler.step\(\)")
        quiet_trainer(tmp_path, max_epochs=3, callbacks=[note]).fit(Skips(), indexed(2))
    assert rates == [1.0, 1.0, 0.5]


# -- how often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "batches", "steps", "validated", "epochs"),
    [
        # 6 training batches, 4 validation batches; the sanity check counts as validation.
        ({"max_epochs": 2}, 12, 12, 2 + 8, 2),
        ({"max_epochs": 2, "num_sanity_val_steps": 0}, 12, 12, 8, 2),
        ({"max_epochs": 1, "num_sanity_val_steps": -1}, 6, 6, 8, 1),
        ({"max_epochs": 1, "num_sanity_val_steps": 9}, 6, 6, 8, 1),
        ({"max_epochs": 1, "num_sanity_val_steps": 3, "limit_val_batches": 2}, 6, 6, 4, 1),
        ({"max_steps": 6}, 6, 6, 6, 1),
        ({"max_steps": 12, "max_epochs": 1}, 6, 6, 6, 1),
        ({"max_steps": 3, "max_epochs": 5, "num_sanity_val_steps": 0}, 3, 3, 0, 0),
        ({"max_steps": 9, "max_epochs": -1, "num_sanity_val_steps": 0}, 9, 9, 4, 1),
        ({"max_epochs": 1, "limit_train_batches": 4}, 4, 4, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 0.5}, 3, 3, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 0.4}, 2, 2, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 1}, 1, 1, 6, 1),
        ({"max_epochs": 1, "limit_train_batches": 99}, 6, 6, 6, 1),
        ({"max_epochs": 1, "limit_val_batches": 0}, 6, 6, 0, 1),
        ({"max_epochs": 1, "limit_val_batches": 0.0}, 6, 6, 0, 1),
        ({"max_epochs": 1, "limit_val_batches": 0.75, "num_sanity_val_steps": 0}, 6, 6, 3, 1),
        ({"max_epochs": 5, "check_val_every_n_epoch": 2, "num_sanity_val_steps": 0}, 30, 30, 8, 5),
        ({"max_epochs": 1, "check_val_every_n_epoch": 3, "num_sanity_val_steps": 0}, 6, 6, 0, 1),
        ({"max_epochs": 2, "accumulate_grad_batches": 4}, 12, 4, 10, 2),
        ({"max_epochs": 2, "accumulate_grad_batches": 6}, 12, 2, 10, 2),
        ({"max_steps": 3, "accumulate_grad_batches": 4, "num_sanity_val_steps": 0}, 10, 3, 4, 1),
        ({"max_epochs": 1, "accumulate_grad_batches": 2, "limit_train_batches": 5}, 5, 3, 6, 1),
        ({"max_epochs": 0}, 0, 0, 0, 0),
        ({"max_steps": 0}, 0, 0, 0, 0),
        ({"max_epochs": 1, "limit_train_batches": 0}, 0, 0, 0, 0),
        ({"max_epochs": 1, "min_epochs": 4}, 6, 6, 6, 1),
        ({"max_steps": 2, "min_steps": 50, "num_sanity_val_steps": 0}, 2, 2, 0, 0),
    ],
    ids=str,
)
def test_a_fit_runs_so_many_batches_steps_validations_and_epochs(
    tmp_path, arguments, batches, steps, validated, epochs
):
    module = Line()
    trainer = quiet_trainer(tmp_path, **arguments)
    trainer.fit(module, indexed(6), indexed(4))
    assert len(module.seen) == batches
    assert trainer.global_step == steps
    assert len(module.validated) == validated
    assert trainer.current_epoch == epochs


@pytest.mark.parametrize(
    ("minima", "batches"),
    [
        ({}, 2),
        ({"min_steps": 2}, 2),
        ({"min_steps": 9}, 9),
        ({"min_epochs": 1}, 6),
        ({"min_epochs": 3}, 18),
        ({"min_epochs": 1, "min_steps": 8}, 8),
        ({"min_epochs": 3, "min_steps": 8}, 18),
        # What ends a fit for good wins over what it has to reach.
        ({"min_epochs": 8, "max_epochs": 2}, 12),
    ],
    ids=str,
)
def test_a_request_to_stop_waits_for_the_minimum(tmp_path, minima, batches):
    def stop(trainer, _):
        if trainer.global_step == 2:
            trainer.should_stop = True

    module = Line()
    arguments = {"max_epochs": 10, **minima}
    quiet_trainer(tmp_path, callbacks=[Calls(on_train_batch_end=stop)], **arguments).fit(module, indexed(6))
    assert len(module.seen) == batches


@pytest.mark.parametrize(
    ("hook", "batches", "validated"),
    [
        ("on_train_batch_end", 1, 4),
        ("on_validation_end", 6, 4),
        ("on_validation_batch_start", 6, 4),
        ("on_train_epoch_end", 6, 4),
    ],
)
def test_a_request_to_stop_from_any_hook_ends_the_fit_after_a_validation(tmp_path, hook, batches, validated):
    def stop(trainer, _):
        trainer.should_stop = True

    counts = Calls(**{"on_train_epoch_end": None, "on_fit_end": None, hook: stop})
    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=9, num_sanity_val_steps=0, callbacks=[counts])
    trainer.fit(module, indexed(6), indexed(4))
    assert (len(module.seen), len(module.validated)) == (batches, validated)
    assert counts.counts["on_train_epoch_end"] == 1
    assert counts.counts["on_fit_end"] == 1
    assert trainer.state.status == "finished"


def test_a_request_that_is_taken_back_in_time_stops_nothing(tmp_path):
    def change(trainer, _):
        trainer.should_stop = trainer.current_epoch == 0

    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=4, min_epochs=3, callbacks=[Calls(on_train_epoch_end=change)])
    trainer.fit(module, indexed(2))
    assert len(module.seen) == 8


def test_without_any_limit_a_thousand_epochs_are_announced(tmp_path):
    def stop(trainer, _):
        trainer.should_stop = True

    trainer = quiet_trainer(tmp_path, callbacks=[Calls(on_train_epoch_end=stop)])
    with pytest.warns(UserWarning, match="1000 epochs"):
        trainer.fit(Line(), indexed(1))
    assert trainer.max_epochs == 1000


# -- loaders that are not what they seem ------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "steps"), [(1, 10), (4, 3), (5, 2), (20, 1)])
def test_a_loader_without_length_steps_its_last_partial_group(tmp_path, group, steps):
    module, bare = Line(), Line()
    trainer = quiet_trainer(tmp_path, max_epochs=2, accumulate_grad_batches=group)
    trainer.fit(module, Stream(10))
    assert len(module.seen) == 20
    assert trainer.global_step == 2 * steps
    bare_loop(bare, bare.configure_optimizers(), Stream(10), 2, group)
    for mine, theirs in zip(weights(module), weights(bare), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("argument", ["limit_train_batches", "limit_val_batches"])
def test_a_share_of_a_loader_without_length_is_refused_before_training(tmp_path, argument):
    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=1, **{argument: 0.5})
    with pytest.raises(MisconfigurationError, match=f"{argument}=0.5.*int number of batches, or 1.0"):
        trainer.fit(module, Stream(10), Stream(4))
    assert module.seen == []


def test_a_count_limits_a_loader_without_length(tmp_path):
    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=2, limit_train_batches=3, limit_val_batches=2, num_sanity_val_steps=0)
    trainer.fit(module, Stream(10), Stream(4))
    assert module.seen == [[0.0], [1.0], [2.0]] * 2
    assert module.validated == [[0.0], [1.0]] * 2


@pytest.mark.parametrize("said", [10, 6])
def test_a_loader_that_says_too_large_a_length_ends_its_epochs_all_the_same(tmp_path, said):
    calls = Calls(on_train_epoch_end=None, on_validation_end=None)
    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[calls], num_sanity_val_steps=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(module, Liar(6, said=said), indexed(1))
    assert len(module.seen) == 12
    assert calls.counts == {"on_train_epoch_end": 2, "on_validation_end": 2}
    assert trainer.current_epoch == 2
    assert any("after 6 batches" in str(w.message) and "10" in str(w.message) for w in caught) == (said == 10)


class Short(Sampler):
    """Says ten and gives six."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(6))


class Unsized(Sampler):
    def __init__(self):
        pass

    def __iter__(self):
        return iter(range(6))


def stop_when_repeated(limit):
    count = 0

    def hook(trainer, _):
        nonlocal count
        count += 1
        assert count <= limit, "the epoch never ends"

    return hook


@pytest.mark.parametrize("sampler", [Short(), Unsized()], ids=["says 10, gives 6", "no length"])
def test_a_sampler_that_gives_another_number_than_it_says_ends_its_epochs(tmp_path, sampler):
    module = Line()
    calls = Calls(on_train_epoch_start=stop_when_repeated(2))
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[calls])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, DataLoader(IndexData(10), sampler=sampler))
    assert len(module.seen) == 12
    assert trainer.current_epoch == 2


def test_a_share_that_makes_no_batch_is_refused(tmp_path):
    with pytest.raises(MisconfigurationError, match=r"limit_val_batches=0.01.*50 batches.*at least 0.02"):
        quiet_trainer(tmp_path, max_epochs=1, limit_val_batches=0.01).fit(Line(), indexed(1), indexed(50))


@pytest.mark.parametrize("length", [2, 3, 6, 7, 9, 11, 13, 30, 333])
def test_the_share_that_the_error_suggests_is_enough(tmp_path, length):
    with pytest.raises(MisconfigurationError) as caught:
        quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=0.001).fit(Line(), indexed(length))
    share = float(str(caught.value).split("at least ")[1].split(",")[0])
    module = Line()
    quiet_trainer(tmp_path, max_epochs=1, limit_train_batches=share).fit(module, indexed(length))
    assert len(module.seen) == 1


# -- what steps may take and return -----------------------------------------------------------------------------------


def test_returning_minus_one_ends_the_epoch(tmp_path):
    class Ends(Line):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    calls = Calls(on_train_epoch_end=None)
    module = Ends()
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[calls])
    trainer.fit(module, indexed(6))
    assert module.seen == [[0.0], [1.0]] * 3
    assert (calls.counts["on_train_epoch_end"], trainer.current_epoch) == (3, 3)


def test_an_epoch_ended_by_minus_one_leaves_no_gradient_to_the_next(tmp_path):
    class Ends(Line):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 and batch_idx == 1 else None

    module, bare = Ends(), Line()
    trainer = quiet_trainer(tmp_path, max_epochs=2, accumulate_grad_batches=2)
    trainer.fit(module, indexed(4))
    # Epoch 0 reads batch 0 alone, a group of one; epoch 1 reads two groups of two.
    optimizer = bare.configure_optimizers()
    bare_loop(bare, optimizer, [torch.tensor([[0.0]])], 1)
    bare_loop(bare, optimizer, indexed(4), 1, group=2)
    assert trainer.global_step == 3
    for mine, theirs in zip(weights(module), weights(bare), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_an_epoch_ended_by_minus_one_does_not_upset_a_plateau_scheduler(tmp_path):
    class Ends(Validates):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 0 and batch_idx == 1 else None

        def configure_optimizers(self):
            return plateau(self)

    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(Ends([1.0, 2.0]), indexed(3), indexed(1))
    assert trainer.current_epoch == 2


def test_a_batch_without_loss_takes_no_step(tmp_path):
    class Skips(Line):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx % 2 else loss

    module, bare = Skips(), Line()
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(module, indexed(5))
    bare_loop(bare, bare.configure_optimizers(), [b for i, b in enumerate(indexed(5)) if i % 2 == 0], 1)
    assert_equal_weights(module, bare)
    assert (len(module.seen), trainer.global_step) == (5, 3)


def test_a_dict_with_the_loss_trains_like_the_loss(tmp_path):
    class Gives(Line):
        def training_step(self, batch, batch_idx):
            return {"loss": self.loss(batch), "extra": self(batch)}

    outputs = []

    class Sees(Gives):
        def on_train_batch_end(self, outputs_, batch, batch_idx):
            outputs.append(outputs_)

    module, bare = Sees(), Line()
    quiet_trainer(tmp_path, max_epochs=1).fit(module, indexed(3))
    bare_loop(bare, bare.configure_optimizers(), indexed(3), 1)
    assert_equal_weights(module, bare)
    assert [sorted(one) for one in outputs] == [["extra", "loss"]] * 3
    assert not any(value.requires_grad for one in outputs for value in one.values())


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ({"los": torch.zeros(())}, ["without `loss`", "'los'"]),
        (0.5, ["returned a float", "a dict with `loss`"]),
        ("loss", ["returned a str"]),
    ],
    ids=["other key", "float", "str"],
)
def test_a_step_that_returns_something_else_is_an_error(tmp_path, returned, words):
    class Wrong(Line):
        def training_step(self, batch, batch_idx):
            return returned

    with pytest.raises(MisconfigurationError) as caught:
        quiet_trainer(tmp_path, max_epochs=1).fit(Wrong(), indexed(1))
    for word in words:
        assert word in str(caught.value)


def with_step(name, step):
    return type("Own", (Line,), {name: step})()


GOT = []


def batch_only(self, batch):
    GOT.append((batch,))
    return self.loss(batch)


def with_index(self, batch, batch_idx):
    GOT.append((batch, batch_idx))
    return self.loss(batch)


def with_other_names(self, x, i):
    GOT.append((x, i))
    return self.loss(x)


def with_underscore(self, batch, _):
    GOT.append((batch, _))
    return self.loss(batch)


def with_default(self, batch, batch_idx=7):
    GOT.append((batch, batch_idx))
    return self.loss(batch)


def with_all(self, batch, batch_idx, dataloader_idx=0):
    GOT.append((batch, batch_idx))
    return self.loss(batch)


def with_loader_only(self, batch, dataloader_idx):
    GOT.append((batch,))
    return self.loss(batch)


def with_rest(self, *args):
    GOT.append(args[:2])
    return self.loss(args[0])


STEPS = [with_index, batch_only, with_other_names, with_underscore, with_default, with_all, with_loader_only, with_rest]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("fn", ["fit", "validate", "test", "predict"])
def test_a_step_gets_the_arguments_that_its_signature_takes(tmp_path, fn, step):
    GOT.clear()
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    name = {"fit": "training_step", "validate": "validation_step"}.get(fn, f"{fn}_step")
    options = {} if fn in ("fit", "predict") else {"verbose": False}
    getattr(trainer, fn)(with_step(name, step), indexed(2), **options)
    assert [int(got[0]) for got in GOT] == [0, 1]
    assert [got[1] for got in GOT if len(got) > 1] in ([0, 1], [])


def test_a_step_sees_which_loader_a_batch_comes_from(tmp_path):
    got = []

    class Several(Line):
        def validation_step(self, batch, batch_idx, dataloader_idx):
            got.append((dataloader_idx, batch_idx, batch.item()))

    quiet_trainer(tmp_path).validate(Several(), [indexed(2), indexed(1)], verbose=False)
    assert got == [(0, 0, 0.0), (0, 1, 1.0), (1, 0, 0.0)]


def test_predictions_come_in_the_order_of_the_data(tmp_path):
    trainer = quiet_trainer(tmp_path)
    echo = with_step("predict_step", lambda self, batch, batch_idx: batch.flatten().tolist())
    assert trainer.predict(echo, indexed(5, batch_size=2)) == [[0.0, 1.0], [2.0, 3.0], [4.0]]
    assert trainer.predict(echo, [indexed(1), indexed(2)]) == [[[0.0]], [[0.0], [1.0]]]
    assert trainer.predict(echo, indexed(3), return_predictions=False) is None


def test_the_default_prediction_is_what_forward_gives(tmp_path):
    module = Line()
    (prediction,) = quiet_trainer(tmp_path).predict(module, indexed(3, batch_size=3))
    assert torch.equal(prediction, torch.tensor([[0.0], [0.5], [1.0]]))


# -- no traces --------------------------------------------------------------------------------------------------------


def test_the_sanity_check_leaves_no_trace(tmp_path):
    states = []
    rows = Rows()

    class Draws(Line):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("drawn", torch.rand(()) + random.random() + np.random.rand())
            self.trainer.should_stop = self.trainer.sanity_checking

        def on_train_start(self):
            states.append((torch.get_rng_state(), random.getstate(), np.random.get_state()[1]))
            assert self.trainer.callback_metrics == {}
            assert self.trainer.logged_metrics == {}
            assert not self.trainer.should_stop
            assert self.trainer.global_step == 0
            assert rows.rows == []

    for checks in (0, 2):
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        module = Draws()
        trainer = quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=checks, logger=rows)
        rows.rows.clear()
        trainer.fit(module, indexed(3), indexed(3))
        assert len(module.seen) == 3
        assert len(module.validated) == 3 + checks
    without, with_check = states
    assert torch.equal(without[0], with_check[0])
    assert without[1] == with_check[1]
    assert (without[2] == with_check[2]).all()


def test_evaluation_brings_each_submodule_back_to_its_own_mode(tmp_path):
    class Frozen(Line):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Sequential(nn.Dropout(), nn.Dropout())
            self.modes = []

        def on_train_epoch_start(self):
            self.frozen[1].eval()

        def note(self):
            self.modes.append(tuple(m.training for m in (self, self.layer, self.frozen[0], self.frozen[1])))

        def training_step(self, batch, batch_idx):
            self.note()
            assert torch.is_grad_enabled()
            return self.loss(batch)

        def validation_step(self, batch, batch_idx):
            self.note()
            assert not torch.is_grad_enabled()

        on_train_epoch_end = note

    module = Frozen()
    trainer = quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(module, indexed(1), indexed(1))
    training, validating = (True, True, True, False), (False, False, False, False)
    assert module.modes == [training, validating, training]
    module.eval()
    trainer.validate(module, indexed(1), verbose=False)
    assert not any(submodule.training for submodule in module.modules())


def test_validation_inside_a_fit_does_not_disturb_the_gradients_of_a_group(tmp_path):
    module, bare = Line(), Line()
    trainer = quiet_trainer(tmp_path, max_epochs=2, accumulate_grad_batches=3)
    trainer.fit(module, indexed(5), indexed(2))
    bare_loop(bare, bare.configure_optimizers(), indexed(5), 2, group=3)
    assert_equal_weights(module, bare)


# -- going on ---------------------------------------------------------------------------------------------------------


def trained(root, module, **arguments):
    trainer = quiet_trainer(root, **arguments)
    trainer.fit(module, indexed(6, shuffle=True), indexed(2))
    return trainer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"max_epochs": 1}, {"max_epochs": 3}),
        ({"max_epochs": 3, "max_steps": 8}, {"max_steps": -1}),
        ({"max_epochs": 3, "max_steps": 15}, {"max_steps": -1}),
        ({"max_epochs": 3, "max_steps": 6}, {"max_steps": -1}),
    ],
    ids=["epochs", "steps in an epoch", "steps in the last epoch", "steps at its end"],
)
def test_a_second_fit_goes_on_as_if_it_had_been_one(tmp_path, first, second):
    class Logs(Net):
        def __init__(self):
            super().__init__(sgd, dropout=0.3)
            self.seen = []

        def training_step(self, batch, batch_idx):
            self.seen.append(batch.item())
            loss = self.loss(batch)
            self.log("loss", loss, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch))

    torch.manual_seed(3)
    whole = Logs()
    undisturbed = trained(tmp_path, whole, max_epochs=3)
    torch.manual_seed(3)
    parts = Logs()
    trainer = trained(tmp_path, parts, **first)
    torch.manual_seed(99)
    for name, value in second.items():
        setattr(trainer, name, value)
    trainer.fit(parts, indexed(6, shuffle=True), indexed(2))
    assert (trainer.global_step, trainer.current_epoch) == (18, 3)
    assert parts.seen == whole.seen
    assert_equal_weights(parts, whole)
    assert trainer.callback_metrics == undisturbed.callback_metrics


def test_a_second_fit_with_another_module_starts_anew(tmp_path):
    trainer = trained(tmp_path, Line(), max_epochs=1)
    other = Line()
    trainer.fit(other, indexed(6))
    assert len(other.seen) == 6


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        ({"max_epochs": 2}, "max_epochs=2"),
        ({"max_epochs": 1}, "max_epochs=1"),
        ({"max_steps": 12}, "max_steps=12"),
        ({"max_steps": 3}, "max_steps=3"),
    ],
    ids=str,
)
def test_resuming_at_the_limit_trains_nothing_and_says_which_limit(tmp_path, capfd, limits, limit):
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", save_last=True)
    module = Line()
    trained(tmp_path, module, max_epochs=2, callbacks=[keeper])
    capfd.readouterr()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "files").iterdir()}
    resumed = Line()
    calls = Calls(on_train_start=None, on_train_epoch_start=None, on_train_epoch_end=None, on_validation_start=None)
    trainer = quiet_trainer(
        tmp_path, callbacks=[calls, ModelCheckpoint(dirpath=tmp_path / "files", save_last=True)], **limits
    )
    trainer.fit(resumed, indexed(6), indexed(2), ckpt_path=keeper.last_model_path)
    assert resumed.seen == []
    assert calls.counts == {}
    assert_equal_weights(resumed, module)
    assert trainer.global_step == 12
    assert trainer.current_epoch == 2
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "files").iterdir()} == files
    assert capfd.readouterr().err.count(f"`{limit}` reached") == 1


# -- refused before anything runs -------------------------------------------------------------------------------------


class NoStep(Module):
    def configure_optimizers(self):
        return None


class NoOptimizers(Module):
    def training_step(self, batch):
        return None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"model": Line()}, MisconfigurationError, ["`train_dataloaders=`", "`train_dataloader` in Line"]),
        ({"model": Line(), "datamodule": DataModule()}, MisconfigurationError, ["`train_dataloader`"]),
        ({"model": NoStep(), "train_dataloaders": [1]}, MisconfigurationError, ["`training_step`", "NoStep"]),
        ({"model": NoOptimizers(), "train_dataloaders": [1]}, MisconfigurationError, ["`configure_optimizers`"]),
        ({"model": nn.Linear(1, 1), "train_dataloaders": [1]}, TypeError, ["paceline.Module", "Linear"]),
        ({"model": Line, "train_dataloaders": [1]}, TypeError, ["paceline.Module"]),
        ({"train_dataloaders": [1]}, MisconfigurationError, ["no module yet"]),
        ({"model": Line(), "train_dataloaders": 3}, MisconfigurationError, ["`3` was given as loader"]),
        ({"model": Line(), "train_dataloaders": [1], "val_dataloaders": 3}, MisconfigurationError, ["`3`"]),
        (
            {"model": Line(), "train_dataloaders": [1], "datamodule": DataModule()},
            MisconfigurationError,
            ["Loaders and `datamodule`"],
        ),
        (
            {"model": Line(), "train_dataloaders": [1], "ckpt_path": "/no/such.ckpt"},
            FileNotFoundError,
            ["/no/such.ckpt", '"best"'],
        ),
        (
            {"model": Line(), "train_dataloaders": [1], "ckpt_path": "best"},
            MisconfigurationError,
            ["needs one ModelCheckpoint", "no"],
        ),
    ],
    ids=lambda value: (
        ",".join(f"{k}={type(v).__name__}" for k, v in value.items()) if isinstance(value, dict) else None
    ),
)
def test_what_is_missing_is_said_before_anything_runs(tmp_path, arguments, error, words):
    calls = Calls(setup=None)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[calls])
    begin = time.monotonic()
    with pytest.raises(error) as caught:
        trainer.fit(**arguments)
    assert time.monotonic() - begin < 1.0
    for word in words:
        assert word in str(caught.value)
    assert calls.counts == {}


@pytest.mark.parametrize("fn", ["validate", "test", "predict"])
def test_an_evaluation_without_data_or_step_says_so(tmp_path, fn):
    with pytest.raises(MisconfigurationError, match="has no data"):
        getattr(quiet_trainer(tmp_path), fn)(
            with_step({"validate": "validation_step"}.get(fn, f"{fn}_step"), batch_only)
        )
    with pytest.raises(MisconfigurationError, match="which NoStep does not define"):
        getattr(quiet_trainer(tmp_path), fn)(NoStep(), indexed(1))


def test_validation_that_lacks_its_step_or_its_data_warns(tmp_path):
    class Trains(Module):
        training_step = NoOptimizers.training_step
        configure_optimizers = NoStep.configure_optimizers

    with pytest.warns(UserWarning, match="validation loader but no validation_step"):
        quiet_trainer(tmp_path, max_epochs=1).fit(Trains(), indexed(1), indexed(1))
    with pytest.warns(UserWarning, match="validation_step but no loader"):
        quiet_trainer(tmp_path, max_epochs=1).fit(Line(), indexed(1))


# -- failures ---------------------------------------------------------------------------------------------------------


class OwnError(Exception):
    pass


@pytest.mark.parametrize("where", ["training_step", "validation_step", "setup", "on_train_epoch_end", "teardown"])
def test_the_callers_error_is_the_very_one_raised_and_everybody_is_torn_down_once(tmp_path, where):
    error = OwnError("at batch 2")
    rows = Rows()
    told = []

    class Fails(Line):
        def on_exception(self, exception):
            told.append(("module", exception))

        def teardown(self, stage):
            told.append(("module", "teardown"))
            if where == "teardown":
                raise error

    def fail(self, batch=None, batch_idx=2):
        if batch_idx == 2:
            raise error
        return self.loss(batch)

    if where != "teardown":
        setattr(Fails, where, fail)

    class Data(DataModule):
        def train_dataloader(self):
            return indexed(4)

        def val_dataloader(self):
            return indexed(4)

        def on_exception(self, exception):
            told.append(("data", exception))

        def teardown(self, stage):
            told.append(("data", "teardown"))

    calls = Calls(on_exception=None, teardown=None)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[calls], logger=rows, num_sanity_val_steps=0)
    module = Fails()
    with pytest.raises(OwnError) as caught:
        trainer.fit(module, datamodule=Data())
    assert caught.value is error
    assert calls.counts["teardown"] == 1
    assert [who for who, what in told if what == "teardown"] == ["data", "module"]
    if where != "teardown":
        assert calls.counts["on_exception"] == 1
        assert [(who, what) for who, what in told if what != "teardown"] == [("data", error), ("module", error)]
    assert trainer.state.status == "interrupted"
    assert trainer.interrupted
    assert rows.statuses == ["failed"]
    with pytest.raises(RuntimeError, match="is in no run"):
        _ = module.trainer


def test_ctrl_c_reaches_the_caller_and_the_run_counts_as_killed(tmp_path):
    class Interrupted(Line):
        def training_step(self, batch, batch_idx):
            raise KeyboardInterrupt

    rows, calls = Rows(), Calls(on_exception=None, teardown=None)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[calls], logger=rows)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(Interrupted(), indexed(2))
    assert calls.counts == {"on_exception": 1, "teardown": 1}
    assert rows.statuses == ["killed"]


def test_a_trainer_can_fit_again_after_a_failure(tmp_path):
    class FailsOnce(Line):
        failed = False

        def training_step(self, batch, batch_idx):
            if not FailsOnce.failed:
                FailsOnce.failed = True
                raise OwnError
            return super().training_step(batch, batch_idx)

    trainer, module = quiet_trainer(tmp_path, max_epochs=1), FailsOnce()
    with pytest.raises(OwnError):
        trainer.fit(module, indexed(3))
    trainer.fit(module, indexed(3))
    assert len(module.seen) == 3
    assert trainer.state.status == "finished"


# -- what hooks and users see -----------------------------------------------------------------------------------------


def test_the_trainer_shows_where_it_is(tmp_path):
    seen = []

    def note(trainer, module):
        state = trainer.state
        flags = [f for f in ("training", "validating", "sanity_checking", "testing") if getattr(trainer, f)]
        seen.append((state.fn, state.status, flags, trainer.is_last_batch if trainer.training else None))
        assert module.trainer is trainer
        assert trainer.model is module
        assert trainer.lightning_module is module

    calls = Calls(on_train_batch_end=note, on_validation_batch_end=note, on_fit_start=note)
    trainer = quiet_trainer(tmp_path, max_epochs=1, num_sanity_val_steps=1, callbacks=[calls])
    assert trainer.state.status == "initializing"
    trainer.fit(Line(), indexed(2), indexed(1))
    assert [(flags, last) for _, _, flags, last in seen[1:]] == [
        (["sanity_checking"], None),
        (["training"], False),
        (["training"], True),
        (["validating"], None),
    ]
    assert {(fn, status) for fn, status, _, _ in seen} == {("fit", "running")}
    assert (trainer.state.fn, trainer.state.status, trainer.state.stage) == ("fit", "finished", None)
    with pytest.raises(RuntimeError, match="no live run"):
        _ = trainer.optimizers


def test_progress_counts_what_was_begun_and_what_was_completed(tmp_path):
    seen = []

    def note(trainer, _):
        batch, step = trainer.fit_loop.progress.batch, trainer.fit_loop.progress.optimizer
        seen.append((batch.total.started, batch.total.completed, batch.current.processed, step.total.completed))

    calls = Calls(on_train_batch_end=note)
    quiet_trainer(tmp_path, max_epochs=2, accumulate_grad_batches=2, callbacks=[calls]).fit(Line(), indexed(3))
    assert seen == [(1, 0, 1, 0), (2, 1, 2, 1), (3, 2, 3, 2), (4, 3, 1, 2), (5, 4, 2, 3), (6, 5, 3, 4)]


def test_a_data_module_may_be_given_as_second_argument(tmp_path):
    class Data(DataModule):
        def train_dataloader(self):
            assert self.trainer is not None
            return indexed(2)

        def val_dataloader(self):
            return indexed(1)

    module, data = Line(), Data()
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit(module, data)
    trainer.validate(module, data, verbose=False)
    assert len(module.seen) == 2
    assert data.trainer is None


def test_the_module_may_bring_its_own_data_and_callbacks(tmp_path):
    calls = Calls(on_fit_start=None)

    class Whole(Line):
        def train_dataloader(self):
            return indexed(2)

        def configure_callbacks(self):
            return calls

    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[Calls(on_fit_start=None)])
    trainer.fit(Whole())
    assert calls.counts == {"on_fit_start": 1}
    assert trainer.callbacks == [calls]


def test_module_and_data_module_hyperparameters_that_disagree_are_an_error(tmp_path):
    class Module_(Line):
        def __init__(self, lr=0.1, size=2):
            super().__init__()
            self.save_hyperparameters()

    class Data(DataModule):
        def __init__(self, lr=0.2, size=2):
            self.save_hyperparameters()

        def train_dataloader(self):
            return indexed(2)

    with pytest.raises(MisconfigurationError, match=r"different values: \['lr'\]"):
        quiet_trainer(tmp_path, max_epochs=1).fit(Module_(), datamodule=Data())
    rows = Rows()
    quiet_trainer(tmp_path, max_epochs=1, logger=rows).fit(Module_(lr=0.2), datamodule=Data())
    assert {name: rows.params[0][name] for name in ("lr", "size")} == {"lr": 0.2, "size": 2}
    assert rows.params[0]["trainer"]["max_epochs"] == 1


@pytest.mark.parametrize("make", [lambda: torch.ones(3), lambda: np.ones(3)], ids=["tensor", "array"])
def test_an_array_that_module_and_data_module_share_is_no_disagreement(tmp_path, make):
    class Module_(Line):
        def __init__(self, weights):
            super().__init__()
            self.save_hyperparameters()

    class Data(DataModule):
        def __init__(self, weights):
            self.save_hyperparameters()

        def train_dataloader(self):
            return indexed(2)

    shared = make()
    quiet_trainer(tmp_path, max_epochs=1).fit(Module_(shared), datamodule=Data(shared))


def test_a_hook_of_both_module_and_data_module_is_the_data_modules(tmp_path):
    class Moves(Line):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            raise AssertionError

    class Data(DataModule):
        def train_dataloader(self):
            return indexed(1)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch + 5

    module = Moves()
    with pytest.warns(UserWarning, match="both have `on_after_batch_transfer`: the data module's is used"):
        quiet_trainer(tmp_path, max_epochs=1).fit(module, datamodule=Data())
    assert module.seen == [[5.0]]
