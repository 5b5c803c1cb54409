"""WorkerGroup: actors with one process group that carry out one run after the other."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paceline.errors import WorkerDiedError
from paceline.launch.actor import Worker
from paceline.launch.drain import DrainWatch
from paceline.launch.hosting import Failure, ship
from paceline.launch.reservation import Bundle, Reservation
from paceline.launch.session import Session, relay, start_session
from paceline.loops.link import RESIZE

if TYPE_CHECKING:
    from paceline.callbacks.progress_bar import Display
    from paceline.launch.spec import RunResult, RunSpec

_POLL_S = 0.2
_LOOK_FOR_ROOM_EVERY_S = 2.0
# How long to wait, after a worker reported a broken connection, for news of the death that broke it.
_DEATH_NEWS_S = 10.0
# How long the other workers have, after one has failed, to run their `teardown`.
_UNWIND_S = 5.0


@dataclass(frozen=True)
class Shape:
    """What a group is made of; a group that is ready serves every run of its shape.

    Attributes:
        smallest: number of workers.
        largest: the same number, or one up to which the group may grow.
        num_nodes: nodes that share them evenly; 1 for any nodes.
        resources: what Ray sets aside for each, as pairs.
        strategy: how Ray places them.
        backend: of the process group.
    """

    smallest: int
    largest: int
    num_nodes: int
    resources: tuple[tuple[str, float], ...]
    strategy: str
    backend: str


class WorkerGroup:
    """A number of workers, ready to run.

    Args:
        shape: what it is made of.
        timeout_s: how long to wait for room.

    Attributes:
        is_usable: False once a run has left the workers at different places.

    Raises:
        MisconfigurationError: there is no room for the workers.
    """

    def __init__(self, shape: Shape, timeout_s: float) -> None:
        self.shape = shape
        self.is_usable = True
        self._timeout_s = timeout_s
        self._workers: list[Any] = []
        self._session: Any = None
        self._reservation = Reservation(
            shape.smallest, shape.largest, shape.num_nodes, dict(shape.resources), shape.strategy
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """How many workers there are now."""
        return len(self._workers)

    @property
    def is_to_go(self) -> bool:
        """Whether a node of these workers was to be taken away: their end is no failure then."""
        return self._watch.deadline() is not None

    def renew(self) -> None:
        """New workers in the room that there is now: for those that are gone, or since there is more room."""
        self._end_actors()
        self._reservation.look_for_dead_nodes()
        self._start()
        self.is_usable = True

    def _start(self) -> None:
        while True:
            bundles = self._reservation.wait(self._timeout_s)
            # Workers first: they have the most to import, and Ray has some processes ready for who comes first.
            self._workers = [self._start_worker(bundle) for bundle in bundles]
            self._session = self._session or start_session(Session)
            try:
                self._form()
            except (RayActorError, WorkerCrashedError) as error:
                if set(bundles) <= set(self._reservation.there()):
                    raise WorkerDiedError("A worker died while it started.") from error
                self._end_workers()  # its node was gone already, which was not known yet
            else:
                return

    def _start_worker(self, bundle: Bundle) -> Any:
        resources = dict(self.shape.resources)
        options = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0)}
        if "memory" in resources:
            options["memory"] = resources.pop("memory")
        return (
            ray.remote(Worker)
            .options(
                **options,
                resources={name: amount for name, amount in resources.items() if amount},
                scheduling_strategy=PlacementGroupSchedulingStrategy(bundle.group, bundle.index),
            )
            .remote()
        )

    def _form(self) -> None:
        """Rank the workers by node, and let them form their process group."""
        from paceline.strategies.base import Placement

        places = ray.get([worker.where.remote(sys.path) for worker in self._workers])
        nodes = list(dict.fromkeys(node for node, _ in places))
        order = sorted(range(self.size), key=lambda index: nodes.index(places[index][0]))
        self._workers = [self._workers[index] for index in order]
        self._watch = DrainWatch(set(nodes))
        places = [places[index] for index in order]
        host = places[0][1]
        port = ray.get(self._workers[0].open_store.remote(host, self.size)) if self.size > 1 else 0
        seen: dict[str, int] = {}
        joining = []
        for rank, (worker, (node, _)) in enumerate(zip(self._workers, places, strict=True)):
            local_rank = seen[node] = seen.get(node, -1) + 1
            place = Placement(rank, local_rank, nodes.index(node), self.size, len(nodes))
            joining.append(worker.join.remote(place, host, port, self.shape.backend, self._session))
        ray.get(joining)

    def run(self, spec: RunSpec, display: Display, asked_to_stop: Callable[[], int]) -> list[RunResult]:
        """Run `spec` on all workers; their results in rank order.

        Args:
            spec: the run.
            display: shows what the workers say.
            asked_to_stop: the signal that asks the run to end; 0 while there is none.

        Raises:
            WorkerDiedError: a worker's process ended.
            BaseException: the first failing worker's own error, with its traceback as a note.
        """
        shipped = ship(replace(spec, num_workers=self.size))
        pending = {worker.run.remote(shipped): rank for rank, worker in enumerate(self._workers)}
        results: dict[int, RunResult] = {}
        orders = _Orders(
            self._session, asked_to_stop, self._has_more_room if spec.fn == "fit" else None, self._watch.deadline
        )
        broken: Failure | None = None
        give_up_s = 0.0
        while pending:
            done, _ = ray.wait(list(pending), timeout=_POLL_S)
            relay(self._session, display)
            orders.pass_on()
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
                    # Whatever the others wait for ends with the failed worker's process: they fail, and clean up.
                    ray.kill(self._workers[rank], no_restart=True)
                    ray.wait(list(pending), num_returns=len(pending), timeout=_UNWIND_S) if pending else None
                    relay(self._session, display)
                    outcome.reraise()
                elif broken is None:
                    broken, give_up_s = outcome, time.monotonic() + _DEATH_NEWS_S
            if broken is not None and (time.monotonic() > give_up_s or not pending):
                broken.reraise()
        ray.get(self._session.end_run.remote())
        relay(self._session, display)
        return [results[rank] for rank in sorted(results)]

    def _has_more_room(self) -> bool:
        return self._reservation.is_elastic and len(self._reservation.there()) > self.size

    def close(self) -> None:
        """End the workers and give back what was set aside for them."""
        if ray.is_initialized():
            self._end_actors()
            self._reservation.close()

    def _end_actors(self) -> None:
        self._end_workers()
        if self._session is not None:
            ray.kill(self._session, no_restart=True)
            self._session = None

    def _end_workers(self) -> None:
        for worker in self._workers:
            ray.kill(worker, no_restart=True)
        self._workers = []


class _Orders:
    """Passes on to the workers what they are to know: a signal, more room, a node that is to be taken away."""

    def __init__(
        self,
        session: Any,
        asked_to_stop: Callable[[], int],
        has_more_room: Callable[[], bool] | None,
        deadline: Callable[[], float | None],
    ) -> None:
        self._session = session
        self._asked_to_stop = asked_to_stop
        self._has_more_room = has_more_room
        self._find_deadline = deadline
        self._signum = 0
        self._deadline: float | None = None
        self._had_room = False
        self._look_at_s = time.monotonic() + _LOOK_FOR_ROOM_EVERY_S

    def pass_on(self) -> None:
        """Look, and tell the workers of what is new."""
        signum = self._asked_to_stop()
        if signum == 0 and self._signum == 0 and self._is_to_grow():
            signum = RESIZE
        if signum > self._signum:
            self._signum = signum
            self._session.ask_to_stop.remote(signum)
        deadline = self._find_deadline()
        if deadline != self._deadline:
            self._deadline = deadline
            self._session.warn.remote(deadline)

    def _is_to_grow(self) -> bool:
        """Whether there has been more room at two looks: nodes often come several at a time."""
        if self._has_more_room is None or time.monotonic() < self._look_at_s:
            return False
        self._look_at_s = time.monotonic() + _LOOK_FOR_ROOM_EVERY_S
        had_room, self._had_room = self._had_room, self._has_more_room()
        return had_room and self._had_room


def _outcome(ref: Any, rank: int) -> RunResult | Failure:
    try:
        outcome: RunResult | Failure = ray.get(ref)
    except (RayActorError, WorkerCrashedError, ObjectLostError) as error:
        raise WorkerDiedError(f"Worker {rank} died: its process is gone.") from error
    return outcome
