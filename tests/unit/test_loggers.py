"""What CSVLogger and TensorBoardLogger leave in their folders: after a run, a restart, a resume, and from a worker."""

import copy
import csv
import io
import math
import os
import pickle
import sys
import time
import warnings

import fsspec
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.unit.models import Calls, Line, indexed, quiet_trainer
from torch import nn

from paceline.callbacks import ModelCheckpoint
from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.loggers import CSVLogger, TensorBoardLogger
from paceline.loggers.recorder import Recorder

KINDS = pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])


class Logs(Line):
    """Logs the number that each batch consists of, per step, and its mean per epoch."""

    def __init__(self, lr=0.01, hidden=(4, 8)):
        super().__init__(lr)
        self.save_hyperparameters()

    def training_step(self, batch, batch_idx):
        self.log("number", batch.mean(), on_step=True, on_epoch=True)
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val_number", batch.mean())


def table(folder):
    with fsspec.open(f"{folder}/metrics.csv", "rt") as file:
        return list(csv.DictReader(file))


def curve(folder, name):
    return [(int(row["step"]), float(row[name])) for row in table(folder) if row.get(name)]


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    return accumulator.Reload()


def scalars(folder, tag):
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def read(kind, folder, name):
    return curve(folder, name) if kind is CSVLogger else scalars(folder, name)


def started(logger, root, run_key="run"):
    logger.start(run_key, f"{root}/.paceline/spool")
    return logger


# -- both ---------------------------------------------------------------------------------------------------------


def test_a_trainer_writes_steps_epochs_and_validations_to_several_loggers_at_once(tmp_path):
    loggers = [CSVLogger(tmp_path), TensorBoardLogger(tmp_path)]
    trainer = quiet_trainer(tmp_path, logger=loggers, max_epochs=2, log_every_n_steps=2)
    trainer.fit(Logs(), indexed(4), indexed(3))
    assert trainer.log_dir == f"{tmp_path}/csv_logs/version_0" == loggers[0].log_dir
    for kind, folder in ((CSVLogger, "csv_logs"), (TensorBoardLogger, "paceline_logs")):
        run = tmp_path / folder / "version_0"
        assert read(kind, run, "number_step") == [(1, 1.0), (3, 3.0), (5, 1.0), (7, 3.0)]
        assert read(kind, run, "number_epoch") == [(3, 1.5), (7, 1.5)]
        assert read(kind, run, "val_number") == [(3, 1.0), (7, 1.0)]
        hyperparameters = yaml.safe_load((run / "hparams.yaml").read_text())
        assert (hyperparameters["lr"], hyperparameters["hidden"]) == (0.01, [4, 8])
        assert hyperparameters["trainer"]["max_epochs"] == 2
    assert {row["epoch"] for row in table(loggers[0].log_dir)} == {"0.0", "1.0"}
    assert not (tmp_path / ".paceline" / "rows").is_dir() or not os.listdir(tmp_path / ".paceline" / "rows")


@KINDS
def test_versions_count_up_from_what_is_there(kind, tmp_path):
    os.makedirs(tmp_path / "digits" / "version_6")
    os.makedirs(tmp_path / "digits" / "version_x")
    first, second = (kind(tmp_path, name="digits") for _ in range(2))
    assert first.version == second.version == "version_7"  # neither has begun
    assert [started(first, tmp_path, "one").version, started(second, tmp_path, "two").version] == [
        "version_7", "version_8",
    ]  # fmt: skip
    assert started(first, tmp_path, "three").version == "version_9"
    for logger in (first, second):
        logger.close(1.0)


@KINDS
@pytest.mark.parametrize(("version", "folder"), [(3, "version_3"), ("mine", "mine"), (0, "version_0")])
def test_a_version_can_be_given(kind, version, folder, tmp_path):
    logger = kind(tmp_path, name="", version=version)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.finalize("finished")
    assert logger.log_dir == f"{tmp_path}/{folder}"
    assert read(kind, tmp_path / folder, "loss") == [(0, 1.0)]


@KINDS
def test_a_version_that_another_run_has_is_said(kind, tmp_path):
    first = started(kind(tmp_path, version=1), tmp_path, "one")
    first.log_metrics({"loss": 1.0}, 0)
    first.finalize("finished")
    same = kind(tmp_path, version=1)
    with pytest.warns(UserWarning, match="files of another run"):
        started(same, tmp_path, "two")
    same.close(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        started(kind(tmp_path, version=1), tmp_path, "one").close(1.0)


@KINDS
def test_without_save_dir_files_go_to_the_trainers_root(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = kind()
    assert logger.save_dir == str(tmp_path)
    logger.default_root_dir = "memory://root"
    assert logger.log_dir == f"memory://root/{logger.name}/version_0"
    assert kind("elsewhere").save_dir == f"{tmp_path}/elsewhere"


@KINDS
def test_a_prefix_is_put_before_each_value_but_not_before_the_epoch(kind, tmp_path):
    logger = kind(tmp_path, prefix="fold1")
    logger.log_metrics({"loss": 0.5, "epoch": 2.0}, 4)
    logger.finalize("finished")
    assert read(kind, logger.log_dir, "fold1-loss") == [(4, 0.5)]
    assert read(kind, logger.log_dir, "epoch") == [(4, 2.0)]


@KINDS
def test_nan_and_infinities_are_kept_and_what_is_no_number_is_said(kind, tmp_path):
    logger = kind(tmp_path)
    with pytest.warns(UserWarning, match="'word' is not recorded"):
        logger.log_metrics({"a": math.nan, "b": math.inf, "c": -math.inf, "word": "text"}, 0)
    logger.finalize("finished")
    assert math.isnan(read(kind, logger.log_dir, "a")[0][1])
    assert read(kind, logger.log_dir, "b") == [(0, math.inf)]
    assert read(kind, logger.log_dir, "c") == [(0, -math.inf)]


@KINDS
def test_a_run_resumed_by_another_process_goes_on_in_its_folder_with_each_step_once(kind, tmp_path):
    keeper = ModelCheckpoint(tmp_path, filename="{epoch}", auto_insert_metric_name=False, save_top_k=-1)
    options = {"max_epochs": 3, "log_every_n_steps": 1, "callbacks": [keeper]}
    quiet_trainer(tmp_path, logger=kind(tmp_path), **options).fit(Logs(), indexed(4))
    again = kind(tmp_path)
    quiet_trainer(tmp_path, logger=again, **options).fit(Logs(), indexed(4), ckpt_path=tmp_path / "0.ckpt")
    assert again.version == "version_0"
    assert read(kind, again.log_dir, "number_step") == [(step, step % 4) for step in range(12)]
    assert read(kind, again.log_dir, "number_epoch") == [(3, 1.5), (7, 1.5), (11, 1.5)]
    quiet_trainer(tmp_path, logger=again, **options).fit(Logs(), indexed(4))
    assert again.version == "version_1"


@KINDS
def test_steps_that_are_run_again_after_a_restart_are_recorded_once(kind, tmp_path):
    logger = started(kind(tmp_path), tmp_path)
    for step in (0, 1, 2, 3, 2, 3, 4):
        logger.log_metrics({"loss": step / 2, "epoch": 0.0}, step)
    logger.finalize("finished")
    assert sorted(read(kind, logger.log_dir, "loss")) == [(step, step / 2) for step in range(5)]


@KINDS
def test_what_a_worker_logs_is_written_on_the_drivers_machine(kind, tmp_path):
    logger = started(kind(tmp_path), tmp_path)
    in_worker = pickle.loads(pickle.dumps(logger))
    session = Recorder(logger.spool)  # what the session has for each logger
    in_worker.attach(session)
    assert in_worker.log_dir == logger.log_dir
    for step in range(3):
        in_worker.log_metrics({"loss": step / 2, "epoch": 0.0}, step)
    in_worker.log_metrics({"val_loss": 7.0, "epoch": 0.0}, 2)
    in_worker.log_hyperparams({"lr": 0.5})
    session.close()
    logger.finalize("finished")
    assert read(kind, logger.log_dir, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert read(kind, logger.log_dir, "val_loss") == [(2, 7.0)]
    if kind is CSVLogger:
        assert [row["epoch"] for row in table(logger.log_dir)] == ["0.0"] * 4
    with open(f"{logger.log_dir}/hparams.yaml") as file:
        assert yaml.safe_load(file) == {"lr": 0.5}
    assert not os.path.exists(logger.spool)


def test_a_workers_rows_are_there_while_it_still_runs(tmp_path):
    logger = started(CSVLogger(tmp_path, flush_logs_every_n_steps=1), tmp_path)
    session = Recorder(logger.spool)
    in_worker = pickle.loads(pickle.dumps(logger))
    in_worker.attach(session)
    in_worker.log_metrics({"loss": 1.0}, 0)
    path = tmp_path / "csv_logs" / "version_0" / "metrics.csv"
    deadline = time.monotonic() + 20.0
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert curve(path.parent, "loss") == [(0, 1.0)]
    session.close()
    logger.close(1.0)


@KINDS
def test_a_folder_that_takes_no_files_is_said_and_training_goes_on(kind, tmp_path):
    logger = kind(tmp_path, version=0)
    (tmp_path / logger.name).mkdir()
    (tmp_path / logger.name / ".runs").mkdir()
    (tmp_path / logger.name / "version_0").write_text("no folder")
    trainer = quiet_trainer(tmp_path, logger=logger, max_epochs=1, log_every_n_steps=1)
    with pytest.warns(UserWarning, match=f"{kind.__name__} cannot write to"):
        trainer.fit(Logs(), indexed(2))
    assert trainer.global_step == 2


def test_hyperparameters_of_any_kind_become_plain_yaml(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_hyperparams({"optimizer": {"lr": 1e-4, "betas": (0.9, 0.999)}, "cls": nn.Linear, "name": "é"})
    logger.log_hyperparams({"depth": True, "nothing": None, "lr": float("inf")})
    with open(f"{logger.log_dir}/hparams.yaml", encoding="utf-8") as file:
        assert yaml.safe_load(file) == {
            "optimizer": {"lr": 1e-4, "betas": [0.9, 0.999]},
            "cls": "torch.nn.modules.linear.Linear",
            "name": "é",
            "depth": True,
            "nothing": None,
            "lr": math.inf,
        }


# -- CSVLogger ----------------------------------------------------------------------------------------------------


def test_new_columns_rewrite_the_file_and_leave_other_cells_empty(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 0.1}, 0)
    logger.log_metrics({"loss": 0.2, "accuracy": 1 / 3}, 1)
    logger.log_metrics({"accuracy": 1.0}, 2)
    assert table(logger.log_dir) == [
        {"step": "0", "loss": "0.1", "accuracy": ""},
        {"step": "1", "loss": "0.2", "accuracy": repr(1 / 3)},
        {"step": "2", "loss": "", "accuracy": "1.0"},
    ]
    assert os.listdir(logger.log_dir) == ["metrics.csv"]


def test_rows_of_known_columns_are_appended(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    logger.log_metrics({"loss": 0.0}, 0)
    with open(f"{logger.log_dir}/metrics.csv") as reader:  # as `tail -f` does
        reader.read()
        logger.log_metrics({"loss": 0.5}, 1)
        assert reader.read() == "1,0.5\n"


def test_rows_wait_until_so_many_steps_have_passed(tmp_path):
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=10)
    steps_on_disk = []
    for step in range(0, 36, 5):
        logger.log_metrics({"loss": 1.0}, step)
        steps_on_disk.append(curve(logger.log_dir, "loss")[-1][0])
    assert steps_on_disk == [0, 0, 10, 10, 20, 20, 30, 30]
    logger.save()
    assert [step for step, _ in curve(logger.log_dir, "loss")] == list(range(0, 36, 5))
    with pytest.raises(MisconfigurationError, match="1 or more"):
        CSVLogger(tmp_path, flush_logs_every_n_steps=0)


def test_of_a_step_that_is_measured_again_the_newest_value_stays(tmp_path):
    logger = started(CSVLogger(tmp_path), tmp_path)
    for values, step in (({"loss": 1.0, "a": 1.0}, 0), ({"loss": 2.0}, 1), ({"other": 5.0}, 1), ({"loss": 3.0}, 0)):
        logger.log_metrics(values, step)
        logger.save()
    assert sorted(curve(logger.log_dir, "loss")) == [(0, 3.0), (1, 2.0)]
    assert curve(logger.log_dir, "a") == [(0, 1.0)]
    assert curve(logger.log_dir, "other") == [(1, 5.0)]
    logger.close(1.0)


def test_a_line_that_a_kill_cut_is_left_out(tmp_path):
    logger = CSVLogger(tmp_path, version=0)
    for step in range(3):
        logger.log_metrics({"loss": 0.25, "accuracy": 0.5}, step)
    logger.finalize("killed")
    path = tmp_path / "csv_logs" / "version_0" / "metrics.csv"
    path.write_text(path.read_text()[:-5])
    again = CSVLogger(tmp_path, version=0)
    again.log_metrics({"loss": 0.75, "accuracy": 1.0}, 3)
    again.finalize("finished")
    assert curve(path.parent, "loss") == [(0, 0.25), (1, 0.25), (3, 0.75)]
    assert curve(path.parent, "accuracy") == [(0, 0.5), (1, 0.5), (3, 1.0)]


def test_a_url_works_as_a_folder_does(tmp_path):
    url = f"memory://{tmp_path.name}"
    loggers = [CSVLogger(url), TensorBoardLogger(url)]
    trainer = quiet_trainer(tmp_path, logger=loggers, max_epochs=1, log_every_n_steps=1)
    trainer.fit(Logs(), indexed(4))
    assert curve(f"{url}/csv_logs/version_0", "number_step") == [(step, float(step)) for step in range(4)]
    with fsspec.open(f"{url}/csv_logs/version_0/hparams.yaml", "rt") as file:
        assert yaml.safe_load(file)["lr"] == 0.01
    assert CSVLogger(url).version == TensorBoardLogger(url).version == "version_1"
    memory = fsspec.filesystem("memory")
    memory.get(f"/{tmp_path.name}/paceline_logs/version_0/", f"{tmp_path}/copy/", recursive=True)
    assert scalars(tmp_path / "copy", "number_step") == [(step, float(step)) for step in range(4)]
    memory.rm(f"/{tmp_path.name}", recursive=True)


# -- TensorBoardLogger --------------------------------------------------------------------------------------------


def hyperparameter_table(folder):
    """The hyperparameters, and the names of the metrics beside them, that TensorBoard's table shows."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = events(folder).PluginTagToContent("hparams")
    begin = HParamsPluginData.FromString(found["_hparams_/session_start_info"]).session_start_info
    metrics = HParamsPluginData.FromString(found["_hparams_/experiment"]).experiment.metric_infos
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in begin.hparams.items()}
    return values, [metric.name.tag for metric in metrics]


def test_hyperparameters_are_in_tensorboards_table(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    logger.log_hyperparams({"optimizer": {"lr": 0.5, "name": "sgd"}, "nested": True, "sizes": [1, 2]})
    logger.finalize("finished")
    assert hyperparameter_table(logger.log_dir) == (
        {"optimizer/lr": 0.5, "optimizer/name": "sgd", "nested": True, "sizes": "[1, 2]"},
        ["hp_metric"],
    )
    assert scalars(logger.log_dir, "hp_metric") == [(0, -1.0)]


def test_hp_metric_is_written_once_and_gives_way_to_the_users(tmp_path):
    logger = started(TensorBoardLogger(tmp_path), tmp_path)
    logger.log_hyperparams({"lr": 0.5})
    logger.log_metrics({"hp_metric": 0.75}, 0)
    logger.finalize("finished")
    again = started(TensorBoardLogger(tmp_path), tmp_path)
    again.log_hyperparams({"lr": 0.5})
    again.finalize("finished")
    assert scalars(again.log_dir, "hp_metric") == [(0, -1.0), (0, 0.75)]


def test_metrics_can_be_named_beside_hyperparameters_or_none_at_all(tmp_path):
    named = TensorBoardLogger(tmp_path)
    named.log_hyperparams({"lr": 0.5}, {"accuracy": 0.25})
    none = TensorBoardLogger(tmp_path, default_hp_metric=False)
    none.log_hyperparams({"lr": 0.5})
    for logger in (named, none):
        logger.finalize("finished")
    assert hyperparameter_table(named.log_dir) == ({"lr": 0.5}, ["accuracy"])
    assert scalars(named.log_dir, "accuracy") == [(0, 0.25)]
    assert hyperparameter_table(none.log_dir) == ({"lr": 0.5}, [])
    assert events(none.log_dir).Tags()["scalars"] == []


@pytest.mark.parametrize("elsewhere", [False, True], ids=["in process", "on a worker"])
def test_the_experiment_is_a_summary_writer(elsewhere, tmp_path):
    logger = started(TensorBoardLogger(tmp_path), tmp_path)
    used = pickle.loads(pickle.dumps(logger)) if elsewhere else logger
    session = Recorder(logger.spool)
    if elsewhere:
        used.attach(session)
    used.experiment.add_image("picture", torch.zeros(3, 2, 5), 4)
    used.experiment.add_text("note", "hello", 5)
    used.experiment.add_scalar("own", 0.5, 6)
    used.save()
    session.close()
    logger.finalize("finished")
    found = events(logger.log_dir)
    assert [(image.step, image.height, image.width) for image in found.Images("picture")] == [(4, 2, 5)]
    assert found.Tensors("note/text_summary")[0].step == 5
    assert scalars(logger.log_dir, "own") == [(6, 0.5)]


def test_events_go_to_a_sub_folder_and_are_there_after_save(tmp_path):
    logger = TensorBoardLogger(tmp_path, sub_dir="train", filename_suffix=".mine", max_queue=100)
    logger.log_metrics({"loss": 1.0}, 0)
    logger.save()
    (file,) = os.listdir(f"{logger.log_dir}/train")
    assert file.endswith(".mine")
    assert scalars(f"{logger.log_dir}/train", "loss") == [(0, 1.0)]


class Drops(Line):
    """Draws random numbers in its forward pass, and has one part in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.example_input_array = torch.ones(2, 1)
        self.net = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
        self.net[2].eval()

    def forward(self, x):
        return self.net(x + torch.rand_like(x)) + super().forward(x).sum()


def graph_unseen(trainer, module):
    def state():
        return [part.training for part in module.modules()], torch.get_rng_state().tolist(), module.state_dict()

    before = copy.deepcopy(state())
    trainer.logger.log_graph(module)
    after = state()
    assert after[:2] == before[:2]
    assert all(torch.equal(value, before[2][name]) for name, value in after[2].items())


def test_the_graph_is_recorded_and_the_module_is_as_it_was(tmp_path):
    module = Drops()
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    trainer = quiet_trainer(tmp_path, logger=logger, callbacks=[Calls(on_train_start=graph_unseen)], max_epochs=1)
    trainer.fit(module, indexed(1))
    nodes = [node.name for node in events(logger.log_dir).Graph().node]
    assert any("Linear[0]" in node for node in nodes)


def test_a_graph_that_cannot_be_recorded_is_said(tmp_path):
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    with pytest.warns(UserWarning, match="no `example_input_array`"):
        logger.log_graph(Line())
    module = Line()
    module.example_input_array = torch.ones(2, 7)
    with pytest.warns(UserWarning, match="cannot be followed"):
        logger.log_graph(module)
    unasked = TensorBoardLogger(tmp_path)
    unasked.log_graph(Drops())
    unasked.finalize("finished")
    assert not os.path.exists(unasked.log_dir)


def test_wrong_arguments_and_missing_packages_are_said(tmp_path, monkeypatch):
    with pytest.raises(ArgumentTypeError, match="Did you mean `flush_secs`"):
        TensorBoardLogger(tmp_path, flush_sec=3)
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    TensorBoardLogger(tmp_path)
    with pytest.raises(MisconfigurationError, match="pip install tensorboard`"):
        TensorBoardLogger(tmp_path, log_graph=True)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MisconfigurationError, match="pip install tensorboardX`"):
        TensorBoardLogger(tmp_path)


def test_an_event_file_whose_end_a_kill_cut_is_read_as_far_as_it_goes(tmp_path):
    logger = started(TensorBoardLogger(tmp_path), tmp_path)
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step)
    logger.finalize("killed")
    (path,) = (file for file in os.scandir(logger.log_dir) if "tfevents" in file.name)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 7)
    again = started(TensorBoardLogger(tmp_path), tmp_path)
    for step in range(4):
        again.log_metrics({"loss": 2.0}, step)
    again.finalize("finished")
    assert scalars(again.log_dir, "loss") == [(0, 1.0), (1, 1.0), (2, 2.0), (3, 2.0)]


def test_csv_text_is_what_the_csv_module_writes(tmp_path):
    logger = CSVLogger(tmp_path)
    logger.log_metrics({'odd, "name"': 1.5}, 0)
    logger.save()
    expected = io.StringIO()
    writer = csv.writer(expected, lineterminator="\n")
    writer.writerows([["step", 'odd, "name"'], [0, 1.5]])
    with open(f"{logger.log_dir}/metrics.csv") as file:
        assert file.read() == expected.getvalue()
