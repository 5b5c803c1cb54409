"""paceline: one PyTorch Trainer from a laptop to an autoscaling Ray cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.callbacks import Callback
    from paceline.datamodule import DataModule
    from paceline.module import Module
    from paceline.seed import seed_everything
    from paceline.trainer import Trainer

__all__ = ["Callback", "DataModule", "Module", "Trainer", "seed_everything"]

# Imported when first asked for: what sends records or starts a job has no use for torch, which takes seconds to import.
_HOMES = {
    "Callback": "paceline.callbacks",
    "DataModule": "paceline.datamodule",
    "Module": "paceline.module",
    "Trainer": "paceline.trainer",
    "seed_everything": "paceline.seed",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
