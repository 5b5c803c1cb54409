"""Which files a ModelCheckpoint keeps, and when EarlyStopping stops."""

import itertools
import math
import os
import time
import uuid
import warnings
from datetime import timedelta

import pytest
import torch
import yaml
from tests.unit.models import Calls, Line, Scores, Validates, indexed, quiet_trainer

from paceline.callbacks import EarlyStopping, ModelCheckpoint
from paceline.checkpoint import storage
from paceline.errors import MisconfigurationError

NAN, INF = math.nan, math.inf


def keep(root, scores, epochs=None, validates=False, module=None, **options):
    """Fit for one epoch of two steps per score; the callback, and the names of the files that are there."""
    folder = root / "files"
    trainer_options = options.pop("trainer", {})
    keeper = ModelCheckpoint(**{"dirpath": folder, "filename": "{epoch}", **options})
    trainer = quiet_trainer(root, max_epochs=epochs or len(scores), callbacks=[keeper], **trainer_options)
    module = module or (Validates if validates else Scores)(scores)
    trainer.fit(module, indexed(2), indexed(1) if validates else None)
    return keeper, files(folder)


def files(folder):
    return sorted(os.listdir(folder)) if folder.exists() else []


def names(epochs):
    return [f"epoch={epoch}.ckpt" for epoch in epochs]


def epoch_of(path):
    return torch.load(path, weights_only=True)["epoch"] if path else None


@pytest.mark.parametrize("validates", [False, True], ids=["training", "validation"])
@pytest.mark.parametrize(
    ("scores", "options", "kept", "best"),
    [
        ([3, 2, 1], {}, [2], 2),
        ([1, 2, 3], {}, [0], 0),
        ([1, 2, 3], {"mode": "max"}, [2], 2),
        ([2, 3, 1, 4], {"save_top_k": 2}, [0, 2], 2),
        ([2, 3, 1, 4], {"save_top_k": 2, "mode": "max"}, [1, 3], 3),
        ([2, 3, 1], {"save_top_k": 5}, [0, 1, 2], 2),
        ([2, 3, 1], {"save_top_k": -1}, [0, 1, 2], 2),
        ([2, 3, 1], {"save_top_k": 0}, [], None),
        # Ties keep the earlier files.
        ([1, 1, 1, 1], {"save_top_k": 2}, [0, 1], 0),
        ([1, 1, 1, 1], {"save_top_k": 2, "mode": "max"}, [0, 1], 0),
        ([1, 1, 1], {}, [0], 0),
        ([2, 2, 1, 1], {"save_top_k": 2}, [2, 3], 2),
        ([1, 3, 3, 2], {"save_top_k": 2}, [0, 3], 0),
        # What is no number never becomes best.
        ([NAN, 2, NAN, 1], {}, [3], 3),
        ([NAN, NAN], {}, [], None),
        ([NAN, 2, NAN], {"save_top_k": 2}, [1], 1),
        ([NAN, 2, NAN], {"save_top_k": -1}, [0, 1, 2], 1),
        ([INF, 2, -INF], {}, [2], 2),
        ([3, 2, 1], {"every_n_epochs": 2}, [1], 1),
        ([3, 2, 1], {"every_n_epochs": 0}, [], None),
    ],
    ids=str,
)
def test_the_best_files_are_kept(tmp_path, validates, scores, options, kept, best):
    scores = [float(score) for score in scores]
    keeper, there = keep(tmp_path, scores, validates=validates, monitor="score", **options)
    assert there == names(kept)
    assert epoch_of(keeper.best_model_path) == best
    assert keeper.best_model_score == (scores[best] if best is not None else None)
    assert sorted(map(os.path.basename, keeper.best_k_models)) == there


def test_files_of_ties_are_not_touched_again(tmp_path):
    times = []

    def note(trainer, _):
        if trainer.current_epoch:
            trainer.run.writer.wait()
            times.append({path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.ckpt")})

    keeper = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", monitor="score", save_top_k=2)
    trainer = quiet_trainer(tmp_path, max_epochs=4, callbacks=[Calls(on_train_epoch_start=note), keeper])
    trainer.fit(Scores([1.0] * 4), indexed(1))
    assert [sorted(one) for one in times] == [names([0]), names([0, 1]), names([0, 1])]
    assert times[1] == times[2]


def test_without_a_monitor_the_newest_file_is_kept(tmp_path):
    keeper, there = keep(tmp_path, [1.0, 1.0, 1.0])
    assert there == names([2])
    assert epoch_of(keeper.best_model_path) == 2
    _, there = keep(tmp_path / "all", [1.0, 1.0, 1.0], save_top_k=-1)
    assert there == names([0, 1, 2])


@pytest.mark.parametrize(
    ("scores", "options"),
    [
        ([1.0, 2.0, 3.0], {"monitor": "score"}),
        ([NAN, NAN, NAN], {"monitor": "score"}),
        ([3.0, 2.0, 1.0], {"monitor": "score"}),
        ([1.0, 2.0, 3.0], {"save_top_k": 0}),
        ([1.0, 2.0, 3.0], {"save_top_k": -1}),
    ],
    ids=str,
)
def test_last_is_always_the_newest_state(tmp_path, scores, options):
    keeper, there = keep(tmp_path, scores, save_last=True, **options)
    assert keeper.last_model_path == str(tmp_path / "files" / "last.ckpt")
    assert "last.ckpt" in there
    last = torch.load(keeper.last_model_path, weights_only=True)
    assert (last["epoch"], last["global_step"]) == (2, 6)


def test_when_nothing_was_ever_a_number_best_says_so_and_last_goes_on(tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", monitor="score", save_last=True)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper])
    module = Scores([NAN, NAN])
    trainer.fit(module, indexed(2))
    assert keeper.best_model_path == ""
    with pytest.raises(MisconfigurationError, match="no best checkpoint, since `score` was never a number"):
        trainer.validate(module, indexed(1), ckpt_path="best")
    resumed = Scores([NAN, NAN, 1.0])
    quiet_trainer(tmp_path, max_epochs=3).fit(resumed, indexed(2), ckpt_path=keeper.last_model_path)
    assert len(resumed.seen) == 2


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        # Two epochs of four batches.
        ({"every_n_train_steps": 1}, [1, 2, 3, 4, 5, 6, 7, 8]),
        ({"every_n_train_steps": 3}, [3, 6]),
        ({"every_n_train_steps": 8}, [8]),
        ({"every_n_train_steps": 9}, []),
        ({"every_n_train_steps": 1, "accumulate_grad_batches": 3}, [1, 2, 3, 4]),
        ({"every_n_epochs": 1}, [4, 8]),
        ({}, [4, 8]),
    ],
    ids=str,
)
@pytest.mark.parametrize("validates", [False, True])
def test_files_come_every_n_steps_or_epochs(tmp_path, options, steps, validates):
    group = options.pop("accumulate_grad_batches", 1)
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", filename="{step}", save_top_k=-1, **options)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper], accumulate_grad_batches=group)
    trainer.fit(Validates([1.0, 1.0]), indexed(4), indexed(1) if validates else None)
    assert files(tmp_path / "files") == [f"step={step}.ckpt" for step in steps]
    options["accumulate_grad_batches"] = group


def test_a_file_due_together_with_a_validation_knows_its_values(tmp_path):
    keeper = ModelCheckpoint(
        dirpath=tmp_path, filename="{step}-{score:.1f}", monitor="score", every_n_train_steps=2, save_top_k=-1
    )
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper])
    trainer.fit(Validates([5.0, 4.0]), indexed(2), indexed(1))
    assert sorted(p.name for p in tmp_path.glob("*.ckpt")) == ["step=2-score=5.0.ckpt", "step=4-score=4.0.ckpt"]
    assert keeper.best_model_score == 4.0


def test_sparse_validation_saves_where_it_validates(tmp_path):
    _, there = keep(
        tmp_path,
        [4.0, 3.0, 2.0, 1.0],
        validates=True,
        monitor="score",
        save_top_k=-1,
        trainer={"check_val_every_n_epoch": 2},
    )
    assert there == names([1, 3])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"filename": None}, "epoch=0-step=2.ckpt"),
        ({"filename": "{epoch:03d}"}, "epoch=000.ckpt"),
        ({"filename": "m-{score:.2f}"}, "m-score=1.50.ckpt"),
        ({"filename": "m-{score:.2f}", "auto_insert_metric_name": False}, "m-1.50.ckpt"),
        ({"filename": "{step}_{epoch}"}, "step=2_epoch=0.ckpt"),
        ({"filename": "fixed"}, "fixed.ckpt"),
    ],
)
def test_file_names_are_filled_with_values(tmp_path, options, name):
    _, there = keep(tmp_path, [1.5], **options)
    assert there == [name]


def test_a_name_with_a_slash_in_a_value_stays_in_the_folder(tmp_path):
    _, there = keep(tmp_path, [], 1, module=Scores([1.5], name="val/loss"), filename="{val/loss:.1f}")
    assert there == ["val_loss=1.5.ckpt"]


@pytest.mark.parametrize("argument", ["filename", "monitor"])
def test_a_value_that_was_not_logged_is_an_error_that_lists_what_was(tmp_path, argument):
    options = {"filename": "{scoer}"} if argument == "filename" else {"monitor": "scoer"}
    with pytest.raises(MisconfigurationError, match=r"scoer.*not logged|no such value") as caught:
        keep(tmp_path, [1.0], **options)
    assert argument in str(caught.value)
    assert "Did you mean `score`?" in str(caught.value)
    assert files(tmp_path / "files") == []


def test_a_name_that_is_taken_by_another_run_gets_a_version(tmp_path):
    for _ in range(3):
        keep(tmp_path, [1.0], filename="x")
    assert files(tmp_path / "files") == ["x-v1.ckpt", "x-v2.ckpt", "x.ckpt"]


def test_files_of_one_run_with_one_name_get_versions_and_the_best_survives(tmp_path):
    keeper, there = keep(tmp_path, [1.0, 3.0, 2.0], filename="x", monitor="score", save_top_k=3)
    assert there == ["x-v1.ckpt", "x-v2.ckpt", "x.ckpt"]
    assert epoch_of(keeper.best_model_path) == 0


def test_files_are_removed_only_once_their_replacement_is_there(tmp_path):
    folder, seen = tmp_path / "files", []

    class Watches(Scores):
        def on_save_checkpoint(self, checkpoint):
            seen.append(files(folder))

    keeper = ModelCheckpoint(dirpath=folder, filename="{epoch}", monitor="score")
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[keeper])
    trainer.callbacks[-1].on_train_epoch_start = lambda trainer, module: trainer.run.writer.wait()
    trainer.fit(Watches([3.0, 2.0, 1.0]), indexed(1))
    assert seen[1:3] == [names([0]), names([1])]


def test_a_full_disk_leaves_the_best_file_of_before(tmp_path):
    class Fails(Scores):
        def on_save_checkpoint(self, checkpoint):
            if self.current_epoch == 1:
                checkpoint["bad"] = lambda: None

    with pytest.raises(Exception, match=r"pickle|lambda"):
        keep(tmp_path, [2.0, 1.0, 0.5], monitor="score", module=Fails([2.0, 1.0, 0.5]))
    assert files(tmp_path / "files") == names([0])


def test_a_run_resumed_in_another_folder_leaves_the_first_ones_files_alone(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    keeper = ModelCheckpoint(dirpath=first, filename="{epoch}", monitor="score", save_last=True)
    quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper]).fit(Scores([3.0, 2.0]), indexed(1))
    other = ModelCheckpoint(dirpath=second, filename="{epoch}", monitor="score", save_last=True)
    trainer = quiet_trainer(tmp_path, max_epochs=4, callbacks=[other])
    with pytest.warns(UserWarning, match=r"now saves to .*two; the files in .*one stay as they are"):
        trainer.fit(Scores([3.0, 2.0, 1.0, 0.5]), indexed(1), ckpt_path=keeper.last_model_path)
    assert files(first) == [*names([1]), "last.ckpt"]
    assert files(second) == [*names([3]), "last.ckpt"]


def test_a_run_resumed_in_its_folder_goes_on_counting_the_best(tmp_path):
    keeper, _ = keep(tmp_path, [2.0, 3.0], monitor="score", save_top_k=2, save_last=True)
    resumed = ModelCheckpoint(
        dirpath=tmp_path / "files", filename="{epoch}", monitor="score", save_top_k=2, save_last=True
    )
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[resumed])
    trainer.fit(Scores([2.0, 3.0, 1.0]), indexed(2), ckpt_path=keeper.last_model_path)
    assert files(tmp_path / "files") == [*names([0, 2]), "last.ckpt"]
    assert epoch_of(resumed.best_model_path) == 2


@pytest.mark.parametrize("path", ["precious.ckpt", "files/../precious.ckpt", "files2/precious.ckpt"])
def test_a_file_outside_the_folder_is_never_removed(tmp_path, path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files2").mkdir()
    precious = tmp_path / path
    precious.write_text("of somebody else")
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", filename="{epoch}", monitor="score")
    state = {**keeper.state_dict(), "best_k_models": {str(precious): 99.0}}
    keeper.load_state_dict(state)
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[keeper]).fit(Scores([1.0]), indexed(1))
    assert precious.exists()


def test_without_a_folder_files_go_below_the_root(tmp_path):
    keeper, _ = keep(tmp_path, [1.0], dirpath=None)
    assert keeper.best_model_path == str(tmp_path / "checkpoints" / "epoch=0.ckpt")
    assert os.path.exists(keeper.best_model_path)


def test_weights_alone_may_be_kept(tmp_path):
    keeper, _ = keep(tmp_path, [1.0], save_weights_only=True)
    assert "optimizer_states" not in torch.load(keeper.best_model_path, weights_only=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "least"}, '"min" or "max"'),
        ({"save_top_k": -2}, "-1, 0 or a number"),
        ({"save_top_k": 1.5}, "-1, 0 or a number"),
        ({"save_top_k": 3}, "say by which `monitor`"),
        ({"every_n_epochs": 1, "every_n_train_steps": 1}, "not by every_n_epochs and every_n_train_steps"),
        ({"every_n_train_steps": -1}, "every_n_train_steps"),
        ({"every_n_epochs": -1}, "every_n_epochs"),
    ],
    ids=str,
)
def test_arguments_of_a_checkpoint_callback_are_checked(options, words):
    with pytest.raises(MisconfigurationError, match=words):
        ModelCheckpoint(**options)


def test_several_checkpoint_callbacks_keep_their_own_files(tmp_path):
    low = ModelCheckpoint(dirpath=tmp_path / "low", filename="{epoch}", monitor="score")
    high = ModelCheckpoint(dirpath=tmp_path / "high", filename="{epoch}", monitor="score", mode="max")
    quiet_trainer(tmp_path, max_epochs=3, callbacks=[low, high]).fit(Scores([2.0, 3.0, 1.0]), indexed(1))
    assert (files(tmp_path / "low"), files(tmp_path / "high")) == (names([2]), names([1]))


# -- early stopping ---------------------------------------------------------------------------------------------------

FALLS = [float(10 - i) for i in range(8)]


@pytest.mark.parametrize("validates", [False, True], ids=["training", "validation"])
@pytest.mark.parametrize(
    ("values", "options", "limits", "epochs", "best"),
    [
        (FALLS, {}, {}, 8, 3.0),
        ([1, 1, 1, 1, 1, 1], {}, {}, 4, 1.0),
        ([1, 2, 3], {"patience": 1}, {}, 2, 1.0),
        ([1, 2, 0.5, 0.6, 0.4, 0.5, 0.6], {"patience": 2}, {}, 7, 0.4),
        ([1, 1], {"patience": 0}, {}, 2, 1.0),
        ([3, 2, 2, 1], {"patience": 0}, {}, 3, 2.0),
        # By more than min_delta, whatever its sign.
        ([1.0, 0.9, 0.8, 0.7], {"patience": 2, "min_delta": 0.5}, {}, 3, 1.0),
        ([1.0, 0.9, 0.4, 0.3], {"patience": 2, "min_delta": 0.5}, {}, 4, 0.4),
        ([1.0, 0.9, 0.8, 0.7], {"patience": 2, "min_delta": -0.5}, {}, 3, 1.0),
        ([1.0, 0.5, 0.0], {"patience": 1, "min_delta": 0.5}, {}, 2, 1.0),
        ([1, 2, 3, 2, 2], {"mode": "max", "patience": 2}, {}, 5, 3.0),
        ([1.0, 1.5, 2.0], {"mode": "max", "patience": 1, "min_delta": 0.75}, {}, 2, 1.0),
        # Thresholds.
        ([3, 2, 1, 0.5], {"stopping_threshold": 1.5}, {}, 3, None),
        ([3, 2, 1.5, 0.5], {"stopping_threshold": 1.5}, {}, 4, None),
        ([1, 2, 3], {"mode": "max", "stopping_threshold": 1.5}, {}, 2, None),
        ([3, 9, 1], {"divergence_threshold": 5.0}, {}, 2, 3.0),
        ([3, 1, 9], {"mode": "max", "divergence_threshold": 2.0}, {}, 2, 3.0),
        # NaN.
        ([2, NAN, 1], {"patience": 1}, {}, 2, 2.0),
        ([2, INF, 1], {"patience": 9}, {}, 2, 2.0),
        ([2, NAN, 1], {"patience": 2, "check_finite": False}, {}, 3, 1.0),
        ([NAN, NAN, NAN, NAN], {"patience": 2, "check_finite": False}, {}, 2, INF),
        ([NAN, 1, NAN, NAN, 1], {"patience": 2, "check_finite": False}, {}, 4, 1.0),
        # The minimum, and recovery before it.
        ([1, 2, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05], {"patience": 1}, {"min_epochs": 5}, 8, 0.05),
        ([1, 2, 3, 4, 5, 6, 7, 8], {"patience": 1}, {"min_epochs": 5}, 5, 1.0),
        ([1, 2, 3, 4, 5], {"patience": 1}, {"min_steps": 6}, 3, 1.0),
        ([5, NAN, 4, 3, 2], {"patience": 3}, {"min_epochs": 4}, 5, 2.0),
    ],
    ids=str,
)
def test_a_fit_stops_when_its_value_no_longer_improves(tmp_path, validates, values, options, limits, epochs, best):
    values = [float(value) for value in values]
    stopping = EarlyStopping("score", **options)
    trainer = quiet_trainer(tmp_path, max_epochs=len(values), callbacks=[stopping], **limits)
    module = (Validates if validates else Scores)(values)
    trainer.fit(module, indexed(2), indexed(1) if validates else None)
    assert trainer.current_epoch == epochs
    assert len(module.seen) == 2 * epochs
    if best is not None:
        assert stopping.best_score == best
    # The reason is there when it stopped, and only then.
    stopped = bool(stopping.stopping_reason)
    assert stopped or epochs == len(values)
    assert stopping.stopped_epoch == (epochs - 1 if stopped else 0)


def test_the_reason_is_told(tmp_path, capfd):
    stopping = EarlyStopping("score", patience=1)
    quiet_trainer(tmp_path, max_epochs=5, callbacks=[stopping]).fit(Scores([1.0, NAN]), indexed(1))
    assert "score = nan is not finite; its best was 1" in capfd.readouterr().err


@pytest.mark.parametrize("strict", [True, False])
def test_a_value_that_is_not_there_is_an_error_or_a_warning(tmp_path, strict):
    stopping = EarlyStopping("scoer", strict=strict)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[stopping])
    words = "monitor='scoer'.*Did you mean `score`.*Logged were: score"
    if strict:
        with pytest.raises(MisconfigurationError, match=words):
            trainer.fit(Scores([1.0]), indexed(1))
    else:
        with pytest.warns(UserWarning, match=words):
            trainer.fit(Scores([1.0]), indexed(1))


def test_a_training_value_may_be_checked_although_there_is_a_validation(tmp_path):
    stopping = EarlyStopping("score", patience=1, check_on_train_epoch_end=True)
    trainer = quiet_trainer(tmp_path, max_epochs=5, callbacks=[stopping])
    trainer.fit(Scores([1.0, 2.0, 3.0, 4.0, 5.0]), indexed(1), indexed(1))
    assert trainer.current_epoch == 2


def test_the_sanity_check_and_validate_count_for_nothing(tmp_path):
    stopping = EarlyStopping("score", patience=1)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[stopping])
    module = Validates([5.0, 4.0, 9.0])
    trainer.fit(module, indexed(1), indexed(1))
    # The sanity check logged minus infinity: it would have been best.
    assert stopping.best_score == 4.0
    state = stopping.state_dict()
    trainer.validate(module, indexed(1), verbose=False)
    assert stopping.state_dict() == state


def test_a_resumed_run_keeps_counting_but_by_its_own_arguments(tmp_path):
    first = EarlyStopping("score", patience=5)
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[first])
    trainer.fit(Scores([1.0, 2.0, 2.0]), indexed(1))
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    assert first.wait_count == 2
    second = EarlyStopping("score", patience=3)
    resumed = quiet_trainer(tmp_path, max_epochs=9, callbacks=[second])
    resumed.fit(Scores([2.0] * 9), indexed(1), ckpt_path=tmp_path / "x.ckpt")
    assert (resumed.current_epoch, second.best_score, second.patience) == (4, 1.0, 3)


def test_two_go_by_different_values_and_the_first_to_ask_stops(tmp_path):
    class Two(Scores):
        def on_train_epoch_end(self):
            self.log("falls", -float(self.current_epoch))
            self.log("flat", 1.0)

    one, other = EarlyStopping("falls", patience=1), EarlyStopping("flat", patience=2)
    trainer = quiet_trainer(tmp_path, max_epochs=9, callbacks=[one, other])
    trainer.fit(Two([]), indexed(1))
    assert trainer.current_epoch == 3
    assert (bool(one.stopping_reason), bool(other.stopping_reason)) == (False, True)


def test_one_that_recovers_does_not_take_back_what_another_asked_for(tmp_path):
    class Two(Scores):
        def on_train_epoch_end(self):
            self.log("recovers", [1.0, 2.0, 0.5, 0.4, 0.3, 0.2][self.current_epoch])
            self.log("rises", float(self.current_epoch))

    # In epoch 2, the last before the minimum is reached, "recovers" gets better and "rises" has long asked.
    asks, recovers = EarlyStopping("rises", patience=1), EarlyStopping("recovers", patience=1)
    trainer = quiet_trainer(tmp_path, max_epochs=6, min_epochs=3, callbacks=[asks, recovers])
    trainer.fit(Two([]), indexed(1))
    assert trainer.current_epoch == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [({"mode": "least"}, '"min" or "max"'), ({"patience": -1}, "at least 0"), ({"patience": 1.5}, "at least 0")],
    ids=str,
)
def test_arguments_of_early_stopping_are_checked(options, words):
    with pytest.raises(MisconfigurationError, match=words):
        EarlyStopping("score", **options)


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_the_summary_counts_parameters(tmp_path, capfd):
    module = Line()
    module.layer.bias.requires_grad = False
    quiet_trainer(tmp_path, max_epochs=1, enable_model_summary=True).fit(module, indexed(1))
    told = capfd.readouterr().err
    assert "Linear" in told
    assert "2 parameters, 1 of them trainable" in told


def test_the_bar_is_quiet_lines_where_there_is_no_terminal(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        quiet_trainer(tmp_path, max_epochs=2, enable_progress_bar=True).fit(
            Validates([1.0, 2.0]), indexed(3), indexed(1)
        )
    told = capfd.readouterr()
    assert "\r" not in told.err + told.out
    assert sum("Epoch 1" in line for line in (told.err + told.out).splitlines()) == 1


# -- ModelCheckpoint: time, links, names, tables ----------------------------------------------------------------------


class Sleeps(Line):
    def training_step(self, batch, batch_idx):
        time.sleep(0.03)
        return super().training_step(batch, batch_idx)


def test_files_come_after_so_much_time(tmp_path):
    keeper = ModelCheckpoint(
        dirpath=tmp_path / "files", save_top_k=-1, train_time_interval=timedelta(seconds=0.1), filename="{step}"
    )
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[keeper]).fit(Sleeps(), indexed(20))
    steps = sorted(int(name.removeprefix("step=").removesuffix(".ckpt")) for name in files(tmp_path / "files"))
    assert 1 <= len(steps) <= 6, "0.6 s at least, of which each tenth counts"
    assert steps[0] >= 2
    assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(steps))


def test_a_file_due_by_time_together_with_a_validation_comes_after_it(tmp_path):
    class Monitored(Sleeps):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", float(self.trainer.global_step))

    keeper = ModelCheckpoint(
        dirpath=tmp_path / "files", monitor="val_loss", train_time_interval=timedelta(microseconds=1), save_top_k=-1
    )
    trainer = quiet_trainer(
        tmp_path, max_epochs=1, callbacks=[keeper], val_check_interval=1, limit_val_batches=1, num_sanity_val_steps=0
    )
    trainer.fit(Monitored(), indexed(3), indexed(1))
    assert sorted(keeper.best_k_models.values()) == [1.0, 2.0, 3.0]


def test_last_may_be_a_link_to_the_newest_file(tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", monitor="score", save_last="link")
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper])
    trainer.fit(Scores([2.0, 1.0]), indexed(1))
    last = tmp_path / "last.ckpt"
    assert last.is_symlink()
    assert os.readlink(last) == "epoch=1.ckpt"
    assert epoch_of(last) == 1
    # A state that is not among the best is kept under the name itself.
    keeper = ModelCheckpoint(dirpath=tmp_path / "b", filename="{epoch}", monitor="score", save_last="link")
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper])
    trainer.fit(Scores([1.0, 2.0]), indexed(1))
    assert not (tmp_path / "b" / "last.ckpt").is_symlink()
    assert (epoch_of(tmp_path / "b" / "last.ckpt"), epoch_of(keeper.best_model_path)) == (1, 0)


def test_a_link_where_there_are_none_is_a_copy():
    root = f"memory://{uuid.uuid4().hex}"
    keeper = ModelCheckpoint(dirpath=f"{root}/files", monitor="score", save_last="link")
    trainer = quiet_trainer(root, max_epochs=2, callbacks=[keeper])
    trainer.fit(Scores([2.0, 1.0]), indexed(1))
    assert storage.load(keeper.last_model_path)["epoch"] == 1
    storage.remove(root)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("counts", "names_of_files"), [(True, ["one-v1.ckpt", "one.ckpt"]), (False, ["one.ckpt"])])
def test_a_name_that_is_taken_is_counted_on_or_replaced(tmp_path, counts, names_of_files):
    for _ in range(2):
        keeper = ModelCheckpoint(dirpath=tmp_path / "files", filename="one", enable_version_counter=counts)
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[keeper]).fit(Line(), indexed(1))
    assert files(tmp_path / "files") == names_of_files


def test_a_folder_that_has_checkpoints_draws_a_warning(tmp_path):
    def fit(**options):
        keeper = ModelCheckpoint(dirpath=tmp_path / "files")
        quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper]).fit(Line(), indexed(1), indexed(1), **options)
        return keeper

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = fit().best_model_path
    with pytest.warns(UserWarning, match="has checkpoints already"):
        fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(ckpt_path=path)


@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_where_files_of_epochs_are_saved_may_be_told(tmp_path, at_epoch_end):
    order = []

    class Notes(Line):
        def on_train_epoch_end(self):
            order.append("epoch end")

        def on_save_checkpoint(self, checkpoint):
            order.append("saved")

    keeper = ModelCheckpoint(dirpath=tmp_path / "files", save_on_train_epoch_end=at_epoch_end)
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[keeper]).fit(Notes(), indexed(1), indexed(1))
    assert order[:2] == (["epoch end", "saved"] if at_epoch_end else ["saved", "epoch end"])


def test_the_kept_files_are_written_as_a_table(tmp_path):
    keeper, _ = keep(tmp_path, [3.0, 1.0, 2.0], save_top_k=2, monitor="score")
    keeper.to_yaml()
    keeper.to_yaml(tmp_path / "deep" / "own.yaml")
    for path in (tmp_path / "files" / "best_k_models.yaml", tmp_path / "deep" / "own.yaml"):
        assert yaml.safe_load(path.read_text()) == {
            str(tmp_path / "files" / "epoch=1.ckpt"): 1.0,
            str(tmp_path / "files" / "epoch=2.ckpt"): 2.0,
        }


@pytest.mark.parametrize(
    ("arguments", "saved_at"),
    [
        ({}, [4, 8]),
        ({"val_check_interval": 0.5}, [2, 4, 6, 8]),
        ({"val_check_interval": 4}, [4, 8]),
        ({"val_check_interval": 3, "check_val_every_n_epoch": None}, [3, 6]),
        ({"val_check_interval": 0.5, "limit_val_batches": 0}, [4, 8]),
    ],
)
def test_files_of_epochs_come_with_the_validations(tmp_path, arguments, saved_at):
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", save_top_k=-1)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[keeper], **arguments)
    trainer.fit(Line(), indexed(4), indexed(1))
    assert sorted(torch.load(path)["global_step"] for path in keeper.best_k_models) == saved_at


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train_time_interval": timedelta(0)}, "a timedelta above 0"),
        ({"train_time_interval": timedelta(1), "every_n_epochs": 1}, "not by every_n_epochs and train_time_interval"),
        ({"save_last": "copy"}, 'True, False or "link"'),
    ],
)
def test_further_arguments_of_a_checkpoint_callback_are_checked(options, words):
    with pytest.raises(MisconfigurationError, match=words):
        ModelCheckpoint(**options)
