"""Callbacks that steer a run, or carry something out of it: time, accumulation, functions, failures, predictions."""

import time
from datetime import timedelta

import pytest
import torch
from tests.unit.models import Line, Stream, indexed, quiet_trainer

from paceline.callbacks import (
    BasePredictionWriter,
    Callback,
    GradientAccumulationScheduler,
    LambdaCallback,
    OnExceptionCheckpoint,
    Timer,
)
from paceline.durations import parse_duration
from paceline.errors import MisconfigurationError

# -- durations and Timer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("00:00:00:00", 0),
        ("00:00:00:07", 7),
        ("00:00:02:00", 120),
        ("00:03:00:00", 3 * 3600),
        ("02:00:00:01", 2 * 86400 + 1),
        ("100:00:00:00", 100 * 86400),
        (timedelta(minutes=5), 300),
        ({"hours": 1, "seconds": 30}, 3630),
        ({"weeks": 1}, 7 * 86400),
    ],
)
def test_durations_are_written_in_three_ways(written, seconds):
    assert parse_duration(written, "max_time").total_seconds() == seconds


@pytest.mark.parametrize(
    "written",
    ["", "12", "1:00", "00:00:00", "00:24:00:00", "00:00:60:00", "00:00:00:60", "a:b:c:d", 5, 2.0, timedelta(-1), True],
)
def test_what_is_no_duration_is_answered_with_the_form(written):
    with pytest.raises(MisconfigurationError, match='`max_time=.* is no duration. Use "DD:HH:MM:SS"'):
        parse_duration(written, "max_time")


def test_a_wrong_keyword_of_a_duration_is_named():
    with pytest.raises(MisconfigurationError, match='hour.*Use "DD:HH:MM:SS"'):
        parse_duration({"hour": 1}, "max_time")


class Slow(Line):
    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        return super().training_step(batch, batch_idx)


def slow_fit(root, timer, module=None, **arguments):
    trainer = quiet_trainer(root, callbacks=[timer], max_epochs=-1, **arguments)
    trainer.fit(module or Slow(), indexed(5))
    return trainer


@pytest.mark.parametrize(("interval", "is_whole_epoch"), [("step", False), ("epoch", True)])
def test_a_timer_stops_after_a_step_or_an_epoch(tmp_path, interval, is_whole_epoch):
    timer = Timer(timedelta(seconds=0.33), interval)
    trainer = slow_fit(tmp_path, timer)
    assert trainer.global_step > 5
    assert timer.time_elapsed() >= 0.33
    assert timer.time_remaining() <= 0
    assert timer.start_time() < timer.end_time()
    assert timer.end_time() - timer.start_time() == pytest.approx(timer.time_elapsed())
    if is_whole_epoch:
        assert trainer.global_step % 5 == 0


def test_the_minimum_of_epochs_wins_over_the_timer(tmp_path):
    assert slow_fit(tmp_path, Timer(timedelta(0)), min_epochs=2).global_step == 10


def test_time_that_was_used_is_used_after_a_resume(tmp_path):
    path = str(tmp_path / "a.ckpt")
    first = Timer(timedelta(seconds=0.3))
    slow_fit(tmp_path, first).save_checkpoint(path)
    second = Timer(timedelta(seconds=0.45))
    begin = time.monotonic()
    trainer = quiet_trainer(tmp_path, callbacks=[second], max_epochs=-1)
    trainer.fit(Slow(), indexed(5), ckpt_path=path)
    assert time.monotonic() - begin > 0.05
    assert second.time_elapsed() > first.time_elapsed()
    assert second.time_elapsed() - first.time_elapsed() < 0.3, "only what was left of it"
    third = Timer(timedelta(seconds=0.2))
    seen = Slow()
    quiet_trainer(tmp_path, callbacks=[third], max_epochs=-1).fit(seen, indexed(5), ckpt_path=path)
    assert seen.seen == [], "nothing was left"


def test_a_second_fit_goes_on_counting(tmp_path):
    timer = Timer(timedelta(seconds=60))
    module = Slow()
    trainer = quiet_trainer(tmp_path, callbacks=[timer], max_epochs=1)
    trainer.fit(module, indexed(5))
    once = timer.time_elapsed()
    trainer.max_epochs = 2
    trainer.fit(module, indexed(5))
    assert timer.time_elapsed() >= once + 0.1


def test_validation_and_test_are_measured_too(tmp_path):
    timer = Timer()
    assert timer.time_remaining() is None
    assert timer.start_time("validate") is None
    assert timer.time_elapsed("test") == 0.0
    module = Line()
    module.test_step = lambda batch: time.sleep(0.02)
    trainer = quiet_trainer(tmp_path, callbacks=[timer], max_epochs=1)
    trainer.fit(module, indexed(1), indexed(1))
    trainer.test(module, indexed(3), verbose=False)
    assert timer.time_elapsed("validate") > 0
    assert 0.06 <= timer.time_elapsed("test") < 5


def test_an_unknown_interval_of_a_timer_is_refused():
    with pytest.raises(MisconfigurationError, match='interval=\'batch\'.*"step" or "epoch"'):
        Timer(interval="batch")


# -- GradientAccumulationScheduler ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduling", "steps"),
    [
        ({0: 2}, [3, 3, 3]),  # 6 batches in each epoch
        ({1: 3}, [6, 2, 2]),
        ({1: 6, 2: 1}, [6, 1, 6]),
        ({5: 2}, [6, 6, 6]),
    ],
)
def test_accumulation_changes_with_the_epoch(tmp_path, scheduling, steps):
    seen = []

    class Looks(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append((trainer.global_step, trainer.accumulate_grad_batches))

    trainer = quiet_trainer(tmp_path, callbacks=[GradientAccumulationScheduler(scheduling), Looks()], max_epochs=3)
    trainer.fit(Line(), indexed(6))
    totals = [sum(steps[: n + 1]) for n in range(3)]
    assert [total for total, _ in seen] == totals
    whole = {0: 1, **scheduling}
    assert [n for _, n in seen] == [whole[max(e for e in whole if e <= epoch)] for epoch in range(3)]


@pytest.mark.parametrize("scheduling", [{}, {-1: 2}, {0: 0}, {1: 1.5}, {"1": 2}, {True: 2}])
def test_a_schedule_that_means_nothing_is_refused(scheduling):
    with pytest.raises(MisconfigurationError, match=r"GradientAccumulationScheduler\({"):
        GradientAccumulationScheduler(scheduling)


# -- LambdaCallback ---------------------------------------------------------------------------------------------------


def test_functions_are_called_at_their_hooks(tmp_path):
    calls = []
    callback = LambdaCallback(
        on_train_start=lambda trainer, module: calls.append("start"),
        on_train_batch_end=lambda trainer, module, outputs, batch, batch_idx: calls.append(batch_idx),
        setup=lambda trainer, module, stage: calls.append(stage),
    )
    quiet_trainer(tmp_path, callbacks=[callback], max_epochs=1).fit(Line(), indexed(2))
    assert calls == ["fit", "start", 0, 1]


@pytest.mark.parametrize(
    ("name", "nearest"), [("on_train_batch", "on_train_"), ("on_fit_begin", "on_fit_"), ("state_dict", None)]
)
def test_an_unknown_hook_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(
        MisconfigurationError, match=f"`LambdaCallback\\({name}=...\\)`: there is no such hook"
    ) as caught:
        LambdaCallback(**{name: print})
    if nearest:
        assert f"Did you mean `{nearest}" in str(caught.value)


# -- OnExceptionCheckpoint --------------------------------------------------------------------------------------------


class Fails(Line):
    fails = True

    def training_step(self, batch, batch_idx):
        if self.fails and self.trainer.global_step == 3:
            raise ZeroDivisionError
        return super().training_step(batch, batch_idx)


def test_a_failing_fit_is_kept_and_can_be_gone_on_with(tmp_path):
    keeps = OnExceptionCheckpoint(tmp_path / "kept")
    with pytest.raises(ZeroDivisionError):
        quiet_trainer(tmp_path, callbacks=[keeps], max_epochs=2).fit(Fails(), indexed(5))
    assert keeps.ckpt_path == f"{tmp_path}/kept/on_exception.ckpt"
    module, whole = Fails(), Line()
    module.fails = False
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, indexed(5), ckpt_path=keeps.ckpt_path)
    quiet_trainer(tmp_path, max_epochs=2).fit(whole, indexed(5))
    assert trainer.global_step == 10
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), whole.parameters(), strict=True))


def test_nothing_is_kept_of_a_run_that_goes_well_or_is_no_fit(tmp_path):
    keeps = OnExceptionCheckpoint(tmp_path / "kept")
    module = Line()
    trainer = quiet_trainer(tmp_path, callbacks=[keeps], max_epochs=1)
    trainer.fit(module, indexed(2))
    module.test_step = lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.test(module, indexed(1))
    assert not (tmp_path / "kept").exists()


# -- BasePredictionWriter ---------------------------------------------------------------------------------------------


class Writer(BasePredictionWriter):
    def __init__(self, interval):
        super().__init__(interval)
        self.batches, self.epochs = [], []

    def write_on_batch_end(self, trainer, pl_module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
        self.batches.append((prediction.flatten().tolist(), batch_indices, batch_idx, dataloader_idx))

    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        self.epochs.append(([[one.flatten().tolist() for one in loader] for loader in predictions], batch_indices))


class Echo(Line):
    def predict_step(self, batch, batch_idx):
        return batch


@pytest.mark.parametrize("interval", ["batch", "epoch", "batch_and_epoch"])
@pytest.mark.parametrize("return_predictions", [True, False])
def test_predictions_are_written_with_the_indices_of_their_samples(tmp_path, interval, return_predictions):
    writer = Writer(interval)
    trainer = quiet_trainer(tmp_path, callbacks=[writer])
    assert trainer.prediction_writer_callbacks == [writer]
    returned = trainer.predict(Echo(), [indexed(3, 2), indexed(1)], return_predictions=return_predictions)
    assert (returned is None) is not return_predictions
    if interval != "epoch":
        assert writer.batches == [([0.0, 1.0], [0, 1], 0, 0), ([2.0], [2], 1, 0), ([0.0], [0], 0, 1)]
    else:
        assert writer.batches == []
    if interval != "batch":
        assert writer.epochs == [([[[0.0, 1.0], [2.0]], [[0.0]]], [[[0, 1], [2]], [[0]]])]
    else:
        assert writer.epochs == []


def test_a_loader_that_does_not_tell_has_no_indices(tmp_path):
    writer = Writer("batch")
    quiet_trainer(tmp_path, callbacks=[writer]).predict(Echo(), Stream(2))
    assert [indices for _, indices, _, _ in writer.batches] == [None, None]


def test_an_unknown_write_interval_is_refused():
    with pytest.raises(MisconfigurationError, match=r"Writer\(write_interval='epochs'\).*Did you mean `epoch`"):
        Writer("epochs")
