"""WorkerGroup: actors with one process group, in one placement group, that carry out one run after the other."""

from __future__ import annotations

import atexit
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from paceline.errors import MisconfigurationError, WorkerDiedError
from paceline.launch.actor import Failure, Worker
from paceline.launch.session import Session

if TYPE_CHECKING:
    from paceline.callbacks.progress_bar import Display
    from paceline.launch.spec import RunResult, RunSpec

_POLL_S = 0.2
_SAY_WAITING_EVERY_S = 30.0
# How long to wait, after a worker reported a broken connection, for news of the death that broke it.
_DEATH_NEWS_S = 10.0


class WorkerGroup:
    """A number of workers, ready to run.

    Args:
        num_workers: how many.
        resources: what Ray sets aside for each, such as {"CPU": 1}.
        backend: of the process group.
        can_grow: whether the cluster may have more to give later, so that waiting for it makes sense.

    Attributes:
        is_usable: False once a run has left the workers at different places.

    Raises:
        MisconfigurationError: this machine's Ray has not so much to give.
    """

    def __init__(self, num_workers: int, resources: dict[str, float], backend: str, can_grow: bool) -> None:
        self.shape = (num_workers, tuple(sorted(resources.items())), backend)
        self.is_usable = True
        here = ray.get_runtime_context().get_node_id()
        self._session = (
            ray.remote(Session)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False))
            .remote()
        )
        self._placement_group = placement_group([resources] * num_workers, strategy="PACK")
        try:
            _wait_for(self._placement_group, num_workers, resources, can_grow)
            self._workers = self._start(num_workers, resources, backend)
        except BaseException:
            self.close()
            raise

    def _start(self, num_workers: int, resources: dict[str, float], backend: str) -> list[Any]:
        from paceline.strategies.base import Placement

        actor = ray.remote(Worker)
        workers = [
            actor.options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement_group, index),
            ).remote(self._session)
            for index in range(num_workers)
        ]
        self._workers = workers
        places = ray.get([worker.where.remote(sys.path) for worker in workers])
        nodes = list(dict.fromkeys(node for node, _ in places))
        order = sorted(range(num_workers), key=lambda index: nodes.index(places[index][0]))
        workers = [workers[index] for index in order]
        host = places[order[0]][1]
        port = ray.get(workers[0].open_store.remote(host, num_workers)) if num_workers > 1 else 0
        seen: dict[str, int] = {}
        joining = []
        for rank, index in enumerate(order):
            node = places[index][0]
            local_rank = seen[node] = seen.get(node, -1) + 1
            place = Placement(rank, local_rank, nodes.index(node), num_workers, len(nodes))
            joining.append(workers[rank].join.remote(place, host, port, backend))
        ray.get(joining)
        return workers

    def ask_to_stop(self, signum: int) -> None:
        """Let the workers end their batch, save and return."""
        self._session.ask_to_stop.remote(signum)

    def run(self, spec: RunSpec, display: Display) -> list[RunResult]:
        """Run `spec` on all workers; their results in rank order.

        Raises:
            WorkerDiedError: a worker's process ended.
            BaseException: the first failing worker's own error, with its traceback as a note.
        """
        try:
            ray.get(self._session.begin.remote())
        except RayActorError as error:
            raise WorkerDiedError("The session actor died.") from error
        shipped = _ship(spec)
        pending = {worker.run.remote(shipped): rank for rank, worker in enumerate(self._workers)}
        results: dict[int, RunResult] = {}
        broken: Failure | None = None
        give_up_s = 0.0
        while pending:
            done, _ = ray.wait(list(pending), timeout=_POLL_S)
            self._relay(display)
            for ref in done:
                rank = pending.pop(ref)
                outcome = _outcome(ref, rank)
                if not isinstance(outcome, Failure):
                    results[rank] = outcome
                    if outcome.stopped_by and spec.fn != "fit":
                        # The others may be waiting for this one at the end of their pass; there is nothing to keep.
                        self.is_usable = False
                        return [outcome]
                elif not outcome.is_connection:
                    _raise(outcome)
                elif broken is None:
                    broken, give_up_s = outcome, time.monotonic() + _DEATH_NEWS_S
            if broken is not None and (time.monotonic() > give_up_s or not pending):
                _raise(broken)
        ray.get(self._session.flush.remote())
        self._relay(display)
        return [results[rank] for rank in sorted(results)]

    def _relay(self, display: Display) -> None:
        try:
            news = ray.get(self._session.news.remote())
        except RayActorError as error:
            raise WorkerDiedError("The session actor died.") from error
        for item in news:
            if isinstance(item, str):
                display.tell(item)
            else:
                display.show(item)

    def close(self) -> None:
        """End the workers and give back what was set aside for them."""
        if not ray.is_initialized():
            return
        for actor in (*getattr(self, "_workers", ()), self._session):
            ray.kill(actor, no_restart=True)
        remove_placement_group(self._placement_group)


def _ship(spec: RunSpec) -> Any:
    try:
        return ray.put(spec)
    except Exception as error:
        for name in (
            "module",
            "datamodule",
            "train_loader",
            "eval_loaders",
            "callbacks",
            "loggers",
            "loop",
            "profiler",
            "config",
        ):
            try:
                ray.cloudpickle.dumps(getattr(spec, name))
            except Exception as reason:
                raise MisconfigurationError(
                    f"The {name.replace('_', ' ')} cannot be sent to the workers: {reason}"
                ) from error
        raise


def _outcome(ref: Any, rank: int) -> RunResult | Failure:
    try:
        outcome: RunResult | Failure = ray.get(ref)
    except (RayActorError, WorkerCrashedError, ObjectLostError) as error:
        raise WorkerDiedError(f"Worker {rank} died: its process is gone.") from error
    return outcome


def _raise(failure: Failure) -> None:
    note = f"\nThis happened on worker {failure.rank}:\n{failure.trace}"
    if failure.error is None:
        raise RuntimeError(f"Worker {failure.rank} failed with an error that cannot leave it.{note}")
    failure.error.add_note(note)
    raise failure.error


def _wait_for(group: Any, num_workers: int, resources: dict[str, float], can_grow: bool) -> None:
    begin = time.monotonic()
    while not group.wait(timeout_seconds=1.0 if time.monotonic() - begin < 2 else _SAY_WAITING_EVERY_S):
        total = ray.cluster_resources()
        lacking = {name: n * num_workers for name, n in resources.items() if total.get(name, 0) < n * num_workers}
        if not lacking:
            warnings.warn(f"Waiting for {num_workers} x {resources}, which others in the cluster hold.", stacklevel=2)
        elif not can_grow:
            raise MisconfigurationError(
                f"{num_workers} workers with {resources} each need {lacking}, and this machine's Ray has "
                f"{ {name: total.get(name, 0) for name in lacking} }. Use fewer `devices`."
            )
        else:
            warnings.warn(f"Waiting for the cluster to grow: {lacking} needed.", stacklevel=2)


# One group is kept ready per process. Another trainer of the same shape takes it over; of another shape, ends it: what
# an idle group holds would otherwise be lacking for the next.
_warm: WorkerGroup | None = None


def acquire(spec: RunSpec, can_grow: bool) -> WorkerGroup:
    """The group that is ready, if it fits; else a new one.

    Args:
        spec: the run that needs it.
        can_grow: whether the cluster may have more to give later.
    """
    global _warm
    resources = spec.accelerator.ray_resources
    backend = spec.accelerator.backend
    if _warm is not None and _warm.shape != (spec.num_workers, tuple(sorted(resources.items())), backend):
        close()
    if _warm is None:
        _warm = WorkerGroup(spec.num_workers, resources, backend, can_grow)
    return _warm


def discard(group: WorkerGroup) -> None:
    """End a group whose state nobody knows."""
    global _warm
    if _warm is group:
        _warm = None
    group.close()


def close() -> None:
    """End the group that is kept ready."""
    if _warm is not None:
        discard(_warm)


atexit.register(close)
