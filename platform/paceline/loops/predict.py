"""The loop of prediction."""

from __future__ import annotations

from typing import Any

from paceline.checkpoint.writer import copy_to_cpu
from paceline.data.feed import Feed
from paceline.errors import StopRun
from paceline.loops.evaluate import evaluating
from paceline.loops.loaders import Loaders
from paceline.loops.run import Run
from paceline.loops.steps import module_step, transfer_call
from paceline.loops.together import together

Predictions = list[list[tuple[int, Any]]]


class PredictLoop:
    """Runs `predict_step` over the loaders, one after the other.

    Attributes:
        feeds: one for each loader.
        predictions: for each loader this worker's predictions so far, each with its batch's index in the whole data.
        batch_indices: of the samples in the batch at work; None where the loader does not tell.
        epoch_batch_indices: for each loader those of all batches so far.
    """

    def connect(self, run: Run, loaders: Loaders) -> None:
        """Take up the parts of a run, and open its data."""
        self._run = run
        self.feeds = loaders.evaluation("predict")
        self.predictions: Predictions = []
        self.batch_indices: list[int] | None = None
        self.epoch_batch_indices: list[list[list[int] | None]] = []
        self._keeps = run.keeps_predictions
        self._step = module_step(run, "predict")
        self._transfer = transfer_call(run)

    def run(self) -> Predictions:
        """One pass over the loaders.

        Returns:
            For each loader this worker's predictions on the CPU, each with its batch's index in the whole data.
        """
        hooks = self._run.hooks
        self.predictions = [[] for _ in self.feeds]
        self.epoch_batch_indices = [[] for _ in self.feeds]
        with evaluating(self._run.module, inference=self._run.may_use_inference_mode):
            hooks.call("on_predict_start")
            hooks.call("on_predict_epoch_start")
            for index, feed in enumerate(self.feeds):
                self._run_loader(index, feed)
            hooks.call("on_predict_epoch_end")
            hooks.call("on_predict_end")
        return self.predictions

    def _run_loader(self, index: int, feed: Feed) -> None:
        run_batch = self._run.span("run_predict_batch", self._run_batch)
        for own_idx, batch in enumerate(together(self._run.strategy, feed.epoch(0))):
            run_batch(feed, batch, own_idx, index)
            if signum := self._run.link.stop_signal():
                raise StopRun(signum)

    def _run_batch(self, feed: Feed, batch: Any, own_idx: int, index: int) -> None:
        hooks = self._run.hooks
        if self._transfer is not None:
            batch = self._transfer(batch, index)
        self.batch_indices = feed.samples_of(own_idx)
        self._run.metrics.begin_batch("predict_step", batch)
        for hook in hooks["on_predict_batch_start"]:
            hook(batch, own_idx, index)
        output = self._step(batch, own_idx, index, 0)
        if self._keeps:
            self.predictions[index].append((feed.index_in_data(own_idx), copy_to_cpu(output)))
            self.epoch_batch_indices[index].append(self.batch_indices)
        for hook in hooks["on_predict_batch_end"]:
            hook(output, batch, own_idx, index)


def in_data_order(workers: list[Predictions]) -> list[list[Any]]:
    """All workers' predictions of each loader, in the order of the data."""
    merged = []
    for parts in zip(*workers, strict=True):
        indexed = sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])
        merged.append([output for _, output in indexed])
    return merged
