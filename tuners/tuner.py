"""Tuner: the searches that a trainer offers before a fit."""

from __future__ import annotations

from typing import Any

from paceline.datamodule import DataModule
from paceline.errors import MisconfigurationError
from paceline.module import Module
from paceline.trainer import Trainer
from paceline.tuners import learning_rate
from paceline.tuners.learning_rate import LearningRateCurve, Ramp


class Tuner:
    """Searches for good values; each search runs in a Ray Tune trial, a process of its own.

    Args:
        trainer: whose accelerator, precision, accumulation and clipping the searches use.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def lr_find(
        self,
        model: Module,
        train_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        min_lr: float = 1e-8,
        max_lr: float = 1.0,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        update_attr: bool = True,
        attr_name: str = "",
    ) -> LearningRateCurve:
        """Train a few steps while the learning rate rises, and see where the loss falls fastest.

        After Leslie N. Smith, "Cyclical Learning Rates for Training Neural Networks" (2017), section 3.3. The module,
        its random numbers and the trainer stay as they are, but for the attribute that is updated.

        Args:
            model: the module, with one optimizer.
            train_dataloaders: training batches; or a DataModule.
            datamodule: data in place of loaders.
            min_lr: the first rate.
            max_lr: the last rate.
            num_training: steps from the first to the last.
            mode: "exponential" or "linear" growth.
            early_stop_threshold: end once the smoothed loss is so many times its smallest value; None never.
            update_attr: set the attribute to the suggestion.
            attr_name: the attribute or hyperparameter; "lr" or "learning_rate" by default, whichever there is.

        Returns:
            The curve, with a suggestion and a plot.

        Raises:
            MisconfigurationError: the arguments make no ramp, or the attribute is missing or ambiguous.
        """
        if isinstance(train_dataloaders, DataModule):
            train_dataloaders, datamodule = None, train_dataloaders
        ramp = Ramp(min_lr, max_lr, num_training, mode, early_stop_threshold)
        attribute = learning_rate.find_attribute(model, attr_name)
        curve = learning_rate.search(self._trainer, model, train_dataloaders, datamodule, ramp)
        if update_attr:
            suggestion = curve.suggestion()
            if suggestion is None:
                raise MisconfigurationError(
                    f"The learning-rate search gave {len(curve.lr)} usable steps, too few for a suggestion. Raise "
                    "`num_training`, or lower `max_lr`."
                )
            learning_rate.set_attribute(model, attribute, suggestion)
        return curve
