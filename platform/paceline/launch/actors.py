"""Workers as Ray actors, one per device, kept ready between runs; a run whose worker died goes on from its restart."""

from __future__ import annotations

import dataclasses
import socket
from typing import Any

import ray

from paceline.callbacks.progress_bar import Display
from paceline.checkpoint import storage
from paceline.checkpoint.resolve import newest
from paceline.errors import MisconfigurationError, WorkerDiedError
from paceline.launch import group as groups
from paceline.launch.signals import stop_on_signals
from paceline.launch.spec import RunResult, RunSpec
from paceline.loops.predict import in_data_order

_KNOCK_S = 5.0


class ActorLauncher:
    """Runs workers on a Ray cluster, or on a Ray of this machine that it starts.

    Args:
        address: of the cluster; None starts one here.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address

    def launch(self, spec: RunSpec, trainer: Any) -> RunResult:
        """Run `spec`, again and again from its newest restart checkpoint while workers die, within `max_failures`.

        Raises:
            WorkerDiedError: workers died more often than that.
            BaseException: the first failing worker's own error.
        """
        can_grow = connect(self._address)
        display = Display()
        try:
            while True:
                group = groups.acquire(spec, can_grow)
                try:
                    with stop_on_signals(group.ask_to_stop):
                        results = group.run(spec, display)
                except WorkerDiedError as death:
                    groups.discard(group)
                    if spec.attempt >= spec.config.max_failures:
                        raise
                    spec = _next_attempt(spec, death, display)
                    continue
                except BaseException:
                    groups.discard(group)
                    raise
                if not group.is_usable:
                    groups.discard(group)
                return _merge(results, spec)
        finally:
            display.close()

    def close(self) -> None:
        """End the workers."""
        groups.close()


# Whether this process started a Ray of this machine, which has what it has.
_started_here = False


def connect(address: str | None) -> bool:
    """Join the cluster, or start a Ray of this machine; nothing if this process is in one already.

    Returns:
        Whether the cluster may grow.

    Raises:
        MisconfigurationError: no cluster answers at the address.
    """
    global _started_here
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address is not None and ":" in address and address not in (joined, f"ray://{joined}"):
            raise MisconfigurationError(
                f"`address={address!r}`: this process is in the Ray cluster at {joined} already. Leave it by "
                "`ray.shutdown()`, or leave `address` out."
            )
        return not _started_here
    quiet: dict[str, Any] = {"log_to_driver": True, "logging_level": "warning"}
    if address is None:
        # "local", for without an address Ray joins whatever it was that somebody last started on this machine.
        ray.init(address="local", include_dashboard=False, **quiet)
        _started_here = True
        return False
    try:
        _knock(address)
        ray.init(address=address, **quiet)
    except OSError as error:
        raise MisconfigurationError(f"No Ray cluster answers at `address={address!r}`: {error}") from error
    _started_here = False
    return True


def _knock(address: str) -> None:
    """See whether anybody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


def _next_attempt(spec: RunSpec, death: WorkerDiedError, display: Display) -> RunSpec:
    path = newest(storage.find(f"{spec.restart_dir}/*.ckpt")) if spec.fn == "fit" else None
    attempt = spec.attempt + 1
    where = f"from {path}" if path else "from the beginning" if spec.ckpt_path is None else f"from {spec.ckpt_path}"
    display.tell(f"{death} Restart {attempt} of at most {spec.config.max_failures}, {where}.")
    return dataclasses.replace(
        spec,
        attempt=attempt,
        ckpt_path=path or spec.ckpt_path,
        checkpoint=None if path else spec.checkpoint,
    )


def _merge(results: list[RunResult], spec: RunSpec) -> RunResult:
    result = results[0]
    if result.predictions is not None:
        result.predictions = in_data_order([one.predictions for one in results])
    result.give_back(spec)
    return result
