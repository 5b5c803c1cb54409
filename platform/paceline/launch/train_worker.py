"""What Ray Train calls on each of its workers."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import torch.distributed as dist

from paceline.launch.hosting import Failure, host
from paceline.launch.session import SessionLink, see_modules_of
from paceline.launch.spec import RunSpec
from paceline.strategies.base import Placement

# Ray Train's own, for a node that is to go and does not say when.
_DEADLINE_S = 120.0


@dataclass
class Job:
    """What a worker gets.

    Attributes:
        spec: a reference to the run.
        session: the session actor.
        path: where the driver finds modules.
    """

    spec: Any
    session: Any
    path: list[str]


class TrainLink(SessionLink):
    """The link of a worker that Ray Train watches over."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._first_notice_s: float | None = None

    def lost(self) -> None:
        """The driver has ended the run, or is gone; nobody else would end this process."""
        _end_process()

    def deadline(self) -> float | None:
        """When a node of this run is to go, by Ray Train's preemption watcher."""
        info = ray.train.get_preemption_info()
        if info is None:
            return None
        if info.deadline_ms is not None:
            return float(info.deadline_ms) / 1000
        self._first_notice_s = self._first_notice_s or time.time()
        return self._first_notice_s + _DEADLINE_S


def train(config: dict[str, Any]) -> None:
    """Carry out a run's next attempt; Ray Train has formed the process group.

    Args:
        config: under "job", what to do.

    Raises:
        RuntimeError: another worker is gone, which Ray Train counts.
    """
    job: Job = config["job"]
    see_modules_of(job.path)
    spec: RunSpec = ray.get(job.spec)
    placement = _placement()
    spec = _next_attempt(spec, job.session, placement)
    device = ray.train.torch.get_device()
    outcome = host(spec, placement, TrainLink(job.session), job.session, device.index or 0)
    if isinstance(outcome, Failure):
        if outcome.is_connection:
            outcome.reraise()
        ends_run = True
    else:
        # An evaluation that was asked to stop has left the others at other batches.
        ends_run = bool(outcome.stopped_by) and spec.fn != "fit"
    ray.get(job.session.hand_over.remote(placement.global_rank, ray.cloudpickle.dumps(outcome), ends_run))
    if ends_run:
        _end_process()


def _placement() -> Placement:
    context = ray.train.get_context()
    nodes: list[Any] = [None] * context.get_world_size()
    dist.all_gather_object(nodes, context.get_node_rank())
    return Placement(
        context.get_world_rank(),
        context.get_local_rank(),
        context.get_node_rank(),
        context.get_world_size(),
        len(set(nodes)),
    )


def _next_attempt(spec: RunSpec, session: Any, placement: Placement) -> RunSpec:
    """The run as this attempt goes on with it, which the first worker finds out for all."""
    found: list[Any] = [None, None]
    if placement.global_rank == 0:
        attempt = ray.get(session.begin_attempt.remote())
        found = [attempt, spec.newest_restart() if attempt else None]
    dist.broadcast_object_list(found)
    attempt, path = found
    if attempt:
        spec = spec.go_on_from(path, attempt)
        if placement.global_rank == 0:
            where = f"from {spec.ckpt_path}" if spec.ckpt_path else "from the beginning"
            session.tell.remote(f"Ray Train has started {placement.world_size} workers again: the run goes on {where}.")
    spec.num_workers = placement.world_size
    return spec


def _end_process() -> None:
    """End this worker, so that whatever the others wait for fails, and they clean up."""
    sys.stdout.flush()
    sys.stderr.flush()
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
