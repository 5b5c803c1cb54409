"""What paceline raises on its own account, and how a wrong name finds the nearest right one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MisconfigurationError(ValueError):
    """An argument, a module or a data source that cannot work: says what was wrong and what is allowed."""


class ArgumentTypeError(MisconfigurationError, TypeError):
    """An argument of a wrong type, or one that does not exist."""


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, or that holds what may not be loaded."""


class WorkerDiedError(RuntimeError):
    """A worker process ended without a Python exception, more often than `max_failures` allows."""


class StopRun(BaseException):
    """Unwinds a worker's loop after the user or the system asked the run to end.

    Args:
        signum: the signal that the driver got, `signal.SIGINT` or `signal.SIGTERM`.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the known name most like `name`; empty when none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean `{matches[0]}`?" if matches else ""
