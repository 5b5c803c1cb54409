"""Running contenders in processes of their own, and what comes of it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Measure:
    """One row: a ratio of two contenders, with what it should be at most.

    Attributes:
        what: the work.
        against: the peer.
        goal: the largest ratio that is good.
        own: paceline's figures, one for each repetition.
        peer: the peer's figures.
        unit: of both.
        scale: figures are shown times this.
    """

    what: str
    against: str
    goal: float
    own: list[float]
    peer: list[float]
    unit: str
    scale: float = 1.0
    ratios: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = [mine / theirs for mine, theirs in zip(self.own, self.peer, strict=True)]

    def row(self) -> str:
        """As a row of a table."""
        ratio = statistics.median(self.ratios)
        verdict = "met" if ratio <= self.goal else "missed"
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        own, peer = (f"{statistics.median(values) * self.scale:.3g} {self.unit}" for values in (self.own, self.peer))
        cells = [self.what, self.against, f"≤ {self.goal}", f"{ratio:.2f}", spread, own, peer, verdict]
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| what | against | goal | ratio | spread | paceline | peer | |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def last_line(module: str, *arguments: str) -> str:
    """What `python -m module arguments` prints last, in a fresh process.

    Raises:
        RuntimeError: it failed.
    """
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1]


def in_turns(
    module: str, contenders: list[str], repetitions: int, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Run each contender once per repetition, one after the other, each in a fresh process.

    Whatever else the machine does meanwhile then falls on all of them alike.

    Args:
        module: run as `python -m module contender`; prints one number in its last line.
        contenders: names.
        repetitions: how often.
        say: takes progress.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name in contenders:
            figures[name].append(float(last_line(module, name)))
            say(f"{module} {name}, {repetition + 1} of {repetitions}: {figures[name][-1]:.4g}")
    return figures
