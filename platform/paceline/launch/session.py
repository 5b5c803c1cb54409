"""The session actor: the meeting point of a driver and its workers, on the driver's node."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from paceline.errors import WorkerDiedError
from paceline.loggers.recorder import Recorder
from paceline.loops.link import Link

if TYPE_CHECKING:
    from paceline.callbacks.progress_bar import Display


# The signal that asks the run to end, and when a node is to be taken away.
Orders = tuple[int, float | None]


def see_modules_of(path: list[str]) -> None:
    """Let this process find the modules that the driver finds, where both see the same disk.

    A class is sent by the name of its module; one next to the script, or in a folder that the script added to
    `sys.path`, would not be found otherwise.
    """
    sys.path.extend(entry for entry in path if entry not in sys.path)


class Session:
    """Takes up what workers show, tell and record; hands down the request to stop.

    It imports little and computes nothing, so it is ready at once and never late.
    """

    def __init__(self) -> None:
        self._signum = 0
        self._deadline: float | None = None
        self._changed = asyncio.Event()
        self._news: list[str | dict[str, Any]] = []
        self._recorders: dict[str, Recorder] = {}

    async def ask_to_stop(self, signum: int) -> None:
        """Let the workers know of a signal, or of RESIZE."""
        self._signum = signum
        self._tell_workers()

    async def warn(self, deadline: float) -> None:
        """Let the workers know when a node of theirs is to be taken away, in seconds since 1970."""
        self._deadline = deadline
        self._tell_workers()

    def _tell_workers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def orders(self, known: Orders, timeout_s: float) -> Orders:
        """What the driver wants; answers when it differs from `known`, or after a while."""
        if self._orders != known:
            return self._orders
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        return self._orders

    @property
    def _orders(self) -> Orders:
        return self._signum, self._deadline

    async def show(self, progress: dict[str, Any]) -> None:
        """Keep progress for the driver; it takes the place of what it outdates."""
        if self._news and isinstance(self._news[-1], dict) and not self._news[-1]["is_over"]:
            self._news.pop()
        self._news.append(progress)

    async def tell(self, text: str) -> None:
        """Keep lines for the driver."""
        self._news.append(text)

    async def put(self, spool: str, record: dict[str, Any]) -> None:
        """Write a logger's record to its spool, which is on this machine."""
        if spool not in self._recorders:
            self._recorders[spool] = Recorder(spool)
        self._recorders[spool].put(record)

    async def news(self) -> list[str | dict[str, Any]]:
        """What workers have shown and told since the last call, in order."""
        news, self._news = self._news, []
        return news

    async def end_run(self) -> None:
        """Everything taken so far is in its spool when this returns; the next run may record values at any step."""
        for recorder in self._recorders.values():
            recorder.flush(timeout_s=10.0)
            recorder.forget()
        self._signum = 0
        self._tell_workers()


def start_session(kind: type[Session]) -> Any:
    """A session actor on this process's node."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=here).remote()


def relay(session: Any, display: Display) -> None:
    """Show what workers have shown and told since the last time.

    Raises:
        WorkerDiedError: the session is gone.
    """
    try:
        news = ray.get(session.news.remote())
    except RayActorError as error:
        raise WorkerDiedError("The session actor died.") from error
    for item in news:
        if isinstance(item, str):
            display.tell(item)
        else:
            display.show(item)


class SessionLink(Link):
    """A worker's side of the session: its link to the driver.

    A thread of its own waits for what the driver wants, so that looking at it costs the loop nothing.
    """

    _WAIT_S = 30.0

    def __init__(self, session: Any) -> None:
        self._session = session
        self._orders: Orders = (0, None)
        threading.Thread(target=self._watch, name="paceline-orders", daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                self._orders = ray.get(self._session.orders.remote(self._orders, self._WAIT_S))
            except Exception:
                self.lost()
                return

    def lost(self) -> None:
        """The session is over, and with it this process, which the driver ends."""

    def stop_signal(self) -> int:
        """The signal that asks the run to end."""
        return self._orders[0]

    def deadline(self) -> float | None:
        """When a node of the workers is to be taken away."""
        return self._orders[1]

    def begin(self) -> None:
        """A new run: what stopped the one before is past."""
        self._orders = (0, self._orders[1])

    def show(self, progress: dict[str, Any]) -> None:
        """Send it up."""
        self._session.show.remote(progress)

    def tell(self, text: str) -> None:
        """Send it up."""
        self._session.tell.remote(text)


class SessionSink:
    """Where a worker's logger sends its records: to the session, which writes them to the logger's spool."""

    def __init__(self, session: Any, spool: str) -> None:
        self._session = session
        self._spool = spool

    def put(self, record: dict[str, Any]) -> None:
        """Send it up."""
        self._session.put.remote(self._spool, record)
