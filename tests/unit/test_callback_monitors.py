"""Callbacks that watch: learning rates, speed, devices."""

import time

import pytest
import torch
from tests.unit.models import Line, Rows, indexed, quiet_trainer
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR

from paceline.callbacks import DeviceStatsMonitor, LearningRateMonitor, ThroughputMonitor
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
