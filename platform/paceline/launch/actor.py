"""The actor that hosts one worker in a process of its own."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import ray

from paceline.launch.hosting import Failure, host
from paceline.launch.session import SessionLink, see_modules_of

if TYPE_CHECKING:
    from paceline.launch.spec import RunResult, RunSpec
    from paceline.strategies.base import Placement


class Worker:
    """The actor that hosts one worker."""

    def __init__(self) -> None:
        self._session: Any = None
        self._link: SessionLink | None = None
        self._placement: Placement | None = None
        # Until the first run there are only imports: a fifth of their time would go to looking for garbage.
        gc.disable()

    def where(self, path: list[str]) -> tuple[str, str]:
        """Id and address of the node; answers when what a run needs is imported. `path` is the driver's."""
        see_modules_of(path)
        import paceline.launch.worker  # noqa: F401

        context = ray.get_runtime_context()
        return context.get_node_id(), ray.util.get_node_ip_address()

    def open_store(self, host: str, world_size: int) -> int:
        """On the first worker: the store where the others find it; returns its port."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._store = TCPStore(host, 0, world_size, is_master=True, wait_for_workers=False)
        return int(self._store.port)

    def join(self, placement: Placement, host: str, port: int, backend: str, session: Any) -> None:
        """Form the process group with the other workers, and get to know the session."""
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._placement, self._session = placement, session
        self._link = SessionLink(session)
        if placement.world_size == 1:
            return
        store = getattr(self, "_store", None) or TCPStore(host, port, placement.world_size, is_master=False)
        dist.init_process_group(backend, store=store, rank=placement.global_rank, world_size=placement.world_size)

    def run(self, spec: RunSpec) -> RunResult | Failure:
        """Carry out a run."""
        if not gc.isenabled():
            if spec.fn == "fit":
                import torch._dynamo  # noqa: F401  # which torch's first optimizer imports
            gc.freeze()
            gc.enable()
        assert self._placement is not None
        assert self._link is not None
        self._link.begin()
        return host(spec, self._placement, self._link, self._session)
