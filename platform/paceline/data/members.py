"""The modes in which several loaders are read as one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import MisconfigurationError

MODES = ("max_size_cycle", "min_size", "max_size", "sequential")

_END = object()


@dataclass
class Member:
    """One of several loaders, and how far it is read in a pass over all of them.

    Attributes:
        path: where in the structure it stands, for messages.
        length: batches of one reading of it at most; infinity when unknown.
        open: gives its batches in its so manieth reading, without the first so many.
        is_exact: whether `length` is certain, and the batches before a position need not be read.
        readings: how often it was begun anew.
        drawn: batches drawn in this reading.
        is_exhausted: whether it was read to its end at least once.
        is_begun: whether it is in a reading whose end it has not seen.
        start: from where in the reading its iterator will begin.
    """

    path: str
    length: float
    open: Callable[[int, int], Iterator[Any]]
    is_exact: bool = False
    readings: int = 0
    drawn: int = 0
    is_exhausted: bool = False
    is_begun: bool = False
    start: int = 0
    _batches: Iterator[Any] | None = field(default=None, repr=False)

    def draw(self) -> Any:
        """The next batch of this reading, or `_END`; then the iterator is let go of."""
        if self._batches is None:
            self._batches, self.start, self.is_begun = self.open(self.readings, self.start), 0, True
        batch = next(self._batches, _END)
        if batch is _END:
            self.is_exhausted, self.is_begun, self._batches = True, False, None
        else:
            self.drawn += 1
        return batch

    def draw_again(self) -> Any:
        """The next batch of a member that starts over at its end.

        Raises:
            MisconfigurationError: a reading gave nothing.
        """
        if self.is_begun:
            batch = self.draw()
            if batch is not _END:
                return batch
        self.readings, self.drawn = self.readings + 1, 0
        batch = self.draw()
        if batch is _END:
            raise _empty(self.path)
        return batch


def combined_length(members: Sequence[Member], mode: str) -> float:
    """Steps of one pass over all members; infinity when unknown.

    Raises:
        MisconfigurationError: a member that would have to start over is empty.
    """
    lengths = [member.length for member in members]
    if not any(lengths):
        return 0
    if mode == "max_size_cycle" and 0 in lengths:
        raise _empty(members[lengths.index(0)].path)
    if mode == "sequential":
        return sum(lengths)
    return min(lengths) if mode == "min_size" else max(lengths)


def seek(members: Sequence[Member], mode: str, steps: int) -> None:
    """Bring members that were not read yet to where they are after so many steps of a pass."""
    for member in members:
        if mode == "sequential":
            steps -= _skip(member, steps)
        elif mode == "max_size_cycle":
            _skip_in_a_cycle(member, steps)
        else:
            _skip(member, steps)


def _skip(member: Member, steps: int) -> int:
    """Pass over batches of one reading; how many there were to pass over."""
    if member.is_exact:
        skipped = int(min(steps, member.length))
        member.start = member.drawn = skipped
        member.is_exhausted = steps > member.length
        return skipped
    while member.drawn < steps and member.draw() is not _END:
        pass
    return member.drawn


def _skip_in_a_cycle(member: Member, steps: int) -> None:
    if not member.is_exact:
        for _ in range(steps):
            if member.is_exhausted or member.draw() is _END:
                member.draw_again()
    elif steps:
        # At the end of a reading it has not begun the next one yet.
        member.readings, before = divmod(steps - 1, int(member.length))
        member.start = member.drawn = before + 1
        member.is_begun = True
        member.is_exhausted = steps > member.length


def read(members: Sequence[Member], mode: str, step: int = 0) -> Iterator[tuple[Any, int, int]]:
    """The rest of a pass over all members.

    Args:
        members: each where it is after `step` steps.
        mode: one of `MODES`.
        step: the index of the first one.

    Returns:
        A batch, the index of its step, and that of its member. In "sequential" mode the batch is a member's own, and
        the step counts within the member; in the others it is a list with one item for each member.
    """
    if mode == "sequential":
        return _sequential(members)
    together = {"max_size_cycle": _max_size_cycle, "min_size": _min_size, "max_size": _max_size}[mode](members, step)
    return ((batch, index, 0) for index, batch in enumerate(together, step))


def _max_size_cycle(members: Sequence[Member], _: int) -> Iterator[list[Any]]:
    while True:
        # Those that were never exhausted decide whether there is a step; only then the others are drawn from.
        batch = [_END if member.is_exhausted else member.draw() for member in members]
        if all(item is _END for item in batch):
            return
        yield [m.draw_again() if item is _END else item for m, item in zip(members, batch, strict=True)]


def _min_size(members: Sequence[Member], step: int) -> Iterator[list[Any]]:
    length = combined_length(members, "min_size")
    # Those of unknown length first: when one of them is at its end, the others have lost nothing.
    order = sorted(range(len(members)), key=lambda index: members[index].length < math.inf)
    for _ in range(step, int(length)) if length < math.inf else itertools.count():
        batch: list[Any] = [None] * len(members)
        for index in order:
            batch[index] = members[index].draw()
            if batch[index] is _END:
                return
        yield batch


def _max_size(members: Sequence[Member], _: int) -> Iterator[list[Any]]:
    while True:
        batch = [_END if member.is_exhausted else member.draw() for member in members]
        if all(item is _END for item in batch):
            return
        yield [None if item is _END else item for item in batch]


def _sequential(members: Sequence[Member]) -> Iterator[tuple[Any, int, int]]:
    for index, member in enumerate(members):
        while not member.is_exhausted and (batch := member.draw()) is not _END:
            yield batch, member.drawn - 1, index


def _empty(path: str) -> MisconfigurationError:
    return MisconfigurationError(
        f'The member {path or "[0]"} of the combined loaders has no batches, so "max_size_cycle" cannot start it over. '
        'Remove it, or use "max_size" to get None in its place.'
    )
