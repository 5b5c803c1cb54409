"""Calling a module's steps: with the arguments that their signatures name, on batches that are on the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from paceline.data.feed import to_device
from paceline.hooks import overridden
from paceline.loops.run import Run

_ARGUMENTS = ("batch", "batch_idx", "dataloader_idx")


def step_call(step: Callable[..., Any], call: Callable[..., Any] | None = None) -> Callable[[Any, int, int], Any]:
    """A function of (batch, batch_idx, dataloader_idx) that passes on those that `step` takes.

    Args:
        step: the user's function, whose signature is looked at once, here.
        call: what to call in its place, such as a wrapper around it; `step` itself by default.
    """
    call = call or step
    match _taken(step):
        case (0, 1):
            return lambda batch, batch_idx, _: call(batch, batch_idx)
        case (0,):
            return lambda batch, _, __: call(batch)
        case taken:
            return lambda *given: call(*(given[index] for index in taken))


def _taken(step: Callable[..., Any]) -> tuple[int, ...]:
    """Which of batch, batch_idx and dataloader_idx a step's arguments are: by their names, else by their places."""
    taken = []
    for place, parameter in enumerate(inspect.signature(step).parameters.values()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (0, 1)
        if parameter.name in _ARGUMENTS:
            taken.append(_ARGUMENTS.index(parameter.name))
        elif parameter.default is parameter.empty and place < len(_ARGUMENTS):
            taken.append(place)
    return tuple(taken)


def transfer_call(run: Run) -> Callable[[Any, int], Any] | None:
    """A function of (batch, dataloader_idx) that brings a batch to the device; None where there is nothing to do.

    The hooks are the data module's where it overrides one, else the module's.
    """

    def own(name: str) -> Callable[..., Any] | None:
        for owner in (run.datamodule, run.module):
            if owner is not None and overridden(owner, name):
                return getattr(owner, name)  # type: ignore[no-any-return]
        return None

    before, move, after = map(own, ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"))
    device = run.strategy.device
    if device.type == "cpu" and not (before or move or after):
        return None

    def transfer(batch: Any, dataloader_idx: int) -> Any:
        if before is not None:
            batch = before(batch, dataloader_idx)
        batch = move(batch, device, dataloader_idx) if move is not None else to_device(batch, device)
        return after(batch, dataloader_idx) if after is not None else batch

    return transfer
