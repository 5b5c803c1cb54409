"""Profiler: measures the named actions of a run, and reports on them."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import fsspec

from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from torch import nn


class Profiler(ABC):
    """Measures actions: what lies between `start` and `stop` of a name. Each worker has one of its own.

    A subclass calls `start` and `stop` of this class in its own. Attributes whose names begin with an underscore are
    what this process has measured: they are set in `_reset`, and a pickled profiler goes without them.

    Args:
        dirpath: folder or URL of the reports; by default the `log_dir` of the run.
        filename: in the names of the reports, `<stage>-<filename>-<rank>.txt`; by default one that names the kind.
    """

    default_filename = "profile"

    def __init__(self, dirpath: str | os.PathLike[str] | None = None, filename: str | None = None) -> None:
        self.dirpath = os.fspath(dirpath) if dirpath is not None else None
        self.filename = filename
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        """The settings only."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin with nothing measured."""
        vars(self).update(state)
        self._reset()

    def _reset(self) -> None:
        self._running: set[str] = set()
        self._stage = ""
        self._rank = 0
        self._log_dir: str | None = None

    # -- a run ----------------------------------------------------------------------------------------------------

    def setup(self, stage: str, rank: int, log_dir: str | None) -> None:
        """A run begins: forget what was measured before.

        Args:
            stage: "fit", "validate", "test" or "predict".
            rank: of this worker.
            log_dir: folder or URL of the run's files.
        """
        self._reset()
        self._stage, self._rank, self._log_dir = stage, rank, log_dir

    def attach(self, module: nn.Module) -> None:  # noqa: B027
        """The run's module is there, and may be watched."""

    def detach(self) -> None:  # noqa: B027
        """The run is over: leave the module as it was."""

    def teardown(self, stage: str) -> None:
        """The run of `stage` is over, and was reported on. What was measured can still be read."""
        self._running.clear()

    # -- actions --------------------------------------------------------------------------------------------------

    def start(self, action: str) -> None:
        """An action begins.

        Raises:
            MisconfigurationError: it is going on already.
        """
        if action in self._running:
            raise MisconfigurationError(f"The action {action!r} is being measured already: `stop` it first.")
        self._running.add(action)

    def stop(self, action: str) -> None:
        """An action ends.

        Raises:
            MisconfigurationError: it is not going on.
        """
        if action not in self._running:
            raise MisconfigurationError(f"The action {action!r} is not being measured: `start` it first.")
        self._running.remove(action)

    @contextmanager
    def profile(self, action: str) -> Iterator[None]:
        """Measure the body under a name, also if it raises."""
        self.start(action)
        try:
            yield
        finally:
            self.stop(action)

    # -- reports --------------------------------------------------------------------------------------------------

    @abstractmethod
    def summary(self) -> str:
        """What was measured, for people."""

    def describe(self) -> str:
        """Write the summary to `<stage>-<filename>-<rank>.txt`, and return it.

        A report that cannot be written is said in a warning: it is no reason to end a run.
        """
        text = self.summary()
        self._write(f"{self._rank}.txt", text.encode())
        return text

    def _write(self, ending: str, content: bytes) -> None:
        folder = self.dirpath or self._log_dir
        if folder is None:
            return
        path = f"{folder}/{self._name(ending)}"
        try:
            filesystem, inner = fsspec.core.url_to_fs(path)
            filesystem.makedirs(os.path.dirname(inner), exist_ok=True)
            filesystem.pipe_file(inner, content)
        except OSError as error:
            warnings.warn(f"The report of the profiler cannot be written to {path}: {error}.", stacklevel=3)

    def _name(self, ending: str) -> str:
        return "-".join(part for part in (self._stage, self.filename or self.default_filename, ending) if part)
