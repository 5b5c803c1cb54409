"""Workers under Ray Train: what holds for those on actors holds for them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.index_data import IndexData
from tests.integration import tasks, test_workers
from tests.integration.test_workers import fit, trainer
from torch.utils.data import DataLoader

from paceline.errors import MisconfigurationError, WorkerDiedError

pytestmark = pytest.mark.usefixtures("local_ray")

test_each_sample_counts_once = test_workers.test_each_sample_counts_once_in_a_test_and_names_are_reduced_apart
test_a_second_fit_goes_on = test_workers.test_a_second_fit_goes_on_where_the_first_ended


@pytest.fixture(autouse=True)
def under_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher of all trainers here; its controller looks at the workers oftener than every two seconds."""
    monkeypatch.setenv("PACELINE_TRAINER_LAUNCHER", "ray_train")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")


def test_two_workers_train_like_one_with_the_global_batch(tmp_path: Path) -> None:
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}
    test_workers.test_two_workers_train_like_one_with_the_global_batch(tmp_path, options)
    assert not list(tmp_path.glob(".paceline/ray_train/*"))


def test_predictions_come_in_the_order_of_the_data(tmp_path: Path) -> None:
    predictions = trainer(tmp_path).predict(tasks.IndexModule(), DataLoader(IndexData(5)))
    assert [int(batch) for batch in predictions] == [0, 1, 2, 3, 4]


def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path, capfd: Any) -> None:
    test_workers.test_a_killed_worker_costs_nothing_but_time(tmp_path, rank=1)
    assert "Ray Train has started 2 workers again: the run goes on from" in capfd.readouterr().err


def test_workers_that_die_too_often_are_an_error(tmp_path: Path) -> None:
    killer = tasks.KillsWorker(1, step=3, marker=str(tmp_path / "killed"))
    with pytest.raises(WorkerDiedError, match="Workers died more often than `max_failures=0` allows"):
        fit(tmp_path, callbacks=[killer], max_failures=0)


def test_a_workers_error_arrives_with_its_traceback_and_is_not_tried_again(tmp_path: Path) -> None:
    module = tasks.FailsAt(rank=1, batch=3, traces=str(tmp_path))
    begin = tmp_path / "begin"
    with pytest.raises(ZeroDivisionError, match="this batch cannot be divided") as caught:
        trainer(tmp_path, callbacks=[tasks.Slow(0.0, str(begin))]).fit(module, tasks.loader())
    assert time.time() - begin.stat().st_mtime < 10
    (note,) = caught.value.__notes__
    assert "worker 1" in note
    assert "tasks.py" in note
    assert {path.name for path in tmp_path.glob("teardown-*")} == {"teardown-0", "teardown-1"}
    assert not any(b"RayTrainWorker" in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))


def test_an_interrupted_script_saves(tmp_path: Path) -> None:
    test_workers.interrupt(tmp_path, devices=2, signum=signal.SIGINT)


def test_workers_stay_in_the_drivers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tasks.Remembers(str(tmp_path))
    (result,) = trainer(tmp_path, callbacks=[memory]).test(tasks.WhereModule(), DataLoader(IndexData(2)), verbose=False)
    assert result == {"is_here": 1.0}
    assert os.environ.get("RAY_CHDIR_TO_TRIAL_DIR") is None


def test_no_room_is_an_error_in_time(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationError, match=r"no room for 2 workers after 3 s \(`start_timeout`\).*teapot"):
        trainer(tmp_path, resources_per_worker={"teapot": 2}, start_timeout=3).test(
            tasks.IndexModule(), DataLoader(IndexData(2))
        )
