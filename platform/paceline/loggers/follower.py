"""Follower: brings what workers put into a spool on this machine to the logger that writes it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from paceline.loggers.spool import Record, Spool, decode

_INTERVAL_S = 1.0


class Follower:
    """Hands on the records of a spool about every second, in order, in a thread.

    Args:
        spool: where records come in, if there are workers elsewhere that have any.
        take: called with each record; must not raise.
    """

    def __init__(self, spool: Spool, take: Callable[[Record], None]) -> None:
        self._spool = spool
        self._take = take
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="paceline-follower", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand on what is there, and delete the spool."""
        self._over.set()
        self._thread.join()
        self._catch_up()
        self._spool.clear()

    def _follow(self) -> None:
        while not self._over.wait(_INTERVAL_S):
            self._catch_up()

    def _catch_up(self) -> None:
        # Kept on the disk: after a crash of the driver, the same run goes on here.
        begin = offset = self._spool.offset
        for line, end in self._spool.lines(begin):
            record = decode(line)
            if record is not None:
                self._take(record)
            offset = end
        if offset > begin and os.path.isdir(self._spool.folder):
            self._spool.offset = offset
