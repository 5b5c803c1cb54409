"""Notices that a node is to be taken away: a spot instance that is reclaimed, a node that is scaled down."""

from __future__ import annotations

import time

import ray

_LOOK_EVERY_S = 1.0
# For a node that does not say when; Ray Train assumes the same.
_UNKNOWN_S = 120.0


class DrainWatch:
    """Asks Ray which nodes are being drained, once a second at most.

    Args:
        nodes: ids of the nodes that matter.
    """

    def __init__(self, nodes: set[str]) -> None:
        self._nodes = nodes
        self._look_at_s = 0.0
        self._deadlines: dict[str, float] = {}

    def deadline(self) -> float | None:
        """When the first of the nodes is to go, in seconds since 1970; None while none is."""
        if time.monotonic() >= self._look_at_s:
            self._look_at_s = time.monotonic() + _LOOK_EVERY_S
            # Ray tells it nowhere else, unless a dashboard runs.
            draining: dict[str, int] = ray._private.state.state.get_draining_nodes()
            for node in self._nodes & draining.keys():
                self._deadlines.setdefault(node, draining[node] / 1000 or time.time() + _UNKNOWN_S)
        return min(self._deadlines.values(), default=None)
