"""Small files of loggers, on local disks and fsspec's storages."""

from __future__ import annotations

import os
from typing import Any

import fsspec


def open_storage(path: str) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    filesystem, inner = fsspec.core.url_to_fs(path)
    return filesystem, inner


def is_local(path: str) -> bool:
    """Whether a path or URL is on a disk of this machine."""
    return "file" in open_storage(path)[0].protocol


def read_text(path: str) -> str:
    """What a file holds; nothing if there is none."""
    filesystem, inner = open_storage(path)
    try:
        return str(filesystem.cat_file(inner).decode())
    except FileNotFoundError:
        return ""


def write_text(path: str, text: str) -> None:
    """Write a file so that no reader ever sees half of it; its folder is made if it is not there.

    Raises:
        OSError: it cannot be written; what was there before still is.
    """
    filesystem, inner = open_storage(path)
    filesystem.makedirs(os.path.dirname(inner), exist_ok=True)
    if not is_local(path):
        filesystem.pipe_file(inner, text.encode())
        return
    temporary = f"{inner}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(temporary, inner)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def names_in(folder: str) -> list[str]:
    """The names of a folder's files and folders; none if it is not there."""
    filesystem, inner = open_storage(folder)
    filesystem.invalidate_cache()
    try:
        return [os.path.basename(path.rstrip("/")) for path in filesystem.ls(inner, detail=False)]
    except FileNotFoundError:
        return []
