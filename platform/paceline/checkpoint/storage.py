"""Checkpoint files: written whole or not at all, on local disks and fsspec's storages; loaded without trust."""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import os
import pathlib
import pickle
import posixpath
import re
import sys
import uuid
import zipfile
from typing import Any

import fsspec
import torch

from paceline.errors import CheckpointError

TEMPORARY = ".tmp-"

# What may stand in a checkpoint besides tensors and plain Python values, with no code of the user's run to load it.
_SAFE_TYPES: list[Any] = [
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    datetime.datetime,
    datetime.date,
    datetime.timedelta,
    datetime.timezone,
    collections.deque,
    collections.defaultdict,
    argparse.Namespace,
]


def _safe_types() -> list[Any]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _SAFE_TYPES
    multiarray = numpy._core.multiarray
    kinds = [
        type(numpy.dtype(name)) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
    ]
    return [*_SAFE_TYPES, numpy.ndarray, numpy.dtype, multiarray.scalar, multiarray._reconstruct, *kinds]


def loads_without_trust(value: Any) -> bool:
    """Whether a value comes back from a checkpoint that is not trusted."""
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        with torch.serialization.safe_globals(_safe_types()):
            torch.load(buffer, weights_only=True)
    except Exception:
        return False
    return True


def save(checkpoint: dict[str, Any], path: str, storage_options: dict[str, Any] | None = None) -> None:
    """Write a checkpoint so that nobody ever sees half of it.

    On a local disk it is written under a temporary name, flushed to the disk and moved into place; elsewhere it is
    put in one piece, which is how object stores make a file visible.

    Args:
        checkpoint: what is written.
        path: path or URL.
        storage_options: for the fsspec file system of the URL.

    Raises:
        OSError: it could not be written; what was at `path` before is still there.
    """
    filesystem, inner = fsspec.core.url_to_fs(path, **(storage_options or {}))
    filesystem.makedirs(os.path.dirname(inner), exist_ok=True)
    if not _is_local(filesystem):
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        filesystem.pipe_file(inner, buffer.getvalue())
        return
    temporary = f"{inner}{TEMPORARY}{uuid.uuid4().hex[:8]}"
    try:
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, inner)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def load(path: str, map_location: Any = "cpu", trusted: bool = False) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: path or URL.
        map_location: where tensors go.
        trusted: True also loads pickled classes, which can run any code: only for files of your own.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it is damaged, or holds classes that are only loaded when trusted.
    """
    filesystem, inner = fsspec.core.url_to_fs(os.fspath(path))
    if not filesystem.exists(inner):
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        with filesystem.open(inner, "rb") as file, torch.serialization.safe_globals(_safe_types()):
            _verify_checksums(file)
            checkpoint: dict[str, Any] = torch.load(file, map_location=map_location, weights_only=not trusted)
    except Exception as error:  # whatever a reader makes of bytes that mean nothing
        unsafe = re.search(r"GLOBAL (\S+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if unsafe is None:
            raise CheckpointError(f"The checkpoint {path} is damaged.") from error
        raise CheckpointError(
            f"The checkpoint {path} holds a `{unsafe.group(1)}`, which is not loaded without trust, since its code "
            "would run. If the file is your own, use `Trainer(trusted_checkpoints=True)`."
        ) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"The checkpoint {path} is damaged: it holds a {type(checkpoint).__name__}.")
    return checkpoint


def _verify_checksums(file: Any) -> None:
    """Torch writes a checksum of each part into the file, and does not look at it when it reads."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as parts:
            broken = parts.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(broken)
    file.seek(0)


def copy(path: str, target: str) -> None:
    """Give a complete file a second name, whose earlier file is replaced in one step.

    On a local disk both names share the bytes; removing one leaves the other.
    """
    filesystem, inner = fsspec.core.url_to_fs(path)
    _, inner_target = fsspec.core.url_to_fs(target)
    if not _is_local(filesystem):
        filesystem.copy(inner, inner_target)
        return
    temporary = f"{inner_target}{TEMPORARY}{uuid.uuid4().hex[:8]}"
    os.link(inner, temporary)
    os.replace(temporary, inner_target)


def link(path: str, target: str) -> None:
    """Let a second name point to a file of the same folder; where there are no links, it is copied."""
    filesystem, inner = fsspec.core.url_to_fs(path)
    _, inner_target = fsspec.core.url_to_fs(target)
    if not _is_local(filesystem):
        copy(path, target)
        return
    temporary = f"{inner_target}{TEMPORARY}{uuid.uuid4().hex[:8]}"
    os.symlink(os.path.relpath(inner, os.path.dirname(inner_target)), temporary)
    os.replace(temporary, inner_target)


def exists(path: str) -> bool:
    """Whether there is a file or folder."""
    filesystem, inner = fsspec.core.url_to_fs(path)
    return bool(filesystem.exists(inner))


def folder_of(path: str) -> str:
    """The folder that a file is really in, whatever `..` its path holds."""
    scheme, separator, inner = path.rpartition("://")
    return scheme + separator + posixpath.dirname(posixpath.normpath(inner))


def remove(path: str) -> None:
    """Delete a file or a folder if it is there."""
    filesystem, inner = fsspec.core.url_to_fs(path)
    if filesystem.exists(inner):
        filesystem.rm(inner, recursive=filesystem.isdir(inner))


def find(*patterns: str) -> list[str]:
    """Complete checkpoint files matching any of some glob patterns, the newest first."""
    found = {}
    for pattern in patterns:
        filesystem, inner = fsspec.core.url_to_fs(pattern)
        scheme = pattern.split("://", 1)[0] + "://" if "://" in pattern else ""
        for file in filesystem.glob(inner):
            if TEMPORARY not in os.path.basename(file):
                found[scheme + file] = _time(filesystem, file)
    return sorted(found, key=lambda path: found[path], reverse=True)


def _is_local(filesystem: Any) -> bool:
    return "file" in filesystem.protocol


def _time(filesystem: Any, path: str) -> float:
    try:
        return float(filesystem.modified(path).timestamp())
    except (NotImplementedError, FileNotFoundError):
        return 0.0
