"""Durations, from all the ways in which people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from paceline.errors import MisconfigurationError

_FORM = re.compile(r"(\d+):(\d\d):(\d\d):(\d\d)")


def parse_duration(value: Any, name: str) -> timedelta:
    """A duration.

    Args:
        value: "DD:HH:MM:SS", a timedelta, or a mapping of its keywords, such as {"hours": 2}.
        name: of the argument, for the message.

    Raises:
        MisconfigurationError: it is none of these, or negative.
    """
    allowed = 'Use "DD:HH:MM:SS", such as "00:01:30:00" for an hour and a half, a timedelta, or a dict of its keywords.'
    duration = None
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, Mapping):
        try:
            duration = timedelta(**value)
        except TypeError as error:
            raise MisconfigurationError(f"`{name}={dict(value)!r}`: {error}. {allowed}") from error
    elif isinstance(value, str) and (match := _FORM.fullmatch(value.strip())):
        days, hours, minutes, seconds = map(int, match.groups())
        if hours < 24 and minutes < 60 and seconds < 60:
            duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if duration is None or duration < timedelta(0):
        raise MisconfigurationError(f"`{name}={value!r}` is no duration. {allowed}")
    return duration
