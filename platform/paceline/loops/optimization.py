"""What automatic and manual optimization share: the training step, the backward pass, and what comes before a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from paceline.hooks import overridden
from paceline.loops.gradients import gradient_norms
from paceline.loops.run import Run
from paceline.loops.steps import module_step
from paceline.progress import FitProgress


class Optimization:
    """Base of the two ways of optimization.

    Args:
        run: whose module and optimizers.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._module = run.module
        self._strategy = run.strategy
        self._precision = run.strategy.precision
        self._progress = run.progress
        self._metrics = run.metrics
        self._optimizers = run.optimizers
        several = len(run.optimizers) > 1 and run.module.automatic_optimization
        self.training_step = module_step(run, "training", third="optimizer_idx" if several else "dataloader_idx")
        self._own_backward = run.module.backward if overridden(run.module, "backward") else None
        self._call_backward = run.span(f"[Strategy]{type(run.strategy).__name__}.backward", self._strategy.backward)
        self._step = run.span("optimizer_step", self._precision.step)
        self._before_backward = run.hooks["on_before_backward"]
        self._after_backward = run.hooks["on_after_backward"]
        is_plain = not self._before_backward and not self._after_backward and self._own_backward is None
        self._backward = self._call_backward if is_plain else self.backward
        self._on_before_step = run.hooks["on_before_optimizer_step"]
        self._norm_type = run.config.track_grad_norm
        self._is_watched = self._precision.scaler is not None or bool(self._on_before_step) or self._norm_type > 0
        run.progress.expect(len(run.optimizers))

    def run(self, batch: Any, batch_idx: int, dataloader_idx: int, group: int, steps: bool) -> Any:
        """One batch of training.

        Args:
            batch: on the device.
            batch_idx: within the epoch.
            dataloader_idx: of the loader that the batch comes from, where loaders are read one after the other.
            group: batches whose gradients make one step; their mean is what steps.
            steps: whether this batch is its group's last.

        Returns:
            What `training_step` returned.
        """
        raise NotImplementedError

    def finish_group(self, group: int, batch_idx: int) -> None:
        """Step with the gradients that are gathered, though the group is not complete."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """The backward pass, hooks included."""
        for hook in self._before_backward:
            self._metrics.hook = "on_before_backward"
            hook(loss)
        if self._own_backward is not None:
            self._own_backward(self._precision.scale(loss), *args, **kwargs)
        else:
            self._call_backward(loss, *args, **kwargs)
        for hook in self._after_backward:
            self._metrics.hook = "on_after_backward"
            hook()

    def before_step(self, optimizer: Optimizer) -> None:
        """What comes between whole gradients and the step: their true size, hooks, and norms for the logs."""
        self._precision.unscale(optimizer)
        for hook in self._on_before_step:
            self._metrics.hook = "on_before_optimizer_step"
            hook(optimizer)
        if self._norm_type > 0:
            self._metrics.hook = "on_before_optimizer_step"
            for name, norm in gradient_norms(self._module, self._norm_type, self._strategy.whole).items():
                self._metrics.log(name, norm, on_step=True, on_epoch=False)

    @contextmanager
    def counted_steps(self) -> Iterator[None]:
        """Every step of the optimizers is counted, whoever takes it; one that a gradient scaler skips is not."""
        handles = [
            optimizer.register_step_post_hook(_counts(self._progress, index))
            for index, optimizer in enumerate(self._optimizers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _counts(progress: FitProgress, index: int) -> Callable[..., None]:
    return lambda *_: progress.optimizer_stepped(index)
