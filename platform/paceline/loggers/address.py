"""Addresses of MLflow stores: made absolute, shown to people, opened in the UI."""

from __future__ import annotations

import os
import re
import shlex

from paceline.errors import MisconfigurationError


def resolve(uri: str) -> str:
    """The address of a store, the same from every folder.

    Raises:
        MisconfigurationError: it is a SQLite store in memory, or a folder of files, which MLflow has given up.
    """
    if uri.startswith("http"):
        return uri.rstrip("/")
    path = sqlite_path(uri)
    if path is not None and path != ":memory:":
        return uri.replace(f":///{path}", f":///{os.path.abspath(path)}", 1)
    is_folder = uri.startswith(("file:", "/", ".")) and not os.environ.get("MLFLOW_ALLOW_FILE_STORE")
    if path == ":memory:" or uri in ("sqlite://", "sqlite:///") or is_folder:
        raise MisconfigurationError(
            f"`tracking_uri={uri!r}` cannot hold runs. Use a database file as in `sqlite:///mlflow.db`, the address "
            "of a server or of a database. `mlflow migrate-filestore` brings a folder of runs into a database."
        )
    return uri


def sqlite_path(uri: str) -> str | None:
    """The file of a SQLite store; None for every other store."""
    match = re.match(r"sqlite(?:\+\w+)?:///([^?]+)", uri)
    return match[1] if match else None


def ui_command(uri: str) -> str:
    """What opens the UI on a store: a command for a database, the address of a server."""
    return uri if uri.startswith("http") else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"


def without_password(uri: str) -> str:
    """The address for people to see."""
    return re.sub(r"//[^/@]*@", "//...@", uri)
