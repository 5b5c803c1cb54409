"""Evaluation in step: for strategies whose every forward pass takes all workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from paceline.strategies.base import Strategy

_END = object()


def together(strategy: Strategy, batches: Iterable[Any]) -> Iterable[Any]:
    """This worker's batches; a worker that has none left takes part in the others' steps, without a batch.

    Args:
        strategy: whether that is needed; else the batches are given as they are.
        batches: of one loader; workers may have unequal numbers of them.
    """
    return _in_step(strategy, iter(batches)) if strategy.steps_together else batches


def _in_step(strategy: Strategy, batches: Iterator[Any]) -> Iterator[Any]:
    while True:
        batch = next(batches, _END)
        if not any(strategy.largest([int(batch is not _END)])):
            return
        if batch is None or batch is _END:
            strategy.stand_in()
        if batch is not _END:
            yield batch
