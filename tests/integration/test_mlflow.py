"""Runs arrive in MLflow whole and once, whatever happens to the server or to the driver meanwhile."""

import contextlib
import json
import math
import os
import pathlib
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from tests.integration import tasks

from paceline import Callback, Trainer, seed_everything
from paceline.loggers import MLflowLogger

QUIET = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


class Server:
    """A real MLflow server on a port of its own, that can be killed and started again."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", f"sqlite:///{self.folder}/server.db",
            "--artifacts-destination", f"{self.folder}/artifacts",
        ]  # fmt: skip
        with open(f"{self.folder}/server.log", "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=QUIET, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self):
        until = time.monotonic() + 90
        while time.monotonic() < until:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return
            time.sleep(0.2)
        raise TimeoutError("the MLflow server does not start")

    def kill(self):
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory):
    """Takes a while to start: begins before the tests that do without it."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module", autouse=True)
def lonely_script(tmp_path_factory):
    """A script whose server is dead, and which does nothing about it. It mostly waits: meanwhile the others run."""
    folder = tmp_path_factory.mktemp("lonely")
    script = (
        "import atexit, time\nfrom paceline.loggers import MLflowLogger\n"
        "logger = MLflowLogger(tracking_uri='http://127.0.0.1:9')\n"
        f"logger.start('run-5', {str(folder)!r} + '/.paceline/spool')\n"
        "logger.log_metrics({'loss': 1.0}, 0)\nlogger.finalize('finished')\nassert logger.run_id is None\n"
        "print(logger._process.pid, flush=True)\nbegin = time.monotonic()\n"
        "atexit.unregister(logger._close_at_exit)\natexit.register(lambda: print(time.monotonic() - begin))\n"
        "atexit.register(logger._close_at_exit)\n"  # the last is called first
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    with process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """To make the tables of a database takes seconds: it is done once, and copied."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    with contextlib.chdir(path.parent):
        client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path)
    return f"sqlite:///{tmp_path}/mlflow.db"


def client(uri):
    from mlflow import MlflowClient

    return MlflowClient(uri)


def history(uri, run_id, name):
    return [(point.step, point.value) for point in client(uri).get_metric_history(run_id, name)]


def wait_for_end(pid):
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")


def sync(folder):
    command = [sys.executable, "-m", "paceline.cli", "sync", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_points_params_tags_files_and_the_model_arrive(tmp_path):
    import cloudpickle
    import torch

    store = f"sqlite:///{tmp_path}/mlflow.db"  # is not there yet
    logger = MLflowLogger("digits", run_name="first", tracking_uri=store, tags={"team": "vision"})
    logger.start("run-1", f"{tmp_path}/.paceline/spool")
    for step in range(2500):
        logger.log_metrics({"loss": 1.0 / (step + 1)}, step)
    logger.log_metrics({"odd/nan": math.nan, "odd/inf": math.inf, "recall@1": 0.5}, 3)
    logger.log_hyperparams({"lr": 0.1, "model": {"width": 64}, "long": "y" * 9000})
    report = tmp_path / "report.txt"
    report.write_text("all well")
    logger.log_artifact(str(report), "reports")
    path = f"{logger.spool}/x.module"
    with open(path, "wb") as file:
        cloudpickle.dump({"module": torch.nn.Linear(3, 2), "input": torch.ones(2, 3), "name": "model"}, file)
    logger.log_module(path)
    logger.finalize("finished")
    run_id = logger.run_id
    logger.close(90.0)
    assert not os.path.exists(logger.spool)

    run = client(store).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert history(store, run_id, "loss") == [(step, 1.0 / (step + 1)) for step in range(2500)]
    assert math.isnan(history(store, run_id, "odd/nan")[0][1])
    assert run.data.tags["paceline.inf/odd/inf"] == "inf at step 3"
    assert run.data.metrics["recall_x40_1"] == 0.5
    assert json.loads(run.data.tags["paceline.names"])["recall_x40_1"] == "recall@1"
    assert run.data.params["lr"] == "0.1"
    assert run.data.params["model/width"] == "64"
    place = re.search(r"artifact (\S+)\)$", run.data.params["long"])[1]
    with open(client(store).download_artifacts(run_id, place, str(tmp_path))) as file:
        assert json.load(file) == {"long": "y" * 9000}
    assert run.data.tags["team"] == "vision"
    assert run.data.tags["paceline.run"] == logger.version == "run-1"
    assert [file.path for file in client(store).list_artifacts(run_id, "reports")] == ["reports/report.txt"]
    models = client(store).search_logged_models([run.info.experiment_id])
    assert [(model.name, model.source_run_id, str(model.status)) for model in models] == [("model", run_id, "READY")]


def test_a_run_goes_on_with_other_hyperparameters_and_bad_names_take_nothing_with_them(tmp_path, store):
    root = f"{tmp_path}/.paceline/spool"
    for attempt, lr in enumerate((0.1, 0.2)):
        logger = MLflowLogger(tracking_uri=store)
        logger.start("run-2", root)
        logger.log_hyperparams({"lr": lr, "bad|name": 1, "": "empty", f"new-{attempt}": attempt})
        logger.log_metrics({"good": 1.0, "": 2.0, "a//b": 3.0, "n" * 300: 4.0}, step=attempt)
        copy = pickle.loads(pickle.dumps(logger))  # as in a worker of a cluster
        copy.attach(logger._recorder)
        copy.log_metrics({"good": 5.0}, step=10 + attempt)
        logger.log_metrics({"good": 6.0}, step=2**70)
        logger.finalize("failed")
        assert logger.run_id is not None
        logger.start("run-2", root)  # as `test` after `fit`
        logger.log_metrics({"test": 7.0}, step=attempt)
        logger.finalize("finished")
        logger.close(60.0)
        assert not os.path.exists(logger.spool)
    (run,) = client(store).search_runs([logger.experiment_id])
    assert run.info.run_id == logger.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params["lr"] == "0.1"
    assert run.data.tags["paceline.changed/lr"] == "0.2"
    assert {"new-0", "new-1", "bad_x7c_name", "_x110000_"} <= set(run.data.params)
    assert history(store, run.info.run_id, "good") == [(0, 1.0), (10, 5.0), (1, 1.0), (11, 5.0)]
    assert history(store, run.info.run_id, "test") == [(0, 7.0), (1, 7.0)]
    assert len(run.data.metrics) == 5
    refused = client(store).download_artifacts(run.info.run_id, "paceline/refused", str(tmp_path))
    found = [json.loads(path.read_text()) for path in sorted(pathlib.Path(refused).glob("*/refused.jsonl"))]
    assert [line["refused"]["step"] for line in found] == [2**70, 2**70]


def test_a_server_that_dies_costs_nothing_and_sync_sends_the_rest(tmp_path, server, capfd):
    server.wait()
    logger = MLflowLogger(tracking_uri=server.uri)
    logger.start("run-3", f"{tmp_path}/.paceline/spool")
    for step in range(500):
        logger.log_metrics({"loss": float(step)}, step)
    run_id = logger.run_id
    assert run_id is not None
    server.kill()
    costs = []
    for step in range(500, 1500):
        begin = time.perf_counter_ns()
        logger.log_metrics({"loss": float(step)}, step)
        costs.append((time.perf_counter_ns() - begin) / 1000)
    assert sorted(costs)[500] < 100.0
    logger.finalize("finished")
    begin = time.monotonic()
    logger.close(30.0)
    assert time.monotonic() - begin < 10.0
    said = capfd.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert re.search(rf"\d+ records of run run-3 are not in MLflow yet .*paceline sync {tmp_path}", said[0])
    logger._process.kill()  # as if the machine had gone down
    logger._process.wait()
    waits = sync(tmp_path)
    assert waits.returncode == 1
    assert "still wait" in waits.stdout

    server.start()
    server.wait()
    done = sync(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run-3" in done.stdout
    assert not os.path.exists(logger.spool)
    assert history(server.uri, run_id, "loss") == [(step, float(step)) for step in range(1500)]
    assert client(server.uri).get_run(run_id).info.status == "FINISHED"
    assert "Nothing waits" in sync(tmp_path).stdout


class Paced(Callback):
    """Makes every batch take 10 ms, and ends the server after the 100th."""

    def __init__(self, end_server):
        self.end_server = end_server
        self.seconds = 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(0.01)
        if trainer.global_step == 100:
            self.end_server()

    def on_train_start(self, trainer, pl_module):
        self.begin = time.monotonic()

    def on_train_end(self, trainer, pl_module):
        self.seconds = time.monotonic() - self.begin


def test_a_fit_whose_server_dies_ends_as_soon_and_with_the_same_weights(tmp_path, server, capfd):
    if server.process is None:
        server.start()
    server.wait()
    ends, weights = [], []
    for name, logger, end_server in (
        ("without", False, lambda: None),
        ("dying", MLflowLogger("dying", tracking_uri=server.uri), server.kill),
    ):
        seed_everything(5)
        module, paced = tasks.Classifier(0.3), Paced(end_server)
        trainer = Trainer(
            max_steps=400,
            max_epochs=-1,
            log_every_n_steps=1,
            logger=logger,
            callbacks=[paced],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path / name,
        )
        trainer.fit(module, tasks.loader())
        ends.append(paced.seconds)
        weights.append(module.state_dict())
    assert ends[1] < ends[0] + 10.0  # MLflow's own client would wait for minutes
    for key, value in weights[0].items():
        assert torch.equal(weights[1][key], value)
    trainer.close()
    assert "are not in MLflow yet" in capfd.readouterr().err

    server.start()
    server.wait()
    until = time.monotonic() + 30
    while sync(tmp_path / "dying").returncode:  # as long as this process lives, so does its sender, which is at it too
        assert time.monotonic() < until
        time.sleep(1)
    found = client(server.uri)
    (run,) = found.search_runs([found.get_experiment_by_name("dying").experiment_id])
    assert [step for step, _ in history(server.uri, run.info.run_id, "train_loss_step")] == list(range(400))
    assert run.info.status == "FINISHED"


def test_a_driver_that_is_killed_leaves_a_killed_run_with_all_its_points(tmp_path, store):
    script = (
        "import sys, time\nfrom paceline.loggers import MLflowLogger\n"
        f"logger = MLflowLogger(tracking_uri={store!r})\n"
        f"logger.start('run-4', {str(tmp_path)!r} + '/.paceline/spool')\n"
        "for step in range(300): logger.log_metrics({'loss': float(step)}, step)\n"
        "logger._recorder.flush(10.0)\nprint(logger._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    sender = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    wait_for_end(sender)
    assert not os.path.exists(f"{tmp_path}/.paceline/spool/run-4")
    (run,) = client(store).search_runs([client(store).get_experiment_by_name("paceline").experiment_id])
    assert run.info.status == "KILLED"
    assert history(store, run.info.run_id, "loss") == [(step, float(step)) for step in range(300)]


def test_a_script_that_never_closes_its_logger_ends_soon_even_without_a_server(lonely_script):
    said, complained = lonely_script.communicate(timeout=60)
    assert lonely_script.returncode == 0, complained
    assert "3 records of run run-5 are not in MLflow yet (http://127.0.0.1:9 does not answer: [Errno 111]" in complained
    sender, seconds = said.split()
    assert float(seconds) < 15.0
    wait_for_end(int(sender))
