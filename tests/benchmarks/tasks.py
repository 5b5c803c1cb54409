"""The work that all contenders do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Callback, Module

BATCHES = 100


def network() -> nn.Module:
    """A tiny MLP, of whose step the framework's part is large."""
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))


def loader(batches: int = BATCHES) -> DataLoader[Any]:
    """Batches of 32 samples, from memory."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(batches * 32, 32, generator=generator)
    return DataLoader(TensorDataset(inputs, (inputs.sum(-1) > 0).long()), batch_size=32)


class TinyModule(Module):
    """The MLP for paceline.

    Args:
        logs: log the loss of every step.
        schedules: step a learning-rate scheduler with every step.
    """

    def __init__(self, logs: bool = True, schedules: bool = False) -> None:
        super().__init__()
        self.net = network()
        self.logs = logs
        self.schedules = schedules

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Cross entropy."""
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if self.logs:
            self.log("train_loss", loss)
        return loss

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Accuracy."""
        self.log("acc", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        """Plain SGD."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
        if not self.schedules:
            return optimizer
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class FirstStep(Callback):
    """Writes the time at which the first batch of a run begins on rank 0, in seconds since the epoch."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_written = False

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Of a fit."""
        self._write(trainer)

    def on_test_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Of a test."""
        self._write(trainer)

    def _write(self, trainer: Any) -> None:
        if trainer.is_global_zero and not self.is_written:
            self.is_written = True
            Path(self.path).write_text(repr(time.time()))
