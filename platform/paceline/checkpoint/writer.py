"""Writing behind: checkpoints reach storage from a thread of their own while training goes on."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from paceline.checkpoint.io import CheckpointIO


class CheckpointWriter:
    """Writes one checkpoint at a time, in the order in which they were captured.

    Args:
        io: writes the file.
    """

    def __init__(self, io: CheckpointIO | None = None) -> None:
        self.io = io or CheckpointIO()
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def write(
        self,
        checkpoint: dict[str, Any],
        path: str,
        then: Callable[[], None] | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Begin to write; `checkpoint` must not change any more.

        Waits until the one before is on storage, so that no more than two copies of the state are in memory.

        Args:
            checkpoint: what `checkpoint.state.capture` gave.
            path: path or URL.
            then: called once the file is complete, to remove what it replaces.
            storage_options: for the fsspec file system of the URL.

        Raises:
            OSError: the one before could not be written.
        """
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="paceline-checkpoint")
        self._pending = self._pool.submit(self._write, checkpoint, path, then, storage_options)

    def _write(
        self,
        checkpoint: dict[str, Any],
        path: str,
        then: Callable[[], None] | None,
        storage_options: dict[str, Any] | None,
    ) -> None:
        self.io.save_checkpoint(checkpoint, path, storage_options)
        if then is not None:
            then()

    def wait(self) -> None:
        """Wait until everything is on storage, and raise what went wrong."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None


def copy_to_cpu(tree: Any) -> Any:
    """A copy that training cannot change: tensors are cloned to the CPU, containers made anew."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, str | int | float | None):
        return tree
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, copy_to_cpu(value)) for key, value in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(copy_to_cpu(value) for value in tree)
    return copy.deepcopy(tree)
