"""SimpleProfiler: how often each action ran, and how long it took."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from paceline.profilers.profiler import Profiler


@dataclass
class _Times:
    calls: int = 0
    total_s: float = 0.0


class SimpleProfiler(Profiler):
    """A table of the actions, the longest first: calls, seconds per call, seconds in all, and the share of the run.

    Actions lie within each other, so the shares add up to more than 100 %. On a GPU they are the times of the Python
    code: an action may have ended before the device has done what it asked for.

    Args:
        dirpath: folder or URL of the reports; by default the `log_dir` of the run.
        filename: in the names of the reports; "simple" by default.
        extended: False leaves out calls and shares.
    """

    default_filename = "simple"

    def __init__(
        self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None, extended: bool = True
    ) -> None:
        self.extended = extended
        super().__init__(dirpath, filename)

    def _reset(self) -> None:
        super()._reset()
        self._times: dict[str, _Times] = {}
        self._began: dict[str, float] = {}
        self._run_began = time.perf_counter()

    def start(self, action: str) -> None:
        """An action begins."""
        super().start(action)
        self._began[action] = time.perf_counter()

    def stop(self, action: str) -> None:
        """An action ends."""
        now = time.perf_counter()
        super().stop(action)
        times = self._times.setdefault(action, _Times())
        times.calls += 1
        times.total_s += now - self._began.pop(action)

    def summary(self) -> str:
        """The table."""
        run_s = time.perf_counter() - self._run_began
        rows: list[tuple[str, ...]] = [
            (action, str(t.calls), f"{t.total_s / t.calls:.5g}", f"{t.total_s:.5g}", f"{100 * t.total_s / run_s:.2f}")
            for action, t in sorted(self._times.items(), key=lambda item: -item[1].total_s)
        ]
        rows.insert(0, ("action", "calls", "mean s", "total s", "share %"))
        if not self.extended:
            rows = [(row[0], row[2], row[3]) for row in rows]
        width = max(len(row[0]) for row in rows)
        lines = [row[0].ljust(width) + "".join(cell.rjust(12) for cell in row[1:]) for row in rows]
        return "\n".join([f"Profile of {run_s:.5g} s", lines[0], "-" * len(lines[0]), *lines[1:]])
