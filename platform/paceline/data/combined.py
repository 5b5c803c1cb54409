"""CombinedLoader: several loaders read as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from paceline.data.limits import limited
from paceline.data.members import MODES, Member, combined_length, read
from paceline.data.structure import take_apart
from paceline.errors import MisconfigurationError, nearest


class CombinedLoader:
    """Reads several loaders as one.

    Iterating gives `(batch, batch_idx, dataloader_idx)`. In the modes but "sequential" a batch has the structure of
    `iterables`, with one batch of each loader in its place, and `dataloader_idx` is 0.

    Args:
        iterables: nested lists, tuples and dicts of loaders, or a loader.
        mode: "max_size_cycle" is as long as the longest, and shorter ones start over; "min_size" ends with the
            shortest; "max_size" is as long as the longest, and gives None in place of those that have ended;
            "sequential" reads one after the other, and `batch_idx` counts within each.

    Attributes:
        iterables: as given.
        mode: as given.
        flattened: the loaders.
        paths: where in the structure each of them is.
        rebuild: makes the structure of as many other things, given as an iterator.

    Raises:
        MisconfigurationError: the mode is not known, something in the structure cannot be iterated, or a loader that
            would have to start over is empty.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in MODES:
            raise MisconfigurationError(
                f"`CombinedLoader(mode={mode!r})` is not known. Use one of {', '.join(MODES)}."
                f"{nearest(str(mode), MODES)}"
            )
        self.iterables = iterables
        self.mode = mode
        leaves, self.rebuild = take_apart(iterables)
        self.paths = [path for path, _ in leaves]
        self.flattened = [loader for _, loader in leaves]
        for path, loader in leaves:
            if not hasattr(loader, "__iter__"):
                raise MisconfigurationError(
                    f"The member {path or '[0]'} of a CombinedLoader is a {type(loader).__name__}, which cannot be "
                    "iterated. Give loaders, in lists, tuples and dicts."
                )
        self._limits: list[int | float] | None = None
        self._members: list[Member] = []
        self._done = 0
        self._resumes_from: dict[str, Any] | None = None
        combined_length(self._open(), mode)  # refuses what is empty and would have to start over

    @property
    def limits(self) -> list[int | float] | None:
        """The most batches of each loader in one reading, as ints or float shares; None for all."""
        return self._limits

    @limits.setter
    def limits(self, limits: int | float | Sequence[int | float] | None) -> None:
        if isinstance(limits, int | float):
            limits = [limits] * len(self.flattened)
        if limits is not None and len(limits) != len(self.flattened):
            raise MisconfigurationError(f"There are {len(limits)} limits for {len(self.flattened)} loaders.")
        self._limits = None if limits is None else list(limits)

    @property
    def num_batches(self) -> float:
        """Steps of one pass; infinity when they depend on a loader without length."""
        return combined_length(self._open(), self.mode)

    def __len__(self) -> int:
        """Steps of one pass.

        Raises:
            TypeError: they depend on a loader without length.
        """
        length = self.num_batches
        if length == math.inf:
            raise TypeError(f'A CombinedLoader in mode "{self.mode}" has no length, since one of its loaders has none.')
        return int(length)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        self._members, self._done = self._open(), 0
        if self._resumes_from is not None:
            self._take_up(self._resumes_from)
            self._resumes_from = None
        for batch, batch_idx, dataloader_idx in read(self._members, self.mode, self._done):
            self._done += 1
            whole = batch if self.mode == "sequential" else self.rebuild(iter(batch))
            yield whole, batch_idx, dataloader_idx

    def state_dict(self) -> dict[str, Any]:
        """The position in the pass, and the states of the loaders that have one."""
        members = [
            {
                "readings": member.readings,
                "drawn": member.drawn,
                "is_exhausted": member.is_exhausted,
                "is_begun": member.is_begun,
            }
            for member in self._members
        ]
        states = [one.state_dict() if hasattr(one, "state_dict") else None for one in self.flattened]
        return {"done": self._done, "members": members, "states": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration goes on from there; loaders without a state of their own are read up to it.

        Raises:
            MisconfigurationError: the state is of another number of loaders.
        """
        if len(state_dict["states"]) != len(self.flattened):
            raise MisconfigurationError(
                f"The state is of {len(state_dict['states'])} loaders, but there are {len(self.flattened)}."
            )
        self._resumes_from = state_dict

    def _take_up(self, state: dict[str, Any]) -> None:
        self._done = state["done"]
        for member, loader, position, own in zip(
            self._members, self.flattened, state["members"], state["states"], strict=False
        ):
            member.readings, member.drawn = position["readings"], position["drawn"]
            member.is_exhausted, member.is_begun = position["is_exhausted"], position["is_begun"]
            if member.is_begun and own is not None:
                member.open = _Resumed(loader, own, member.length - member.drawn, member.open)
            elif member.is_begun:
                member.start = member.drawn

    def _open(self) -> list[Member]:
        limits = self._limits if self._limits is not None else [1.0] * len(self.flattened)
        members = []
        for path, loader, limit in zip(self.paths, self.flattened, limits, strict=True):
            length = limited(length_of(loader), limit, "limits")
            members.append(Member(path, length, partial(_batches, loader, length)))
        return members


def length_of(loader: Any) -> float:
    """What a loader says of its length; infinity if it says nothing."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return math.inf


def _batches(loader: Any, length: float, _: int, start: int) -> Iterator[Any]:
    return itertools.islice(iter(loader), start, None if length == math.inf else int(length))


class _Resumed:
    """Opens a loader with a state of its own: for the first time at that state, then from its beginning."""

    def __init__(self, loader: Any, state: Any, left: float, anew: Callable[[int, int], Iterator[Any]]) -> None:
        self._loader, self._state, self._left, self._anew = loader, state, left, anew

    def __call__(self, reading: int, start: int) -> Iterator[Any]:
        if self._state is None:
            return self._anew(reading, start)
        self._loader.load_state_dict(self._state)
        self._state = None
        return itertools.islice(iter(self._loader), None if self._left == math.inf else int(self._left))
