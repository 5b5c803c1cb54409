"""Workers as Ray actors, one per device, kept ready between runs; a run whose worker died goes on from its restart."""

from __future__ import annotations

import signal
from typing import Any

from paceline.callbacks.progress_bar import Display
from paceline.errors import WorkerDiedError
from paceline.launch import warm
from paceline.launch.cluster import connect
from paceline.launch.group import Shape, WorkerGroup
from paceline.launch.signals import stop_on_signals
from paceline.launch.spec import RunResult, RunSpec, merge
from paceline.loops.link import RESIZE


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
        connect(self._address)
        display = Display()
        group: WorkerGroup | None = None
        try:
            group = warm.acquire(_shape(spec), spec.config.start_timeout)
            results, spec = _run_to_the_end(group, spec, display)
        except BaseException:
            if group is not None:
                warm.discard(group)
            raise
        finally:
            display.close()
        if group.is_usable:
            warm.keep(group, spec.config.idle_timeout)
        else:
            warm.discard(group)
        return merge(results, spec)

    def close(self) -> None:
        """End the workers."""
        warm.close()


def _shape(spec: RunSpec) -> Shape:
    config, accelerator = spec.config, spec.accelerator
    resources = accelerator.ray_resources | (config.resources_per_worker or {})
    bounds = config.devices if isinstance(config.devices, tuple) else (spec.num_workers, spec.num_workers)
    backend = spec.strategy.backend(accelerator)
    return Shape(*bounds, config.num_nodes, tuple(sorted(resources.items())), config.placement_strategy, backend)


def _run_to_the_end(group: WorkerGroup, spec: RunSpec, display: Display) -> tuple[list[RunResult], RunSpec]:
    """The results in rank order, and the attempt that they are of."""
    signum = 0

    def ask_to_stop(given: int) -> None:
        nonlocal signum
        signum = given

    while True:
        death: WorkerDiedError | None = None
        results: list[RunResult] = []
        with stop_on_signals(ask_to_stop):
            try:
                results = group.run(spec, display, lambda: signum)
            except WorkerDiedError as error:
                death = error
        if death is None and results[0].stopped_by != RESIZE:
            return results, spec
        if signum:
            raise KeyboardInterrupt if signum == signal.SIGINT else SystemExit(128 + signum)
        is_failure = death is not None and not group.is_to_go
        if death is not None and is_failure and spec.failures >= spec.config.max_failures:
            raise death
        path = spec.newest_restart()
        spec = spec.go_on_from(path, spec.attempt + 1, spec.failures + is_failure)
        size = group.size
        group.renew()
        display.tell(_why_again(spec, death, is_failure, size, group.size))


def _why_again(spec: RunSpec, death: WorkerDiedError | None, is_failure: bool, before: int, now: int) -> str:
    size = f"with {now} workers instead of {before}, " if now != before else ""
    where = f"from {spec.ckpt_path}" if spec.ckpt_path else "from the beginning"
    if death is None:
        return f"There is room for more workers: the run goes on {size}{where}."
    if not is_failure:
        return f"{death} Its node was to be taken away: the run goes on {size}{where}."
    return f"{death} Restart {spec.failures} of at most {spec.config.max_failures}, {size}{where}."
