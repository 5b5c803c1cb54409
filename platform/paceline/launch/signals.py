"""Ctrl-C and SIGTERM while a run is on: the first asks it to end, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(ask_to_stop: Callable[[int], None]) -> Iterator[None]:
    """While the body runs, SIGINT and SIGTERM call `ask_to_stop`; a second one raises KeyboardInterrupt.

    Handlers are those of the main thread: in any other thread nothing changes. The earlier ones are put back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def on_signal(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        ask_to_stop(signum)

    earlier = {signum: signal.signal(signum, on_signal) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in earlier.items():
            signal.signal(signum, handler)
