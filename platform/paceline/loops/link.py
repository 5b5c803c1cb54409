"""Link: what a worker tells the driver, and what it hears from it."""

from __future__ import annotations

from typing import Any, Protocol

# Stands for a request to end so that the run goes on with another number of workers. It is below the numbers of the
# signals that end a run, which win.
RESIZE = 1


class Link(Protocol):
    """A worker's way to the driver; nothing here blocks."""

    def stop_signal(self) -> int:
        """The signal that asks the run to end, or RESIZE; 0 while there is none."""

    def show(self, progress: dict[str, Any]) -> None:
        """Show how far the run is; what was shown before is replaced."""

    def tell(self, text: str) -> None:
        """Print a line, or several, for the user."""
