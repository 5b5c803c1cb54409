"""Spool: the folder on a local disk in which a run's records wait to be sent."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]


class Spool:
    """The folder in which one run's records wait.

    `records.jsonl` has a record per line and only ever grows; `offset` is how many of its bytes the store has.
    `state.json` is what the sender found out, `refused.jsonl` what the store will never take, `finish` asks the
    sender to end, `lock` is held by the one that sends.

    Args:
        folder: an absolute path on a local disk.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.records = f"{folder}/records.jsonl"
        self.lock = f"{folder}/lock"
        self.finish = f"{folder}/finish"
        self.state_file = f"{folder}/state.json"
        self.refused = f"{folder}/refused.jsonl"
        self.offset_file = f"{folder}/offset"

    @property
    def project(self) -> str:
        """The folder under which `paceline sync` finds this spool."""
        return os.path.dirname(os.path.dirname(os.path.dirname(self.folder)))

    def open(self) -> int:
        """A file descriptor to append to; the folder is made if it is not there.

        Raises:
            OSError: the disk is full, or may not be written.
        """
        os.makedirs(self.folder, exist_ok=True)
        # Only for the user's own eyes: the address of a store may hold a password.
        return os.open(self.records, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def append(self, record: Record) -> None:
        """Append one record at once.

        Raises:
            OSError: the disk is full, or may not be written.
        """
        descriptor = self.open()
        try:
            # On a line of its own, whatever a full disk or a kill has cut before it.
            os.write(descriptor, b"\n" + encode(record))
        finally:
            os.close(descriptor)

    @property
    def offset(self) -> int:
        """How many bytes of the records the store has."""
        try:
            with open(self.offset_file) as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    @offset.setter
    def offset(self, value: int) -> None:
        replace(self.offset_file, str(value))

    @property
    def state(self) -> Record:
        """What the sender found out: run_id, experiment_id, error, points, records, refused; empty before that."""
        try:
            with open(self.state_file) as file:
                state: Record = json.load(file)
                return state
        except (OSError, ValueError):
            return {}

    @state.setter
    def state(self, value: Record) -> None:
        replace(self.state_file, json.dumps(value))

    def lines(self, start: int = 0) -> Iterator[tuple[bytes, int]]:
        """Each complete line from a byte on, and where the next one starts."""
        with contextlib.suppress(FileNotFoundError), open(self.records, "rb") as file:
            file.seek(start)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # being written, or cut by a full disk
                start += len(line)
                yield line, start

    def waiting(self) -> int:
        """How many records the store does not have yet."""
        return sum(1 for line, _ in self.lines(self.offset) if line.strip())

    def lives(self) -> list[Record]:
        """The records that start and end the run, in order."""
        marks = (b'{"kind": "start"', b'{"kind": "status"')
        return [record for line, _ in self.lines() if line.startswith(marks) and (record := decode(line))]

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        """Only one process at a time opens a run's spool or takes it away."""
        root = os.path.dirname(self.folder)
        os.makedirs(root, exist_ok=True)
        with locked(f"{root}/gate"):
            yield

    def clear(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def encode(record: Record) -> bytes:
    """A record as a line; `kind` must be its first key. NaN and infinities are kept."""
    return json.dumps(record).encode() + b"\n"


def decode(line: bytes) -> Record | None:
    """A line as a record; None if it is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "kind" in record else None


def replace(path: str, text: str) -> None:
    """Write a file so that no reader ever sees half of it."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(temporary, path)


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a file lock, however long another process keeps it."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def birth(pid: int) -> str:
    """When a process began, in a form to compare; empty if it is over."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return "" if fields[0] == "Z" else fields[19]
    except OSError:
        return ""
