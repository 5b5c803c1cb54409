"""Small modules, data and a logger that the unit tests share; every number in them can be followed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.index_data import IndexData
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline import Module, Trainer
from paceline.callbacks import Callback
from paceline.loggers.logger import Logger
from paceline.strategies.base import Placement, Strategy


def quiet_trainer(root: Path | str, **arguments: Any) -> Trainer:
    """A Trainer in this process that writes only what a test asks for, and only below `root`."""
    defaults: dict[str, Any] = {
        "devices": 1,
        "logger": False,
        "default_root_dir": root,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(type(c).__name__ == "ModelCheckpoint" for c in arguments.get("callbacks") or []),
    }
    return Trainer(**{**defaults, **arguments})


def indexed(length: int, batch_size: int = 1, **options: Any) -> DataLoader[Tensor]:
    return DataLoader(IndexData(length), batch_size=batch_size, **options)


class Stream:
    """Batches without a length: `count` of them, each with one sample."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return (torch.tensor([[float(i)]]) for i in range(self.count))


class Liar(Stream):
    """Says that it has more batches, or fewer, than come."""

    def __init__(self, count: int, said: int) -> None:
        super().__init__(count)
        self.said = said

    def __len__(self) -> int:
        return self.said


class Line(Module):
    """y = w x + b on one feature, from w = 0.5, b = 0; the target is 2 x + 1. Keeps the batches it has seen."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.layer = nn.Linear(1, 1)
        nn.init.constant_(self.layer.weight, 0.5)
        nn.init.constant_(self.layer.bias, 0.0)
        self.seen: list[list[float]] = []
        self.validated: list[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def loss(self, batch: Tensor) -> Tensor:
        return nn.functional.mse_loss(self(batch / 10), 2 * batch / 10 + 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Any:
        self.seen.append(batch.flatten().tolist())
        return self.loss(batch)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.validated.append(batch.flatten().tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class Scores(Line):
    """Logs a given value in each validation, or at the end of each training epoch."""

    def __init__(self, values: list[float], name: str = "score") -> None:
        super().__init__()
        self.values = values
        self.name = name

    def on_train_epoch_end(self) -> None:
        self.log(self.name, self.values[self.current_epoch])


class Validates(Scores):
    """Logs the given values in validation."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log(self.name, self.values[self.current_epoch] if not self.trainer.sanity_checking else -math.inf)

    def on_train_epoch_end(self) -> None:
        pass


class Calls(Callback):
    """Counts hooks of the names given, and calls a function at some of them."""

    def __init__(self, **actions: Callable[[Any, Any], Any] | None) -> None:
        self.counts: dict[str, int] = {}
        for name, action in actions.items():
            setattr(self, name, self._hook(name, action))

    def _hook(self, name: str, action: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
        def hook(trainer: Any, module: Any, *_: Any) -> Any:
            self.counts[name] = self.counts.get(name, 0) + 1
            return action(trainer, module) if action is not None else None

        return hook


class Rows(Logger):
    """Keeps what it is given in lists."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.params: list[dict[str, Any]] = []
        self.statuses: list[str] = []

    @property
    def name(self) -> str:
        return "rows"

    @property
    def version(self) -> str:
        return "one"

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.params.append(dict(params))

    def finalize(self, status: str) -> None:
        self.statuses.append(status)

    def of(self, name: str) -> list[tuple[int, float]]:
        """The curve of one name: (step, value) in the order of arrival."""
        return [(step, row[name]) for step, row in self.rows if name in row]


def weights(module: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def assert_equal_weights(one: nn.Module, other: nn.Module) -> None:
    for (name, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), f"{name}: {mine} != {theirs}"


def worker(rank=0, world_size=1):
    """A worker's place among others that nobody can ask, for what is told by places alone."""
    strategy = Strategy()
    strategy.connect(Placement(global_rank=rank, world_size=world_size), torch.device("cpu"))
    return strategy
