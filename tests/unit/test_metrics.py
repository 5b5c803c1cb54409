"""What `log` makes of values: names, means, rows, and errors that name the key."""

import math

import numpy as np
import pytest
import torch
from tests.unit.models import Line, Rows, indexed, quiet_trainer

from paceline.callbacks import ModelCheckpoint
from paceline.errors import MisconfigurationError


class Logs(Line):
    """Calls `script[hook](self, batch)` in hooks."""

    def __init__(self, **script):
        super().__init__()
        self.script = script

    def run(self, hook, batch=None):
        if hook in self.script:
            self.script[hook](self, batch)

    def training_step(self, batch, batch_idx):
        self.run("training_step", batch)
        return self.loss(batch)

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.run("validation_step", batch)

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.run("test_step", batch)

    def predict_step(self, batch):
        self.run("predict_step", batch)

    def on_train_start(self):
        self.run("on_train_start")

    def on_train_epoch_end(self):
        self.run("on_train_epoch_end")

    def on_validation_epoch_end(self):
        self.run("on_validation_epoch_end")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.run("on_train_batch_end", batch)

    def on_fit_start(self):
        self.run("on_fit_start")


def logging(name="v", value=None, **options):
    return lambda module, batch: module.log(name, batch.mean() if value is None else value, **options)


def fitted(root, module, train=None, val=None, **arguments):
    rows = Rows()
    arguments = {"max_epochs": 1, "log_every_n_steps": 1, "num_sanity_val_steps": 0, "logger": rows, **arguments}
    trainer = quiet_trainer(root, **arguments)
    trainer.fit(module, train if train is not None else indexed(4), val if val is not None else indexed(2))
    return trainer, rows


def plain(values):
    return {name: float(value) for name, value in values.items()}


# Training data: batches 0, 1, 2, 3. Validation data: 0, 1.
@pytest.mark.parametrize(
    ("hook", "options", "callback", "rows"),
    [
        ("training_step", {}, {"v": 3.0}, [("v", [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)])]),
        ("on_train_batch_end", {}, {"v": 3.0}, [("v", [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)])]),
        ("training_step", {"on_step": False, "on_epoch": True}, {"v": 1.5}, [("v", [(3, 1.5)])]),
        (
            "training_step",
            {"on_epoch": True},
            {"v": 1.5, "v_step": 3.0, "v_epoch": 1.5},
            [("v_step", [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]), ("v_epoch", [(3, 1.5)]), ("v", [])],
        ),
        ("training_step", {"logger": False}, {"v": 3.0}, [("v", [])]),
        ("validation_step", {}, {"v": 0.5}, [("v", [(3, 0.5)])]),
        ("validation_step", {"logger": False}, {"v": 0.5}, [("v", [])]),
    ],
    ids=str,
)
def test_steps_are_shown_in_training_and_epochs_in_validation_unless_told_otherwise(
    tmp_path, hook, options, callback, rows
):
    trainer, kept = fitted(tmp_path, Logs(**{hook: logging(**options)}))
    assert plain(trainer.callback_metrics) == callback
    for name, curve in rows:
        assert kept.of(name) == curve
    assert plain(trainer.logged_metrics) == {name: curve[-1][1] for name, curve in rows if curve}


@pytest.mark.parametrize("hook", ["on_train_start", "on_train_epoch_end", "on_validation_epoch_end"])
def test_hooks_of_an_epoch_log_one_value(tmp_path, hook):
    trainer, rows = fitted(tmp_path, Logs(**{hook: logging(value=2.5)}))
    assert plain(trainer.callback_metrics) == {"v": 2.5}
    assert [value for _, value in rows.of("v")] == [2.5]


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        # Batches [0, 1], [2, 3], [4]: means 0.5, 2.5, 4.
        ("mean", (2 * 0.5 + 2 * 2.5 + 1 * 4) / 5),
        (torch.mean, 2.0),
        ("sum", 7.0),
        (torch.sum, 7.0),
        ("min", 0.5),
        (min, 0.5),
        ("max", 4.0),
        (torch.max, 4.0),
        ("MAX", 4.0),
        (torch.median, 2.5),
        (lambda values: values[0] * 100 + values[-1], 54.0),
    ],
    ids=str,
)
def test_the_values_of_an_epoch_become_one(tmp_path, reduce, expected):
    for hook, options in (("training_step", {"on_step": False, "on_epoch": True}), ("validation_step", {})):
        module = Logs(**{hook: logging(reduce_fx=reduce, **options)})
        trainer, _ = fitted(tmp_path, module, indexed(5, batch_size=2), indexed(5, batch_size=2))
        assert plain(trainer.callback_metrics) == {"v": expected}


def test_a_batch_size_that_is_given_weighs_the_mean(tmp_path):
    # Values 0.5 and 2 with weights 1 and 3.
    module = Logs(validation_step=lambda m, batch: m.log("v", batch.mean(), batch_size=3 if batch.numel() == 1 else 1))
    trainer, _ = fitted(tmp_path, module, val=indexed(3, batch_size=2))
    assert plain(trainer.callback_metrics) == {"v": (0.5 + 3 * 2.0) / 4}


@pytest.mark.parametrize("make", [lambda x: {"a": "text", "b": [x]}, lambda x: (x, x), lambda x: [[x]]])
def test_the_batch_size_is_that_of_the_first_tensor_however_nested(tmp_path, make):
    batches = [make(torch.tensor([1.0, 1.0, 1.0])), make(torch.tensor([5.0]))]

    class Own(Logs):
        def training_step(self, batch, batch_idx):
            self.log("v", 1.0 if batch_idx == 0 else 5.0, on_step=False, on_epoch=True)
            return self.layer.weight.sum()

    trainer, _ = fitted(tmp_path, Own(), batches)
    assert plain(trainer.callback_metrics) == {"v": 2.0}


def test_an_epoch_starts_anew(tmp_path):
    class Own(Logs):
        def training_step(self, batch, batch_idx):
            self.log("v", float(self.current_epoch), on_step=False, on_epoch=True, reduce_fx="sum")
            return self.loss(batch)

    _, rows = fitted(tmp_path, Own(), max_epochs=3)
    assert rows.of("v") == [(3, 0.0), (7, 4.0), (11, 8.0)]
    assert rows.of("epoch") == [(3, 0.0), (7, 1.0), (11, 2.0)]


@pytest.mark.parametrize(
    ("every", "accumulate", "curve"),
    [
        (1, 1, [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0)]),
        (2, 1, [(1, 1.0), (3, 3.0), (5, 5.0)]),
        (4, 1, [(3, 3.0)]),
        (0, 1, []),
        (50, 1, []),
        # Three optimizer steps, after batches 1, 3 and 5.
        (1, 2, [(0, 1.0), (1, 3.0), (2, 5.0)]),
        (2, 2, [(1, 3.0)]),
    ],
)
def test_rows_come_every_n_optimizer_steps(tmp_path, every, accumulate, curve):
    _, rows = fitted(
        tmp_path,
        Logs(training_step=logging()),
        indexed(6),
        log_every_n_steps=every,
        accumulate_grad_batches=accumulate,
    )
    assert rows.of("v") == curve


def test_rows_are_counted_across_epochs(tmp_path):
    _, rows = fitted(tmp_path, Logs(training_step=logging()), indexed(3), max_epochs=3, log_every_n_steps=4)
    assert [step for step, _ in rows.of("v")] == [3, 7]


def test_fewer_steps_than_rows_ask_for_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="4 steps, fewer than `log_every_n_steps=50`"):
        fitted(tmp_path, Logs(), log_every_n_steps=50)


@pytest.mark.parametrize(
    ("options", "bar"),
    [
        ({}, {}),
        ({"prog_bar": True}, {"v": 3.0}),
        ({"prog_bar": True, "on_epoch": True}, {"v_step": 3.0, "v_epoch": 1.5}),
    ],
    ids=str,
)
def test_the_progress_bar_shows_what_is_meant_for_it(tmp_path, options, bar):
    trainer, _ = fitted(tmp_path, Logs(training_step=logging(**options)))
    assert trainer.progress_bar_metrics == bar


@pytest.mark.parametrize(
    "value",
    [
        2,
        2.0,
        True + 1,
        np.float32(2),
        np.float64(2),
        np.int64(2),
        np.array([2.0]),
        torch.tensor(2),
        torch.tensor([[2.0]]),
        torch.tensor(2.0, requires_grad=True),
        torch.tensor(2.0, dtype=torch.bfloat16),
    ],
    ids=lambda value: f"{type(value).__name__}-{getattr(value, 'dtype', '')}-{getattr(value, 'shape', '')}",
)
def test_one_number_may_have_many_types(tmp_path, value):
    for hook in ("training_step", "validation_step"):
        trainer, _ = fitted(tmp_path, Logs(**{hook: logging(value=value)}))
        assert plain(trainer.callback_metrics) == {"v": 2.0}
        assert trainer.callback_metrics["v"].dtype == torch.float32


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(3), ["'the_key'", "(3,)"]),
        (torch.ones(0), ["'the_key'", "(0,)"]),
        ("text", ["'the_key'", "str"]),
        (None, ["'the_key'", "NoneType"]),
        ({"inner": 1.0}, ["'the_key'", "dict"]),
        ([1.0], ["'the_key'", "list"]),
        (1j, ["'the_key'", "complex"]),
        (np.ones(3), ["'the_key'", "ndarray"]),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else type(value).__name__,
)
@pytest.mark.parametrize("call", ["log", "log_dict"])
def test_what_is_no_single_number_is_a_value_error_with_the_key(tmp_path, value, words, call):
    def script(module, batch):
        if call == "log":
            module.log("the_key", value)
        else:
            module.log_dict({"fine": 1.0, "the_key": value})

    with pytest.raises(ValueError, match="the_key") as caught:
        fitted(tmp_path, Logs(training_step=script))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_kept(tmp_path, value):
    trainer, rows = fitted(tmp_path, Logs(validation_step=logging(value=value)))
    assert str(float(trainer.callback_metrics["v"])) == str(value)
    assert str(rows.of("v")[0][1]) == str(value)


@pytest.mark.parametrize(
    ("hook", "options", "words"),
    [
        ("on_train_epoch_end", {"on_step": True}, "on_step=True.*on_train_epoch_end.*use on_epoch"),
        ("training_step", {"on_step": False}, "would log nothing"),
        ("training_step", {"reduce_fx": "median"}, "reduce_fx='median'.*mean, sum, min, max"),
        ("on_fit_start", {}, "'v'.*called in `on_fit_start`"),
        ("training_step", {"name": "v/dataloader_idx_0"}, "added by the trainer"),
        ("training_step", {"name": ""}, "non-empty str"),
        ("training_step", {"name": 3}, "non-empty str"),
    ],
)
def test_an_option_that_means_nothing_is_an_error_that_names_the_key(tmp_path, hook, options, words):
    with pytest.raises(MisconfigurationError, match=words):
        fitted(tmp_path, Logs(**{hook: logging(value=1.0, **options)}))


def test_a_name_with_two_meanings_in_one_hook_is_an_error(tmp_path):
    def script(module, batch):
        module.log("v", 1.0)
        module.log("v", 1.0, on_epoch=True)

    with pytest.raises(MisconfigurationError, match=r"'v'.*One name has one meaning"):
        fitted(tmp_path, Logs(training_step=script))


def test_prediction_logs_nothing_and_says_so(tmp_path):
    with pytest.raises(MisconfigurationError, match=r"'v'.*called in `predict_step`"):
        quiet_trainer(tmp_path).predict(Logs(predict_step=logging()), indexed(1))


def test_logging_outside_a_run_warns():
    with pytest.warns(UserWarning, match=r"'v'.*outside a run"):
        Line().log("v", 1.0)


# Two loaders: 0, 1 and 0, 1, 2.
TWO_LOADERS = {"v/dataloader_idx_0": 0.5, "v/dataloader_idx_1": 1.0}


def test_several_loaders_have_their_index_in_the_name(tmp_path):
    trainer, rows = fitted(tmp_path, Logs(validation_step=logging()), val=[indexed(2), indexed(3)])
    assert plain(trainer.callback_metrics) == TWO_LOADERS
    assert {name: value for name in TWO_LOADERS for _, value in rows.of(name)} == TWO_LOADERS
    results = quiet_trainer(tmp_path).test(Logs(test_step=logging()), [indexed(2), indexed(3)], verbose=False)
    assert results == [{"v/dataloader_idx_0": 0.5}, {"v/dataloader_idx_1": 1.0}]


def test_without_the_index_there_is_one_value_over_all_loaders(tmp_path):
    module = Logs(validation_step=logging(add_dataloader_idx=False))
    trainer, _ = fitted(tmp_path, module, val=[indexed(2), indexed(3)])
    assert plain(trainer.callback_metrics) == pytest.approx({"v": (0 + 1 + 0 + 1 + 2) / 5})


def test_a_monitor_without_the_index_is_an_error_that_lists_the_names(tmp_path):
    keeper = ModelCheckpoint(monitor="v", dirpath=tmp_path)
    with pytest.raises(MisconfigurationError, match="v/dataloader_idx_0, v/dataloader_idx_1"):
        fitted(tmp_path, Logs(validation_step=logging()), val=[indexed(2), indexed(3)], callbacks=[keeper])


def test_evaluation_gives_floats_and_prints_a_table_unless_told_not_to(tmp_path, capsys):
    module = Logs(validation_step=logging(), on_validation_epoch_end=logging("whole", 7.0))
    results = quiet_trainer(tmp_path).validate(module, [indexed(2), indexed(3)])
    assert results == [{"v/dataloader_idx_0": 0.5, "whole": 7.0}, {"v/dataloader_idx_1": 1.0, "whole": 7.0}]
    assert all(type(value) is float for result in results for value in result.values())
    shown = capsys.readouterr().out
    assert "v/dataloader_idx_1" in shown
    assert "loader 1" in shown
    quiet_trainer(tmp_path).validate(module, indexed(2), verbose=False)
    assert capsys.readouterr().out == ""


def test_step_values_of_validation_have_a_point_each(tmp_path):
    _, rows = fitted(
        tmp_path, Logs(validation_step=logging(on_step=True, on_epoch=False)), val=indexed(3), max_epochs=2
    )
    curve = rows.of("v")
    assert [value for _, value in curve] == [0.0, 1.0, 2.0] * 2
    assert len({step for step, _ in curve}) == 6


class Counter:
    """Like a metric object of torchmetrics: the sum of what it got since the last reset."""

    def __init__(self):
        self.total = 0.0
        self.resets = 0

    def update(self, value):
        self.total += float(value)

    def compute(self):
        return torch.tensor(self.total)

    def reset(self):
        self.total = 0.0
        self.resets += 1


def test_a_metric_object_is_computed_and_reset_once_an_epoch(tmp_path):
    metric = Counter()

    def script(module, batch):
        metric.update(batch.sum())
        module.log("v", metric, on_step=False, on_epoch=True)

    _, rows = fitted(tmp_path, Logs(training_step=script), max_epochs=2)
    assert [value for _, value in rows.of("v")] == [6.0, 6.0]
    assert metric.resets == 2
    _, rows = fitted(tmp_path, Logs(validation_step=script), max_epochs=2, num_sanity_val_steps=2)
    assert [value for _, value in rows.of("v")] == [1.0, 1.0]


def test_validation_does_not_touch_what_the_training_epoch_has_so_far(tmp_path):
    module = Logs(
        training_step=logging("t", on_step=False, on_epoch=True),
        validation_step=logging("v"),
        on_train_epoch_end=logging("end", 1.0),
    )
    trainer, _ = fitted(tmp_path, module)
    assert plain(trainer.callback_metrics) == {"t": 1.5, "v": 0.5, "end": 1.0}


def test_a_test_after_a_fit_shows_its_own_values(tmp_path):
    module = Logs(validation_step=logging("v"), test_step=logging("w"))
    trainer, _ = fitted(tmp_path, module)
    assert trainer.test(module, indexed(3), verbose=False) == [{"w": 1.0}]
    assert plain(trainer.callback_metrics) == {"w": 1.0}


def test_a_logged_tensor_may_change_afterwards(tmp_path):
    kept = torch.zeros(())

    def script(module, batch):
        kept.fill_(batch.item())
        module.log("v", kept, on_step=True, on_epoch=True)
        kept.fill_(100.0)

    _, rows = fitted(tmp_path, Logs(training_step=script))
    assert rows.of("v_epoch") == [(3, 1.5)]
    assert rows.of("v_step") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
