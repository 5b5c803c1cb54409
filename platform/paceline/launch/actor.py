"""The actor that hosts one worker in a process of its own."""

from __future__ import annotations

import pickle
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from paceline.launch.session import SessionLink, SessionSink, see_modules_of

if TYPE_CHECKING:
    from paceline.launch.spec import RunResult, RunSpec
    from paceline.strategies.base import Placement


@dataclass
class Failure:
    """An error on its way to the driver."""

    rank: int
    error: BaseException | None
    trace: str
    is_connection: bool


class Worker:
    """The actor that hosts one worker."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._link: SessionLink | None = None
        self._placement: Placement | None = None

    def where(self, path: list[str]) -> tuple[str, str]:
        """Id and address of the node; answers when what a run needs is imported. `path` is the driver's."""
        see_modules_of(path)
        import paceline.launch.worker  # noqa: F401

        context = ray.get_runtime_context()
        return context.get_node_id(), ray.util.get_node_ip_address()

    def open_store(self, host: str, world_size: int) -> int:
        """On the first worker: the store where the others find it; returns its port."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._store = TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def join(self, placement: Placement, host: str, port: int, backend: str) -> None:
        """Form the process group with the other workers."""
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._placement = placement
        self._link = SessionLink(self._session)
        if placement.world_size == 1:
            return
        store = getattr(self, "_store", None) or TCPStore(host, port, placement.world_size, is_master=False)
        dist.init_process_group(backend, store=store, rank=placement.global_rank, world_size=placement.world_size)

    def run(self, spec: RunSpec) -> RunResult | Failure:
        """Carry out a run."""
        from paceline.launch import worker
        from paceline.seed import derive, seed_process

        assert self._placement is not None
        assert self._link is not None
        rank = self._placement.global_rank
        seed_process(derive(spec.seed, rank))
        self._link.begin()
        for logger in spec.loggers:
            if logger.spool is not None:
                logger.attach(SessionSink(self._session, logger.spool))
        try:
            return worker.run(spec, self._placement, self._link)
        except BaseException as error:  # whatever it is, the driver raises it
            failure = _failure(rank, error)
            self._leave()
            return failure

    def _leave(self) -> None:
        """Break the connections, so that no other worker waits for this one: they fail at once, and clean up."""
        import torch.distributed as dist

        if dist.is_initialized():
            with suppress(Exception):
                dist.distributed_c10d._abort_process_group()


def _failure(rank: int, error: BaseException) -> Failure:
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
        portable: BaseException | None = error
    except Exception:
        portable = None
    return Failure(rank, portable, trace, _is_broken_connection(error))


def _is_broken_connection(error: BaseException) -> bool:
    from torch.distributed import DistError

    # What gloo raises is a plain RuntimeError.
    return isinstance(error, DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
