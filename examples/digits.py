"""Handwritten digits, the whole way: find a learning rate, train on two Ray workers, test, predict, all recorded.

python examples/digits.py                                     # two workers on this machine
python examples/digits.py --devices 1                         # in this process, no Ray
python examples/digits.py --ckpt-path last --max-epochs 30    # go on after an interruption
ray job submit --working-dir examples -- python digits.py     # on a cluster
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from paceline import DataModule, Module, Trainer, seed_everything
from paceline.callbacks import EarlyStopping, ModelCheckpoint
from paceline.loggers import MLflowLogger
from paceline.tuners import Tuner


class DigitsData(DataModule):
    """The 1797 images of 8 x 8 pixels that scikit-learn ships: 1297 to train, 200 to validate, 300 to test."""

    def __init__(self, batch_size: int = 32) -> None:
        self.save_hyperparameters()

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        everything = TensorDataset(images, torch.tensor(digits.target))
        parts = random_split(everything, [1297, 200, 300], torch.Generator().manual_seed(0))
        self.train, self.val, self.test = parts

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, batch_size=100)

    def test_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.test, batch_size=100)

    predict_dataloader = test_dataloader


class Digits(Module):
    """A small convolutional classifier."""

    def __init__(self, lr: float = 0.005, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.example_input_array = torch.zeros(2, 1, 8, 8)
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(width * 16, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.measure("val", batch)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.measure("test", batch)

    def measure(self, stage: str, batch: list[Tensor]) -> None:
        images, labels = batch
        scores = self(images)
        self.log(f"{stage}_loss", cross_entropy(scores, labels))
        self.log(f"{stage}_acc", (scores.argmax(-1) == labels).float().mean(), prog_bar=True)

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self(batch[0]).argmax(-1)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="workers; with 1 everything stays in this process")
    parser.add_argument("--max-epochs", type=int, default=15)
    parser.add_argument(
        "--lr", type=float, help="learning rate; by default it is searched for on Ray, and 0.005 with --devices 1"
    )
    parser.add_argument("--ckpt-path", help='go on from "last", or from a path, instead of starting anew')
    arguments = parser.parse_args()

    seed_everything(7)
    data = DigitsData()
    module = Digits(**({"lr": arguments.lr} if arguments.lr else {}))
    checkpoints = ModelCheckpoint(monitor="val_acc", mode="max", save_last=True)
    logger = MLflowLogger(experiment_name="digits", log_model="best")
    trainer = Trainer(
        devices=arguments.devices,
        strategy="ddp" if arguments.devices > 1 else "auto",
        max_epochs=arguments.max_epochs,
        log_every_n_steps=5,
        callbacks=[checkpoints, EarlyStopping("val_acc", mode="max", patience=5)],
        logger=logger,
    )
    with trainer:
        if arguments.lr is None and arguments.devices > 1 and arguments.ckpt_path is None:
            curve = Tuner(trainer).lr_find(module, datamodule=data, min_lr=1e-5, max_lr=0.5)
            print(f"learning rate: {curve.suggestion():.2g}")

        trainer.fit(module, datamodule=data, ckpt_path=arguments.ckpt_path)
        (result,) = trainer.test(datamodule=data, ckpt_path="best", verbose=False)
        predictions = torch.cat(trainer.predict(datamodule=data, ckpt_path="best"))

        print(f"first predictions: {predictions[:10].tolist()}")
        print(f"test accuracy: {result['test_acc']:.4f}")
        print(f"checkpoint: {checkpoints.best_model_path}")
        print(f"run: experiment {logger.name}, run {logger.run_id}")
    print(f"see it: {logger.ui_command}")


if __name__ == "__main__":
    main()
