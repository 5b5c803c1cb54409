"""Callbacks that watch: learning rates, speed, devices; the summary and the bar."""

import io
import sys
import time

import pytest
import torch
from tests.unit.models import Calls, Line, Rows, Stream, indexed, quiet_trainer
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from paceline.callbacks import (
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelSummary,
    ThroughputMonitor,
    TQDMProgressBar,
)
from paceline.callbacks.model_summary import summarize
from paceline.errors import MisconfigurationError


class Configured(Line):
    def __init__(self, configure, manual=False):
        super().__init__()
        self.configure = configure
        self.automatic_optimization = not manual

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if self.automatic_optimization else None

    def configure_optimizers(self):
        return self.configure(self)


def decaying(interval, name=None):
    def configure(module):
        optimizer = SGD(module.parameters(), lr=0.8)
        config = {"scheduler": ExponentialLR(optimizer, 0.5), "interval": interval, "name": name}
        return {"optimizer": optimizer, "lr_scheduler": config}

    return configure


def rates(root, configure, monitor, manual=False, **arguments):
    rows = Rows()
    trainer = quiet_trainer(
        root, **{"max_epochs": 2, "logger": rows, "callbacks": [monitor], "log_every_n_steps": 1, **arguments}
    )
    trainer.fit(Configured(configure, manual), indexed(3))
    return rows


@pytest.mark.parametrize(
    ("interval", "logging_interval", "expected"),
    [
        # After each step: the rate that the next one will have; at epochs: the rate as they begin.
        ("step", None, [(0, 0.4), (1, 0.2), (2, 0.1), (3, 0.05), (4, 0.025), (5, 0.0125)]),
        ("step", "epoch", [(0, 0.8), (3, 0.1)]),
        ("epoch", None, [(0, 0.8), (3, 0.4)]),
        ("epoch", "step", [(0, 0.8), (1, 0.8), (2, 0.4), (3, 0.4), (4, 0.4), (5, 0.2)]),
    ],
)
def test_rates_are_logged_by_steps_or_epochs(tmp_path, interval, logging_interval, expected):
    rows = rates(tmp_path, decaying(interval), LearningRateMonitor(logging_interval))
    assert rows.of("lr-SGD") == [(step, pytest.approx(rate)) for step, rate in expected]


def test_rows_of_steps_come_with_the_others(tmp_path):
    rows = rates(tmp_path, decaying("step"), LearningRateMonitor(), log_every_n_steps=4)
    assert [step for step, _ in rows.of("lr-SGD")] == [3]


def two_of_a_kind(module):
    weight, bias = module.parameters()
    return [SGD([weight], lr=0.1), SGD([{"params": [bias]}, {"params": [], "lr": 0.3}], lr=0.2), Adam([weight], lr=0.4)]


def named_groups(module):
    weight, bias = module.parameters()
    return SGD([{"params": [weight], "name": "slow"}, {"params": [bias], "name": "fast", "lr": 0.3}], lr=0.1)


@pytest.mark.parametrize(
    ("configure", "names"),
    [
        (two_of_a_kind, {"lr-SGD": 0.1, "lr-SGD-1/pg1": 0.2, "lr-SGD-1/pg2": 0.3, "lr-Adam": 0.4}),
        (named_groups, {"lr-SGD/slow": 0.1, "lr-SGD/fast": 0.3}),
        (decaying("epoch", "mine"), {"mine": 0.8}),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_optimizers_and_groups_have_names_of_their_own(tmp_path, configure, names):
    rows = rates(tmp_path, configure, LearningRateMonitor("epoch"), manual=True, max_epochs=1)
    found = {name: value for name, value in rows.rows[0][1].items() if name != "epoch"}
    assert found == pytest.approx(names)


def test_momentum_and_weight_decay_are_logged_on_request(tmp_path):
    for make, momentum in ((lambda p: Adam(p, lr=0.1, betas=(0.7, 0.9), weight_decay=0.2), 0.7), (
        lambda p: SGD(p, lr=0.1, momentum=0.6, weight_decay=0.2), 0.6,
    )):  # fmt: skip
        monitor = LearningRateMonitor("epoch", log_momentum=True, log_weight_decay=True)
        rows = rates(tmp_path, lambda module, make=make: make(module.parameters()), monitor, max_epochs=1)
        name = type(make([torch.nn.Parameter(torch.ones(1))])).__name__
        assert rows.rows[0][1] == {
            "epoch": 0.0, f"lr-{name}": 0.1, f"lr-{name}-momentum": momentum, f"lr-{name}-weight_decay": 0.2
        }  # fmt: skip


@pytest.mark.parametrize("monitor", [LearningRateMonitor(), ThroughputMonitor(), DeviceStatsMonitor()])
def test_a_monitor_without_a_logger_is_refused(tmp_path, monitor):
    with pytest.raises(MisconfigurationError, match=f"{type(monitor).__name__} has nowhere to log to"):
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[monitor]).fit(Line(), indexed(1))


def test_arguments_of_monitors_are_checked():
    with pytest.raises(MisconfigurationError, match=r"logging_interval='batch'.*\"step\", \"epoch\" or None"):
        LearningRateMonitor("batch")
    with pytest.raises(MisconfigurationError, match="window_size=1.*at least 2"):
        ThroughputMonitor(window_size=1)


class Paced(Line):
    """Each batch takes at least a hundredth of a second."""

    def training_step(self, batch, batch_idx):
        time.sleep(0.01)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        time.sleep(0.01)

    def predict_step(self, batch, batch_idx):
        time.sleep(0.01)


def test_the_speed_is_that_of_the_clock(tmp_path):
    rows = Rows()
    monitor = ThroughputMonitor(length_fn=lambda batch: 10 * len(batch), window_size=5)
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=rows, callbacks=[monitor], log_every_n_steps=4)
    module = Paced()
    trainer.fit(module, indexed(16, 2))
    trainer.test(module, indexed(8, 2), verbose=False)
    trainer.predict(module, indexed(8, 2))
    for stage in ("train", "test", "predict"):
        points = rows.of(f"{stage}/batches_per_second")
        assert [step for step, _ in points] == ([3, 7] if stage == "train" else [3])
        for (_, batches), (_, samples), (_, items) in zip(
            points,
            rows.of(f"{stage}/samples_per_second"),
            rows.of(f"{stage}/items_per_second"),
            strict=True,
        ):
            assert 1 < batches < 100, "a hundred in a second at most"
            assert samples == pytest.approx(2 * batches)
            assert items == pytest.approx(20 * batches)


def test_the_size_of_a_batch_may_be_told(tmp_path):
    rows = Rows()
    monitor = ThroughputMonitor(batch_size_fn=lambda batch: 7)
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=rows, callbacks=[monitor], log_every_n_steps=1)
    trainer.fit(Line(), indexed(2))
    for (_, batches), (_, samples) in zip(
        rows.of("train/batches_per_second"), rows.of("train/samples_per_second"), strict=True
    ):
        assert samples == pytest.approx(7 * batches)


def test_the_load_of_the_cpu_is_logged_every_n_steps(tmp_path):
    rows = Rows()
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=rows, callbacks=[DeviceStatsMonitor()], log_every_n_steps=2)
    trainer.fit(Line(), indexed(4))
    points = rows.of("DeviceStatsMonitor.on_train_batch_end/cpu_process_rss_mb")
    assert len(points) == 2
    with open("/proc/self/statm") as file:
        resident_mb = int(file.read().split()[1]) * 4096 / 1e6
    assert points[-1][1] == pytest.approx(resident_mb, rel=0.2)
    for hook in ("on_train_batch_start", "on_train_batch_end"):
        for what in ("cpu_percent", "cpu_vm_percent"):
            assert all(0 <= value <= 100 for _, value in rows.of(f"DeviceStatsMonitor.{hook}/{what}"))
    rows.rows.clear()
    trainer = quiet_trainer(
        tmp_path, max_epochs=1, logger=rows, callbacks=[DeviceStatsMonitor(cpu_stats=False)], log_every_n_steps=1
    )
    trainer.fit(Line(), indexed(2))
    assert not any("cpu" in name for _, row in rows.rows for name in row)


@pytest.mark.parametrize(
    ("monitor", "name"),
    [
        (LearningRateMonitor("step"), "lr-SGD"),
        (ThroughputMonitor(), "train/batches_per_second"),
        (DeviceStatsMonitor(cpu_stats=True), "DeviceStatsMonitor.on_train_batch_start/cpu_percent"),
        (DeviceStatsMonitor(cpu_stats=True), "DeviceStatsMonitor.on_train_batch_end/cpu_percent"),
    ],
)
@pytest.mark.parametrize(("every", "steps"), [(1, [0, 1, 2]), (2, [1])])
def test_a_step_of_several_batches_has_one_row(tmp_path, monitor, name, every, steps):
    rows = Rows()
    trainer = quiet_trainer(
        tmp_path,
        max_epochs=1,
        logger=rows,
        callbacks=[monitor],
        log_every_n_steps=every,
        accumulate_grad_batches=2,
    )
    trainer.fit(Line(), indexed(6))
    assert [step for step, _ in rows.of(name)] == steps


def test_groups_that_are_added_later_are_logged_from_then_on(tmp_path):
    rows = Rows()

    def add(trainer, module):
        if trainer.global_step == 1:
            trainer.optimizers[0].add_param_group({"params": [module.layer.bias], "lr": 0.2})

    trainer = quiet_trainer(
        tmp_path,
        max_epochs=1,
        logger=rows,
        callbacks=[LearningRateMonitor("step"), Calls(on_train_batch_start=add)],
        log_every_n_steps=1,
    )
    trainer.fit(Configured(lambda module: SGD([module.layer.weight], lr=0.1)), indexed(3))
    assert rows.of("lr-SGD") == [(0, 0.1)]
    assert rows.of("lr-SGD/pg1") == [(1, 0.1), (2, 0.1)]
    assert rows.of("lr-SGD/pg2") == [(1, 0.2), (2, 0.2)]


def test_the_speed_is_that_of_the_last_batches(tmp_path):
    rows = Rows()
    pace = Calls(on_train_batch_start=lambda trainer, _: time.sleep(0.05 if trainer.global_step < 4 else 0))
    monitor = ThroughputMonitor(window_size=2)
    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=rows, callbacks=[pace, monitor], log_every_n_steps=1)
    trainer.fit(Line(), indexed(8))
    speeds = [speed for _, speed in rows.of("train/batches_per_second")]
    assert max(speeds[:4]) < 20
    assert speeds[-1] > 40, "8 batches in 0.2 s"


def test_a_validation_has_its_own_speed_and_is_no_time_of_training(tmp_path):
    rows = Rows()
    slow = Calls(on_validation_batch_start=lambda *_: time.sleep(0.1))
    trainer = quiet_trainer(
        tmp_path,
        max_epochs=1,
        logger=rows,
        callbacks=[slow, ThroughputMonitor()],
        log_every_n_steps=1,
        val_check_interval=2,
    )
    trainer.fit(Line(), indexed(4), indexed(1))
    assert min(speed for _, speed in rows.of("train/batches_per_second")) > 10
    validations = rows.of("validate/batches_per_second")
    assert [step for step, _ in validations] == [0, 1], "the sanity check has no row"
    assert max(speed for _, speed in validations) < 10


class Layers(Line):
    """20 parameters in the body, of which a layer is frozen, 3 in the head, 2 in a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 2), nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 1)
        self.body[0].requires_grad_(False)
        self.body[2].eval()

    def forward(self, x, scale=1.0):
        return self.head(self.body(x) * scale * torch.rand(()))

    def loss(self, batch):
        return super().loss(batch.expand(-1, 4))


TOTALS = "25 parameters, 15 of them trainable, 10 not; 0.000 MB"
BODY = ["body.0", "body.1", "body.2", "body.3"]


@pytest.mark.parametrize(
    ("max_depth", "names"),
    [(1, ["layer", "body", "head"]), (2, ["layer", "body", *BODY, "head"]), (-1, ["layer", "body", *BODY, "head"])],
)
def test_the_summary_shows_layers_as_deep_as_asked(max_depth, names):
    header, *rows, totals = summarize(Layers(), max_depth).splitlines()
    assert header.split() == ["layer", "type", "parameters"]
    assert [row.split()[0] for row in rows] == names
    counts = {row.split()[0]: row.split()[1:] for row in rows}
    assert counts["body"] == ["Sequential", "20"]
    assert counts["head"] == ["Linear", "3"]
    assert totals == TOTALS
    assert summarize(Layers(), 0) == TOTALS


@pytest.mark.parametrize("example", [torch.ones(5, 4), (torch.ones(5, 4), 2.0), {"x": torch.ones(5, 4)}], ids=type)
@pytest.mark.parametrize("compiled", ["nothing", "a part", "the whole"])
def test_sizes_come_from_a_pass_that_leaves_no_trace(example, compiled):
    module = Layers()
    before = [submodule.training for submodule in module.modules()], module.body[2].running_mean.clone()
    if compiled == "a part":
        module.body = torch.compile(module.body)
    state = torch.get_rng_state()
    table = summarize(torch.compile(module) if compiled == "the whole" else module, 2, example)
    module.body = getattr(module.body, "_orig_mod", module.body)
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in table.splitlines()}
    assert lines["body"] == "Sequential 20 [5, 4] [5, 2]"
    assert lines["body.0"] == "Linear 10 [5, 4] [5, 2]"
    assert lines["head"] == "Linear 3 [5, 2] [5, 1]"
    assert lines["layer"] == "Linear 2 - -"
    assert torch.equal(torch.get_rng_state(), state)
    assert [submodule.training for submodule in module.modules()] == before[0]
    assert torch.equal(module.body[2].running_mean, before[1])
    assert not any(submodule._forward_hooks for submodule in module.modules())


def test_sizes_of_several_values_are_lists():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    table = summarize(Recurrent(), example=torch.ones(4, 5, 3))
    assert "[4, 5, 3]  [[4, 5, 2], [[1, 4, 2], [1, 4, 2]]]" in table


def test_lazy_layers_are_left_as_they_are():
    module = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    lines = summarize(module, example=torch.ones(2, 4)).splitlines()
    assert [line.split() for line in lines[1:3]] == [["0", "LazyLinear", "0+"], ["1", "Linear", "4"]]
    assert lines[3].startswith("4+ parameters, 4+ of them trainable, 0 not")
    assert "first forward pass" in lines[4]
    assert module[0].has_uninitialized_params()


def test_an_example_that_does_not_fit_is_a_warning():
    with pytest.warns(UserWarning, match="no sizes, since the example's forward pass failed: mat1 and mat2"):
        table = summarize(Layers(), example=torch.ones(5, 3))
    assert table == summarize(Layers())


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "bf16-mixed"])
def test_a_fit_prints_the_summary_of_its_modules_example(tmp_path, capfd, precision):
    module = Layers()
    module.example_input_array = torch.ones(5, 4)
    trainer = quiet_trainer(
        tmp_path, max_epochs=1, precision=precision, callbacks=[ModelSummary(2)], enable_model_summary=True
    )
    trainer.fit(module, indexed(4, 2))
    told = capfd.readouterr().err
    assert "[5, 4]  [5, 2]" in told
    assert "25 parameters" in told


def test_a_summary_of_no_depth_is_silent(tmp_path, capfd):
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[ModelSummary(0)], enable_model_summary=True)
    trainer.fit(Line(), indexed(1))
    assert "parameters" not in capfd.readouterr().err
    for depth in (-2, 1.5, True):
        with pytest.raises(MisconfigurationError, match=f"max_depth={depth}.*-1 for all"):
            ModelSummary(depth)


class Terminal(io.StringIO):
    """Text that is written to a terminal; `bars` are the lines that were drawn over each other."""

    def isatty(self):
        return True

    @property
    def bars(self):
        return [line.strip("\n\x1b[A ") for line in self.getvalue().split("\r") if line.strip("\n\x1b[A ")]


def a_terminal(monkeypatch):
    # Not in a fixture: pytest takes the stream back when the test itself begins.
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    return terminal


def drawn(terminal):
    """Description and count of each bar that was drawn, without repetitions in a row."""
    found = []
    for line in terminal.bars:
        what, _, rest = line.partition(":")
        count = next((word.strip("|") for word in rest.split() if "/" in word and "it" not in word), rest.split()[0])
        if what != "Fit ends" and [what, count] not in found[-1:]:
            found.append([what, count])
    return [" ".join(pair) for pair in found]


class Shown(Line):
    def training_step(self, batch, batch_idx):
        self.log("seen", float(batch_idx), prog_bar=True)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        pass

    def predict_step(self, batch, batch_idx):
        pass


def test_each_stage_has_a_bar(tmp_path, monkeypatch):
    terminal = a_terminal(monkeypatch)
    bar = TQDMProgressBar(refresh_every_s=0)
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[bar], enable_progress_bar=True, num_sanity_val_steps=1)
    module = Shown()
    trainer.fit(module, indexed(2), [indexed(2), indexed(1)])
    validation = [f"Validating {done}/3" for done in range(4)]
    sanity = [f"Sanity check {done}/2" for done in range(3)]
    training = [f"Epoch 0 {done}/2" for done in range(3)]
    assert drawn(terminal) == [*sanity, *training, *validation, training[-1]]
    assert "seen=1" in terminal.bars[-1], "the bar of the last epoch stays, with its values"
    for run, what in ((trainer.validate, "Validating"), (trainer.test, "Testing")):
        terminal = a_terminal(monkeypatch)
        run(module, indexed(2), verbose=False)
        assert drawn(terminal) == [f"{what} {done}/2" for done in range(3)]
    terminal = a_terminal(monkeypatch)
    trainer.predict(module, Stream(3))
    assert drawn(terminal) == [f"Predicting {done}it" for done in range(4)], "nobody knows how many come"


def test_between_updates_the_bar_rests(tmp_path, monkeypatch):
    terminal = a_terminal(monkeypatch)
    bar = TQDMProgressBar(refresh_every_s=60)
    trainer = quiet_trainer(tmp_path, max_epochs=2, callbacks=[bar], enable_progress_bar=True)
    trainer.fit(Shown(), indexed(5))
    assert drawn(terminal) == ["Epoch 0 0/5", "Epoch 0 1/5", "Epoch 0 5/5", "Epoch 1 0/5", "Epoch 1 5/5"]
    with pytest.raises(MisconfigurationError, match="refresh_every_s=-1.*use 0"):
        TQDMProgressBar(refresh_every_s=-1)
