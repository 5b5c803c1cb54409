"""TensorBoard's event files: written here, or sent to where they are written."""

from __future__ import annotations

import itertools
import math
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.writer import FileWriter

from paceline.loggers.files import is_local, names_in, open_storage

_numbers = itertools.count()


class EventFile:
    """One new event file. Events are in it when `flush` has returned.

    The class of tensorboardX puts events into a bounded queue, and would wait for ever for a thread that a full disk
    has ended; and it knows no fsspec.

    Args:
        folder: folder or URL.
        max_queue: flush when so many events wait.
        flush_secs: flush with the first event after so many seconds.
        suffix: of the file's name.
    """

    def __init__(self, folder: str, max_queue: int, flush_secs: float, suffix: str) -> None:
        self._folder = folder
        # TensorBoard reads files in the order of their names, and two may begin in the same second.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
        self._filesystem, self._path = open_storage(f"{folder}/{name}{suffix}")
        self._is_local = is_local(folder)
        self._max_queue, self._flush_secs = max_queue, flush_secs
        self._content = b""
        self._waiting: list[bytes] = []
        self._flushed_at = -math.inf  # the file is there at once
        self._lock = threading.Lock()
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def add_event(self, event: Event) -> None:
        """Take an event.

        Raises:
            OSError: those that wait cannot be written, and wait on.
        """
        with self._lock:
            self._waiting.append(_framed(event.SerializeToString()))
            is_late = time.monotonic() - self._flushed_at >= self._flush_secs
        if is_late or len(self._waiting) >= self._max_queue:
            self.flush()

    def flush(self) -> None:
        """Write the events that wait."""
        with self._lock:
            self._flushed_at = time.monotonic()
            new = b"".join(self._waiting)
            self._filesystem.makedirs(os.path.dirname(self._path), exist_ok=True)
            if self._is_local:
                with open(self._path, "ab") as file:
                    file.write(new)
            else:
                # Elsewhere files cannot grow: each is put whole.
                self._filesystem.pipe_file(self._path, self._content + new)
                self._content += new
            self._waiting.clear()

    def close(self) -> None:
        """Write the events that wait."""
        self.flush()

    def get_logdir(self) -> str:
        """The folder."""
        return self._folder


class _SentEvents:
    """Events on their way to another machine."""

    def __init__(self, folder: str, send: Callable[[bytes], None]) -> None:
        self._folder = folder
        self._send = send

    def add_event(self, event: Event) -> None:
        self._send(event.SerializeToString())

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        """Nothing is open here."""

    def get_logdir(self) -> str:
        return self._folder


class _Events(FileWriter):  # type: ignore[misc]
    def __init__(self, events: EventFile | _SentEvents) -> None:
        self.event_writer = events
        self._default_metadata: dict[str, Any] = {}


class EventWriter(SummaryWriter):  # type: ignore[misc]
    """A SummaryWriter of one folder, which begins a new file whenever it was closed.

    Args:
        folder: folder or URL.
        send: takes the events in place of a file.
        options: `max_queue`, `flush_secs` and `filename_suffix` of a SummaryWriter.
    """

    def __init__(self, folder: str, send: Callable[[bytes], None] | None = None, **options: Any) -> None:
        self._send = send
        self.file_writer: _Events | None = None
        super().__init__(folder, **options)

    def _get_file_writer(self) -> _Events:
        if self.file_writer is None:
            if self._send is not None:
                events: EventFile | _SentEvents = _SentEvents(self.logdir, self._send)
            else:
                events = EventFile(self.logdir, self._max_queue, self._flush_secs, self._filename_suffix)
            self.file_writer = _Events(events)
            self.all_writers = {self.logdir: self.file_writer}
        return self.file_writer

    def add_sent(self, event: bytes) -> None:
        """Write an event that was sent from elsewhere."""
        self._get_file_writer().event_writer.add_event(Event.FromString(event))


def highest_steps(folder: str) -> dict[str, int]:
    """The highest step of each tag in the event files of a folder; damaged ends of files are passed over."""
    highest: dict[str, int] = {}
    for name in names_in(folder):
        if ".tfevents." not in name:
            continue
        filesystem, path = open_storage(f"{folder}/{name}")
        for event in _events(filesystem.cat_file(path)):
            for value in event.summary.value:
                highest[value.tag] = max(event.step, highest.get(value.tag, event.step))
    return highest


def _events(content: bytes) -> list[Event]:
    # Each event: its length in 8 bytes and a checksum of 4, then the event and a checksum of 4.
    events, start = [], 0
    while start + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        if start + 12 + length + 4 > len(content):
            break
        events.append(Event.FromString(content[start + 12 : start + 12 + length]))
        start += length + 16
    return events


def _framed(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", masked_crc32c(length)) + event + struct.pack("<I", masked_crc32c(event))
