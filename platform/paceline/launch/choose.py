"""Which launcher a run needs."""

from __future__ import annotations

from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.launch.in_process import InProcessLauncher
from paceline.launch.launcher import Launcher


def refuse_launcher(config: TrainerConfig, num_workers: int, plugin: Launcher | None) -> None:
    """Say so if the launcher cannot host the run.

    Args:
        config: the Trainer's arguments.
        num_workers: workers that a run needs.
        plugin: a launcher of the user's own.

    Raises:
        MisconfigurationError: there are too many workers for this process, or two launchers.
    """
    if config.launcher == "in_process" and num_workers > 1:
        raise MisconfigurationError(
            f'`launcher="in_process"` hosts one worker, not {num_workers}. Use `devices=1`, or `launcher="actors"`.'
        )
    if config.launcher != "auto" and plugin is not None:
        raise MisconfigurationError(
            f"`plugins` holds a launcher, and `launcher={config.launcher!r}` names another one: remove one of them."
        )


def choose_launcher(current: Launcher | None, choice: str, num_workers: int, address: str | None) -> Launcher:
    """In this process for one worker and no cluster, where Ray is not even imported; else Ray actors.

    Args:
        current: the launcher of the trainer's last run, or the user's own.
        choice: the Trainer's argument.
        num_workers: workers that the run needs.
        address: of a Ray cluster; None for none.
    """
    if current is not None:
        return current
    if choice == "auto":
        choice = "in_process" if num_workers == 1 and address is None else "actors"
    if choice == "in_process":
        return InProcessLauncher()
    if choice == "ray_train":
        from paceline.launch.ray_train import RayTrainLauncher

        return RayTrainLauncher(address)
    from paceline.launch.actors import ActorLauncher

    return ActorLauncher(address)
