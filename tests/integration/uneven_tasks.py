"""What the tests of uneven data send to workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from paceline import Callback, Module


class Stream(IterableDataset):
    """So many numbers, without a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(float(self.length)).view(-1, 1))


class Counted:
    """Batches with a length, which need not be true."""

    def __init__(self, length: int, said: int | None = None) -> None:
        self.length, self.said = length, length if said is None else said

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(float(self.length)).view(-1, 1))


def stream(length: int) -> Any:
    return DataLoader(Stream(length), batch_size=None)


def counted(length: int) -> Any:
    return Counted(length)


def liar(length: int) -> Any:
    return Counted(length, said=20)


def both(length: int) -> Any:
    return {"a": Counted(length), "b": stream(length + 1)}


class Uneven(Module):
    """Each worker has so many batches as `lengths` says for its rank."""

    def __init__(self, make: Callable[[int], Any], lengths: tuple[int, int], skip: Any = None) -> None:
        super().__init__()
        self.make, self.lengths, self.skip = make, lengths, skip
        self.layer = nn.Linear(1, 1)

    def train_dataloader(self) -> Any:
        return self.make(self.lengths[self.trainer.global_rank])

    def val_dataloader(self) -> Any:
        return DataLoader(torch.arange(5.0).view(-1, 1), batch_size=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
        if self.skip is not None and self.skip(self.trainer.global_rank, batch_idx):
            return None
        batch = batch["a"] if isinstance(batch, dict) else batch
        return self.layer(batch.view(-1, 1) / 10).square().mean()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_sum", batch.sum(), reduce_fx="sum")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Breaks(IterableDataset):
    """An iterable that raises on one worker."""

    def __iter__(self) -> Iterator[Tensor]:
        yield torch.ones(1)
        if torch.distributed.get_rank() == 1:
            raise OSError("the disk is gone")
        yield from torch.ones(5).split(1)


def breaking(length: int) -> Any:
    return DataLoader(Breaks(), batch_size=None)


class Notes(Callback):
    """Writes, for each worker, the batches that ended and the weight at the end of each epoch."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def _write(self, trainer: Any, text: str) -> None:
        with Path(self.folder, f"notes-{trainer.global_rank}").open("a") as file:
            file.write(text + "\n")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._write(trainer, f"{trainer.current_epoch} {batch_idx}")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._write(trainer, f"weight {pl_module.layer.weight.item():.9f} step {trainer.global_step}")


class SavesOnRankZero(Callback):
    """What other frameworks' habits make of a checkpoint."""

    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            trainer.save_checkpoint(self.path)


class SavesEverywhere(SavesOnRankZero):
    """As it is meant."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint(self.path)


class EndsEpoch(Callback):
    """Ends the epoch early, on the workers that it is told."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 2 and trainer.global_rank in self.ranks else None


def none_everywhere(rank: int, batch_idx: int) -> bool:
    return batch_idx in (0, 2)


def none_on_one(rank: int, batch_idx: int) -> bool:
    return rank == 1 and batch_idx == 1


class Pairs(Module):
    """Tells which pairs of batches it was tested on."""

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("pairs", float(batch["a"] * 10 + batch["b"]), reduce_fx=list_of)
        self.log("count", 1.0, reduce_fx="sum")

    def predict_step(self, batch: Any, batch_idx: int) -> tuple[int, int]:
        return int(batch["a"]), int(batch["b"])


def list_of(values: Any) -> Any:
    """A reduction of the user's own: the sum of squares."""
    return torch.as_tensor([float(value) ** 2 for value in values]).sum()
