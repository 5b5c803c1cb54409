"""One worker in this very process: no Ray, nothing to start."""

from __future__ import annotations

from typing import Any

from paceline.callbacks.progress_bar import Display
from paceline.launch import worker
from paceline.launch.signals import stop_on_signals
from paceline.launch.spec import RunResult, RunSpec
from paceline.loops.link import Link
from paceline.loops.predict import in_data_order
from paceline.strategies.base import Placement


class LocalLink(Link):
    """The worker and the driver are one process."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._signum = 0

    def ask_to_stop(self, signum: int) -> None:
        """Let the worker see the signal at the end of its batch."""
        self._signum = signum

    def stop_signal(self) -> int:
        """The signal that asks the run to end."""
        return self._signum

    def show(self, progress: dict[str, Any]) -> None:
        """Draw it."""
        self._display.show(progress)

    def tell(self, text: str) -> None:
        """Print it."""
        self._display.tell(text)


class InProcessLauncher:
    """Runs the worker in the calling thread."""

    def launch(self, spec: RunSpec, trainer: Any) -> RunResult:
        """Run `spec`; hooks see the driver's own trainer."""
        devices = spec.config.devices
        device_index = devices[0] if isinstance(devices, list) else 0
        display = Display()
        link = LocalLink(display)
        try:
            with stop_on_signals(link.ask_to_stop):
                result = worker.run(spec, Placement(), link, trainer, device_index)
        finally:
            display.close()
        if result.predictions is not None:
            result.predictions = in_data_order([result.predictions])
        return result

    def close(self) -> None:
        """There is nothing to let go of."""
