"""What it takes to host a worker in a process of its own: a run sent there, its outcome or its error sent back."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import ray

from paceline.errors import MisconfigurationError
from paceline.launch.session import SessionSink

if TYPE_CHECKING:
    from paceline.launch.spec import RunResult, RunSpec
    from paceline.loops.link import Link
    from paceline.strategies.base import Placement


@dataclass
class Failure:
    """An error on its way to the driver.

    Attributes:
        rank: the worker's.
        error: the error itself; None where it cannot leave its process.
        trace: its traceback, as text.
        is_connection: whether it only says that another worker is gone.
    """

    rank: int
    error: BaseException | None
    trace: str
    is_connection: bool

    def reraise(self) -> NoReturn:
        """Raise the error on the driver, with the worker's traceback as a note."""
        note = f"\nThis happened on worker {self.rank}:\n{self.trace}"
        if self.error is None:
            raise RuntimeError(f"Worker {self.rank} failed with an error that cannot leave it.{note}")
        self.error.add_note(note)
        raise self.error


def ship(spec: RunSpec) -> Any:
    """A reference to the run, from which every worker takes a copy.

    Raises:
        MisconfigurationError: a part of it cannot be sent; the message says which.
    """
    try:
        return ray.put(spec)
    except Exception as error:
        parts = ("module", "datamodule", "train_loader", "eval_loaders", "callbacks", "loggers", "loop", "profiler")
        for name in (*parts, "config"):
            try:
                ray.cloudpickle.dumps(getattr(spec, name))
            except Exception as reason:
                raise MisconfigurationError(
                    f"The {name.replace('_', ' ')} cannot be sent to the workers: {reason}"
                ) from error
        raise


def host(spec: RunSpec, placement: Placement, link: Link, session: Any, device_index: int = 0) -> RunResult | Failure:
    """Carry out a run in this process, which is a worker's; an error is an outcome like another.

    Args:
        spec: the run.
        placement: the worker's place among the others.
        link: the way to the driver.
        session: the session actor, which takes up what loggers record.
        device_index: the device among those that this process sees.
    """
    from paceline.launch import worker
    from paceline.seed import derive, seed_process

    seed_process(derive(spec.seed, placement.global_rank))
    for logger in spec.loggers:
        if logger.spool is not None:
            logger.attach(SessionSink(session, logger.spool))
    try:
        return worker.run(spec, placement, link, device_index=device_index)
    except BaseException as error:  # whatever it is, the driver raises it
        return _failure(placement.global_rank, error)


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
