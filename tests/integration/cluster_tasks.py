"""What runs on a cluster of several nodes; `python -m tests.integration.cluster_tasks` starts it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.index_data import IndexData
from torch import Tensor, nn
from torch.utils.data import DataLoader

from paceline import Callback, Module, Trainer, seed_everything

SAMPLES = 240


class Line(Module):
    """One weight, trained on indices; says where it prepares data and where it runs."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.layer = nn.Linear(1, 1)

    def prepare_data(self) -> None:
        with Path(self.folder, f"prepared-{self.trainer.node_rank}").open("a") as file:
            file.write(f"{self.trainer.local_rank}\n")

    def setup(self, stage: str) -> None:
        trainer = self.trainer
        ranks = (trainer.global_rank, trainer.node_rank, trainer.local_rank, trainer.world_size)
        Path(self.folder, "ranks-" + "-".join(map(str, ranks))).touch()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch.float().view(-1, 1) / SAMPLES).square().mean()
        self.log("samples", float(len(batch)), reduce_fx="sum", on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Record(Callback):
    """Keeps the samples of each step of all workers, as part of the state; tells a file of each step when it ends."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.steps: list[list[int]] = []
        self.samples: list[float] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Tensor, batch_idx: int) -> None:
        gathered = trainer.strategy.gather_objects(batch.flatten().tolist())
        self.steps.append([int(index) for part in gathered for index in part])
        if trainer.is_global_zero:
            with Path(self.folder, "steps").open("a") as file:
                file.write(json.dumps([time.time(), trainer.world_size, trainer.current_epoch, batch_idx]) + "\n")
        if trainer.current_epoch == 0:
            time.sleep(self.seconds)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.samples.append(trainer.callback_metrics["samples"].item())

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "samples": self.samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps, self.samples = state_dict["steps"], state_dict["samples"]


def main() -> None:
    """Fit with the Trainer arguments given as JSON; afterwards `end` in the folder has what came of it."""
    address, folder, arguments = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    seconds = arguments.pop("seconds", 0.0)
    if isinstance(arguments["devices"], list):
        arguments["devices"] = tuple(arguments["devices"])
    seed_everything(3)
    record = Record(folder, seconds)
    trainer = Trainer(
        address=address,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=[record],
        **arguments,
    )
    trainer.fit(Line(folder), DataLoader(IndexData(SAMPLES), batch_size=4, shuffle=True))
    end = {"steps": record.steps, "samples": record.samples, "world_size": trainer.world_size}
    Path(folder, "end").write_text(json.dumps(end))


if __name__ == "__main__":
    main()
