"""Loop: what stands behind an entry point. `trainer.fit_loop` and its like take any object of this form."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from paceline.loops.loaders import Loaders
from paceline.loops.run import Run


@runtime_checkable
class Loop(Protocol):
    """Made on the driver without any part of a run; each worker connects a copy of it to its own."""

    def connect(self, run: Run, loaders: Loaders) -> None:
        """Take up the parts of a run, and open its data. Optimizers do not exist yet."""

    def run(self) -> Any:
        """Do the work of the entry point.

        Returns:
            A list of dicts of values from validation and test, predictions from prediction, nothing from a fit.
        """
