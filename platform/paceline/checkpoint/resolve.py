"""Which checkpoint `ckpt_path` means; found on the driver, before anything starts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from paceline.checkpoint import storage
from paceline.errors import CheckpointError, MisconfigurationError


def resolve(
    ckpt_path: str | os.PathLike[str],
    fn: str,
    callbacks: Sequence[Any],
    restart_root: str,
    checkpoint_folders: str,
) -> str | None:
    """The path or URL that `ckpt_path` means.

    Args:
        ckpt_path: "best", "last" (the newest state that was kept), "hpc" (the newest restart checkpoint), a path
            or a URL.
        fn: the entry point; a missing "last" is a fresh start in "fit" and an error elsewhere.
        callbacks: the trainer's checkpoint callbacks.
        restart_root: folder of the restart checkpoints of this experiment's runs, each in a folder of its own.
        checkpoint_folders: pattern of the folders where this experiment's runs keep checkpoints, if their callbacks
            name none.

    Raises:
        FileNotFoundError: there is no such file.
        MisconfigurationError: "best" or "last" means nothing here.
    """
    if ckpt_path == "best":
        return _best(callbacks)
    if ckpt_path in ("last", "hpc"):
        patterns = [f"{restart_root}/*/*.ckpt"]
        if ckpt_path == "last":
            patterns += [f"{callback.dirpath or checkpoint_folders}/last*.ckpt" for callback in callbacks]
        found = newest(storage.find(*patterns))
        if found is not None:
            return found
        text = f'`ckpt_path="{ckpt_path}"`: there is none yet.'
        if fn != "fit":
            raise MisconfigurationError(f"{text} Give a path, or fit first.")
        warnings.warn(f"{text} The fit starts from the beginning.", stacklevel=3)
        return None
    path = os.fspath(ckpt_path)
    if not storage.exists(path):
        raise FileNotFoundError(
            f'There is no checkpoint at `ckpt_path="{path}"`. Give a path or URL, "best", "last" or "hpc".'
        )
    return path if "://" in path else os.path.abspath(path)


def newest(paths: list[str]) -> str | None:
    """The newest of some files that can be loaded; those that cannot are named in a warning."""
    for path in paths:
        try:
            storage.load(path)
        except (CheckpointError, FileNotFoundError) as error:
            warnings.warn(f"{error} The one before it is used.", stacklevel=2)
        else:
            return path
    return None


def _best(callbacks: Sequence[Any]) -> str:
    if len(callbacks) != 1:
        count = len(callbacks) or "no"
        raise MisconfigurationError(
            f'`ckpt_path="best"` needs one ModelCheckpoint, and there are {count}: give the path of a file.'
        )
    callback = callbacks[0]
    if not callback.best_model_path:
        why = "no fit has saved a checkpoint yet"
        if callback.last_model_path or callback.best_k_models:
            why = f"`{callback.monitor}` was never a number"
        raise MisconfigurationError(f'`ckpt_path="best"`: there is no best checkpoint, since {why}.')
    return str(callback.best_model_path)
