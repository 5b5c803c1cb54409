"""Bringing batches to a device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch on a device: tensors and objects with `to`, however they are nested; the rest as it is.

    Lists, tuples, named tuples, mappings and dataclasses are made anew. Copies to a GPU do not hold up the program
    when the memory is pinned.
    """
    if isinstance(batch, Tensor):
        # Only CUDA keeps copies and computation in order by itself.
        return batch.to(device, non_blocking=device.type == "cuda")
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, dict):
        moved = copy.copy(batch)  # which keeps what a subclass knows besides its items, such as its default
        for key, value in batch.items():
            moved[key] = to_device(value, device)
        return moved
    if isinstance(batch, Mapping):
        return type(batch)({key: to_device(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in fields})
    return batch
