"""The process that sends a spool to MLflow, beside the run; and the same by hand, afterwards.

It runs as `python -m paceline.loggers.sender FOLDER --parent PID`, and ends soon after the process PID has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from paceline.loggers.delivery import Delivery, StoreUnavailableError
from paceline.loggers.mlflow_run import HTTP_SETTINGS
from paceline.loggers.spool import Record, Spool, birth, now_ms

_INTERVAL_S = 1.0
_POLL_S = 0.1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
_ORPHAN_LIMIT_S = 10.0
_SETTINGS = {**HTTP_SETTINGS, "MLFLOW_DISABLE_TELEMETRY": "true"}


class Outcome(NamedTuple):
    """What `send_now` did: records and points sent, records that still wait, and why they do."""

    records: int
    points: int
    waiting: int
    reason: str


def start_sender(spool: Spool) -> subprocess.Popen[bytes]:
    """Start the process that sends a spool for as long as this process lives, and a little longer.

    Raises:
        OSError: the process cannot be started.
    """
    command = [sys.executable, "-m", "paceline.loggers.sender", spool.folder, "--parent", str(os.getpid())]
    with open(f"{spool.folder}/sender.log", "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the run, which then still has something to send
            env={**os.environ, **_SETTINGS},
        )


def send_now(spool: Spool, log: Callable[[str], None]) -> Outcome:
    """Send what waits in a spool, in this process, up to the first failure."""
    os.environ.update(_SETTINGS)
    lock = _lock(spool)
    if lock is None:
        return Outcome(0, 0, spool.waiting(), "its run is still sending")
    with os.fdopen(lock):
        _end_abandoned(spool)
        delivery = Delivery(spool, log)
        before, reason = dict(delivery.counts), ""
        try:
            while delivery.send():
                pass
            _take_away(spool, delivery)
        except StoreUnavailableError as error:
            reason = str(error)
        sent = {key: delivery.counts[key] - count for key, count in before.items()}
        return Outcome(sent["records"], sent["points"], spool.waiting(), reason)


def serve(spool: Spool, parent: int) -> None:
    """Send what comes into a spool until its run is closed or `parent` is gone, and everything is sent.

    With the store out of reach it gives up 10 s after the parent's end, and leaves the records where they are.
    """
    delivery, pause_s, gone_at, reason = Delivery(spool, _log), _FIRST_PAUSE_S, None, ""
    while True:
        gone, closed = _ends(spool, parent)
        if gone and gone_at is None:
            gone_at = time.monotonic()
            _end_abandoned(spool, gone=parent)
        try:
            if delivery.send():
                pause_s, reason = _FIRST_PAUSE_S, ""
                continue
        except StoreUnavailableError as error:
            if str(error) != reason:  # once, not at each try
                reason = str(error)
                _log(f"records wait: {reason}")
            if gone_at is not None and time.monotonic() - gone_at > _ORPHAN_LIMIT_S:
                return
            _wait(spool, parent, min(pause_s, _INTERVAL_S) if gone else pause_s, (gone, closed))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            continue
        if (gone or closed) and (_take_away(spool, delivery, keep_state=not gone) or gone):
            return
        _wait(spool, parent, _INTERVAL_S, (gone, closed))


def _end_abandoned(spool: Spool, gone: int | None = None) -> None:
    """A run whose driver is gone without a word was killed."""
    with spool.gate():
        lives = spool.lives()
        if lives and lives[-1]["kind"] == "start" and not _driver_lives(lives[-1], gone):
            spool.append({"kind": "status", "status": "killed", "time_ms": now_ms()})


def _driver_lives(start: Record, gone: int | None) -> bool:
    pid = start["pid"]
    return bool(start["host"] == socket.gethostname() and pid != gone and birth(pid) == start["born"] != "")


def _take_away(spool: Spool, delivery: Delivery, keep_state: bool = False) -> bool:
    """Delete a spool if its run has ended and is sent; whether it is.

    Args:
        spool: whose driver may be opening it again at this moment.
        delivery: has sent it.
        keep_state: leave the state for the driver, which then deletes the rest.
    """
    whole = delivery.hand_in_refused()
    with spool.gate():
        lives = spool.lives()
        if spool.waiting() or (lives and lives[-1]["kind"] == "start"):
            return False
        if whole and not keep_state:
            spool.clear()
        else:
            for path in (spool.records, spool.offset_file, spool.finish):
                if os.path.exists(path):
                    os.remove(path)
        return True


def _lock(spool: Spool) -> int | None:
    """Become the one that sends a spool; None if another process is."""
    descriptor = os.open(spool.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _ends(spool: Spool, parent: int) -> tuple[bool, bool]:
    """Whether the driver is gone, and whether it has closed the run."""
    return os.getppid() != parent, os.path.exists(spool.finish)


def _wait(spool: Spool, parent: int, seconds: float, known: tuple[bool, bool]) -> None:
    """Sleep, unless what is known of the run's end changes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and _ends(spool, parent) == known:
        time.sleep(_POLL_S)


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk
        print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run as a process of its own; see the module."""
    parser = argparse.ArgumentParser(prog="paceline.loggers.sender")
    parser.add_argument("folder")
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args(argv)
    spool = Spool(arguments.folder)
    until = None
    while (lock := _lock(spool)) is None:  # the sender of a driver that died may still be at it
        if os.getppid() != arguments.parent:
            until = until or time.monotonic() + 2 * _ORPHAN_LIMIT_S
            if time.monotonic() > until:
                return 1
        time.sleep(_POLL_S)
    with os.fdopen(lock):
        serve(spool, arguments.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
