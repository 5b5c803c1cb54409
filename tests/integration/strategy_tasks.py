"""What the tests of strategies send to workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.integration import tasks
from torch import Tensor, nn

from paceline import Callback, Module
from paceline.strategies import DDPStrategy


class Blocks(tasks.Classifier):
    """Repeated blocks, parameters of the module's own, and a step that calls `forward`."""

    def __init__(self, lr: float = 0.1, dropout: float = 0.0) -> None:
        super().__init__(dropout, lr)
        self.net = nn.Identity()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.ones(8))
        self.last = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.last(hidden * self.scale)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", nn.functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1]))

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class Normed(tasks.Classifier):
    """Has BatchNorm, whose buffers are each worker's own in a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


class Unused(tasks.Classifier):
    """A layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)


class Observes(Callback):
    """Notes on each worker how many numbers it holds, and whether its gradients are those of the others."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Any, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        held = sum(trainer.strategy.own_part(p.detach()).numel() for p in pl_module.parameters())
        gradients = [trainer.strategy.whole(p.grad).flatten() for p in pl_module.parameters() if p.grad is not None]
        everyones = trainer.strategy.all_gather(torch.cat(gradients))
        equal = bool((everyones == everyones[0]).all())
        with Path(self.folder, f"observed-{trainer.global_rank}").open("a") as file:
            file.write(f"{batch_idx} {held} {equal}\n")


class Gathers(tasks.Classifier):
    """Gathers what the workers have, with gradients."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        rank = torch.tensor(float(self.trainer.global_rank))
        strategy = self.trainer.strategy
        gathered = self.all_gather({"rank": rank, "pair": [rank.repeat(2)]})
        assert gathered["rank"].tolist() == [0.0, 1.0]
        assert gathered["pair"][0].tolist() == [[0.0, 0.0], [1.0, 1.0]]
        reduced = {op: strategy.reduce(rank, op).item() for op in ("mean", "sum", "min", "max")}
        assert reduced == {"mean": 0.5, "sum": 1.0, "min": 0.0, "max": 1.0}
        assert strategy.broadcast_object(("from", rank.item())) == ("from", 0.0)
        mine = torch.ones(3, requires_grad=True)
        (self.all_gather(mine, sync_grads=True) * torch.tensor([[2.0], [5.0]])).sum().backward()
        # Both workers multiply mine by the number of its rank.
        assert mine.grad is not None
        assert mine.grad.tolist() == [2 * (2.0, 5.0)[self.trainer.global_rank]] * 3
        self.log("checked", 1.0)
        return super().training_step(batch, batch_idx)


class HalfDDP(DDPStrategy):
    """A strategy of somebody else's: averages gradients in float16."""

    def wrap(self, module: nn.Module, step: Any, training: bool) -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        call = super().wrap(module, step, training)
        if training and self._wrapped is not None:
            self._wrapped.register_comm_hook(None, fp16_compress_hook)
        return call
