"""Evaluation mode that leaves a module as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule in evaluation mode; afterwards each is back in the mode it was in, frozen ones too.

    Args:
        module: the module.
    """
    modes: list[tuple[Any, bool]] = [(submodule, submodule.training) for submodule in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes:
            submodule.training = training
