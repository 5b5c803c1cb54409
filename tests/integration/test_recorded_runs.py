"""Runs on Ray workers in MLflow: one run each, whatever happens to the workers."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integration import tasks

from paceline import Trainer, seed_everything
from paceline.callbacks import ModelCheckpoint
from paceline.loggers import MLflowLogger

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


def trainer(tmp_path: Path, store: str, experiment: str, **arguments: Any) -> Trainer:
    return Trainer(
        devices=2,
        max_epochs=2,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        logger=MLflowLogger(experiment, tracking_uri=store),
        **arguments,
    )


def recorded(store: str, experiment: str) -> tuple[Any, Any]:
    """The client, and the one run of an experiment."""
    from mlflow import MlflowClient

    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return client, run


@pytest.mark.usefixtures("local_ray")
def test_a_run_whose_worker_was_killed_is_one_run_with_each_point_once(tmp_path: Path, store: str) -> None:
    seed_everything(5)
    killer = tasks.KillsWorker(0, step=8, marker=str(tmp_path / "killed"))
    with trainer(tmp_path, store, "killed", callbacks=[killer], restart_every_n_steps=5) as runner:
        runner.fit(tasks.Classifier(0.3), tasks.loader(), tasks.loader(10, shuffle=False))
        runner.test(dataloaders=tasks.loader(shuffle=False), verbose=False)
    assert (tmp_path / "killed").exists()
    client, run = recorded(store, "killed")
    assert run.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "train_loss_step")]
    assert steps == list(range(12))
    assert len(client.get_metric_history(run.info.run_id, "val_loss")) == 2
    assert run.data.metrics["test_acc"] > 0.5
    assert not list((tmp_path / ".paceline" / "spool").glob("*/"))


@pytest.mark.usefixtures("local_ray")
def test_a_run_that_raised_is_failed(tmp_path: Path, store: str) -> None:
    module = tasks.FailsAt(rank=1, batch=3, traces=str(tmp_path))
    with pytest.raises(ZeroDivisionError), trainer(tmp_path, store, "raised") as runner:
        runner.fit(module, tasks.loader(), tasks.loader(10, shuffle=False))
    assert recorded(store, "raised")[1].info.status == "FAILED"


@pytest.mark.usefixtures("local_ray")
def test_a_resumed_fit_goes_on_in_the_same_run(tmp_path: Path, store: str) -> None:
    def fit(max_epochs: int, ckpt_path: str | None) -> None:
        keeper = ModelCheckpoint(save_last=True)
        with trainer(tmp_path, store, "resumed", callbacks=[keeper]) as runner:
            runner.max_epochs = max_epochs
            runner.fit(tasks.Classifier(), tasks.loader(), ckpt_path=ckpt_path)

    fit(1, None)
    fit(2, "last")
    client, run = recorded(store, "resumed")
    steps = [point.step for point in client.get_metric_history(run.info.run_id, "train_loss_step")]
    assert steps == list(range(12))
    assert run.data.tags["paceline.changed/trainer/max_epochs"] == "2"


INTERRUPTED = """
import sys
from tests.integration import tasks
from paceline import Trainer
from paceline.loggers import MLflowLogger

if __name__ == "__main__":
    folder, store = sys.argv[1:]
    Trainer(
        devices=1, max_epochs=50, enable_progress_bar=False, default_root_dir=folder, log_every_n_steps=1,
        logger=MLflowLogger("interrupted", tracking_uri=store), callbacks=[tasks.Slow(0.1, folder + "/began")],
    ).fit(tasks.Classifier(), tasks.loader())
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_is_killed_in_mlflow_too(tmp_path: Path, store: str, signum: int) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED.replace('"interrupted"', f'"interrupted-{signum}"'))
    environment = {**__import__("os").environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), store], env=environment)
    while not (tmp_path / "began").exists():
        assert process.poll() is None
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signum)
    assert process.wait(60) != 0

    until = time.monotonic() + 60
    while True:
        try:
            client, run = recorded(store, f"interrupted-{signum}")
            if run.info.status != "RUNNING" or time.monotonic() > until:
                break
        except (AttributeError, ValueError):  # the sending process has yet to make it
            assert time.monotonic() < until
        time.sleep(0.5)
    assert run.info.status == "KILLED"
    assert len(client.get_metric_history(run.info.run_id, "train_loss_step")) >= 1
