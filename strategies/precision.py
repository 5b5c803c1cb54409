"""Precision: the number formats of weights and computation, and how losses and steps deal with small ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.errors import MisconfigurationError


class Precision:
    """Full precision: what the base class does is plain PyTorch in float32.

    Attributes:
        name: what `Trainer(precision=)` calls it.
        scaler: scales losses so that small gradients survive in float16; None where there is no need to.
        changes_batches: whether `convert_batch` does anything.
    """

    name = "32-true"
    scaler: torch.amp.GradScaler | None = None
    changes_batches = False

    def __init__(self) -> None:
        self._unscaled: set[int] = set()

    def convert_module(self, module: nn.Module) -> None:
        """Bring the weights to this format."""

    def convert_batch(self, batch: Any) -> Any:
        """Bring a batch's floating-point tensors to this format."""
        return batch

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around every step of the module, on the device."""
        return nullcontext()

    def scale(self, loss: Tensor) -> Tensor:
        """The loss whose gradients are computed."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring gradients to their true size before they are looked at, clipped or stepped with."""
        if self.scaler is not None and id(optimizer) not in self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled.add(id(optimizer))

    def step(self, optimizer: Optimizer, **kwargs: Any) -> Any:
        """Step, unless gradients are not finite and a scaler is there to find a better scale."""
        if self.scaler is None:
            return optimizer.step(**kwargs)
        self._unscaled.discard(id(optimizer))
        stepped = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return stepped


class TruePrecision(Precision):
    """Weights, inputs and computation in one format that is not float32.

    Args:
        name: "64-true", "16-true" or "bf16-true".
    """

    changes_batches = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._dtype = {"64-true": torch.float64, "16-true": torch.float16, "bf16-true": torch.bfloat16}[name]

    def convert_module(self, module: nn.Module) -> None:
        """Convert parameters and floating-point buffers in place."""
        module.to(self._dtype)

    def convert_batch(self, batch: Any) -> Any:
        """Convert floating-point tensors in nested lists, tuples and mappings; the rest stays as it is."""
        return _convert(batch, self._dtype)

    @contextmanager
    def forward(self, device: torch.device) -> Iterator[None]:
        """Tensors that the module makes are of this format too."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


class MixedPrecision(Precision):
    """Weights in float32; computation under `torch.autocast`, in float16 with a gradient scaler, or in bfloat16.

    Args:
        name: "16-mixed" or "bf16-mixed".
        device_type: such as "cuda"; float16 needs a GPU.
        scaler: in place of `torch.amp.GradScaler(device_type)`; only for "16-mixed".

    Raises:
        MisconfigurationError: "16-mixed" on the CPU.
    """

    def __init__(self, name: str, device_type: str, scaler: torch.amp.GradScaler | None = None) -> None:
        if name == "16-mixed" and device_type == "cpu":
            raise MisconfigurationError('`precision="16-mixed"` needs a GPU. On the CPU use "bf16-mixed".')
        super().__init__()
        self.name = name
        self._dtype = torch.float16 if name == "16-mixed" else torch.bfloat16
        if name == "16-mixed":
            self.scaler = scaler if scaler is not None else torch.amp.GradScaler(device_type)

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Autocast; its cache of converted weights lasts for one step."""
        return torch.autocast(device.type, dtype=self._dtype)


def make_precision(name: str, device_type: str) -> Precision:
    """The precision that `Trainer(precision=)` asks for.

    Args:
        name: such as "bf16-mixed".
        device_type: such as "cpu".

    Raises:
        MisconfigurationError: the device cannot do it.
    """
    if name == "32-true":
        return Precision()
    return MixedPrecision(name, device_type) if name.endswith("-mixed") else TruePrecision(name)


def _convert(batch: Any, dtype: torch.dtype) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        converted = {key: _convert(value, dtype) for key, value in batch.items()}
        if isinstance(batch, dict):
            same_kind = copy.copy(batch)  # a defaultdict cannot be made of a dict
            same_kind.update(converted)
            return same_kind
        return type(batch)(converted)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_convert(value, dtype) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_convert(value, dtype) for value in batch)
    return batch
