"""Counters of a fit that a checkpoint keeps, in the shape that this field's checkpoints have."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any


@dataclass
class Counts:
    """How often something was made ready, begun, processed and completed with all its hooks."""

    ready: int = 0
    started: int = 0
    processed: int = 0
    completed: int = 0


@dataclass
class Tally:
    """Counts over the whole run (`total`), and how they stood when the epoch began (`before`)."""

    total: Counts = field(default_factory=Counts)
    before: Counts = field(default_factory=Counts)

    @property
    def current(self) -> Counts:
        """Counts since the epoch began."""
        return Counts(**{name: getattr(self.total, name) - getattr(self.before, name) for name in _NAMES})

    def begin_epoch(self) -> None:
        """`current` starts at 0."""
        self.before = replace(self.total)

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep."""
        return {"total": asdict(self.total), "current": asdict(self.current)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the counts of a checkpoint; those it lacks stay 0."""
        total, current = ({name: int(state[part].get(name, 0)) for name in _NAMES} for part in ("total", "current"))
        self.total = Counts(**total)
        self.before = Counts(**{name: total[name] - current[name] for name in _NAMES})


_NAMES = tuple(one.name for one in fields(Counts))


@dataclass
class FitProgress:
    """Where a fit stands.

    Attributes:
        epoch: training epochs.
        batch: training batches; `current` counts within the epoch.
        optimizer: steps of all optimizers.
        scheduler: steps of all learning-rate schedulers.
        stepped_batches: batches after which an optimizer stepped: the x axis of logged values.
        validated_at: total batches when the last validation ran; -1 before the first.
        evaluated_batches: validation or test batches so far: the x axis of what is logged per step there.
        gathered: for each optimizer the batches whose gradients wait for its step.
        optimizer_steps: steps of each optimizer.
    """

    epoch: Tally = field(default_factory=Tally)
    batch: Tally = field(default_factory=Tally)
    optimizer: Tally = field(default_factory=Tally)
    scheduler: Tally = field(default_factory=Tally)
    stepped_batches: int = 0
    validated_at: int = -1
    evaluated_batches: int = 0
    gathered: list[int] = field(default_factory=list)
    optimizer_steps: list[int] = field(default_factory=list)

    def expect(self, optimizers: int) -> None:
        """Keep counts for so many optimizers; those that are kept already stay."""
        missing = optimizers - len(self.optimizer_steps)
        self.gathered += [0] * missing
        self.optimizer_steps += [0] * missing

    def optimizer_stepped(self, index: int) -> None:
        """An optimizer has taken a step."""
        count = self.optimizer.total
        count.ready += 1
        count.completed += 1
        self.optimizer_steps[index] += 1

    @property
    def batches_in_epoch(self) -> int:
        """Training batches of the running epoch that are done."""
        return self.batch.total.processed - self.batch.before.processed

    @property
    def global_step(self) -> int:
        """Optimizer steps taken, never reset."""
        return self.optimizer.total.completed

    @property
    def current_epoch(self) -> int:
        """Epochs completed, which is the index of the one that runs."""
        return self.epoch.total.completed

    def begin_epoch(self) -> None:
        """A new epoch: everything counted within an epoch starts at 0."""
        for tally in (self.batch, self.optimizer, self.scheduler):
            tally.begin_epoch()
        self.epoch.total.ready += 1

    def drop_unfinished_group(self) -> int:
        """Step back to before the batches whose gradients wait for others of their group; returns how many they are."""
        batches = max(self.gathered, default=0)
        self.gathered = [0] * len(self.gathered)
        total = self.batch.total
        for name in _NAMES:
            setattr(total, name, getattr(total, name) - batches)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """The counts under the keys of a Lightning checkpoint's `loops/fit_loop`."""
        return {
            "state_dict": {},
            "epoch_loop.state_dict": {
                "_batches_that_stepped": self.stepped_batches,
                "validated_at": self.validated_at,
                "evaluated_batches": self.evaluated_batches,
                "gathered": list(self.gathered),
                "optimizer_steps": list(self.optimizer_steps),
            },
            "epoch_loop.batch_progress": self.batch.state_dict(),
            "epoch_loop.scheduler_progress": self.scheduler.state_dict(),
            "epoch_loop.automatic_optimization.state_dict": {},
            "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": self.optimizer.state_dict()}},
            "epoch_progress": self.epoch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the counts of a checkpoint."""
        self.epoch.load_state_dict(state["epoch_progress"])
        self.batch.load_state_dict(state["epoch_loop.batch_progress"])
        self.scheduler.load_state_dict(state["epoch_loop.scheduler_progress"])
        self.optimizer.load_state_dict(state["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"])
        inner = state["epoch_loop.state_dict"]
        self.stepped_batches = int(inner.get("_batches_that_stepped", 0))
        self.validated_at = int(inner.get("validated_at", -1))
        self.evaluated_batches = int(inner.get("evaluated_batches", 0))
        self.gathered = list(inner.get("gathered", []))
        self.optimizer_steps = list(inner.get("optimizer_steps", []))


@dataclass
class RunState:
    """What a trainer is doing.

    Attributes:
        fn: the entry point: "fit", "validate", "test" or "predict"; None before the first.
        status: "initializing", "running", "finished" or "interrupted".
        stage: "train", "sanity_check", "validate", "test" or "predict"; None outside a loop.
    """

    fn: str | None = None
    status: str = "initializing"
    stage: str | None = None
