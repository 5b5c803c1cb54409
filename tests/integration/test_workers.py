"""Two workers on Ray: the same results as one, whatever happens to them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.index_data import IndexData
from tests.integration import tasks
from torch.utils.data import DataLoader

from paceline import Trainer, seed_everything
from paceline.callbacks import ModelCheckpoint
from paceline.errors import MisconfigurationError, WorkerDiedError

pytestmark = pytest.mark.usefixtures("local_ray")


def trainer(tmp_path: Path, devices: int = 2, callbacks: Any = (), **arguments: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    if devices == 1:
        quiet["launcher"] = "in_process"
    return Trainer(
        devices=devices,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        **{"max_epochs": 2, "enable_checkpointing": bool(callbacks), **quiet, **arguments},
    )


def fit(tmp_path: Path, batch_size: int = 8, dropout: float = 0.0, ckpt_path: Any = None, **arguments: Any) -> Any:
    seed_everything(5)
    module = tasks.Classifier(dropout)
    runner = trainer(tmp_path, **arguments)
    runner.fit(module, tasks.loader(batch_size), tasks.loader(10, shuffle=False), ckpt_path=ckpt_path)
    return module, runner


def assert_same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.05}])
def test_two_workers_train_like_one_with_the_global_batch(tmp_path: Path, options: dict[str, Any]) -> None:
    alone, alone_trainer = fit(tmp_path, batch_size=16, devices=1, **options)
    together, pair = fit(tmp_path, batch_size=8, devices=2, **options)
    assert pair.global_step == alone_trainer.global_step
    assert_same(alone, together, tolerance=1e-6)
    for name in ("val_loss", "train_loss_epoch"):
        assert pair.callback_metrics[name].item() == pytest.approx(
            alone_trainer.callback_metrics[name].item(), abs=1e-6
        )


def test_each_sample_counts_once_in_a_test_and_names_are_reduced_apart(tmp_path: Path) -> None:
    (result,) = trainer(tmp_path).test(tasks.IndexModule(), DataLoader(IndexData(5)), verbose=False)
    assert result == {"mean": 2.0, "sum": 10.0, "largest": 4.0, "only_where_zero_is": 7.0}


def test_predictions_come_in_the_order_of_the_data(tmp_path: Path) -> None:
    module, runner = tasks.IndexModule(), trainer(tmp_path)
    predictions = runner.predict(module, DataLoader(IndexData(5)))
    assert [int(batch) for batch in predictions] == [0, 1, 2, 3, 4]
    two = [DataLoader(IndexData(5), batch_size=2), DataLoader(IndexData(1))]
    assert [torch.cat(part).flatten().tolist() for part in runner.predict(module, two)] == [[0, 1, 2, 3, 4], [0]]
    assert runner.predict(module, two, return_predictions=False) is None


def test_resuming_at_any_batch_ends_with_the_same_weights(tmp_path: Path) -> None:
    every = ModelCheckpoint(dirpath=tmp_path / "every", every_n_train_steps=1, save_top_k=-1)
    undisturbed, first = fit(tmp_path, dropout=0.3, callbacks=[every])
    files = sorted(Path(tmp_path, "every").iterdir())
    assert len(files) == 12
    for file in files[::2]:
        resumed, second = fit(tmp_path, dropout=0.3, ckpt_path=file)
        assert_same(undisturbed, resumed)
        assert second.callback_metrics == first.callback_metrics


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path, rank: int) -> None:
    memory = tasks.Remembers(str(tmp_path))
    undisturbed, _ = fit(tmp_path / "one", dropout=0.3, callbacks=[memory], launcher="actors")
    killer = tasks.KillsWorker(rank, step=8, marker=str(tmp_path / "killed"))
    memory = tasks.Remembers(str(tmp_path))
    survived, runner = fit(tmp_path / "two", dropout=0.3, callbacks=[killer, memory], restart_every_n_steps=5)
    assert (tmp_path / "killed").exists()
    assert_same(undisturbed, survived)
    assert (runner.global_step, runner.current_epoch, memory.batches) == (12, 2, 12)
    assert not list(Path(tmp_path, "two", ".paceline", "restart").glob("*/*/*.ckpt"))


def test_workers_that_die_too_often_are_an_error(tmp_path: Path) -> None:
    killer = tasks.KillsWorker(1, step=3, marker=str(tmp_path / "killed"))
    with pytest.raises(WorkerDiedError, match="Worker 1 died"):
        fit(tmp_path, callbacks=[killer], max_failures=0)


def test_a_workers_error_arrives_with_its_traceback_and_the_next_run_works(tmp_path: Path) -> None:
    fit(tmp_path)
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="this batch cannot be divided") as caught:
        trainer(tmp_path).fit(tasks.FailsAt(rank=1, batch=3, traces=str(tmp_path)), tasks.loader())
    assert time.monotonic() - begin < 10
    (note,) = caught.value.__notes__
    assert "worker 1" in note
    assert "tasks.py" in note
    # The other worker was waiting for this one; it has cleaned up as well.
    assert {path.name for path in tmp_path.glob("teardown-*")} == {"teardown-0", "teardown-1"}
    fit(tmp_path)


def test_a_group_stays_ready_and_callbacks_state_comes_back(tmp_path: Path) -> None:
    memory = tasks.Remembers(str(tmp_path))
    module, runner = fit(tmp_path, callbacks=[memory])
    (result,) = runner.test(module, tasks.loader(shuffle=False), verbose=False)
    assert result["test_acc"] > 0.8
    assert memory.batches == 12
    of_stage = {
        stage: {tuple(path.name.split("-")[1:]) for path in tmp_path.glob(f"{stage}-*")} for stage in ("fit", "test")
    }
    assert of_stage["fit"] == of_stage["test"]
    assert len(of_stage["fit"]) == 2


def test_a_second_fit_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path, dropout=0.3, launcher="actors")
    seed_everything(5)
    module, runner = tasks.Classifier(0.3), trainer(tmp_path, max_epochs=1)
    for epochs in (1, 2):
        runner.max_epochs = epochs
        runner.fit(module, tasks.loader(), tasks.loader(10, shuffle=False))
    assert_same(whole, module)


def test_workers_import_only_what_a_run_needs(tmp_path: Path) -> None:
    fit(tmp_path, callbacks=[tasks.WritesModules(str(tmp_path / "modules"))])
    heavy = {
        "mlflow",
        "pandas",
        "ray.tune",
        "ray.data",
        "ray.train",
        "lightning",
        "matplotlib",
        "sklearn",
        "sqlalchemy",
    }
    for rank in (0, 1):
        assert not heavy & set((tmp_path / f"modules-{rank}").read_text().splitlines())


def test_more_workers_than_this_machine_has_is_an_error_in_seconds(tmp_path: Path) -> None:
    from paceline.launch import cluster

    # This session's Ray was started by the tests; it has as little to give as one that the trainer starts.
    cluster._started_here = True
    try:
        begin = time.monotonic()
        with pytest.raises(MisconfigurationError, match="Use fewer `devices`"):
            trainer(tmp_path, devices=64).test(tasks.IndexModule(), DataLoader(IndexData(5)))
        assert time.monotonic() - begin < 10
    finally:
        cluster._started_here = False


def test_a_cluster_that_has_no_room_is_waited_for_and_then_an_error(tmp_path: Path) -> None:
    waiting = trainer(tmp_path, launcher="actors", resources_per_worker={"teapot": 2}, start_timeout=7)
    with (
        pytest.warns(UserWarning, match="Waiting for room for 2 workers. They need .*'teapot': 4.0.*'teapot': 0.0"),
        pytest.raises(MisconfigurationError, match=r"no room for 2 workers after 7 s \(`start_timeout`\).*teapot"),
    ):
        waiting.test(tasks.IndexModule(), DataLoader(IndexData(5)))


def test_idle_workers_end_after_a_while(tmp_path: Path) -> None:
    module, runner = fit(tmp_path, callbacks=[tasks.Remembers(str(tmp_path))], idle_timeout=1.5)
    pids = {int(path.name.split("-")[2]) for path in tmp_path.glob("fit-*")}
    assert len(pids) == 2
    assert all(map(_lives, pids))
    time.sleep(1.0)
    runner.test(module, tasks.loader(shuffle=False), verbose=False)  # which begins the time anew
    time.sleep(1.0)
    assert all(map(_lives, pids))
    deadline = time.monotonic() + 20
    while any(map(_lives, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_closing_a_trainer_ends_its_workers(tmp_path: Path) -> None:
    with trainer(tmp_path, callbacks=[tasks.Remembers(str(tmp_path))]) as runner:
        runner.fit(tasks.Classifier(), tasks.loader())
        pids = {int(path.name.split("-")[2]) for path in tmp_path.glob("fit-*")}
        assert len(pids) == 2
        assert all(map(_lives, pids))
    deadline = time.monotonic() + 20
    while any(map(_lives, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _lives(pid: int) -> bool:
    path = Path(f"/proc/{pid}/cmdline")
    return path.exists() and b"ray::" in path.read_bytes()


def test_another_cluster_than_the_one_this_process_is_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationError, match=r"`address='127.0.0.1:9'`: this process is in"):
        trainer(tmp_path, address="127.0.0.1:9").test(tasks.IndexModule(), DataLoader(IndexData(5)))


def test_what_cannot_be_sent_to_workers_is_named(tmp_path: Path) -> None:
    module = tasks.IndexModule()
    module.lock = __import__("threading").Lock()
    with pytest.raises(MisconfigurationError, match="module cannot be sent"):
        trainer(tmp_path).test(module, DataLoader(IndexData(5)))


INTERRUPTED = """
import sys
from pathlib import Path
from tests.integration import tasks
from paceline import Trainer, seed_everything

if __name__ == "__main__":
    folder, devices, seconds, ckpt_path = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] or None
    seed_everything(5)
    module = tasks.Classifier(0.3)
    trainer = Trainer(
        devices=devices, max_epochs=3, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        default_root_dir=folder, callbacks=[tasks.Slow(seconds, folder + "/began")],
    )
    try:
        trainer.fit(module, tasks.loader(), ckpt_path=ckpt_path)
    except KeyboardInterrupt:
        Path(folder, "keyboard-interrupt").touch()
        raise
    trainer.save_checkpoint(folder + "/end.ckpt")
"""


def _script(tmp_path: Path, folder: Path, devices: int, seconds: float, ckpt_path: str = "") -> subprocess.Popen[bytes]:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED)
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(script), str(folder), str(devices), str(seconds), ckpt_path]
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(command, env={**__import__("os").environ, "PYTHONPATH": root})


def interrupt(tmp_path: Path, devices: int, signum: int) -> None:
    """A script that gets a signal ends as one that got it does, with its state saved."""
    interrupted = _script(tmp_path, tmp_path / "run", devices, 0.2)
    while not (tmp_path / "run" / "began").exists():
        assert interrupted.poll() is None
        time.sleep(0.1)
    started = psutil.Process(interrupted.pid).children(recursive=True)
    interrupted.send_signal(signum)
    # Once Ray is connected, Python ends an uncaught KeyboardInterrupt by 1 instead of by the signal.
    assert interrupted.wait(60) in ((143,) if signum == signal.SIGTERM else (-signal.SIGINT, 1))
    assert not psutil.wait_procs(started, timeout=30)[1]
    assert (tmp_path / "run" / "keyboard-interrupt").exists() == (signum == signal.SIGINT)
    assert list((tmp_path / "run" / ".paceline" / "restart").glob("*/*/*.ckpt"))


@pytest.mark.parametrize(
    ("devices", "signum"), [(1, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGINT), (2, signal.SIGTERM)]
)
def test_an_interrupted_script_saves_and_goes_on_from_last(tmp_path: Path, devices: int, signum: int) -> None:
    interrupt(tmp_path, devices, signum)
    assert _script(tmp_path, tmp_path / "run", devices, 0.0, "last").wait(120) == 0
    assert _script(tmp_path, tmp_path / "undisturbed", devices, 0.0).wait(120) == 0
    ends = [torch.load(tmp_path / name / "end.ckpt") for name in ("run", "undisturbed")]
    for name, weight in ends[0]["state_dict"].items():
        assert torch.equal(weight, ends[1]["state_dict"][name])
    assert ends[0]["global_step"] == ends[1]["global_step"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_second_interrupt_ends_a_script_at_once(tmp_path: Path, devices: int) -> None:
    interrupted = _script(tmp_path, tmp_path / "run", devices, seconds=60.0)
    while not (tmp_path / "run" / "began").exists():
        assert interrupted.poll() is None
        time.sleep(0.1)
    started = psutil.Process(interrupted.pid).children(recursive=True)
    for _ in range(2):
        interrupted.send_signal(signal.SIGINT)
        time.sleep(1.0)
    interrupted.wait(20)
    assert (tmp_path / "run" / "keyboard-interrupt").exists()
    assert not psutil.wait_procs(started, timeout=30)[1]
