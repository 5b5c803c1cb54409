"""Settings of torch that last for one run, and are put back afterwards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.config import TrainerConfig

# cuBLAS is only deterministic with a workspace of fixed size: torch asks for one of two values.
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def torch_settings(config: TrainerConfig) -> Iterator[None]:
    """Determinism and cuDNN's search for the fastest algorithms, as the configuration says; None leaves torch's own."""
    deterministic, benchmark = config.deterministic, config.benchmark
    if deterministic and benchmark:
        warnings.warn(
            "`benchmark=True` may choose other algorithms in each run, for all `deterministic`.", stacklevel=2
        )
    if deterministic and benchmark is None:
        benchmark = False
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    was_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    had_benchmark, had_cublas = torch.backends.cudnn.benchmark, os.environ.get(_CUBLAS)
    try:
        if deterministic is not None:
            torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
        if deterministic:
            os.environ.setdefault(_CUBLAS, ":4096:8")
        if benchmark is not None:
            torch.backends.cudnn.benchmark = benchmark
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic, warn_only=was_warn_only)
        torch.backends.cudnn.benchmark = had_benchmark
        if had_cublas is None:
            os.environ.pop(_CUBLAS, None)


@contextmanager
def anomaly_detection(enabled: bool) -> Iterator[None]:
    """Autograd looks for NaN in backward passes; where it does so already, it goes on."""
    if enabled:
        with torch.autograd.set_detect_anomaly(True):
            yield
    else:
        yield
