"""CheckpointIO: how checkpoints are written, read and removed; `Trainer(plugins=)` takes another one."""

from __future__ import annotations

from typing import Any

from paceline.checkpoint import storage


class CheckpointIO:
    """Files on local disks and fsspec's storages. Override what should happen otherwise."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write a checkpoint, whole or not at all.

        Args:
            checkpoint: on the CPU; nobody changes it any more.
            path: path or URL.
            storage_options: for the fsspec file system of the URL.
        """
        storage.save(checkpoint, path, storage_options)

    def load_checkpoint(self, path: str, trusted: bool = False) -> dict[str, Any]:
        """Read a checkpoint onto the CPU.

        Args:
            path: path or URL.
            trusted: whether pickled classes, whose code runs, may be loaded.

        Raises:
            FileNotFoundError: there is none.
            CheckpointError: it is damaged, or holds classes that are only loaded when trusted.
        """
        return storage.load(path, trusted=trusted)

    def remove_checkpoint(self, path: str) -> None:
        """Delete a checkpoint if it is there."""
        storage.remove(path)
