"""Link: what a worker tells the driver, and what it hears from it."""

from __future__ import annotations

from typing import Any

# Stands for a request to end so that the run goes on with another number of workers. It is below the numbers of the
# signals that end a run, which win.
RESIZE = 1


class Link:
    """A worker's way to the driver, where nothing takes long; this one has nobody at its other end."""

    def stop_signal(self) -> int:
        """The signal that asks the run to end, or RESIZE; 0 while there is none."""
        return 0

    def deadline(self) -> float | None:
        """When a node of this run is to be taken away, in seconds since 1970; None while nobody says so.

        All workers have to call it equally often.
        """
        return None

    def show(self, progress: dict[str, Any]) -> None:
        """Show how far the run is; what was shown before is replaced."""

    def tell(self, text: str) -> None:
        """Print a line, or several, for the user."""
