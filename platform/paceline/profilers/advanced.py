"""AdvancedProfiler: which functions the time of each action goes to."""

from __future__ import annotations

import cProfile
import io
import marshal
import os
import pstats
import re

from paceline.errors import MisconfigurationError
from paceline.profilers.profiler import Profiler


class AdvancedProfiler(Profiler):
    """The functions of each action by cProfile, those with the longest cumulative time first.

    It makes Python code much slower: compare functions with each other, and measure totals with SimpleProfiler.

    Args:
        dirpath: folder or URL of the reports; by default the `log_dir` of the run.
        filename: in the names of the reports; "advanced" by default.
        line_count_restriction: how much of each action's list is shown: an int of lines, or a share of them.
        dump_stats: also write what was measured in each action as a file for `pstats.Stats`,
            `<stage>-<filename>-<rank>-<action>.prof`.

    Raises:
        MisconfigurationError: `line_count_restriction` is neither a positive int nor a share in (0, 1].
    """

    default_filename = "advanced"

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        line_count_restriction: float = 1.0,
        dump_stats: bool = False,
    ) -> None:
        is_share = isinstance(line_count_restriction, float)
        if not line_count_restriction > 0 or (is_share and line_count_restriction > 1):
            raise MisconfigurationError(
                f"`line_count_restriction={line_count_restriction}`: use an int of 1 or more for so many lines, or a "
                "float over 0 and up to 1.0 for a share of them."
            )
        self.line_count_restriction = line_count_restriction
        self.dump_stats = dump_stats
        super().__init__(dirpath, filename)

    def _reset(self) -> None:
        super()._reset()
        # Only one cProfile can be at work at a time. So there is one for each chain of actions within each other, and
        # what an action took is the sum over the chains that it is part of.
        self._chain: list[str] = []
        self._profiles: dict[tuple[str, ...], cProfile.Profile] = {}

    def start(self, action: str) -> None:
        """An action begins."""
        super().start(action)
        self._pause()
        self._chain.append(action)
        self._go_on()

    def stop(self, action: str) -> None:
        """An action ends."""
        super().stop(action)
        self._pause()
        self._chain.remove(action)
        self._go_on()

    def _pause(self) -> None:
        if self._chain:
            self._profiles[tuple(self._chain)].disable()

    def _go_on(self) -> None:
        if self._chain:
            self._profiles.setdefault(tuple(self._chain), cProfile.Profile()).enable()

    def teardown(self, stage: str) -> None:
        """The run is over; an action that never ended is not measured any longer."""
        self._pause()
        self._chain.clear()
        super().teardown(stage)

    def summary(self) -> str:
        """A list of functions for each action."""
        parts = []
        for action, stats in self._by_action().items():
            stats.stream = text = io.StringIO()  # type: ignore[attr-defined]
            stats.sort_stats("cumulative").print_stats(self.line_count_restriction)
            parts.append(f"Profile of {action}\n{text.getvalue().strip()}\n")
        return "\n".join(parts) or "No action was measured."

    def describe(self) -> str:
        """Write the summary, and the files for `pstats` if they are wanted; return the summary."""
        if self.dump_stats:
            for action, stats in self._by_action().items():
                name = re.sub(r"[^\w.]+", "_", action).strip("_")
                self._write(f"{self._rank}-{name}.prof", marshal.dumps(stats.stats))  # type: ignore[attr-defined]
        return super().describe()

    def _by_action(self) -> dict[str, pstats.Stats]:
        found: dict[str, pstats.Stats] = {}
        self._pause()  # reading one that is at work ends it
        for chain, profile in list(self._profiles.items()):
            for action in chain:
                profile.create_stats()
                if profile.stats:
                    found.setdefault(action, pstats.Stats(stream=io.StringIO())).add(profile)
        self._go_on()
        return found
