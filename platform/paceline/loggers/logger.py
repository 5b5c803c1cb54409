"""Logger: where a run's values, hyperparameters and files go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from paceline.module import Module


class Sink(Protocol):
    """Takes records on their way to a logger's store."""

    def put(self, record: dict[str, Any]) -> None:
        """Take one record; never blocks, never raises."""


class Logger(ABC):
    """Records runs. On several workers it lives on the driver; rank 0 has a copy that hands on what it is given.

    Attributes:
        spool: the folder on the driver's machine where records of workers wait; None for loggers that write at once.
        default_root_dir: folder or URL for what has no place of its own; set by the Trainer.
    """

    spool: str | None = None
    default_root_dir: str | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The experiment: a run's files go to `<default_root_dir>/<name>/<version>`."""

    @property
    @abstractmethod
    def version(self) -> str:
        """The run."""

    @property
    def log_dir(self) -> str | None:
        """Folder or URL of the run's files; None for `<default_root_dir>/<name>/<version>`."""
        return None

    @abstractmethod
    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record one row of values."""

    @abstractmethod
    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record hyperparameters; mappings in it may be nested."""

    def log_graph(self, module: Module) -> None:  # noqa: B027
        """Record how a module computes its `example_input_array`."""

    def log_artifact(self, path: str, name: str | None = None) -> None:  # noqa: B027
        """Keep a file or folder with the run, in its folder `name`."""

    def log_module(self, path: str) -> None:  # noqa: B027
        """Keep a trained module with the run; see `MLflowLogger.log_module`."""

    def save(self) -> None:  # noqa: B027
        """Bring everything taken so far on its way."""

    def finalize(self, status: Literal["finished", "failed", "killed"]) -> None:  # noqa: B027
        """The run has ended so."""

    def start(self, run_key: str, spool_root: str) -> None:  # noqa: B027
        """On the driver, before each entry point: get ready to record the run of this key."""

    def attach(self, sink: Sink) -> None:  # noqa: B027
        """In a worker: where records go from here."""

    def close(self, timeout_s: float) -> None:  # noqa: B027
        """On the driver, at the end: wait at most so long for what is not sent yet."""
