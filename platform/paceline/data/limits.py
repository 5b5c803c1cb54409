"""Limits of batches: a number of them, or a share of all."""

from __future__ import annotations

import math

from paceline.errors import MisconfigurationError


def limited(length: float, limit: int | float, name: str) -> float:
    """How many of `length` batches a limit leaves.

    Raises:
        MisconfigurationError: the limit is a share that makes no batch, or of an unknown number.
    """
    if limit == 0:
        return 0
    if isinstance(limit, int):
        return min(length, limit)
    if limit == 1.0:
        return length
    if length == math.inf:
        raise MisconfigurationError(
            f"`{name}={limit}` is a share of a loader that has no length. Use an int number of batches, or 1.0 for all."
        )
    count = int(length * limit)
    if count == 0 and length > 0:
        raise MisconfigurationError(
            f"`{name}={limit}` of {int(length)} batches is less than one batch. Use at least "
            f"{_share_of_one(length)}, an int, or 0 to switch this stage off."
        )
    return count


def _share_of_one(length: float) -> float:
    """The smallest share of three digits that makes a batch of so many."""
    digits = 2 - math.floor(math.log10(1 / length))
    return float(math.ceil(10**digits / length) / 10**digits)
