"""Logged values as numbers: what may be logged, how several become one, and what is shown."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.errors import MisconfigurationError, nearest

Reduce = str | Callable[[Tensor], Tensor]


@dataclass
class Values:
    """The newest values under the three headings that a trainer shows them."""

    callback: dict[str, float] = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    progress_bar: dict[str, float] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    """Names whose epoch value came since the last training epoch's end: what schedulers on a plateau wait for."""

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep."""
        return {**asdict(self), "fresh": sorted(self.fresh)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.callback, self.logged, self.progress_bar = state["callback"], state["logged"], state["progress_bar"]
        self.fresh = set(state["fresh"])

    def take(self, name: str, value: float, logger: bool, prog_bar: bool) -> None:
        """Show `value` as the newest of `name`."""
        self.callback[name] = value
        if logger:
            self.logged[name] = value
        if prog_bar:
            self.progress_bar[name] = value


@dataclass(slots=True)
class EpochValue:
    """One name's value over all samples of all workers; `loader` is its loader's index where that is in the name."""

    name: str
    value: float
    logger: bool
    loader: int | None


def not_logged(who: str, name: str, values: Mapping[str, float]) -> str:
    """Sentences that say that `who` looks for a name that was not logged, and what was."""
    logged = ", ".join(sorted(values)) or "none"
    return f"`{who}(monitor={name!r})`: no such value was logged.{nearest(name, values)} Logged were: {logged}."


def combine(reduce: Reduce, values: list[float]) -> float:
    """One number from several, by name or by a function of a 1-d tensor."""
    if callable(reduce):
        return float(reduce(torch.tensor(values, dtype=torch.float64)))
    tensor = torch.tensor(values, dtype=torch.float64)
    return float(getattr(tensor, reduce)())


def read(values: list[Any]) -> list[float]:
    """Values as floats; those on a device are brought over together, which waits for it once."""
    on_device = [v for v in values if isinstance(v, Tensor) and v.device.type != "cpu"]
    if not on_device:
        return [float(value) for value in values]
    brought = iter(torch.stack([value.to(wide(value)) for value in on_device]).tolist())
    return [next(brought) if isinstance(v, Tensor) and v.device.type != "cpu" else float(v) for v in values]


def batch_size_of(batch: Any) -> int | None:
    """The first dimension of the first tensor in a batch, however it is nested; None without one."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif isinstance(batch, str) or not isinstance(batch, Iterable):
        return None
    return next((size for size in map(batch_size_of, batch) if size is not None), None)


def wide(value: Tensor) -> torch.dtype:
    """The number format that sums of such values are kept in."""
    # Sums over an epoch need more digits than a float32 has; Apple's GPUs have no float64.
    return torch.float32 if value.device.type == "mps" else torch.float64


def scalar(name: str, value: Tensor) -> Tensor:
    """A tensor of one element, without dimensions.

    Raises:
        MisconfigurationError: it has more elements, or none.
    """
    if value.numel() != 1:
        raise MisconfigurationError(
            f"`log({name!r})` got a tensor of shape {tuple(value.shape)}. Log one number: take its mean, or log "
            "each element under a name of its own."
        )
    return value.reshape(())


def number(name: str, value: Any) -> float:
    """A number that is no tensor, as a float.

    Raises:
        MisconfigurationError: it is none.
    """
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # a numpy array of one element
        return float(value.item())
    raise MisconfigurationError(
        f"`log({name!r})` got a value of type {type(value).__name__}. Log a number, a tensor of one element or a "
        "metric object; several at once with `log_dict`."
    )
