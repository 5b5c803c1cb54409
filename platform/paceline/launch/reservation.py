"""Reservation: what Ray sets aside for the workers of a group, until the group is closed."""

from __future__ import annotations

import socket
import time
import warnings
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from paceline.errors import MisconfigurationError
from paceline.launch import cluster

_LOOK_EVERY_S = 0.1
_SAY_WAITING_AFTER_S = 5.0
_SAY_WAITING_EVERY_S = 60.0
# How long a machine's own Ray, which has what it has, may take to set something aside.
_LOCAL_S = 2.0
# An elastic group that has its smallest number waits a moment for the rest, which mostly comes at once.
_REST_S = 1.0
_KNOCK_S = 1.0


@dataclass(frozen=True)
class Bundle:
    """Room for one worker: a bundle of a placement group.

    Attributes:
        group: the placement group.
        index: the bundle's place in it.
    """

    group: Any
    index: int


class Reservation:
    """Room for workers.

    A fixed number of workers has one placement group, which Ray places as a whole or not at all. Between two bounds
    each worker has a placement group of its own: those that there is no room for stay asked for, which also tells an
    autoscaler to bring nodes.

    Args:
        smallest: number of workers.
        largest: the same number, or a larger one up to which the group may grow.
        num_nodes: nodes that share the workers evenly; 1 for wherever there is room.
        resources: for each worker, such as {"CPU": 1}.
        strategy: Ray's placement strategy, for one fixed number on any nodes.
    """

    def __init__(
        self, smallest: int, largest: int, num_nodes: int, resources: dict[str, float], strategy: str = "PACK"
    ) -> None:
        self.smallest = smallest
        self.is_elastic = smallest < largest
        self._resources = {name: amount for name, amount in resources.items() if amount}
        self._num_nodes = num_nodes
        self._gone: set[str] = set()
        self._per_bundle = largest // num_nodes if num_nodes > 1 else 1
        bundle = {name: amount * self._per_bundle for name, amount in self._resources.items()}
        if self.is_elastic:
            self._groups = [placement_group([bundle]) for _ in range(largest)]
        else:
            strategy = "STRICT_SPREAD" if num_nodes > 1 else strategy
            self._groups = [placement_group([bundle] * (largest // self._per_bundle), strategy=strategy)]

    def there(self) -> list[Bundle]:
        """The room that there is now."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._gone}
        bundles = []
        for group in self._groups:
            table = placement_group_table(group)
            if table["state"] == "CREATED" and alive.issuperset(table["bundles_to_node_id"].values()):
                bundles += [Bundle(group, index) for index in range(len(group.bundle_specs))]
        return [bundle for bundle in bundles for _ in range(self._per_bundle)]

    def look_for_dead_nodes(self) -> None:
        """Leave out nodes that do not answer: Ray itself takes 15 s and more to notice that one is gone."""
        self._gone = {
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and not _answers(node["NodeManagerAddress"], node["NodeManagerPort"])
        }

    def wait(self, timeout_s: float) -> list[Bundle]:
        """The room that there is, once it is enough.

        Raises:
            MisconfigurationError: it is not enough in time, or this machine's Ray will never have it.
        """
        begin = time.monotonic()
        say_after_s = _SAY_WAITING_AFTER_S
        enough_since: float | None = None
        while True:
            bundles = self.there()
            now = time.monotonic()
            if len(bundles) >= self.smallest:
                enough_since = enough_since or now
                if not self.is_elastic or len(bundles) == len(self._groups) or now - enough_since > _REST_S:
                    return bundles
            waited_s = now - begin
            if len(bundles) < self.smallest and waited_s > (timeout_s if cluster.can_grow() else _LOCAL_S):
                raise MisconfigurationError(self._describe_lack(waited_s))
            if waited_s > say_after_s and enough_since is None:
                warnings.warn(f"Waiting for room for {self.smallest} workers. {self._compare()}", stacklevel=2)
                say_after_s += _SAY_WAITING_EVERY_S
            time.sleep(_LOOK_EVERY_S)

    def close(self) -> None:
        """Give it back."""
        for group in self._groups:
            remove_placement_group(group)

    def _describe_lack(self, waited_s: float) -> str:
        who = "the cluster" if cluster.can_grow() else "this machine's Ray"
        after = f"after {waited_s:.0f} s (`start_timeout`)" if cluster.can_grow() else "and will not have it"
        return (
            f"{who[0].upper()}{who[1:]} has no room for {self.smallest} workers {after}. {self._compare()} Use fewer "
            "`devices`, or smaller `resources_per_worker`."
        )

    def _compare(self) -> str:
        """What is needed, and what there is."""
        total = ray.cluster_resources()
        nodes = sum(node["Alive"] for node in ray.nodes())
        needed = {name: amount * self.smallest for name, amount in self._resources.items()}
        spread = f", {self._per_bundle} on each of {self._num_nodes} nodes" if self._num_nodes > 1 else ""
        return (
            f"They need {needed}{spread}; {nodes} {'node has' if nodes == 1 else 'nodes have'} "
            f"{ {name: total.get(name, 0.0) for name in needed} } in all, part of which others may hold."
        )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_KNOCK_S).close()
    except OSError:
        return False
    return True
