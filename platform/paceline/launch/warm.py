"""The worker group that is kept ready between runs: one per process."""

from __future__ import annotations

import atexit
import threading

from paceline.launch.group import Shape, WorkerGroup

# Another trainer of the same shape takes the group over; one of another shape ends it: what an idle group holds would
# otherwise be lacking for the next.
_lock = threading.RLock()
_group: WorkerGroup | None = None
_timer: threading.Timer | None = None


def acquire(shape: Shape, timeout_s: float) -> WorkerGroup:
    """The group that is ready, if it has that shape; else a new one.

    Args:
        shape: what it is made of.
        timeout_s: how long to wait for room.
    """
    global _group
    with _lock:
        _stop_timer()
        if _group is not None and _group.shape != shape:
            discard(_group)
        if _group is None:
            _group = WorkerGroup(shape, timeout_s)
        return _group


def keep(group: WorkerGroup, idle_timeout_s: float) -> None:
    """A run is over: the group stays ready for so long."""
    global _timer
    with _lock:
        _stop_timer()
        _timer = threading.Timer(idle_timeout_s, _end_idle, [group])
        _timer.daemon = True
        _timer.start()


def discard(group: WorkerGroup) -> None:
    """End a group whose state nobody knows."""
    global _group
    with _lock:
        if _group is group:
            _stop_timer()
            _group = None
        group.close()


def close() -> None:
    """End the group that is kept ready."""
    with _lock:
        if _group is not None:
            discard(_group)


def _stop_timer() -> None:
    global _timer
    if _timer is not None:
        _timer.cancel()
        _timer = None


def _end_idle(group: WorkerGroup) -> None:
    with _lock:
        # A run may have taken the group while this waited for the lock.
        if _timer is threading.current_thread():
            discard(group)


atexit.register(close)
