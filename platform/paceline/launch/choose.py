"""Which launcher a run needs."""

from __future__ import annotations

from paceline.launch.in_process import InProcessLauncher
from paceline.launch.launcher import Launcher


def choose_launcher(current: Launcher | None, num_workers: int, address: str | None) -> Launcher:
    """In this process for one worker and no cluster, where Ray is not even imported; else Ray actors.

    Args:
        current: the launcher of the trainer's last run, which may have its workers ready.
        num_workers: workers that the run needs.
        address: of a Ray cluster; None for none.
    """
    if current is not None:
        return current
    if num_workers == 1 and address is None:
        return InProcessLauncher()
    from paceline.launch.actors import ActorLauncher

    return ActorLauncher(address)
