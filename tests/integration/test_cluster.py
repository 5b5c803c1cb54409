"""Several nodes: workers spread over them, and a number of workers that changes as they come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.cluster_tasks import SAMPLES

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster whose head has no CPU for workers; nodes are added and removed by the test."""
    from ray.cluster_utils import Cluster

    # This process may be in another Ray, and the nodes' processes take over its environment.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def start(cluster: Any, folder: Path, **arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.cluster_tasks", cluster.address, str(folder)]
    environment = {**os.environ, "PYTHONPATH": ROOT, "PYTHONWARNINGS": "ignore"}
    return subprocess.Popen(
        [*command, json.dumps(arguments)],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def steps(folder: Path) -> list[list[float]]:
    file = folder / "steps"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(is_true: Callable[[], Any], process: subprocess.Popen[str], timeout_s: float = 60) -> float:
    """Seconds until something is true of a running process."""
    begin = time.monotonic()
    while not is_true():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() - begin < timeout_s
        time.sleep(0.1)
    return time.monotonic() - begin


def test_a_group_grows_and_shrinks_with_the_cluster_and_reads_each_sample_once(cluster: Any, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=1)
    process = start(cluster, tmp_path, devices=[1, 3], max_epochs=2, restart_every_n_steps=1, seconds=0.4)
    try:
        wait_until(lambda: len(steps(tmp_path)) >= 3, process)
        assert {world for _, world, *_ in steps(tmp_path)} == {1}

        added = [cluster.add_node(num_cpus=1) for _ in range(2)]
        grown_s = wait_until(lambda: steps(tmp_path)[-1][1] == 3, process)
        taken = len(steps(tmp_path))
        wait_until(lambda: len(steps(tmp_path)) >= taken + 3, process)

        cluster.remove_node(added[0], allow_graceful=False)
        shrunk_s = wait_until(lambda: steps(tmp_path)[-1][1] == 2, process)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert grown_s < 30
    assert shrunk_s < 15
    end = json.loads((tmp_path / "end").read_text())
    assert end["world_size"] == 2
    seen = [index for step in end["steps"] for index in step]
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))
    assert seen[:SAMPLES] != seen[SAMPLES:]
    # An epoch's value is over all workers that took part in it, those that are gone included.
    assert end["samples"] == [SAMPLES, SAMPLES]
    assert "There is room for more workers: the run goes on with 3 workers instead of 1" in output
    assert "Restart 1 of at most 3, with 2 workers instead of 3" in output


def test_each_node_holds_so_many_workers_and_prepares_data_once(cluster: Any, tmp_path: Path) -> None:
    for _ in range(2):
        cluster.add_node(num_cpus=3)
    process = start(
        cluster, tmp_path, num_nodes=2, devices=2, max_epochs=1, limit_train_batches=2, resources_per_worker={"CPU": 1}
    )  # fmt: skip
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert {path.name for path in tmp_path.glob("ranks-*")} == {
        "ranks-0-0-0-4", "ranks-1-0-1-4", "ranks-2-1-0-4", "ranks-3-1-1-4",
    }  # fmt: skip
    prepared = {path.name: path.read_text() for path in tmp_path.glob("prepared-*")}
    assert prepared == {"prepared-0": "0\n", "prepared-1": "0\n"}
    end = json.loads((tmp_path / "end").read_text())
    assert end["samples"] == [32]
    assert [len(set(step)) for step in end["steps"]] == [16, 16]


@pytest.mark.parametrize(
    ("launcher", "message"),
    [("actors", "Its node was to be taken away: the run goes on from"), ("ray_train", "the run goes on from")],
)
def test_a_node_that_is_reclaimed_costs_next_to_nothing_and_is_no_failure(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, message: str
) -> None:
    monkeypatch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.5")
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    node = cluster.add_node(num_cpus=1)
    process = start(cluster, tmp_path, launcher=launcher, devices=1, max_epochs=1, seconds=0.25, max_failures=0)
    try:
        wait_until(lambda: len(steps(tmp_path)) >= 3, process)
        cluster.add_node(num_cpus=1)
        deadline = time.monotonic() + 6
        reclaim(cluster, node, seconds=6)
        time.sleep(deadline - time.monotonic())
        cluster.remove_node(node, allow_graceful=False)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert message in output
    batches = [batch for _, _, _, batch in steps(tmp_path)]
    repeated = len(batches) - len(set(batches))
    # The node's workers go on until it is gone; the last checkpoint is from seconds before.
    assert 0 < repeated * 0.25 < 4.0
    seen = [index for step in json.loads((tmp_path / "end").read_text())["steps"] for index in step]
    assert sorted(seen) == list(range(SAMPLES))


def reclaim(cluster: Any, node: Any, seconds: int) -> None:
    """Say, as a cloud's spot service does, that a node will be taken away."""
    command = [Path(sys.executable).with_name("ray"), "drain-node", "--address", cluster.address, "--node-id"]
    command += [node.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
    subprocess.run([*command, "--deadline-remaining-seconds", str(seconds)], check=True)
