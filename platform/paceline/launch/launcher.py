"""Launcher: the one interface between a Trainer and the ways to host its workers."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from paceline.launch.spec import RunResult, RunSpec


@runtime_checkable
class Launcher(Protocol):
    """Carries a run out and brings its result back."""

    def launch(self, spec: RunSpec, trainer: Any) -> RunResult:
        """Run `spec`.

        Args:
            spec: the run.
            trainer: the driver's; a launcher that hosts the worker in this process shows it to the hooks.

        Raises:
            BaseException: the first failing worker's own error, with that worker's traceback.
        """

    def close(self) -> None:
        """Let go of workers that are kept ready."""
