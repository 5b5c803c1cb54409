"""A fit inside a Ray Tune trial, in the trial's own process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from paceline.launch import worker
from paceline.launch.spec import RunResult, RunSpec
from paceline.loops.link import Link
from paceline.seed import derive, seed_process
from paceline.strategies.base import Placement

# Without Ray Tune's own tables, which nobody would look at for one trial.
_QUIET = {"RAY_AIR_NEW_OUTPUT": "0"}


def run_here(spec: RunSpec) -> RunResult:
    """Carry a run out in this process, seeded as a worker's would be."""
    seed_process(derive(spec.seed, 0))
    return worker.run(spec, Placement(), Link())


def run_trial(function: Callable[..., dict[str, Any]], spec: RunSpec, address: str | None) -> dict[str, Any]:
    """Call `function(spec)` in one Ray Tune trial, and return what it returns.

    Args:
        function: called in the trial's process; returns plain data.
        spec: sent once, through Ray's object store.
        address: of a Ray cluster; None starts one on this machine.

    Raises:
        Exception: what the function raised, as Ray Tune hands it on.
    """
    # Here, so that a script which only might search does not import Ray.
    from paceline.launch import warm
    from paceline.launch.cluster import connect
    from paceline.launch.session import see_modules_of

    connect(address)
    # What a warm group of workers holds would be lacking for the trial.
    warm.close()
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from ray import cloudpickle, tune

    def trial(_: dict[str, Any], shipped: tuple[list[str], bytes]) -> None:
        path, pickled = shipped
        see_modules_of(path)
        tune.report({"returned": function(cloudpickle.loads(pickled))})

    folder = tempfile.mkdtemp(prefix="paceline-tune-")
    try:
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(trial, shipped=(sys.path, cloudpickle.dumps(spec))),
                tune.PlacementGroupFactory([spec.accelerator.ray_resources]),
            ),
            run_config=tune.RunConfig(storage_path=folder, name="trial", verbose=0),
        )
        result = tuner.fit()[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if result.error is not None:
        raise result.error
    assert result.metrics is not None
    returned: dict[str, Any] = result.metrics["returned"]
    return returned
