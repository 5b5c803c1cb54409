"""Random state: seeding it, setting it apart, and keeping it in checkpoints."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

SEED_VARIABLE = "PACELINE_SEED"
_LARGEST = 2**32


def seed_everything(seed: int | None = None) -> int:
    """Seed torch (all devices), numpy and Python's `random`, and so every run that starts after it.

    Args:
        seed: 0 to 2**32 - 1. None draws one, or takes the one of an earlier call.

    Returns:
        The seed in force.

    Raises:
        ValueError: the seed is out of range.
    """
    if seed is None:
        seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(_LARGEST))
    if not 0 <= seed < _LARGEST:
        raise ValueError(f"`seed={seed}` is out of range. Use an int from 0 to {_LARGEST - 1}.")
    os.environ[SEED_VARIABLE] = str(seed)
    seed_process(seed)
    return seed


def seed_process(seed: int) -> None:
    """Seed the generators of this process alone."""
    torch.manual_seed(seed)
    _seed_cpu(seed)


def _seed_cpu(seed: int) -> None:
    """Without `torch.manual_seed`, which takes a note for each kind of device that is not in use yet."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed)


def current_seed() -> int:
    """The seed that data order and workers derive from: what torch's own generator was last seeded with."""
    return torch.initial_seed() % _LARGEST


def derive(*parts: int) -> int:
    """A seed from several numbers, such as (seed, epoch, rank): equal parts give equal seeds."""
    state = 0x9E3779B97F4A7C15
    for part in parts:
        # The finaliser of splitmix64: neighbouring inputs give unrelated outputs.
        state = (state + (part & (2**64 - 1))) & (2**64 - 1)
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        state ^= state >> 31
    return state % _LARGEST


def random_state() -> dict[str, Any]:
    """The state of torch's, numpy's and Python's generators, of types that load without trust."""
    version, keys, gauss = random.getstate()
    # As tensors, which are copied and saved in one piece.
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": (version, torch.tensor(keys), gauss)}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = _numpy()
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["numpy"] = (name, torch.from_numpy(keys.astype("int64")), position, has_gauss, gauss)
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys.tolist()), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    numpy = _numpy()
    if "numpy" in state and numpy is not None:
        name, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), position, has_gauss, gauss))


@contextmanager
def isolated_random_state(seed: int | None = None) -> Iterator[None]:
    """Leave the generators as they were, whatever the body draws.

    Args:
        seed: seeds the CPU's generators inside.
    """
    state = random_state()
    try:
        if seed is not None:
            _seed_cpu(seed)  # this is done in every epoch
        yield
    finally:
        set_random_state(state)


def _numpy() -> Any:
    # Somebody who never imported numpy has no numpy state to keep, and importing it costs start-up time.
    return sys.modules.get("numpy")
