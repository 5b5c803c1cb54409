"""Arguments that set something around a run, objects that take the place of parts, and properties that show a run."""

import os

import pytest
import torch
from tests.unit.models import Line, Rows, indexed, quiet_trainer

from paceline import Callback, Trainer
from paceline.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint
from paceline.checkpoint import CheckpointIO
from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.launch.in_process import InProcessLauncher
from paceline.loops.evaluate import EvaluationLoop
from paceline.loops.fit import FitLoop
from paceline.strategies import Precision


def in_hook(trainer_arguments, look, root, hook="on_train_start"):
    """What `look(trainer)` finds in a hook of a fit."""
    seen = []
    callback = LambdaCallback(**{hook: lambda trainer, *_: seen.append(look(trainer))})
    quiet_trainer(root, max_epochs=1, callbacks=[callback], **trainer_arguments).fit(Line(), indexed(2), indexed(2))
    return seen[0]


# -- settings of torch ------------------------------------------------------------------------------------------------


def torch_flags(*_):
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )


@pytest.mark.parametrize(
    ("arguments", "inside"),
    [
        ({}, (False, False, False)),
        ({"deterministic": True}, (True, False, False)),
        ({"deterministic": "warn"}, (True, True, False)),
        ({"deterministic": False}, (False, False, False)),
        ({"benchmark": True}, (False, False, True)),
        ({"deterministic": True, "benchmark": True}, (True, False, True)),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_determinism_and_benchmarking_last_for_the_run(tmp_path, arguments, inside):
    before = torch_flags()
    assert in_hook(arguments, torch_flags, tmp_path) == inside
    assert torch_flags() == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_what_torch_was_set_to_stays_unless_the_trainer_says_otherwise(tmp_path):
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = True
    try:
        assert in_hook({}, torch_flags, tmp_path) == (True, False, True)
        assert in_hook({"deterministic": False, "benchmark": False}, torch_flags, tmp_path) == (False, False, False)
        assert torch_flags() == (True, False, True)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False


def test_determinism_with_benchmarking_draws_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="`benchmark=True` may choose other algorithms"):
        in_hook({"deterministic": True, "benchmark": True}, torch_flags, tmp_path)


def test_anomalies_are_looked_for_in_training_only(tmp_path):
    seen = {}
    hooks = ("on_train_start", "on_validation_start", "on_test_start", "on_train_end")
    notes = LambdaCallback(
        **{name: lambda *_, name=name: seen.setdefault(name, torch.is_anomaly_enabled()) for name in hooks}
    )
    module = Line()
    module.test_step = lambda batch: None
    trainer = quiet_trainer(tmp_path, max_epochs=1, detect_anomaly=True, callbacks=[notes])
    trainer.fit(module, indexed(2), indexed(1))
    trainer.test(module, indexed(1), verbose=False)
    assert seen == {
        "on_train_start": True, "on_validation_start": True, "on_train_end": True, "on_test_start": False
    }  # fmt: skip
    assert not torch.is_anomaly_enabled()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_anomaly_names_the_operation_it_comes_from(tmp_path):
    class Bad(Line):
        def training_step(self, batch, batch_idx):
            return (self.layer.weight * 0.0).sqrt().sum() * 0.0

    trainer = quiet_trainer(tmp_path, max_epochs=1, detect_anomaly=True)
    with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"):
        trainer.fit(Bad(), indexed(1))


@pytest.mark.parametrize(("wanted", "mode"), [(True, True), (False, False)])
def test_evaluation_runs_under_inference_mode_unless_it_is_not_wanted(tmp_path, wanted, mode):
    seen = []

    class Looks(Line):
        def look(self, batch, batch_idx):
            seen.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
            return self(batch)

        validation_step = test_step = predict_step = look

    trainer = quiet_trainer(tmp_path, inference_mode=wanted)
    module = Looks()
    for entry in (trainer.validate, trainer.test):
        entry(module, indexed(1), verbose=False)
    trainer.predict(module, indexed(1))
    assert seen == [(mode, False)] * 3


def test_validation_within_a_fit_makes_tensors_that_can_be_trained_on(tmp_path):
    kept = []

    class Keeps(Line):
        def validation_step(self, batch, batch_idx):
            kept.append(self.layer.weight * 2)

    quiet_trainer(tmp_path, max_epochs=1).fit(Keeps(), indexed(1), indexed(1))
    assert not any(tensor.is_inference() for tensor in kept)


def test_batchnorm_on_one_device_needs_no_synchronising(tmp_path):
    with pytest.warns(UserWarning, match="`sync_batchnorm=True` does nothing here: .* several GPUs only"):
        quiet_trainer(tmp_path, sync_batchnorm=True, accelerator="cpu")


# -- metrics ----------------------------------------------------------------------------------------------------------


class Logs(Line):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


def test_metrics_moved_to_the_cpu_are_the_same(tmp_path):
    values = []
    for moves in (True, False):
        trainer = quiet_trainer(tmp_path, max_epochs=2, move_metrics_to_cpu=moves)
        trainer.fit(Logs(), indexed(4))
        values.append({name: value.item() for name, value in trainer.callback_metrics.items()})
    assert values[0] == values[1] != {}


@pytest.mark.filterwarnings("error")
def test_a_loss_with_a_gradient_is_logged_without_a_warning(tmp_path):
    quiet_trainer(tmp_path, max_epochs=1, log_every_n_steps=1).fit(Logs(), indexed(2), indexed(1))


def test_barebones_trains_the_same_and_records_nothing(tmp_path):
    whole, bare = Logs(), Logs()
    quiet_trainer(tmp_path, max_epochs=2).fit(whole, indexed(4), indexed(2))
    trainer = Trainer(devices=1, barebones=True, max_epochs=2, default_root_dir=tmp_path)
    with pytest.warns(UserWarning, match=r"`log\('loss'\)` was called under `barebones=True`: nothing is recorded"):
        trainer.fit(bare, indexed(4), indexed(2))
    assert all(torch.equal(p, q) for p, q in zip(bare.parameters(), whole.parameters(), strict=True))
    assert trainer.callback_metrics == {}
    assert list(tmp_path.iterdir()) == []


def test_a_run_to_find_mistakes_leaves_no_trace(tmp_path):
    class Monitored(Logs):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 1.0)

    stopping = EarlyStopping("never_logged")
    checkpoints = ModelCheckpoint(monitor="never_logged", every_n_train_steps=1)
    with pytest.warns(UserWarning, match="`fast_dev_run=2`"):
        trainer = Trainer(
            devices=1,
            fast_dev_run=2,
            logger=Rows(),
            default_root_dir=tmp_path,
            callbacks=[stopping, checkpoints],
            enable_progress_bar=False,
            restart_every_n_steps=1,
        )
    trainer.fit(Monitored(), indexed(9), indexed(9))
    assert trainer.global_step == 2
    assert checkpoints.best_model_path == ""
    assert list(tmp_path.iterdir()) == []


def test_rows_come_every_n_steps_and_when_training_stops(tmp_path):
    class Stops(Logs):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            if batch_idx == 4:
                self.trainer.should_stop = True

    for every, steps in ((2, [1, 3, 4]), (3, [2, 4]), (5, [4]), (0, [])):
        rows = Rows()
        trainer = quiet_trainer(tmp_path, max_epochs=1, logger=rows, log_every_n_steps=every, limit_val_batches=0)
        trainer.fit(Stops(), indexed(9))
        assert [step for step, row in rows.rows if "loss_step" in row] == steps


# -- parts that others take the place of ------------------------------------------------------------------------------


class Shouting(CheckpointIO):
    def __init__(self):
        self.calls = []

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        self.calls.append(("save", os.path.basename(path), storage_options))
        super().save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path, trusted=False):
        self.calls.append(("load", os.path.basename(path), trusted))
        return super().load_checkpoint(path, trusted)

    def remove_checkpoint(self, path):
        self.calls.append(("remove", os.path.basename(path)))
        super().remove_checkpoint(path)


def test_a_checkpoint_io_of_the_users_reads_writes_and_removes(tmp_path):
    io = Shouting()
    checkpoints = ModelCheckpoint(dirpath=tmp_path / "kept", filename="{epoch}")
    trainer = quiet_trainer(tmp_path, max_epochs=2, plugins=[io], callbacks=[checkpoints])
    module = Line()
    trainer.fit(module, indexed(2))
    trainer.save_checkpoint(tmp_path / "own.ckpt", storage_options={"auto_mkdir": True})
    assert [call for call in io.calls if call[0] != "load"] == [
        ("save", "epoch=0.ckpt", None),
        ("save", "epoch=1.ckpt", None),
        ("remove", "epoch=0.ckpt"),
        ("save", "own.ckpt", {"auto_mkdir": True}),
    ]
    trainer = quiet_trainer(tmp_path, max_epochs=3, plugins=io)
    trainer.fit(module, indexed(2), ckpt_path=tmp_path / "own.ckpt")
    assert ("load", "own.ckpt", False) in io.calls


def test_a_launcher_of_the_users_hosts_the_workers(tmp_path):
    calls = []

    class Counting(InProcessLauncher):
        def launch(self, spec, trainer):
            calls.append(spec.fn)
            return super().launch(spec, trainer)

        def close(self):
            calls.append("close")

    with quiet_trainer(tmp_path, max_epochs=1, plugins=[Counting()]) as trainer:
        trainer.fit(Line(), indexed(1))
    assert calls == ["fit", "close"]


def test_a_launcher_that_cannot_host_the_workers_is_refused(tmp_path):
    with pytest.raises(MisconfigurationError, match='hosts one worker, not 2. Use `devices=1`, or `launcher="actors"`'):
        quiet_trainer(tmp_path, devices=2, launcher="in_process")
    with pytest.raises(MisconfigurationError, match="`plugins` holds a launcher, and `launcher='in_process'`"):
        quiet_trainer(tmp_path, launcher="in_process", plugins=InProcessLauncher())


def test_in_process_means_this_process_whatever_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    trainer = quiet_trainer(tmp_path, max_epochs=1, launcher="in_process")
    trainer.fit(Line(), indexed(1))
    assert trainer.global_step == 1


def test_a_precision_of_the_users_is_used(tmp_path):
    class Halved(Precision):
        name = "halved"

        def scale(self, loss):
            return loss

        def convert_module(self, module):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(0.5)

    module = Line()
    trainer = quiet_trainer(tmp_path, plugins=Halved())
    trainer.validate(module, indexed(1), verbose=False)
    assert trainer.precision == "halved"
    assert module.layer.weight.item() == 0.25


def test_loops_are_objects_that_others_take_the_place_of(tmp_path):
    class Twice(FitLoop):
        """Trains on every batch twice."""

        def train_batch(self, batch, batch_idx):
            super().train_batch(batch, batch_idx)
            super().train_batch(batch, batch_idx)

    class Loud(EvaluationLoop):
        runs = 0

        def run(self, limit=float("inf")):
            type(self).runs += 1
            return super().run(limit)

    module = Line()
    module.test_step = lambda batch: module.log("x", 1.0)
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    trainer.fit_loop = Twice()
    trainer.test_loop = Loud("test")
    seen = []
    module.on_train_start = lambda: seen.append(type(module.trainer.fit_loop))
    trainer.fit(module, indexed(2))
    assert trainer.global_step == 4
    assert module.seen == [[0.0], [0.0], [1.0], [1.0]]
    assert seen == [Twice]
    trainer.test(module, indexed(1), verbose=False)
    assert Loud.runs == 1
    for name in ("fit_loop", "validate_loop", "test_loop", "predict_loop"):
        with pytest.raises(ArgumentTypeError, match="A loop has the methods"):
            setattr(trainer, name, object())


def test_the_users_optimizer_and_module_keep_nothing_of_the_run(tmp_path):
    made = []

    class Keeps(Line):
        def configure_optimizers(self):
            made.append(torch.optim.SGD(self.parameters(), lr=0.1))
            return made[0]

    module = Keeps()
    quiet_trainer(tmp_path, max_epochs=1).fit(module, indexed(2))
    assert not made[0]._optimizer_step_post_hooks
    with pytest.raises(RuntimeError, match="is in no run"):
        module.trainer  # noqa: B018


# -- what a trainer shows ---------------------------------------------------------------------------------------------

STAGES = ("training", "validating", "testing", "predicting", "sanity_checking", "evaluating")


def test_exactly_one_stage_is_shown(tmp_path):
    seen = {}

    def note(name):
        def look(trainer, *_):
            seen.setdefault(name, [stage for stage in STAGES if getattr(trainer, stage)])

        return look

    class Sanity(Callback):
        def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
            name = "sanity" if trainer.state.stage == "sanity_check" else "validate"
            note(name)(trainer)

    notes = LambdaCallback(
        on_train_batch_start=note("train"),
        on_test_batch_start=note("test"),
        on_predict_batch_start=note("predict"),
    )
    module = Line()
    module.test_step = lambda batch: None
    trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=[notes, Sanity()])
    assert trainer.state.status == "initializing"
    trainer.fit(module, indexed(1), indexed(1))
    trainer.test(module, indexed(1), verbose=False)
    trainer.predict(module, indexed(1))
    assert seen == {
        "sanity": ["sanity_checking"],
        "train": ["training"],
        "validate": ["validating", "evaluating"],
        "test": ["testing", "evaluating"],
        "predict": ["predicting"],
    }
    assert (trainer.state.fn, trainer.state.status, trainer.state.stage) == ("predict", "finished", None)
    assert not trainer.interrupted


def test_properties_outside_and_after_a_run(tmp_path):
    checkpoints, stopping = ModelCheckpoint(), EarlyStopping("val_loss")
    trainer = quiet_trainer(
        tmp_path, max_epochs=2, max_steps=50, min_epochs=1, min_steps=2, callbacks=[checkpoints, stopping]
    )
    assert (trainer.max_epochs, trainer.max_steps, trainer.min_epochs, trainer.min_steps) == (2, 50, 1, 2)
    assert (trainer.global_step, trainer.current_epoch) == (0, 0)
    assert (trainer.world_size, trainer.num_devices, trainer.num_nodes, trainer.device_ids) == (1, 1, 1, [0])
    assert (trainer.global_rank, trainer.local_rank, trainer.node_rank) == (0, 0, 0)
    assert trainer.is_global_zero
    assert trainer.checkpoint_callbacks == [checkpoints]
    assert trainer.checkpoint_callback is checkpoints
    assert trainer.early_stopping_callbacks == [stopping]
    assert trainer.early_stopping_callback is stopping
    assert trainer.progress_bar_callback is None
    assert trainer.prediction_writer_callbacks == []
    assert (trainer.logger, trainer.loggers) == (None, [])
    assert (trainer.log_dir, trainer.default_root_dir) == (str(tmp_path), str(tmp_path))
    assert (trainer.precision, trainer.scaler) == ("32-true", None)
    assert (trainer.model, trainer.lightning_module, trainer.datamodule) == (None, None, None)
    assert (trainer.train_dataloader, trainer.val_dataloaders) == (None, [])
    assert not trainer.is_last_batch
    assert not trainer.enable_validation
    assert trainer.accumulate_grad_batches == 1
    for name in ("optimizers", "lr_scheduler_configs", "estimated_stepping_batches"):
        with pytest.raises(RuntimeError, match="exists in the hooks of"):
            getattr(trainer, name)

    class Monitored(Line):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch), prog_bar=True)

    module, train, val = Monitored(), indexed(3), indexed(1)
    trainer.fit(module, train, val)
    assert (trainer.global_step, trainer.current_epoch) == (6, 2)
    assert trainer.model is trainer.lightning_module is module
    assert trainer.train_dataloader is train
    assert trainer.val_dataloaders == [val]
    assert trainer.enable_validation
    assert set(trainer.callback_metrics) == set(trainer.logged_metrics) == set(trainer.progress_bar_metrics)
    assert isinstance(trainer.callback_metrics["val_loss"], torch.Tensor)
    assert isinstance(trainer.progress_bar_metrics["val_loss"], float)


def test_optimizers_and_the_last_batch_are_shown_in_hooks(tmp_path):
    seen = []

    class Looks(Line):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            t = self.trainer
            seen.append((t.is_last_batch, type(t.optimizers[0]).__name__, t.lr_scheduler_configs))

    quiet_trainer(tmp_path, max_epochs=1).fit(Looks(), indexed(3))
    assert seen == [(False, "SGD", []), (False, "SGD", []), (True, "SGD", [])]


def test_an_evaluation_after_a_fit_stands_where_the_fit_ended(tmp_path):
    rows, seen = Rows(), []

    class Tests(Logs):
        def test_step(self, batch, batch_idx):
            seen.append((self.global_step, self.current_epoch))
            self.log("tested", 1.0)

    trainer = quiet_trainer(tmp_path, max_epochs=2, logger=rows, log_every_n_steps=1)
    module = Tests()
    trainer.fit(module, indexed(3))
    trainer.test(module, indexed(1), verbose=False)
    assert seen == [(6, 2)]
    assert rows.rows[-1] == (6, {"epoch": 2.0, "tested": 1.0})
    assert (trainer.global_step, trainer.current_epoch) == (6, 2)
    trainer.max_epochs = 3
    trainer.fit(module, indexed(3))
    assert trainer.global_step == 9


def test_memory_does_not_grow_with_the_steps(tmp_path):
    class Tiny(Line):
        def training_step(self, batch, batch_idx):
            loss = self.layer(batch).sum()
            for name in ("a", "b"):
                self.log(name, loss, on_step=True, on_epoch=True)
            self.log("c", loss)
            return loss

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    sizes = []

    def note(trainer, module, outputs, batch, batch_idx):
        if (batch_idx + 1) % 5000 == 0:
            sizes.append(resident())

    class Endless:
        def __iter__(self):
            one = torch.zeros(1, 1)
            return (one for _ in range(20_000))

    trainer = quiet_trainer(tmp_path, max_epochs=1, logger=Rows(), callbacks=[LambdaCallback(on_train_batch_end=note)])
    trainer.loggers[0].log_metrics = lambda metrics, step: None
    trainer.fit(Tiny(), Endless())
    assert trainer.global_step == 20_000
    assert sizes[-1] - sizes[0] < 2.0, f"MB after each 5000 steps: {sizes}"
