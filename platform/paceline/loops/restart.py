"""The rolling restart checkpoint: what a run goes on from after a worker died or a signal came."""

from __future__ import annotations

import time

from paceline.checkpoint import storage
from paceline.loops.run import Run

KEPT = 2
_SHORTEST_S = 10.0
# A checkpoint that holds the loop up for t seconds is taken at most every 50 t seconds: under 2 % of the run.
_LARGEST_SHARE = 1 / 50
# How long before a node goes the last checkpoint is begun, besides twice the time that writing one takes.
_MARGIN_S = 2.0


class RestartCheckpoints:
    """Writes a run's newest state to a folder of its own, and keeps the last two files.

    Args:
        run: whose state; its configuration says how often.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder = run.restart_dir
        self._every_n_steps = run.config.restart_every_n_steps
        self._is_off = bool(run.config.fast_dev_run)
        self._saved_at_batch = run.progress.batch.total.processed
        self._saved_at_step = run.progress.global_step
        self._pause_s = _SHORTEST_S
        self._next_s = time.monotonic() + self._pause_s
        self._writing_took_s = 0.0
        self._deadline: float | None = None
        self._saved_before_deadline = False

    def due_by_steps(self) -> bool:
        """Whether enough steps were taken; the same on all workers."""
        n = self._every_n_steps
        if n is None:
            return False
        step = self._run.progress.global_step
        return step != self._saved_at_step and step % n == 0

    def due_by_time(self) -> bool:
        """Whether enough time has passed on this worker."""
        return self._every_n_steps is None and time.monotonic() >= self._next_s

    def due_by_deadline(self, deadline: float | None) -> bool:
        """Whether to save since a node of this run is to be taken away: at the first notice, and just before.

        Args:
            deadline: when, in seconds since 1970; None while none is.
        """
        if deadline is None:
            return False
        if deadline != self._deadline:
            self._deadline, self._saved_before_deadline = deadline, False
            return True
        if not self._saved_before_deadline and time.time() > deadline - _MARGIN_S - 2 * self._writing_took_s:
            self._saved_before_deadline = True
            return True
        return False

    def save(self) -> None:
        """Save the state as it is. All workers have to call it."""
        batches = self._run.progress.batch.total.processed
        if batches == self._saved_at_batch or self._is_off:
            return
        begin = time.monotonic()
        self._saved_at_batch, self._saved_at_step = batches, self._run.progress.global_step

        def written() -> None:
            self._writing_took_s = time.monotonic() - begin
            self._remove_old()

        self._run.save_checkpoint(f"{self._folder}/batch={batches:09d}.ckpt", then=written)
        self._pause_s = max(_SHORTEST_S, (time.monotonic() - begin) / _LARGEST_SHARE)
        self._next_s = time.monotonic() + self._pause_s

    def _remove_old(self) -> None:
        for path in storage.find(f"{self._folder}/*.ckpt")[KEPT:]:
            self._run.writer.io.remove_checkpoint(path)
