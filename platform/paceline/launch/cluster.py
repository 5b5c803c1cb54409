"""The Ray that a run uses: a cluster that is joined, or a Ray of this machine that is started."""

from __future__ import annotations

import socket
from typing import Any

import ray

from paceline.errors import MisconfigurationError

_KNOCK_S = 5.0

# Whether this process started a Ray of this machine, which has what it has.
_started_here = False


def connect(address: str | None, dashboard: bool = False) -> None:
    """Join the cluster, or start a Ray of this machine; nothing if this process is in one already.

    Args:
        address: of the cluster; None starts a Ray here.
        dashboard: whether the one that is started has a dashboard, at the cost of some seconds.

    Raises:
        MisconfigurationError: no cluster answers at the address, or this process is in another one.
    """
    global _started_here
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address is not None and ":" in address and address not in (joined, f"ray://{joined}"):
            raise MisconfigurationError(
                f"`address={address!r}`: this process is in the Ray cluster at {joined} already. Leave it by "
                "`ray.shutdown()`, or leave `address` out."
            )
        return
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": "warning"}
    if address is None:
        # "local", for without an address Ray joins whatever it was that somebody last started on this machine.
        ray.init(address="local", include_dashboard=dashboard, **quiet)
        _started_here = True
        return
    try:
        _knock(address)
        ray.init(address=address, **quiet)
    except OSError as error:
        raise MisconfigurationError(f"No Ray cluster answers at `address={address!r}`: {error}") from error
    _started_here = False


def can_grow() -> bool:
    """Whether the Ray that this process is in may have more to give later."""
    return not _started_here


def count_gpus(address: str) -> int:
    """The GPUs that the nodes of a cluster have together, now.

    Raises:
        MisconfigurationError: no cluster answers at the address.
    """
    connect(address)
    return int(ray.cluster_resources().get("GPU", 0))


def _knock(address: str) -> None:
    """See whether anybody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()
