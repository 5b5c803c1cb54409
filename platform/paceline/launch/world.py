"""The kind of devices and the number of workers that a Trainer asks for, here or in a cluster."""

from __future__ import annotations

from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.strategies.accelerators import Accelerator, find_accelerator


def choose_accelerator(config: TrainerConfig, address: str | None) -> Accelerator:
    """The accelerator that the configuration asks for.

    Args:
        config: the Trainer's arguments.
        address: of the Ray cluster, whose GPUs "auto" goes by; None for this machine.

    Raises:
        MisconfigurationError: there is no such kind, none of it is here, or no cluster answers.
    """
    choice = config.accelerator
    if address is not None and choice == "auto":
        choice = "cuda" if _cluster_gpus(address) else "cpu"
    return find_accelerator(choice, anywhere=address is not None)


def count_workers(config: TrainerConfig, accelerator: Accelerator, address: str | None) -> int:
    """The number of workers on all nodes together; of two bounds the larger.

    Args:
        config: the Trainer's arguments.
        accelerator: the kind of devices.
        address: of the Ray cluster, all of whose GPUs `devices=-1` takes; None for this machine.

    Raises:
        MisconfigurationError: all devices are asked for, and the cluster has none, or not the same on each node.
    """
    devices = config.devices
    if isinstance(devices, tuple):
        return devices[1]
    if isinstance(devices, list):
        return len(devices) * config.num_nodes
    if devices not in ("auto", -1):
        return int(devices) * config.num_nodes
    if address is None or accelerator.name != "cuda":
        return max(accelerator.count(), 1) * config.num_nodes
    gpus = _cluster_gpus(address)
    if gpus == 0 or gpus % config.num_nodes:
        raise MisconfigurationError(
            f"`devices={devices!r}` takes all GPUs of the cluster, which now has {gpus} for `num_nodes="
            f"{config.num_nodes}`. Give the number of workers on each node, such as `devices=1`."
        )
    return gpus


def _cluster_gpus(address: str) -> int:
    from paceline.launch.cluster import count_gpus  # which imports Ray

    return count_gpus(address)
