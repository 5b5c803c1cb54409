"""What all workers decide at the same batch: to stop, to save a restart checkpoint, and when to look again."""

from __future__ import annotations

import time

from paceline.errors import StopRun
from paceline.loops.restart import RestartCheckpoints
from paceline.loops.run import Run

_LOOK_EVERY_S = 0.25
_LONGEST_PAUSE = 1000


class Consensus:
    """Looks at what each worker knows, all together, at fixed batches.

    Several workers look together as often as the first one's pace says: about four times a second, whatever a step
    takes, for one small collective. One worker alone sees a request to stop after every batch.
    """

    def __init__(self, run: Run, restarts: RestartCheckpoints) -> None:
        self._run = run
        self._restarts = restarts
        self._alone = run.strategy.placement.world_size == 1
        self._pause = 1
        self._countdown = 1
        self._looked_s = time.monotonic()

    def after_batch(self) -> None:
        """Look if it is time to.

        Raises:
            StopRun: a signal asks the run to end; the state is saved.
        """
        self._countdown -= 1
        if self._countdown <= 0 or (self._alone and self._is_asked_to_stop()):
            self.look()
        elif self._restarts.due_by_steps():
            self._restarts.save()

    def _is_asked_to_stop(self) -> bool:
        run = self._run
        return bool(run.stop_requests) or run.stop_agreed or run.link.stop_signal() != 0

    def look(self) -> None:
        """Look now. All workers have to call it.

        Raises:
            StopRun: a signal asks the run to end; the state is saved.
        """
        run = self._run
        signum, stop = run.link.stop_signal(), bool(run.stop_requests)
        due_by_deadline = self._restarts.due_by_deadline(run.link.deadline())
        save = due_by_deadline or self._restarts.due_by_time()
        if not self._alone:
            signum, stop_votes, save_votes, self._pause = run.strategy.largest(
                [signum, int(stop), int(save and run.strategy.is_global_zero), self._batches_until_next_look()]
            )
            stop, save = bool(stop_votes), bool(save_votes)
        else:
            self._pause = self._batches_until_next_look()
        self._countdown = self._pause
        run.stop_agreed = stop
        if save or signum or self._restarts.due_by_steps():
            self._restarts.save()
        if signum:
            raise StopRun(signum)

    def _batches_until_next_look(self) -> int:
        if not self._run.strategy.is_global_zero:
            return 0
        now = time.monotonic()
        since, self._looked_s = now - self._looked_s, now
        pause = int(self._pause * _LOOK_EVERY_S / max(since, 1e-6))
        # It may double from one look to the next: a slow first step must not set the pace, nor a burst of quick ones.
        return max(1, min(pause, 2 * self._pause, _LONGEST_PAUSE))
