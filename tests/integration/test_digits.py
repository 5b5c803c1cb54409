"""The example, run as its first lines say."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits.py"


# Where a token file lies in the home folder, Ray asks for it, of head and client alike: these tests run without.
NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}


def run(command: list[str], folder: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def accuracy(output: str) -> float:
    found = re.search(r"test accuracy: ([\d.]+)", output)
    assert found, output
    return float(found.group(1))


def test_two_workers_reach_the_accuracy_and_mlflow_holds_the_run(tmp_path: Path) -> None:
    output = run([sys.executable, str(EXAMPLE)], tmp_path)
    assert accuracy(output) >= 0.96
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db" in output

    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("digits")
    (recorded,) = client.search_runs([experiment.experiment_id])
    run_id = recorded.info.run_id
    assert f"run {run_id}" in output
    assert recorded.info.status == "FINISHED"
    searched = re.search(r"learning rate: ([\d.e-]+)", output)
    assert searched
    assert float(recorded.data.params["lr"]) == pytest.approx(float(searched.group(1)), rel=0.06)
    assert recorded.data.params["trainer/devices"] == "2"
    assert recorded.data.metrics["test_acc"] == pytest.approx(accuracy(output), abs=1e-4)
    steps = [point.step for point in client.get_metric_history(run_id, "train_loss")]
    # Every fifth step, and the one with which early stopping ended the fit.
    every_fifth = list(range(4, steps[-1] + 1, 5))
    assert steps == every_fifth or steps[:-1] == every_fifth
    assert len(client.get_metric_history(run_id, "val_acc")) == len(client.get_metric_history(run_id, "val_loss")) > 1
    (checkpoint,) = client.list_artifacts(run_id, "checkpoints")
    assert checkpoint.path.endswith(".ckpt")
    (model,) = client.search_logged_models([experiment.experiment_id])
    assert model.source_run_id == run_id


def test_one_device_needs_no_ray(tmp_path: Path) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['digits.py', '--devices', '1', '--max-epochs', '3']\n"
        f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
        "print('ray imported:', 'ray' in sys.modules)\n"
    )
    output = run([sys.executable, "-c", code], tmp_path)
    assert accuracy(output) >= 0.9
    assert "ray imported: False" in output


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray head of its own on 127.0.0.1, with a dashboard that takes jobs; yields the dashboard's address."""
    port, dashboard, agent, client = _free_ports(4)
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=2"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}"),
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}"),
        "--disable-usage-stats",
    ]
    log = tmp_path_factory.mktemp("head") / "log"
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=os.environ | NO_TOKEN)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        _wait_for(address, process, log)
        yield address
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Where others would look for the cluster that was started last.
        note = Path("/tmp/ray/ray_current_cluster")
        if note.exists() and note.read_text().endswith(f":{port}"):
            note.unlink()


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 90
    while True:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/api/version", timeout=5).close()
            return
        time.sleep(0.5)


def test_the_same_script_runs_as_a_ray_job(head: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = [
        *(str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", head),
        *(
            "--working-dir",
            str(EXAMPLE.parent),
            "--runtime-env-json",
            f'{{"env_vars": {{"MLFLOW_TRACKING_URI": "{uri}"}}}}',
        ),
        *("--", sys.executable, "digits.py", "--max-epochs", "6"),
    ]
    output = run(command, tmp_path, **NO_TOKEN)
    assert accuracy(output) >= 0.9
    assert "succeeded" in output

    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (recorded,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert recorded.info.status == "FINISHED"
    assert recorded.data.metrics["test_acc"] == pytest.approx(accuracy(output), abs=1e-4)
