"""Recorder: takes records at the cost of a queue, and a thread appends them to a spool on disk."""

from __future__ import annotations

import os
import threading
import warnings
from queue import SimpleQueue

from paceline.loggers.spool import Record, Spool, encode


class Recorder:
    """Writes records to a spool. Of a metric, each step is recorded once: a step that is run again is left out.

    Args:
        folder: the spool's folder; made if it is not there.
    """

    def __init__(self, folder: str) -> None:
        self.spool = Spool(folder)
        self.dropped = 0
        self._queue: SimpleQueue[Record | threading.Event | None] = SimpleQueue()
        self._highest: dict[str, int] = {}
        self._descriptor = -1
        self._cut = False
        self._thread = threading.Thread(target=self._write_all, name="paceline-recorder", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Take one record, in a microsecond; never blocks, never raises. What it holds must not change afterwards."""
        self._queue.put(record)

    def forget(self) -> None:
        """What is put from here on is a new stretch: its steps count anew, whatever was recorded before."""
        self._queue.put({"kind": "forget"})

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was put so far is in the spool; False if that took longer."""
        written = threading.Event()
        self._queue.put(written)
        return self._thread.is_alive() and written.wait(timeout_s)

    def close(self) -> None:
        """Write what was put so far, and end. What is put later is lost."""
        self._queue.put(None)
        self._thread.join(timeout=10.0)

    # -- in the thread --------------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._take(item)
            except Exception as error:  # a record that cannot be kept is no reason to end a run
                self._drop(error)
        self._let_go()

    def _take(self, record: Record) -> None:
        if record["kind"] == "forget":
            self._highest.clear()
            self._let_go()  # the spool may have been sent and deleted meanwhile
        elif record["kind"] != "metrics":
            self._write(record)
        elif fresh := self._without_repeats(record):
            self._write(fresh)

    def _without_repeats(self, record: Record) -> Record | None:
        step, highest = record["step"], self._highest
        values = {name: value for name, value in record["values"].items() if step > highest.get(name, step - 1)}
        highest.update(dict.fromkeys(values, step))
        return {**record, "values": values} if values else None

    def _write(self, record: Record) -> None:
        # After a line that a full disk cut, a line of its own.
        line = b"\n" * self._cut + encode(record)
        if self._descriptor < 0:
            self._descriptor = self.spool.open()
        written = os.write(self._descriptor, line)
        self._cut = self._cut or written < len(line)
        if written < len(line):
            raise OSError(f"{written} of {len(line)} bytes were written")
        self._cut = False

    def _drop(self, error: Exception) -> None:
        self.dropped += 1
        if self.dropped == 1:
            warnings.warn(
                f"Records of the run cannot be kept in {self.spool.folder}: {error}. Training goes on without them.",
                stacklevel=1,
            )

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
