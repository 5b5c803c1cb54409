"""The loop of validation and test: every sample once, whatever the number of workers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.data.feed import Feed
from paceline.errors import StopRun
from paceline.evaluation_mode import evaluation_mode
from paceline.loops.loaders import Loaders
from paceline.loops.run import Run
from paceline.loops.steps import module_step, transfer_call
from paceline.loops.together import together
from paceline.values import EpochValue


class EvaluationLoop:
    """Runs a stage's loaders one after the other.

    Workers may have unequal numbers of batches, so they do not wait for each other before the end of the pass.

    Args:
        stage: "validation" or "test".
        inside_fit: training goes on afterwards; a signal is then looked at by the fit loop.

    Attributes:
        feeds: one for each loader.
    """

    def __init__(self, stage: str, inside_fit: bool = False) -> None:
        self._stage = stage
        self._inside_fit = inside_fit

    def connect(self, run: Run, loaders: Loaders) -> None:
        """Take up the parts of a run, and open its data."""
        self._run = run
        self.feeds = loaders.evaluation("val" if self._stage == "validation" else "test")
        self._step = module_step(run, self._stage)
        self._transfer = transfer_call(run)
        self._batch_start = run.hooks[f"on_{self._stage}_batch_start"]
        self._batch_end = run.hooks[f"on_{self._stage}_batch_end"]
        self._inference = not self._inside_fit and run.may_use_inference_mode

    def run(self, limit: float = math.inf) -> list[dict[str, float]]:
        """One pass over the loaders.

        Args:
            limit: batches of each loader.

        Returns:
            For each loader a dict with the values logged for it; those logged for the pass as a whole are in each.
        """
        run, stage, hooks, metrics = self._run, self._stage, self._run.hooks, self._run.metrics
        with evaluating(run.module, inference=self._inference):
            hooks.call(f"on_{stage}_start")
            hooks.call(f"on_{stage}_epoch_start")
            for index, feed in enumerate(self.feeds):
                self._run_loader(index, feed, limit)
            metrics.dataloader_idx = None
            values = metrics.reduce_epoch(stage)
            if hooks.call_logging(f"on_{stage}_epoch_end"):
                values += metrics.reduce_epoch(stage)
            hooks.call_reading(f"on_{stage}_epoch_end")
            if run.state.stage != "sanity_check":
                run.log_epoch(values)
                run.progress.validated_at = run.progress.batch.total.processed
            hooks.call(f"on_{stage}_end")
        return self._results(values)

    def _run_loader(self, index: int, feed: Feed, limit: float) -> None:
        run = self._run
        run.metrics.dataloader_idx = index if len(self.feeds) > 1 else None
        run_batch = run.span("run_evaluation_batch", self._run_batch)
        batches = itertools.takewhile(lambda one: feed.index_in_data(one[0]) < limit, enumerate(feed.epoch(0)))
        for own_idx, batch in enumerate(together(run.strategy, (batch for _, batch in batches))):
            if batch is not None:
                run_batch(batch, own_idx, index)
            if not self._inside_fit and (signum := run.link.stop_signal()):
                raise StopRun(signum)

    def _run_batch(self, batch: Any, own_idx: int, index: int) -> None:
        run, stage, metrics = self._run, self._stage, self._run.metrics
        if self._transfer is not None:
            batch = self._transfer(batch, index)
        metrics.begin_batch(f"on_{stage}_batch_start", batch)
        for hook in self._batch_start:
            hook(batch, own_idx, index)
        metrics.hook = f"{stage}_step"
        output = self._step(batch, own_idx, index, 0)
        metrics.hook = f"on_{stage}_batch_end"
        for hook in self._batch_end:
            hook(output, batch, own_idx, index)
        if run.state.stage != "sanity_check":
            run.log_row(metrics.step_row(stage), run.progress.evaluated_batches)
            run.progress.evaluated_batches += 1

    def _results(self, values: list[EpochValue]) -> list[dict[str, float]]:
        several = len(self.feeds) > 1
        return [
            {v.name: v.value for v in values if not several or v.loader in (None, index)}
            for index in range(len(self.feeds))
        ]


@contextmanager
def evaluating(module: nn.Module, inference: bool) -> Iterator[None]:
    """No gradients, and every submodule in evaluation mode; afterwards each is back in the mode it was in.

    Args:
        module: the module.
        inference: tensors made inside will never take part in training, which is a little faster.
    """
    with evaluation_mode(module), torch.inference_mode() if inference else torch.no_grad():
        yield
