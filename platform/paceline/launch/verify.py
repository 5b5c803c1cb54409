"""What can be known to be wrong with a run before it starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from paceline.errors import MisconfigurationError
from paceline.hooks import RENAMED, overridden
from paceline.module import Module

_STEP = {"fit": "training_step", "validate": "validation_step", "test": "test_step", "predict": "predict_step"}
_LOADER = {"fit": "train", "validate": "val", "test": "test", "predict": "predict"}


def verify(fn: str, module: Module, datamodule: Any, train_loader: Any, eval_loaders: Any) -> None:
    """Check that a run has all that it needs.

    Args:
        fn: the entry point.
        module: what runs.
        datamodule: may be None.
        train_loader: as given to `fit`; None where data module or module has it.
        eval_loaders: as given; likewise.

    Raises:
        MisconfigurationError: a step, `configure_optimizers` or a loader is missing, or two are given for one.
    """
    name = type(module).__name__
    for owner in (module, datamodule):
        for old, new in RENAMED.items():
            if owner is not None and old not in _known(type(owner)) and hasattr(owner, old):
                raise MisconfigurationError(
                    f"{type(owner).__name__} has the hook `{old}`, which is called `{new}` now."
                )
    if datamodule is not None and (train_loader is not None or eval_loaders is not None):
        raise MisconfigurationError("Loaders and `datamodule` were both given: give one of them.")
    _verify_step(fn, module, name)
    given = train_loader if fn == "fit" else eval_loaders
    if given is None and not _has_loader(_LOADER[fn], module, datamodule):
        argument = "train_dataloaders" if fn == "fit" else "dataloaders"
        raise MisconfigurationError(
            f"`{fn}` has no data: pass `{argument}=`, or a `datamodule=` with `{_LOADER[fn]}_dataloader`, or define "
            f"`{_LOADER[fn]}_dataloader` in {name}."
        )
    for loader in (given, eval_loaders):
        if loader is not None and not isinstance(loader, Iterable):
            raise MisconfigurationError(
                f"`{loader!r}` was given as loader. Give a DataLoader or another iterable of batches."
            )
    if fn == "fit":
        has_step = overridden(module, "validation_step")
        has_loader = eval_loaders is not None or _has_loader("val", module, datamodule)
        if has_step != has_loader:
            present, absent = ("validation_step", "loader") if has_step else ("validation loader", "validation_step")
            warnings.warn(f"There is a {present} but no {absent} for it: nothing is validated.", stacklevel=4)


def _verify_step(fn: str, module: Module, name: str) -> None:
    step = _STEP[fn]
    missing = not overridden(module, step)
    if fn == "predict":
        missing = missing and type(module).forward is nn.Module.forward
    if missing:
        also = " or `forward`" if fn == "predict" else ""
        raise MisconfigurationError(f"`{fn}` needs `{step}`{also}, which {name} does not define.")
    if fn == "fit" and not overridden(module, "configure_optimizers"):
        raise MisconfigurationError(f"`fit` needs `configure_optimizers`, which {name} does not define.")


def _has_loader(kind: str, module: Module, datamodule: Any) -> bool:
    return any(owner is not None and overridden(owner, f"{kind}_dataloader") for owner in (datamodule, module))


def _known(cls: type) -> set[str]:
    return {name for base in cls.__mro__ if vars(base).get("_defines_hooks") for name in vars(base)}
