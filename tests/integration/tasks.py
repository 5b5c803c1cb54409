"""Modules, data and callbacks that the integration tests send to workers."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Callback, Module


class IndexModule(Module):
    """Measures and predicts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: Tensor) -> Tensor:
        return batch

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("mean", batch.mean())
        self.log("sum", batch.sum(), reduce_fx="sum")
        self.log("largest", batch.max(), reduce_fx="max")
        if batch.min() == 0:
            self.log("only_where_zero_is", 7.0)

    def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return batch


class WhereModule(IndexModule):
    """Says whether its process is in the folder that the driver was in."""

    def __init__(self) -> None:
        super().__init__()
        self.here = os.getcwd()

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("is_here", float(os.getcwd() == self.here))


def points(count: int = 96, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, (inputs.sum(-1, keepdim=True) > 0).float())


def loader(batch_size: int = 8, shuffle: bool = True, count: int = 96) -> DataLoader[Any]:
    return DataLoader(points(count), batch_size=batch_size, shuffle=shuffle)


class Classifier(Module):
    """Two layers, with dropout where it is asked for."""

    def __init__(self, dropout: float = 0.0, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(self.net(batch[0]), batch[1]))

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test_acc", ((self.net(batch[0]) > 0) == (batch[1] > 0.5)).float().mean())

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)}


class FailsAt(Classifier):
    """Raises on one worker, and leaves a trace when it is torn down."""

    def __init__(self, rank: int, batch: int, traces: str) -> None:
        super().__init__()
        self.rank, self.batch, self.traces = rank, batch, traces

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        if self.trainer.global_rank == self.rank and batch_idx == self.batch:
            raise ZeroDivisionError("this batch cannot be divided")
        return super().training_step(batch, batch_idx)

    def teardown(self, stage: str) -> None:
        Path(self.traces, f"teardown-{self.trainer.global_rank}").touch()


class KillsWorker(Callback):
    """Ends a worker's process like `kill -9`, once, after an optimizer step."""

    def __init__(self, rank: int, step: int, marker: str) -> None:
        self.rank, self.step, self.marker = rank, step, marker

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_rank == self.rank and trainer.global_step == self.step and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Remembers(Callback):
    """Keeps the processes and ranks it ran in, and how often batches ended."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.batches = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        Path(self.folder, f"{stage}-{trainer.global_rank}-{os.getpid()}").touch()

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.batches = state_dict["batches"]


class Slow(Callback):
    """Makes every batch take a while, and says that training has begun."""

    def __init__(self, seconds: float, marker: str) -> None:
        self.seconds, self.marker = seconds, marker

    def on_train_batch_end(self, *_: Any) -> None:
        Path(self.marker).touch()
        time.sleep(self.seconds)


class WritesModules(Callback):
    """Writes the names of the modules that its process has imported."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        import sys

        Path(f"{self.path}-{trainer.global_rank}").write_text("\n".join(sys.modules))
