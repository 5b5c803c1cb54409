"""What each argument of the Trainer may be: functions that check one value, and say what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import BeforeValidator

from paceline.errors import ArgumentTypeError, nearest

PRECISIONS = {
    "64-true": ("64-true", "64", 64),
    "32-true": ("32-true", "32", 32),
    "16-mixed": ("16-mixed", "16", 16),
    "bf16-mixed": ("bf16-mixed", "bf16"),
    "16-true": ("16-true",),
    "bf16-true": ("bf16-true",),
}


def devices(value: Any) -> Any:
    """A count, "auto", a list of device ids or a tuple of two bounds, from all the ways in which people write them."""
    allowed = (
        'Use a count such as 2, a list of ids such as [0, 1], two bounds such as (1, 4), -1 for all devices, or "auto".'
    )
    if isinstance(value, str) and value != "auto":
        bounds = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", value)
        parts = [part.strip() for part in value.split(",")]
        if bounds:
            value = (int(bounds[1]), int(bounds[2]))
        elif all(re.fullmatch(r"-?\d+", part) for part in parts):
            value = int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]
        else:
            raise ValueError(f"`devices={value!r}` is no number of devices. {allowed}")
    if isinstance(value, tuple):
        if len(value) != 2 or not all(type(bound) is int for bound in value) or not 1 <= value[0] <= value[1]:
            raise ValueError(
                f"`devices={value!r}`: a tuple holds the smallest and the largest number of workers, from 1. {allowed}"
            )
        return value if value[0] < value[1] else value[0]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value or len(set(value)) != len(value) or not all(type(i) is int and i >= 0 for i in value):
            raise ValueError(f"`devices={list(value)!r}`: device ids are different ints from 0. {allowed}")
        return list(value)
    if value != "auto" and (type(value) is not int or value == 0 or value < -1):
        raise ValueError(f"`devices={value!r}` runs on no device. {allowed}")
    return value


def limit(name: str) -> BeforeValidator:
    """A number of batches: a count, or a share of all."""

    def check(value: Any) -> Any:
        allowed = "Use an int number of batches, a float share from 0.0 to 1.0, or 0 to switch the stage off."
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"`{name}={value!r}` is no number of batches. {allowed}")
        if isinstance(value, float) and value > 1:
            raise ValueError(f"`{name}={value!r}` is more than all batches. {allowed}")
        return value

    return BeforeValidator(check)


def at_least(name: str, least: int, meaning: str = "") -> BeforeValidator:
    """An int that is not too small; None passes, where a field allows it."""

    def check(value: Any) -> Any:
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"`{name}={value!r}` must be an int of at least {least}{meaning}.")
        return value

    return BeforeValidator(check)


def interval(value: Any) -> Any:
    """How often validation runs within an epoch: a share, or a number of batches."""
    allowed = "Use a float share of the epoch from 0.0 to 1.0, or an int number of training batches."
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"`val_check_interval={value!r}` is no interval. {allowed}")
    if isinstance(value, float) and value > 1:
        raise ValueError(f"`val_check_interval={value!r}` is more than an epoch. {allowed}")
    if type(value) is int and value == 0:
        raise ValueError(f"`val_check_interval=0` is no interval. {allowed} `limit_val_batches=0` switches it off.")
    return value


def fast_dev_run(value: Any) -> int:
    """A number of batches; True is one."""
    if not isinstance(value, bool | int) or value < 0:
        raise ValueError(f"`fast_dev_run={value!r}` is no number of batches. Use True for one, or an int from 0.")
    return int(value)


def accumulation(value: Any) -> Any:
    """Batches per optimizer step: one number, or for epochs from which on it changes."""
    if isinstance(value, Mapping):
        for epoch, batches in value.items():
            if type(epoch) is not int or epoch < 0 or type(batches) is not int or batches < 1:
                raise ValueError(
                    f"`accumulate_grad_batches={dict(value)!r}`: use epochs from 0 as keys and numbers of batches "
                    "from 1 as values, as in {0: 1, 4: 2}."
                )
        if not value:
            raise ValueError("`accumulate_grad_batches={}` has no epoch. Use an int, or a dict such as {0: 1, 4: 2}.")
        return dict(value)
    if type(value) is not int or value < 1:
        raise ValueError(f"`accumulate_grad_batches={value!r}` must be an int of at least 1, or a dict by epochs.")
    return value


def precision(value: Any) -> str:
    """The name of a number format, from all the ways in which people write it."""
    for name, spellings in PRECISIONS.items():
        if not isinstance(value, bool) and value in spellings:
            return name
    names = [str(spelling) for spellings in PRECISIONS.values() for spelling in spellings]
    raise ValueError(
        f"`precision={value!r}` is not known. Use one of {', '.join(PRECISIONS)}.{nearest(str(value), names)}"
    )


def clip_value(value: Any) -> float | None:
    """A limit for gradients; None does not clip."""
    if value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"`gradient_clip_val={value!r}` must be a number, or None for no clipping.")
    if not value >= 0:
        raise ValueError(f"`gradient_clip_val={value!r}` must not be negative; None or 0 does not clip.")
    return float(value)


def clip_algorithm(value: Any) -> str:
    """What is clipped: the norm of all gradients, or each value."""
    if isinstance(value, str) and value.lower() in ("norm", "value"):
        return value.lower()
    raise ValueError(f'`gradient_clip_algorithm={value!r}` is not known. Use "norm" or "value".')


def norm_type(value: Any) -> float:
    """The p of a p-norm; -1 for none, infinity for the largest value."""
    number = math.inf if value in ("inf", math.inf) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not (number > 0 or number == -1):
        raise ValueError(f'`track_grad_norm={value!r}` is no p of a norm. Use a number above 0, "inf", or -1 for none.')
    return float(number)


def deterministic(value: Any) -> Any:
    """Whether algorithms have to give the same numbers each time."""
    if value is None or isinstance(value, bool) or value == "warn":
        return value
    raise ValueError(f'`deterministic={value!r}` is not known. Use True, False, "warn", or None for torch\'s setting.')


def combine_mode(value: Any) -> str:
    """How several training loaders become one."""
    modes = ("max_size_cycle", "min_size", "max_size", "sequential")
    if value not in modes:
        raise ValueError(
            f"`multiple_trainloader_mode={value!r}` is not known. Use one of {', '.join(modes)}."
            f"{nearest(str(value), modes)}"
        )
    return str(value)


def resources(value: Any) -> dict[str, float] | None:
    """What Ray sets aside for a worker: names such as "CPU", "GPU" or of the user's own, and how much of each."""
    if value is None:
        return None
    allowed = 'Use amounts from 0 by name, at least one above 0, as in {"CPU": 2, "GPU": 1}.'
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ArgumentTypeError(f"`resources_per_worker={value!r}` is no dict of resources. {allowed}")
    amounts = [*value.values()]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < math.inf for n in amounts):
        raise ValueError(f"`resources_per_worker={dict(value)!r}` holds what is no amount. {allowed}")
    for name, amount in value.items():
        if name.lower() in ("cpu", "gpu") and not name.isupper():
            raise ValueError(f"`resources_per_worker={dict(value)!r}`: Ray calls it {name.upper()!r}.")
        if amount > 1 and amount != int(amount):
            raise ValueError(f"`resources_per_worker={dict(value)!r}`: above 1, {name} is given in whole numbers.")
    if not any(amounts):
        raise ValueError(f"`resources_per_worker={dict(value)!r}` asks for nothing. {allowed}")
    return {name: float(amount) for name, amount in value.items()}


def seconds(name: str) -> BeforeValidator:
    """A time in seconds; None passes, where a field allows it."""

    def check(value: Any) -> Any:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0):
            raise ValueError(f"`{name}={value!r}` must be a number of seconds from 0.")
        return value

    return BeforeValidator(check)


def duration(value: Any) -> timedelta | None:
    """A time: None, a timedelta, its keywords, or "DD:HH:MM:SS"."""
    from paceline.durations import parse_duration

    return None if value is None else parse_duration(value, "max_time")
