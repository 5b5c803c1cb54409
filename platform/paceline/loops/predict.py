"""The loop of prediction."""

from __future__ import annotations

from typing import Any

from paceline.checkpoint.writer import copy_to_cpu
from paceline.data.feed import Feed
from paceline.errors import StopRun
from paceline.loops.evaluate import evaluating
from paceline.loops.run import Run
from paceline.loops.steps import step_call, transfer_call

Predictions = list[list[tuple[int, Any]]]


class PredictLoop:
    """Runs `predict_step` over the loaders, one after the other.

    Args:
        run: the parts of this run.
        feeds: one for each loader.
        keep: whether the predictions are returned.
    """

    def __init__(self, run: Run, feeds: list[Feed], keep: bool) -> None:
        self._run = run
        self.feeds = feeds
        self._keep = keep
        self._step = step_call(run.module.predict_step)
        self._transfer = transfer_call(run)

    def run(self) -> Predictions:
        """One pass over the loaders.

        Returns:
            For each loader this worker's predictions on the CPU, each with its batch's index in the whole data.
        """
        hooks = self._run.hooks
        with evaluating(self._run.module, inference=True):
            hooks.call("on_predict_start")
            hooks.call("on_predict_epoch_start")
            predictions = [self._run_loader(index, feed) for index, feed in enumerate(self.feeds)]
            hooks.call("on_predict_epoch_end")
            hooks.call("on_predict_end")
        return predictions

    def _run_loader(self, index: int, feed: Feed) -> list[tuple[int, Any]]:
        run, hooks = self._run, self._run.hooks
        batch_start, batch_end = hooks["on_predict_batch_start"], hooks["on_predict_batch_end"]
        kept = []
        for own_idx, batch in enumerate(feed.epoch(0)):
            if self._transfer is not None:
                batch = self._transfer(batch, index)
            run.metrics.begin_batch("predict_step", batch)
            for hook in batch_start:
                hook(batch, own_idx, index)
            output = self._step(batch, own_idx, index)
            for hook in batch_end:
                hook(output, batch, own_idx, index)
            if self._keep:
                kept.append((feed.index_in_data(own_idx), copy_to_cpu(output)))
            if signum := run.link.stop_signal():
                raise StopRun(signum)
        return kept


def in_data_order(workers: list[Predictions]) -> list[list[Any]]:
    """All workers' predictions of each loader, in the order of the data."""
    merged = []
    for parts in zip(*workers, strict=True):
        indexed = sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])
        merged.append([output for _, output in indexed])
    return merged
