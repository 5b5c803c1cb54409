"""The learning-rate search: a ramp of rates, the curve of the loss over it, and what it suggests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.callbacks.callback import Callback
from paceline.config import make_config
from paceline.errors import MisconfigurationError
from paceline.launch.spec import RunSpec
from paceline.launch.verify import verify
from paceline.loops.fit import FitLoop
from paceline.seed import current_seed
from paceline.strategies.precision import make_precision
from paceline.strategies.single_device import SingleDeviceStrategy
from paceline.tuners.trial import run_here, run_trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from paceline.module import Module
    from paceline.trainer import Trainer

ATTRIBUTES = ("lr", "learning_rate")
_SMOOTHING = 0.98
# Arguments of the trainer that shape a training step, and so the search.
_SHARED = ("accelerator", "precision", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")


@dataclass(frozen=True)
class Ramp:
    """Learning rates from `min_lr` to `max_lr` in `num_training` steps.

    Raises:
        MisconfigurationError: they make no ramp.
    """

    min_lr: float
    max_lr: float
    num_training: int
    mode: str
    early_stop_threshold: float | None

    def __post_init__(self) -> None:
        if not 0 < self.min_lr < self.max_lr:
            raise MisconfigurationError(f"`min_lr={self.min_lr}` must be above 0 and below `max_lr={self.max_lr}`.")
        if type(self.num_training) is not int or self.num_training < 2:
            raise MisconfigurationError(f"`num_training={self.num_training!r}` must be an int of at least 2.")
        if self.mode not in ("exponential", "linear"):
            raise MisconfigurationError(f'`mode={self.mode!r}` is not known. Use "exponential" or "linear".')

    def rate(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        share = step / (self.num_training - 1)
        if self.mode == "linear":
            return self.min_lr + share * (self.max_lr - self.min_lr)
        return float(self.min_lr * (self.max_lr / self.min_lr) ** share)


@dataclass
class LearningRateCurve:
    """What a search has seen.

    Attributes:
        lr: the rates, rising.
        loss: the smoothed loss after a step at each.
        mode: how the rates rise: "exponential" or "linear".
    """

    lr: list[float]
    loss: list[float]
    mode: str

    def suggestion(self, skip_begin: int = 10, skip_end: int = 1) -> float | None:
        """The rate at which the loss falls fastest.

        The slope is taken over the steps of the ramp. In an exponential ramp these are steps of the logarithm of the
        rate: a slope over the rate itself would be steepest among the smallest rates, for they differ least.

        Args:
            skip_begin: steps left out at the beginning, where the loss is still noisy.
            skip_end: steps left out at the end, where it may have grown beyond all bounds.

        Returns:
            The rate, or None when fewer than two steps are left.
        """
        end = len(self.lr) - skip_end
        points = [
            (rate, loss)
            for rate, loss in zip(self.lr[skip_begin:end], self.loss[skip_begin:end], strict=True)
            if math.isfinite(loss)
        ]
        if len(points) < 2:
            return None
        losses = [loss for _, loss in points]
        return points[min(range(len(points)), key=lambda index: _slope(losses, index))][0]

    def plot(self, suggest: bool = True) -> Figure:
        """The curve as a figure.

        Args:
            suggest: mark the suggestion.

        Raises:
            ImportError: matplotlib is not installed; it comes with the extra `paceline[plots]`.
        """
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.lr, self.loss, color="#33658a")
        if self.mode == "exponential":
            axes.set_xscale("log")
        suggestion = self.suggestion() if suggest else None
        if suggestion is not None:
            loss = self.loss[self.lr.index(suggestion)]
            axes.plot([suggestion], [loss], "o", color="#c8553d", label=f"suggestion: {suggestion:.2g}")
            axes.legend(frameon=False)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("smoothed training loss")
        axes.set_title("Learning-rate search")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        return figure


def _slope(values: list[float], index: int) -> float:
    """Slope at an index by its neighbours on both sides, at the ends by the one there is."""
    before, after = max(index - 1, 0), min(index + 1, len(values) - 1)
    return (values[after] - values[before]) / (after - before)


class _RateRamp(Callback):
    """Sets the rate of each step, and keeps the loss that comes of it."""

    def __init__(self, ramp: Ramp) -> None:
        self.ramp = ramp
        self.lr: list[float] = []
        self.loss: list[float] = []
        self._average = 0.0
        self._best = math.inf

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        rate = self.ramp.rate(trainer.global_step)
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if outputs is None or trainer.global_step == len(self.lr):
            return
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * float(outputs["loss"])
        smoothed = self._average / (1 - _SMOOTHING ** (len(self.loss) + 1))
        self.lr.append(self.ramp.rate(len(self.lr)))
        self.loss.append(smoothed)
        threshold = self.ramp.early_stop_threshold
        if threshold is not None and len(self.loss) > 1 and not smoothed <= threshold * self._best:
            trainer.should_stop = True
        self._best = min(self._best, smoothed)


def search(trainer: Trainer, module: Module, train_loader: Any, datamodule: Any, ramp: Ramp) -> LearningRateCurve:
    """Run the ramp in a Ray Tune trial.

    Args:
        trainer: whose arguments shape the steps.
        module: sent to the trial as it is; the one here does not change.
        train_loader: None where data module or module has it.
        datamodule: may be None.
        ramp: the rates.
    """
    verify("fit", module, datamodule, train_loader, None)
    shared = {name: getattr(trainer.config, name) for name in _SHARED}
    config = make_config(
        {**shared, "max_steps": ramp.num_training, "max_epochs": -1, "limit_val_batches": 0, "num_sanity_val_steps": 0}
    )
    strategy = SingleDeviceStrategy()
    strategy.precision = make_precision(config.precision, trainer.accelerator.name)
    spec = RunSpec(
        fn="fit",
        trainer_class=type(trainer),
        config=config,
        module=module,
        datamodule=datamodule,
        train_loader=train_loader,
        eval_loaders=None,
        callbacks=[_RateRamp(ramp)],
        loggers=[],
        strategy=strategy,
        accelerator=trainer.accelerator,
        num_workers=1,
        run_key="lr_find",
        seed=current_seed(),
        log_dir="",
        restart_dir="",
        loop=FitLoop(),
    )
    curve = run_trial(_ramp_trial, spec, trainer.cluster_address)
    return LearningRateCurve(curve["lr"], curve["loss"], ramp.mode)


def _ramp_trial(spec: RunSpec) -> dict[str, Any]:
    run_here(spec)
    callback = spec.callbacks[0]
    assert isinstance(callback, _RateRamp)
    return {"lr": callback.lr, "loss": callback.loss}


def find_attribute(module: Module, name: str) -> str:
    """The attribute, or hyperparameter, that holds the learning rate.

    Raises:
        MisconfigurationError: there is none, or there are two and none is named.
    """
    if name:
        if not _has(module, name):
            raise MisconfigurationError(f"`attr_name={name!r}`: {type(module).__name__} has no such attribute.")
        return name
    there = [name for name in ATTRIBUTES if _has(module, name)]
    if len(there) != 1:
        what = "both `lr` and `learning_rate`" if there else "neither `lr` nor `learning_rate`"
        raise MisconfigurationError(
            f"{type(module).__name__} has {what}: say which attribute holds the learning rate by `attr_name`."
        )
    return there[0]


def set_attribute(module: Module, name: str, value: float) -> None:
    """Set the attribute, and the hyperparameter of that name."""
    if name in vars(module):
        setattr(module, name, value)
    if name in module.hparams:
        module.hparams[name] = value


def _has(module: Module, name: str) -> bool:
    return name in vars(module) or name in module.hparams
