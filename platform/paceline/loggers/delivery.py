"""Delivery: reads a spool from where the store has it, and sends what follows."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from paceline.loggers.mlflow_run import MLflowRun, Point, StoreError, is_refusal
from paceline.loggers.spool import Record, Spool, decode, now_ms

_POINTS_PER_REQUEST = 1000
_ITEMS_PER_REQUEST = 100
_TRIES_PER_FILE = 3
Item = TypeVar("Item")


class StoreUnavailableError(Exception):
    """The store does not take records now: they are kept. The message says why, in one line."""


class Delivery:
    """Sends the records of one spool, in their order, each until the store has it or refuses it for good.

    What is refused goes to the spool's `refused.jsonl`, one by one, so that it takes nothing else with it.

    Args:
        spool: which no other process sends.
        log: takes one line of text.
    """

    def __init__(self, spool: Spool, log: Callable[[str], None]) -> None:
        self.spool = spool
        self._log = log
        self._run: MLflowRun | None = None
        self._offset = spool.offset
        self._tries = 0
        before = spool.state
        self.counts = {key: int(before.get(key, 0)) for key in ("records", "points", "refused")}

    def send(self) -> bool:
        """Send the next few records; False if none wait.

        Raises:
            StoreUnavailableError: try again later.
        """
        records, end = self._next()
        if end == self._offset:
            return False
        try:
            if records:
                self._deliver(self._open(), records)
            self.spool.offset = end
        except Exception as error:
            self._tries += 1
            reason = one_line(error)
            self._tell(reason)
            raise StoreUnavailableError(reason) from error
        self._tries, self._offset = 0, end
        self.counts["records"] += len(records)
        self._tell(None)
        for record in records:
            if record["kind"] == "model":
                with contextlib.suppress(OSError):
                    os.remove(record["path"])
        return True

    def hand_in_refused(self) -> bool:
        """Put what was refused into the run's artifacts, under paceline/refused; False if that fails."""
        if not os.path.exists(self.spool.refused):
            return True
        try:
            self._open().log_file(self.spool.refused, f"paceline/refused/{now_ms()}")
            os.remove(self.spool.refused)
        except Exception as error:
            self._log(f"{self.spool.refused} stays: {one_line(error)}")
            return False
        return True

    def _next(self) -> tuple[list[Record], int]:
        """Rows of metrics up to a full request, or one record of another kind; and the byte after them."""
        records: list[Record] = []
        points, end = 0, self._offset
        for line, after in self.spool.lines(self._offset):
            record = decode(line)
            if records and (record is None or record["kind"] != "metrics"):
                break
            if record is None:
                if line.strip():
                    self._refuse({"line": line.decode(errors="replace")}, "a damaged line")
                return [], after
            records.append(record)
            end = after
            points += len(record["values"]) if record["kind"] == "metrics" else _POINTS_PER_REQUEST
            if points >= _POINTS_PER_REQUEST:
                break
        return records, end

    def _open(self) -> MLflowRun:
        if self._run is None:
            start = next((record for record in self.spool.lives() if record["kind"] == "start"), None)
            if start is None:
                raise StoreError("the spool does not say which run it belongs to")
            self._run = MLflowRun(start, self._log)
        return self._run

    def _deliver(self, run: MLflowRun, records: list[Record]) -> None:
        record = records[0]
        kind = record["kind"]
        if kind == "metrics":
            points = [
                run.point(name, value, row["time_ms"], row["step"])
                for row in records
                for name, value in row["values"].items()
            ]
            refused = self.counts["refused"]
            self._in_parts(points, run.log_points, _POINTS_PER_REQUEST)
            self.counts["points"] += len(points) - (self.counts["refused"] - refused)
        elif kind in ("params", "tags"):
            send = run.log_params if kind == "params" else run.log_tags
            self._in_parts(list(record["values"].items()), send, _ITEMS_PER_REQUEST)
        elif kind in ("artifact", "model"):
            self._deliver_file(run, record)
        elif kind == "start":
            self._whole(record, run.set_running)
            self._in_parts(list(record["tags"].items()), run.log_tags, _ITEMS_PER_REQUEST)
        elif kind == "status":
            self._whole(record, lambda: run.set_status(record["status"], record["time_ms"]))
        else:
            self._refuse(record, f"records of the kind {kind!r} are unknown")

    def _deliver_file(self, run: MLflowRun, record: Record) -> None:
        try:
            if record["kind"] == "model":
                run.log_module(record["path"], record["import_path"])
            else:
                run.log_file(record["path"], record["name"])
        except Exception as error:
            run.check()  # raises if it is the store that does not answer
            if not is_refusal(error) and self._tries + 1 < _TRIES_PER_FILE:
                raise
            self._refuse(record, one_line(error))
            if record["kind"] == "model":
                run.log_tags([("paceline.model", f"not logged: {one_line(error)}")])

    def _whole(self, record: Record, send: Callable[[], None]) -> None:
        self._in_parts([record], lambda _: send(), 1)

    def _in_parts(self, items: Sequence[Item], send: Callable[[Sequence[Item]], None], size: int) -> None:
        """Send in requests of a size; what is refused is halved until it is known which items it is about."""
        for start in range(0, len(items), size):
            part = items[start : start + size]
            try:
                send(part)
            except Exception as error:
                if not is_refusal(error):
                    raise
                if self._run is not None:
                    self._run.check()  # a deleted run refuses everything, and may come back
                if len(part) == 1:
                    self._refuse(part[0], one_line(error))
                else:
                    self._in_parts(part, send, (len(part) + 1) // 2)

    def _refuse(self, item: Any, reason: str) -> None:
        what = item._asdict() if isinstance(item, Point) else item
        self.counts["refused"] += 1
        self._log(f"refused, and kept in refused.jsonl: {str(what)[:200]}: {reason}")
        with open(self.spool.refused, "a") as file:
            file.write(json.dumps({"refused": what, "reason": reason}) + "\n")

    def _tell(self, error: str | None) -> None:
        run = self._run
        ids = {"run_id": run.run_id, "experiment_id": run.experiment_id} if run is not None else {}
        with contextlib.suppress(OSError):  # a full disk
            self.spool.state = {**self.spool.state, **ids, **self.counts, "error": error}


def one_line(error: BaseException) -> str:
    """What an error says, in at most 300 characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    if server := re.match(r"API request to (\w+://[^/ ]+)\S* failed with (timeout )?exception", text):
        cause = error
        while cause.__cause__ or cause.__context__:
            cause = cause.__cause__ or cause.__context__ or cause
        text = f"{server[1]} does not answer: {cause}"
    return text if len(text) <= 300 else text[:297] + "..."
