"""A run that stops anywhere and goes on ends like one that never stopped; files are whole, and loaded without trust."""

import datetime
import os
import pathlib
import shutil
import warnings
import zipfile

import numpy as np
import pytest
import torch
from tests.unit.models import Calls, Line, Validates, assert_equal_weights, indexed, quiet_trainer
from torch import nn

from paceline import Callback, DataModule, Module
from paceline.callbacks import EarlyStopping, ModelCheckpoint
from paceline.checkpoint import storage
from paceline.checkpoint.resolve import resolve
from paceline.checkpoint.writer import copy_to_cpu
from paceline.errors import CheckpointError, MisconfigurationError

# -- exact resume -----------------------------------------------------------------------------------------------------


class Everything(Module):
    """Dropout, momentum, two schedulers, values of all kinds, random numbers in hooks; notes the samples it reads."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.BatchNorm1d(4), nn.Dropout(0.4), nn.Linear(4, 1))
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
        self.seen = []

    def loss(self, batch):
        return nn.functional.mse_loss(self.layers(batch / 10), torch.sin(batch))

    def training_step(self, batch, batch_idx):
        self.seen.append(batch.flatten().tolist())
        loss = self.loss(batch) * (1 + 0.01 * np.random.rand())
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_step=False, on_epoch=True, reduce_fx="max")
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return [optimizer], [
            torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9),
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9), "interval": "step"},
            {"scheduler": plateau, "monitor": "val_loss"},
        ]


class SavesAt(Callback):
    """Saves in some hooks, each time to a file of its own."""

    reads_metrics = True

    def __init__(self, folder, *hooks):
        self.folder = folder
        self.files = []
        self.names = hooks
        for hook in hooks:
            setattr(self, hook, lambda trainer, *_, hook=hook: self.save(trainer, hook))

    def save(self, trainer, hook):
        if trainer.sanity_checking:
            return
        self.files.append(f"{self.folder}/{len(self.files):03d}-{hook}.ckpt")
        trainer.save_checkpoint(self.files[-1])


EPOCHS, BATCHES = 3, 5


def everything(root, module, *more, **arguments):
    arguments = {"max_epochs": EPOCHS, "accumulate_grad_batches": 3, **arguments}
    stopping = EarlyStopping("val_loss", patience=2)
    trainer = quiet_trainer(root, callbacks=[stopping, *more], **arguments)
    return trainer, stopping


def run(trainer, module, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, indexed(BATCHES * 2, batch_size=2, shuffle=True), indexed(4, batch_size=2), **options)


def undisturbed(root, make, *hooks, **arguments):
    torch.manual_seed(7)
    np.random.seed(7)
    module, saves = make(), SavesAt(root, *hooks)
    steps = ModelCheckpoint(dirpath=f"{root}/steps", every_n_train_steps=1, save_top_k=-1)
    trainer, stopping = everything(root, module, saves, steps, **arguments)
    run(trainer, module)
    return trainer, module, stopping, [*saves.files, *sorted(steps.best_k_models)]


def same(one, other):
    return {k: float(v) for k, v in one.items()} == pytest.approx({k: float(v) for k, v in other.items()}, rel=0, abs=0)


def assert_resumes_exactly(root, make, hooks, logged=False, **arguments):
    trainer, module, stopping, files = undisturbed(root, make, *hooks, **arguments)
    assert files
    different = []
    for path in files:
        torch.manual_seed(99)
        np.random.seed(99)
        resumed_module = make()
        resumed, resumed_stopping = everything(root, resumed_module, **arguments)
        run(resumed, resumed_module, ckpt_path=path)
        equal = {
            "weights": all(
                torch.equal(a, b)
                for a, b in zip(resumed_module.state_dict().values(), module.state_dict().values(), strict=True)
            ),
            "samples": module.seen[len(module.seen) - len(resumed_module.seen) :] == resumed_module.seen,
            "callback_metrics": same(resumed.callback_metrics, trainer.callback_metrics),
            "steps": (resumed.global_step, resumed.current_epoch) == (trainer.global_step, trainer.current_epoch),
            "early stopping": resumed_stopping.state_dict() == stopping.state_dict(),
        }
        if logged:
            equal["logged_metrics"] = same(resumed.logged_metrics, trainer.logged_metrics)
        different += [f"{os.path.basename(path)}: {what}" for what, is_equal in equal.items() if not is_equal]
    assert different == []


def test_a_run_resumed_after_any_batch_ends_like_one_that_never_stopped(tmp_path):
    # The files of mid-group batches, and those of ModelCheckpoint after optimizer steps.
    assert_resumes_exactly(tmp_path, Everything, ["on_train_batch_end"])


@pytest.mark.parametrize(
    "hook",
    ["on_train_epoch_start", "on_validation_start", "on_validation_end", "on_train_epoch_end", "on_train_start"],
)
def test_a_run_resumed_from_any_hook_ends_like_one_that_never_stopped(tmp_path, hook):
    assert_resumes_exactly(tmp_path, Everything, [hook])


def test_a_run_resumed_after_a_validation_batch_validates_again(tmp_path):
    assert_resumes_exactly(tmp_path, Everything, ["on_validation_batch_end"])


def test_sparse_validation_is_resumed_with_what_the_loggers_saw_last(tmp_path):
    hooks = ["on_train_batch_end", "on_train_epoch_end"]
    assert_resumes_exactly(tmp_path, Everything, hooks, logged=True, check_val_every_n_epoch=2)


class DrawsAtEpochStart(Everything):
    """Draws a factor for each epoch, as mixing augmentations do."""

    def on_train_epoch_start(self):
        self.factor = torch.rand(())

    def loss(self, batch):
        return super().loss(batch) * (self.factor if self.training else 1)


def test_random_numbers_drawn_as_an_epoch_starts_are_those_of_the_undisturbed_run(tmp_path):
    assert_resumes_exactly(tmp_path, DrawsAtEpochStart, ["on_train_epoch_end"])


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_file_from_the_middle_of_an_epoch_reads_only_the_rest_of_it(tmp_path, shuffle):
    def fit(module, **options):
        trainer = quiet_trainer(tmp_path, max_epochs=1, callbacks=options.pop("callbacks", []))
        trainer.fit(module, indexed(8, shuffle=shuffle), **options)
        return trainer

    torch.manual_seed(3)
    whole = Line()
    keeper = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=3, save_top_k=-1)
    fit(whole, callbacks=[keeper])
    resumed = Line()
    trainer = fit(resumed, ckpt_path=tmp_path / "step=3.ckpt")
    assert resumed.seen == whole.seen[3:]
    assert trainer.global_step == 8
    assert_equal_weights(resumed, whole)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
        lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [1, 3]),
        lambda o: torch.optim.lr_scheduler.LinearLR(o),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=9),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[2],
        ),
        lambda o: torch.optim.lr_scheduler.ChainedScheduler(
            [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
        ),
    ],
    ids=[
        "lambda",
        "factor",
        "milestones",
        "linear",
        "polynomial",
        "cosine",
        "restarts",
        "one cycle",
        "cyclic",
        "sequential",
        "chained",
    ],
)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_every_scheduler_of_torch_goes_on_where_it_was(tmp_path, make, optimizer):
    class Scheduled(Line):
        def configure_optimizers(self):
            options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
            own = optimizer(self.parameters(), lr=0.05, **options)
            return {"optimizer": own, "lr_scheduler": {"scheduler": make(own), "interval": "step"}}

    whole, resumed = Scheduled(), Scheduled()
    saves = SavesAt(tmp_path, "on_train_batch_end")
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[saves]).fit(whole, indexed(6))
    quiet_trainer(tmp_path, max_epochs=1).fit(resumed, indexed(6), ckpt_path=saves.files[2])
    assert_equal_weights(resumed, whole)


# -- what is in a file ------------------------------------------------------------------------------------------------


def saved(root, module=None, **arguments):
    trainer = quiet_trainer(root, max_epochs=1, **arguments)
    trainer.fit(module or Line(), indexed(3))
    path = f"{root}/saved.ckpt"
    trainer.save_checkpoint(path)
    return trainer, path


def test_a_file_has_the_keys_that_this_field_knows(tmp_path):
    _, path = saved(tmp_path, callbacks=[EarlyStopping("x", strict=False)])
    file = torch.load(path, weights_only=True)
    expected = {"state_dict", "epoch", "global_step", "optimizer_states", "lr_schedulers", "callbacks", "loops"}
    assert {*expected, "hyper_parameters", "pytorch-lightning_version"} <= set(file)
    assert list(file["state_dict"]) == ["layer.weight", "layer.bias"]
    assert (file["epoch"], file["global_step"]) == (1, 3)
    assert "fit_loop" in file["loops"]


def test_weights_alone_can_be_saved_in_a_hook_or_after_the_fit(tmp_path):
    inside = []

    def save(trainer, _):
        inside.append(f"{tmp_path}/inside.ckpt")
        trainer.save_checkpoint(inside[-1], weights_only=True)

    trainer, _ = saved(tmp_path, callbacks=[Calls(on_train_epoch_end=save)])
    trainer.save_checkpoint(tmp_path / "after.ckpt", weights_only=True)
    for path in (inside[0], tmp_path / "after.ckpt"):
        file = torch.load(path, weights_only=True)
        assert "state_dict" in file
        assert "optimizer_states" not in file
        with pytest.raises(MisconfigurationError, match=r"weights only.*Line.load_from_checkpoint"):
            quiet_trainer(tmp_path, max_epochs=2).fit(Line(), indexed(3), ckpt_path=path)
        assert torch.equal(Line.load_from_checkpoint(path).layer.weight, trainer.model.layer.weight)
        assert quiet_trainer(tmp_path).validate(Line(), indexed(1), ckpt_path=path, verbose=False) == [{}]


def test_before_any_fit_there_is_nothing_to_save(tmp_path):
    with pytest.raises(MisconfigurationError, match="call `fit` first"):
        quiet_trainer(tmp_path).save_checkpoint(tmp_path / "x.ckpt")


class Hooked(Line):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["of_module"] = 1

    def on_load_checkpoint(self, checkpoint):
        self.loaded = checkpoint["of_module"]


class HookedCallback(Callback):
    def __init__(self):
        self.count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]

    def on_train_batch_end(self, *_):
        self.count += 1

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["of_callback"] = 2

    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        self.loaded = checkpoint["of_callback"]


class HookedData(DataModule):
    value = 0

    def train_dataloader(self):
        return indexed(3)

    def state_dict(self):
        return {"value": 7}

    def load_state_dict(self, state_dict):
        self.value = state_dict["value"]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["of_data"] = 3

    def on_load_checkpoint(self, checkpoint):
        self.loaded = checkpoint["of_data"]


def hooked_run(root):
    trainer = quiet_trainer(root, max_epochs=1, callbacks=[HookedCallback()])
    trainer.fit(Hooked(), datamodule=HookedData())
    trainer.save_checkpoint(root / "hooked.ckpt")
    module, callback, data = Hooked(), HookedCallback(), HookedData()
    resumed = quiet_trainer(root, max_epochs=2, callbacks=[callback])
    resumed.fit(module, datamodule=data, ckpt_path=root / "hooked.ckpt")
    return module, callback, data


def test_module_and_callbacks_may_change_the_checkpoint_and_their_states_come_back(tmp_path):
    module, callback, data = hooked_run(tmp_path)
    assert (module.loaded, callback.loaded) == (1, 2)
    assert callback.count == 6
    assert data.value == 7
    assert Hooked.load_from_checkpoint(tmp_path / "hooked.ckpt").loaded == 1


def test_the_data_module_may_change_the_checkpoint_as_well(tmp_path):
    *_, data = hooked_run(tmp_path)
    assert data.loaded == 3


def test_the_state_of_absent_callbacks_is_named(tmp_path):
    _, path = saved(tmp_path, callbacks=[HookedCallback()])
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    with pytest.warns(UserWarning, match=r"callbacks that are not there now: \['HookedCallback'\]"):
        trainer.fit(Line(), indexed(3), ckpt_path=path)


def test_another_number_of_optimizers_or_schedulers_is_an_error(tmp_path):
    class Scheduled(Line):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    _, path = saved(tmp_path)
    with pytest.raises(MisconfigurationError, match="checkpoint has 0 schedulers, this run has 1"):
        quiet_trainer(tmp_path, max_epochs=2).fit(Scheduled(), indexed(3), ckpt_path=path)


def test_a_state_that_is_captured_does_not_change_with_training():
    tree = {"a": [torch.zeros(2), (torch.zeros(1),)], "b": {"c": [1]}}
    copied = copy_to_cpu(tree)
    tree["a"][0].add_(1)
    tree["a"][1][0].add_(1)
    tree["b"]["c"].append(2)
    assert copied["a"][0].tolist() == [0, 0]
    assert copied["a"][1][0].tolist() == [0]
    assert copied["b"]["c"] == [1]


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = f"{tmp_path}/x.ckpt"
    storage.save({"a": torch.ones(3)}, path)
    with pytest.raises(Exception, match="pickle"):
        storage.save({"a": torch.zeros(100_000), "b": lambda: None}, path)
    assert os.listdir(tmp_path) == ["x.ckpt"]
    assert storage.load(path)["a"].tolist() == [1, 1, 1]


def test_a_write_that_fails_behind_the_loop_reaches_the_caller(tmp_path):
    class Bad(Line):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["bad"] = lambda: None

    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[ModelCheckpoint(dirpath=tmp_path / "files")])
    with pytest.raises(Exception, match=r"pickle|lambda"):
        trainer.fit(Bad(), indexed(1))
    assert os.listdir(tmp_path / "files") == []


class Malicious:
    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


# Torch words its refusal in two ways: of whole modules such as `os`, and of single names.
@pytest.mark.parametrize(
    "attack",
    [lambda path: Malicious(os.mkdir, path), lambda path: Malicious(open, path, "w")],
    ids=["os.mkdir", "open"],
)
def test_a_file_that_would_run_code_runs_none_and_says_so(tmp_path, attack):
    trap, bad = tmp_path / "trap", tmp_path / "bad.ckpt"
    torch.save({"state_dict": {}, "x": attack(str(trap))}, bad)
    for load in (
        lambda: storage.load(str(bad)),
        lambda: Line.load_from_checkpoint(bad),
        lambda: quiet_trainer(tmp_path, max_epochs=1).fit(Line(), indexed(1), ckpt_path=bad),
        lambda: quiet_trainer(tmp_path).validate(Line(), indexed(1), ckpt_path=bad),
    ):
        with pytest.raises(CheckpointError, match=r"bad\.ckpt.*trust"):
            load()
    assert not trap.exists()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_a_checkpoint_error(tmp_path, share):
    _, path = saved(tmp_path)
    content = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=r"saved.ckpt is damaged"):
        storage.load(path)


def equal_trees(one, other):
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(equal_trees(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal_trees, one, other))
    return one == other


def test_a_flipped_bit_anywhere_is_a_checkpoint_error_or_harmless(tmp_path):
    path = tmp_path / "x.ckpt"
    content = {"state_dict": {"w": torch.arange(50.0)}, "epoch": 3, "names": ["one", "two"]}
    storage.save(content, str(path))
    good = path.read_bytes()
    wrong = []
    for position in range(0, len(good), 11):
        path.write_bytes(good[:position] + bytes([good[position] ^ 4]) + good[position + 1 :])
        try:
            if not equal_trees(storage.load(str(path)), content):
                wrong.append(f"byte {position}: other content")
        except CheckpointError:
            pass
        except Exception as error:
            wrong.append(f"byte {position}: {type(error).__name__}")
    assert wrong == []


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path):
    path = tmp_path / "x.ckpt"
    storage.save({"w": torch.zeros(1000)}, str(path))
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + 1000] ^= 64
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        storage.load(str(path))


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04nothing", bytes(1000)], ids=lambda c: repr(c[:12]))
def test_what_is_no_checkpoint_at_all_is_a_checkpoint_error(tmp_path, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.ckpt is damaged"):
        Line.load_from_checkpoint(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ckpt"):
        storage.load(f"{tmp_path}/none.ckpt")
    with pytest.raises(FileNotFoundError, match=r"none\.ckpt"):
        Line.load_from_checkpoint(f"{tmp_path}/none.ckpt")


def test_paths_and_times_are_loaded_without_trust(tmp_path):
    content = {
        "path": pathlib.Path("/a/b"),
        "pure": pathlib.PurePosixPath("c"),
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "date": datetime.date(2026, 1, 2),
        "delta": datetime.timedelta(hours=3),
    }
    storage.save(content, f"{tmp_path}/x.ckpt")
    assert storage.load(f"{tmp_path}/x.ckpt") == content


def test_other_storages_work_like_local_folders():
    root = f"memory://unit-{os.getpid()}"
    trainer = quiet_trainer(root, max_epochs=2, callbacks=[ModelCheckpoint(save_last=True, save_top_k=1)])
    trainer.fit(Line(), indexed(3))
    keeper = trainer.checkpoint_callback
    assert keeper.best_model_path == f"{root}/checkpoints/epoch=1-step=6.ckpt"
    names = sorted(os.path.basename(path) for path in storage.find(f"{root}/checkpoints/*.ckpt"))
    assert names == ["epoch=1-step=6.ckpt", "last.ckpt"]
    resumed = quiet_trainer(root, max_epochs=3)
    resumed.fit(Line(), indexed(3), ckpt_path=keeper.last_model_path)
    assert resumed.global_step == 9
    assert torch.equal(Line.load_from_checkpoint(keeper.best_model_path).layer.weight, trainer.model.layer.weight)
    storage.remove(root)
    assert not storage.exists(keeper.best_model_path)


# -- which file -------------------------------------------------------------------------------------------------------


def resolved(root, name, callbacks=(), fn="fit"):
    return resolve(name, fn, callbacks, f"{root}/restart", f"{root}/checkpoints")


def test_best_and_last_mean_files_of_the_one_checkpoint_callback(tmp_path):
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", monitor="score", save_last=True)
    trainer = quiet_trainer(tmp_path, max_epochs=3, callbacks=[keeper])
    trainer.fit(Validates([2.0, 1.0, 3.0, 0.0]), indexed(2), indexed(1))  # the last one is of `validate`
    for name, step in (("best", 4), ("last", 6)):
        path = resolved(tmp_path, name, [keeper], "test")
        assert torch.load(path)["global_step"] == step
    trainer.validate(dataloaders=indexed(1), ckpt_path="best", verbose=False)
    assert trainer.ckpt_path == keeper.best_model_path
    best = storage.load(keeper.best_model_path)["state_dict"]
    assert all(torch.equal(trainer.model.state_dict()[name], best[name]) for name in best)
    # Without a model the best file is taken, with one its own weights.
    trainer.validate(dataloaders=indexed(1), verbose=False)
    assert trainer.ckpt_path == keeper.best_model_path
    trainer.validate(trainer.model, indexed(1), verbose=False)
    assert trainer.ckpt_path is None


@pytest.mark.parametrize("count", [0, 2])
def test_best_needs_exactly_one_checkpoint_callback(tmp_path, count):
    keepers = [ModelCheckpoint(monitor=name) for name in "ab"[:count]]
    with pytest.raises(MisconfigurationError, match=f"needs one ModelCheckpoint, and there are {count or 'no'}"):
        resolved(tmp_path, "best", keepers)


def test_best_before_any_fit_says_why_there_is_none(tmp_path):
    with pytest.raises(MisconfigurationError, match="no fit has saved a checkpoint yet"):
        resolved(tmp_path, "best", [ModelCheckpoint()])


@pytest.mark.parametrize("name", ["last", "hpc"])
def test_a_missing_last_is_a_fresh_start_in_fit_and_an_error_elsewhere(tmp_path, name):
    module = Line()
    trainer = quiet_trainer(tmp_path, max_epochs=1)
    with pytest.warns(UserWarning, match=f'"{name}".*none yet.*starts from the beginning'):
        trainer.fit(module, indexed(2), ckpt_path=name)
    assert len(module.seen) == 2
    with pytest.raises(MisconfigurationError, match=f'"{name}".*Give a path, or fit first'):
        trainer.validate(module, indexed(1), ckpt_path=name)


def test_a_missing_path_is_an_error_that_says_what_else_there_is(tmp_path):
    with pytest.raises(FileNotFoundError, match=r'/no/x.ckpt.*"best", "last" or "hpc"'):
        resolved(tmp_path, "/no/x.ckpt")


def write(path, step, time_s):
    storage.save({"global_step": step, "state_dict": {}}, str(path))
    os.utime(path, (time_s, time_s))
    return str(path)


def test_hpc_is_the_newest_restart_checkpoint_of_any_run(tmp_path):
    write(tmp_path / "restart" / "a" / "batch=1.ckpt", 1, 100)
    newest = write(tmp_path / "restart" / "b" / "batch=2.ckpt", 2, 300)
    write(tmp_path / "restart" / "a" / "batch=3.ckpt", 3, 200)
    assert resolved(tmp_path, "hpc") == newest


@pytest.mark.parametrize("content", [b"", b"half a file", bytes(1000), b"PK\x03\x04" + bytes(1000)], ids=len)
def test_a_damaged_newest_file_is_named_and_the_one_before_it_is_used(tmp_path, content):
    older = write(tmp_path / "restart" / "a" / "batch=1.ckpt", 1, 100)
    newest = tmp_path / "restart" / "a" / "batch=2.ckpt"
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match=r"batch=2.ckpt is damaged.*The one before it is used"):
        assert resolved(tmp_path, "hpc") == older


@pytest.mark.parametrize("newer", ["restart", "last"])
def test_last_is_the_newest_of_restart_and_last_files(tmp_path, newer):
    keeper = ModelCheckpoint(dirpath=tmp_path / "files", save_last=True)
    files = {
        "restart": write(tmp_path / "restart" / "run" / "batch=1.ckpt", 1, 200 if newer == "restart" else 100),
        "last": write(tmp_path / "files" / "last.ckpt", 2, 100 if newer == "restart" else 200),
    }
    assert resolved(tmp_path, "last", [keeper]) == files[newer]


def test_last_is_found_by_a_new_trainer_of_the_same_root(tmp_path):
    def trainer(epochs):
        return quiet_trainer(tmp_path, max_epochs=epochs, callbacks=[ModelCheckpoint(save_last=True)])

    trainer(1).fit(Line(), indexed(2))
    module = Line()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer(2).fit(module, indexed(2), ckpt_path="last")
    assert len(module.seen) == 2


def test_a_second_name_for_a_file_outlives_the_first(tmp_path):
    path, last = f"{tmp_path}/a.ckpt", f"{tmp_path}/last.ckpt"
    storage.save({"x": 1}, path)
    storage.copy(path, last)
    storage.remove(path)
    storage.remove(path)
    assert storage.load(last) == {"x": 1}
    storage.save({"x": 2}, path)
    storage.copy(path, last)
    assert storage.load(last) == {"x": 2}
    assert sorted(os.listdir(tmp_path)) == ["a.ckpt", "last.ckpt"]


def test_files_under_way_are_not_found(tmp_path):
    storage.save({}, f"{tmp_path}/a.ckpt")
    shutil.copy(tmp_path / "a.ckpt", tmp_path / "b.ckpt.tmp-1234")
    shutil.copy(tmp_path / "a.ckpt", tmp_path / f"c{storage.TEMPORARY}.ckpt")
    assert storage.find(f"{tmp_path}/*.ckpt*") == [f"{tmp_path}/a.ckpt"]


class Opaque:
    """Something whose code would run when it is loaded."""


@pytest.mark.parametrize("owner", ["callback", "datamodule"])
def test_a_state_that_would_run_code_is_refused_when_it_is_first_kept(tmp_path, owner):
    class Keeps(Callback):
        def state_dict(self):
            return {"it": Opaque()} if owner == "callback" else {}

    class Data(DataModule):
        def train_dataloader(self):
            return indexed(1)

        def state_dict(self):
            return {"it": Opaque()} if owner == "datamodule" else {}

    with pytest.raises(MisconfigurationError, match="`state_dict` of .* holds objects whose code would run"):
        quiet_trainer(tmp_path, max_epochs=1, callbacks=[Keeps()]).fit(Line(), datamodule=Data())
    quiet_trainer(tmp_path, max_epochs=1, callbacks=[Keeps()], trusted_checkpoints=True).fit(Line(), datamodule=Data())
