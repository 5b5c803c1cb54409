"""Workers under Ray Train: its controller starts them, watches over them, and starts them again."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.train
from ray.exceptions import RayActorError
from ray.train.torch import TorchConfig, TorchTrainer

from paceline.callbacks.progress_bar import Display
from paceline.errors import WorkerDiedError
from paceline.launch import warm
from paceline.launch.cluster import connect
from paceline.launch.hosting import Failure, ship
from paceline.launch.reservation import Reservation
from paceline.launch.session import Session, relay, start_session
from paceline.launch.signals import stop_on_signals
from paceline.launch.spec import RunResult, RunSpec, merge
from paceline.launch.train_worker import Job, train

_POLL_S = 0.2
# How long the other workers have, after one has failed, to run their `teardown`.
_UNWIND_S = 5.0
# How long Ray Train has to end its actors, once a run is over.
_END_S = 20.0
# Ray Train moves its workers into a folder of its own, where a relative path of the user's means something else.
_STAY_WHERE_YOU_ARE = "RAY_CHDIR_TO_TRIAL_DIR"


class TrainSession(Session):
    """The session of a run under Ray Train, which has no other way up for what a worker has come to."""

    def __init__(self) -> None:
        super().__init__()
        self._attempt = -1
        self._outcomes: dict[int, bytes] = {}
        self._is_over = False

    async def begin_attempt(self) -> int:
        """Ray Train has started the workers, or started them again; returns how often before."""
        self._attempt += 1
        self._outcomes = {}
        return self._attempt

    async def hand_over(self, rank: int, outcome: bytes, ends_run: bool) -> None:
        """Take a worker's pickled outcome; one that ends the run is no reason to start the workers again."""
        self._outcomes[rank] = outcome
        self._is_over |= ends_run

    async def is_over(self) -> bool:
        """Whether an outcome has ended the run."""
        return self._is_over

    async def outcomes(self) -> list[bytes]:
        """What workers of the newest attempt have handed over, in rank order."""
        return [self._outcomes[rank] for rank in sorted(self._outcomes)]


class RunOverError(Exception):
    """Tells Ray Train's controller that there is nothing to start again."""


class NoRestartAfterErrors(ray.train.UserCallback):  # type: ignore[misc]
    """Lets Ray Train start workers again after a death, but not after an error of the user's code.

    It runs in the controller, which ends a run whose callback raises.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """End the run if a worker has handed over an error, or if the driver has left."""
        try:
            is_over = ray.get(self._session.is_over.remote())
        except RayActorError:
            is_over = True
        if is_over:
            raise RunOverError("The run is over; its driver has the error.")


class RayTrainLauncher:
    """Runs workers under Ray Train's `TorchTrainer`, for its failure policy, preemption notices and dashboard.

    Args:
        address: of the cluster; None starts a Ray of this machine.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address

    def launch(self, spec: RunSpec, trainer: Any) -> RunResult:
        """Run `spec`; where workers die, Ray Train starts them again within `max_failures`.

        Raises:
            MisconfigurationError: there is no room for the workers.
            WorkerDiedError: workers died more often than that.
            BaseException: the first failing worker's own error.
        """
        connect(self._address, dashboard=True)  # what Ray Train clears up after a driver's death asks it
        warm.close()  # workers that are kept ready hold what these need
        _wait_for_room(spec)
        display = Display()
        session = start_session(TrainSession)
        folder = f"{spec.config.root_dir}/.paceline/ray_train"
        name = f"{spec.run_key}-{spec.fn}-{uuid.uuid4().hex[:6]}"
        run = _TrainThread(_torch_trainer(spec, session, folder, name))
        try:
            outcomes = _follow(run, session, display)
        finally:
            # Without a session, the workers and their controller end.
            ray.kill(session, no_restart=True)
            run.join(_END_S)
            display.close()
            if "://" not in folder:
                shutil.rmtree(f"{folder}/{name}", ignore_errors=True)
        return _settle(outcomes, run.error, spec)

    def close(self) -> None:
        """There is nothing to let go of: Ray Train ends its workers after each run."""


class _TrainThread(threading.Thread):
    """`TorchTrainer.fit` in a thread of its own: in the main one it would take the handler of Ctrl-C, for good."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="paceline-ray-train", daemon=True)
        self._trainer = trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with _workers_stay_where_they_are():
                self._trainer.fit()
        except BaseException as error:  # the main thread raises it
            self.error = error


def _torch_trainer(spec: RunSpec, session: Any, folder: str, name: str) -> TorchTrainer:
    config, resources = spec.config, _resources(spec)
    return TorchTrainer(
        train,
        train_loop_config={"job": Job(ship(spec), session, sys.path)},
        torch_config=TorchConfig(backend=spec.strategy.backend(spec.accelerator)),
        scaling_config=ray.train.ScalingConfig(
            num_workers=config.devices if isinstance(config.devices, tuple) else spec.num_workers,
            use_gpu=resources.get("GPU", 0) > 0,
            resources_per_worker=resources,
            placement_strategy=config.placement_strategy,
        ),
        run_config=ray.train.RunConfig(
            name=name,
            storage_path=folder,
            failure_config=ray.train.FailureConfig(max_failures=config.max_failures),
            callbacks=[NoRestartAfterErrors(session)],
        ),
    )


def _resources(spec: RunSpec) -> dict[str, float]:
    return spec.accelerator.ray_resources | (spec.config.resources_per_worker or {})


def _wait_for_room(spec: RunSpec) -> None:
    """Ray Train itself would wait for ever, and say so in its log only."""
    devices = spec.config.devices
    smallest = devices[0] if isinstance(devices, tuple) else spec.num_workers
    room = Reservation(smallest, smallest, 1, _resources(spec), spec.config.placement_strategy)
    try:
        room.wait(spec.config.start_timeout)
    finally:
        room.close()


def _follow(run: _TrainThread, session: Any, display: Display) -> list[RunResult | Failure]:
    """What the workers have come to, in rank order; shows what they say, and passes on what asks them to stop."""
    signum = 0

    def ask_to_stop(given: int) -> None:
        nonlocal signum
        signum = given

    def look() -> bool:
        """Pass everything on; returns whether an outcome has ended the run."""
        relay(session, display)
        if signum:
            session.ask_to_stop.remote(signum)
        return bool(ray.get(session.is_over.remote()))

    with stop_on_signals(ask_to_stop):
        run.start()
        is_over = False
        while run.is_alive() and not is_over:
            run.join(_POLL_S)
            is_over = look()
        if is_over:
            _wait(lambda: not run.is_alive(), _UNWIND_S)
    ray.get(session.end_run.remote())
    relay(session, display)
    return [ray.cloudpickle.loads(outcome) for outcome in ray.get(session.outcomes.remote())]


def _wait(is_done: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_done() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _settle(outcomes: list[RunResult | Failure], error: BaseException | None, spec: RunSpec) -> RunResult:
    """The run's result, or its error."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            outcome.reraise()
        results.append(outcome)
    stopped = [result for result in results if result.stopped_by and spec.fn != "fit"]
    if stopped:
        return stopped[0]
    if isinstance(error, ray.train.WorkerGroupError):
        limit = f"`max_failures={spec.config.max_failures}`"
        raise WorkerDiedError(f"Workers died more often than {limit} allows. {error}") from error
    if error is not None:
        raise error
    return merge(results, spec)


@contextmanager
def _workers_stay_where_they_are() -> Iterator[None]:
    earlier = os.environ.get(_STAY_WHERE_YOU_ARE)
    os.environ.setdefault(_STAY_WHERE_YOU_ARE, "0")
    try:
        yield
    finally:
        if earlier is None:
            del os.environ[_STAY_WHERE_YOU_ARE]
