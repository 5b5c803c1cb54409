"""OnExceptionCheckpoint: keeps the state of a fit that fails."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from paceline.callbacks.callback import Callback

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class OnExceptionCheckpoint(Callback):
    """Saves a checkpoint when a fit ends with an exception, to look at, or to go on from.

    Several workers would have to save together, which a failing one cannot: there nothing is saved, and the newest
    restart checkpoint, `ckpt_path="hpc"`, is what to go on from.

    Args:
        dirpath: folder or URL.
        filename: without ending.
    """

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        self.dirpath = os.fspath(dirpath)
        self.filename = filename

    @property
    def state_key(self) -> str:
        """By its file, so that there may be several."""
        return f"{type(self).__qualname__}{{'path': {self.ckpt_path!r}}}"

    @property
    def ckpt_path(self) -> str:
        """The file."""
        return f"{self.dirpath.rstrip('/')}/{self.filename}.ckpt"

    def on_exception(self, trainer: Trainer, pl_module: Module, exception: BaseException) -> None:
        """Save the state as it is."""
        if trainer.state.fn != "fit" or trainer.config.fast_dev_run:
            return
        if trainer.world_size > 1:
            warnings.warn(
                "OnExceptionCheckpoint saves nothing on several workers: go on from the newest restart checkpoint, "
                'with `ckpt_path="hpc"`.',
                stacklevel=2,
            )
            return
        trainer.save_checkpoint(self.ckpt_path)
