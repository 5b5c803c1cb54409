"""The learning-rate search in a Ray Tune trial."""

from __future__ import annotations

import copy
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from paceline import Module, Trainer, seed_everything
from paceline.errors import MisconfigurationError
from paceline.tuners import Tuner
from paceline.tuners.learning_rate import LearningRateCurve, Ramp


class Normalized(Module):
    """Has buffers and draws random numbers: whatever a search could leave a trace in."""

    def __init__(self, lr: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def batches() -> DataLoader[Any]:
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.sum(-1, keepdim=True)), batch_size=16, shuffle=True)


def everything(module: Module, folder: Path) -> tuple[Any, ...]:
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    weights = {name: value.tolist() for name, value in module.state_dict().items()}
    return state, weights, module.training, sorted(os.listdir(folder))


@pytest.mark.usefixtures("local_ray")
def test_a_search_changes_nothing_but_the_attribute(tmp_path: Path) -> None:
    seed_everything(3)
    module = Normalized()
    trainer = Trainer(max_epochs=1, logger=False, default_root_dir=tmp_path)
    before = copy.deepcopy(everything(module, tmp_path))
    curve = Tuner(trainer).lr_find(module, batches(), min_lr=1e-5, max_lr=10, num_training=60, update_attr=False)
    assert everything(module, tmp_path) == before
    assert module.hparams.lr == 0.5
    assert (trainer.global_step, trainer.current_epoch, trainer.max_steps) == (0, 0, -1)

    assert curve.lr[:2] == pytest.approx([1e-5, 1e-5 * 10 ** (6 / 59)])
    assert len(curve.lr) == len(curve.loss) <= 60
    suggestion = curve.suggestion()
    assert suggestion is not None
    assert 1e-4 < suggestion < 3
    figure = curve.plot()
    assert figure.axes[0].get_xlabel() == "learning rate"
    assert f"{suggestion:.2g}" in figure.axes[0].get_legend().get_texts()[0].get_text()

    again = Tuner(trainer).lr_find(module, batches(), min_lr=1e-5, max_lr=10, num_training=60)
    assert again == curve
    assert module.hparams.lr == suggestion
    assert everything(module, tmp_path) == before


def test_the_suggestion_is_where_the_loss_falls_fastest() -> None:
    ramp = Ramp(1e-6, 1.0, 101, "exponential", None)
    rates = [ramp.rate(step) for step in range(101)]
    # A sigmoid over the logarithm of the rate is steepest at its middle, here at 1e-3.
    losses = [1 / (1 + math.exp(3 * (math.log10(rate) + 3))) for rate in rates]
    assert LearningRateCurve(rates, losses, "exponential").suggestion() == pytest.approx(1e-3)
    assert LearningRateCurve(rates[:11], losses[:11], "exponential").suggestion() is None
    with_inf = [*losses[:50], math.inf, *losses[51:]]
    assert LearningRateCurve(rates, with_inf, "exponential").suggestion() is not None


def test_a_linear_ramp_has_equal_steps() -> None:
    ramp = Ramp(0.1, 0.5, 5, "linear", None)
    assert [ramp.rate(step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])


class Both(Normalized):
    def __init__(self) -> None:
        super().__init__()
        self.learning_rate = 0.1


class Neither(Normalized):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.net = nn.Linear(4, 1)


@pytest.mark.parametrize(
    ("module", "arguments", "text"),
    [
        (Both, {}, "both `lr` and `learning_rate`"),
        (Neither, {}, "neither `lr` nor `learning_rate`"),
        (Normalized, {"attr_name": "rate"}, "no such attribute"),
        (Normalized, {"min_lr": 1.0, "max_lr": 0.1}, "below `max_lr=0.1`"),
        (Normalized, {"num_training": 1}, "at least 2"),
        (Normalized, {"mode": "square"}, '"exponential" or "linear"'),
    ],
)
def test_what_cannot_be_searched_is_said_at_once(module: Any, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(MisconfigurationError, match=text):
        Tuner(Trainer(logger=False, max_epochs=1)).lr_find(module(), batches(), **arguments)
