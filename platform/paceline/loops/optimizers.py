"""What `configure_optimizers` may return, made into optimizers and scheduler configurations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from paceline.errors import MisconfigurationError, nearest

_FORMS = (
    "Return an optimizer, a list of optimizers, two lists (optimizers and schedulers), a dict with `optimizer` and "
    "maybe `lr_scheduler`, a list of such dicts, each maybe with a `frequency`, or None."
)


@dataclass
class SchedulerConfig:
    """How one learning-rate scheduler is stepped.

    Attributes:
        scheduler: has `step` and `state_dict`.
        interval: "epoch", or "step" for optimizer steps.
        frequency: step it every so many intervals.
        monitor: the logged name that a scheduler on a plateau looks at.
        strict: whether a missing monitor is an error; else it is a warning.
        name: what a learning-rate monitor calls it.
        reduce_on_plateau: whether stepping it needs a metric; by default whether it is a ReduceLROnPlateau.
        optimizer_idx: which of the run's optimizers it belongs to.
    """

    scheduler: Any
    interval: str = "epoch"
    frequency: int = 1
    monitor: str | None = None
    strict: bool = True
    name: str | None = None
    reduce_on_plateau: bool = False
    optimizer_idx: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.reduce_on_plateau = self.reduce_on_plateau or isinstance(self.scheduler, ReduceLROnPlateau)


@dataclass
class Configured:
    """What `configure_optimizers` returned, in one form.

    Attributes:
        optimizers: all of them.
        schedulers: with how they are stepped.
        frequencies: for how many batches in a row each optimizer is used, by turns; empty when all are used for each.
    """

    optimizers: list[Optimizer]
    schedulers: list[SchedulerConfig]
    frequencies: list[int]


def parse_optimizers(returned: Any) -> Configured:
    """Optimizers and schedulers from what `configure_optimizers` returned.

    Raises:
        MisconfigurationError: it is none of the forms that are understood.
    """
    optimizers, schedulers, frequencies = _forms(returned)
    wrong = next((o for o in optimizers if not isinstance(o, Optimizer)), None)
    if wrong is not None:
        raise MisconfigurationError(f"`configure_optimizers` gave a {type(wrong).__name__} as optimizer. {_FORMS}")
    if returned is None:
        warnings.warn("`configure_optimizers` returned None: the weights are not optimized.", stacklevel=2)
    configs = [_scheduler(one) for one in schedulers]
    for config in configs:
        owner = getattr(config.scheduler, "optimizer", None)
        if owner is None:
            continue
        if all(owner is not optimizer for optimizer in optimizers):
            raise MisconfigurationError(
                f"`configure_optimizers` returned a {type(config.scheduler).__name__} of an optimizer that it did not "
                "return."
            )
        config.optimizer_idx = next(index for index, one in enumerate(optimizers) if one is owner)
    return Configured(optimizers, configs, frequencies)


def _forms(returned: Any) -> tuple[list[Any], list[Any], list[int]]:
    if returned is None:
        return [], [], []
    if isinstance(returned, Optimizer):
        return [returned], [], []
    if isinstance(returned, Mapping):
        return _from_dicts([returned])
    if isinstance(returned, list | tuple):
        if len(returned) == 2 and isinstance(returned[0], list | tuple) and isinstance(returned[1], list | tuple):
            return list(returned[0]), list(returned[1]), []
        if returned and all(isinstance(one, Mapping) for one in returned):
            return _from_dicts(list(returned))
        return list(returned), [], []
    raise MisconfigurationError(f"`configure_optimizers` returned a {type(returned).__name__}. {_FORMS}")


def _from_dicts(dicts: list[Any]) -> tuple[list[Any], list[Any], list[int]]:
    allowed = ("optimizer", "lr_scheduler", "frequency")
    for one in dicts:
        _refuse_unknown_keys("`configure_optimizers` returned a dict with", one, allowed)
        if "optimizer" not in one:
            raise MisconfigurationError(f"`configure_optimizers` returned a dict without `optimizer`. {_FORMS}")
    schedulers = [one["lr_scheduler"] for one in dicts if one.get("lr_scheduler") is not None]
    frequencies = [one["frequency"] for one in dicts if one.get("frequency") is not None]
    if frequencies and len(frequencies) < len(dicts):
        raise MisconfigurationError(
            f"`configure_optimizers` gave {len(frequencies)} of {len(dicts)} optimizers a `frequency`: give it to all, "
            "for them to take turns, or to none."
        )
    for frequency in frequencies:
        if type(frequency) is not int or frequency < 1:
            raise MisconfigurationError(f"An optimizer's frequency is an int of at least 1, not {frequency!r}.")
    return [one["optimizer"] for one in dicts], schedulers, frequencies


def _refuse_unknown_keys(what: str, given: Mapping[Any, Any], allowed: Sequence[str]) -> None:
    for key in given:
        if key not in allowed:
            raise MisconfigurationError(
                f"{what} the unknown key `{key}`.{nearest(str(key), allowed)} Allowed: {', '.join(allowed)}."
            )


def _scheduler(given: Any) -> SchedulerConfig:
    if isinstance(given, Mapping):
        known = [one.name for one in fields(SchedulerConfig) if one.init]
        _refuse_unknown_keys("A scheduler's configuration has", given, known)
        if "scheduler" not in given:
            raise MisconfigurationError("A scheduler's configuration needs the key `scheduler`.")
        config = SchedulerConfig(**given)
    else:
        config = SchedulerConfig(given)
    if config.interval not in ("epoch", "step"):
        raise MisconfigurationError(f'A scheduler\'s interval is "epoch" or "step", not {config.interval!r}.')
    if type(config.frequency) is not int or config.frequency < 1:
        raise MisconfigurationError(f"A scheduler's frequency is an int of at least 1, not {config.frequency!r}.")
    if not hasattr(config.scheduler, "step"):
        raise MisconfigurationError(f"A {type(config.scheduler).__name__} is no scheduler: it has no `step`.")
    if not hasattr(config.scheduler, "state_dict") or not hasattr(config.scheduler, "load_state_dict"):
        raise MisconfigurationError(
            f"A {type(config.scheduler).__name__} has no `state_dict` and `load_state_dict`: no fit could go on from a "
            "checkpoint. Give it both."
        )
    if isinstance(config.scheduler, OneCycleLR) and config.interval == "epoch":
        warnings.warn(
            'OneCycleLR counts optimizer steps, but is stepped per epoch: give it `"interval": "step"`.', stacklevel=2
        )
    if config.reduce_on_plateau and config.monitor is None:
        raise MisconfigurationError(
            "ReduceLROnPlateau needs to know what to look at: return "
            '{"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}.'
        )
    return config
