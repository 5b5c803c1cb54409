"""What is worth saying about a loader, once in a process."""

from __future__ import annotations

import os
import warnings
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from paceline.strategies.base import Placement

_said: set[str] = set()


def warn_of_loader(loader: DataLoader[Any], may_shuffle: bool, placement: Placement) -> None:
    """Warn where loading holds training up, and where an evaluation is shuffled."""
    if placement.global_rank != 0:
        return
    if loader.num_workers == 0 and not isinstance(loader.dataset, TensorDataset):
        spare = (os.cpu_count() or 1) - placement.world_size
        if spare >= 4:
            _say_once(
                f"A DataLoader has `num_workers=0`, though this machine has {spare} CPUs to spare: some loading "
                "processes may make it faster."
            )
    sampler = loader.batch_sampler.sampler if type(loader.batch_sampler) is BatchSampler else loader.sampler
    if not may_shuffle and isinstance(sampler, RandomSampler):
        _say_once(
            "A loader for evaluation or prediction shuffles: use `shuffle=False`, for results in the data's order."
        )


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=2)
