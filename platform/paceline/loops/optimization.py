"""Optimization of one batch: forward, clear, backward, clip, step, in the order in which they happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.errors import MisconfigurationError
from paceline.hooks import overridden
from paceline.loops.run import Run
from paceline.loops.steps import step_call


class Optimization:
    """Automatic optimization with one optimizer.

    Args:
        run: whose module and optimizer.

    Raises:
        MisconfigurationError: there are several optimizers.
    """

    def __init__(self, run: Run) -> None:
        if len(run.optimizers) > 1:
            raise MisconfigurationError(
                f"`configure_optimizers` returned {len(run.optimizers)} optimizers; one can be stepped automatically."
            )
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in run.optimizers):
            raise MisconfigurationError("LBFGS evaluates the loss several times per step; it cannot be used yet.")
        module = run.module
        self._strategy = run.strategy
        self._progress = run.progress
        self._optimizer = run.optimizers[0] if run.optimizers else None
        self._training_step = step_call(module.training_step, run.strategy.wrap(module, module.training_step))
        clips = run.config.gradient_clip_val or overridden(module, "configure_gradient_clipping")
        self._clip = module.configure_gradient_clipping if clips else None
        self._clip_arguments = (run.config.gradient_clip_val, run.config.gradient_clip_algorithm)
        self._metrics = run.metrics
        self._before_zero_grad = run.hooks["on_before_zero_grad"]
        self._before_backward = run.hooks["on_before_backward"]
        self._after_backward = run.hooks["on_after_backward"]
        self._before_step = run.hooks["on_before_optimizer_step"]

    def run(self, batch: Any, batch_idx: int, group: int, steps: bool) -> Any:
        """One batch: its gradients are added to those of its group, and the last of a group steps.

        Args:
            batch: on the device.
            batch_idx: within the epoch.
            group: batches whose gradients make this step; their mean is what steps.
            steps: whether this batch is its group's last.

        Returns:
            What `training_step` returned.
        """
        if steps:
            output = self._forward_backward(batch, batch_idx, group)
            if self._progress.gathered:
                self.step(group)
        else:
            with self._strategy.no_sync():
                output = self._forward_backward(batch, batch_idx, group)
        return output

    def _forward_backward(self, batch: Any, batch_idx: int, group: int) -> Any:
        self._metrics.hook = "training_step"
        output = self._training_step(batch, batch_idx, 0)
        loss = self._loss_of(output)
        if loss is None or self._optimizer is None:
            return output
        if not self._progress.gathered:
            for hook in self._before_zero_grad:
                self._metrics.hook = "on_before_zero_grad"
                hook(self._optimizer)
            self._optimizer.zero_grad()
        self._progress.gathered += 1
        if group > 1:
            loss = loss / group
        for hook in self._before_backward:
            self._metrics.hook = "on_before_backward"
            hook(loss)
        self._strategy.backward(loss)
        for hook in self._after_backward:
            self._metrics.hook = "on_after_backward"
            hook()
        return output

    def step(self, group: int) -> None:
        """Step with the gradients that are gathered.

        Args:
            group: of how many batches their losses were made parts; fewer may have come.
        """
        optimizer = self._optimizer
        assert optimizer is not None
        if self._progress.gathered != group:
            # A group that turned out shorter than it was said to be, since its loader's length was not known.
            scale = group / self._progress.gathered
            for parameters in optimizer.param_groups:
                for parameter in parameters["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(scale)
        self._progress.gathered = 0
        for hook in self._before_step:
            self._metrics.hook = "on_before_optimizer_step"
            hook(optimizer)
        if self._clip is not None:
            self._clip(optimizer, *self._clip_arguments)
        self._progress.optimizer.ready()
        optimizer.step()
        self._progress.optimizer.completed()

    def _loss_of(self, output: Any) -> Tensor | None:
        loss = output
        if isinstance(output, Mapping):
            if "loss" not in output:
                raise MisconfigurationError(f"`training_step` returned a dict without `loss`; it has {list(output)}.")
            loss = output["loss"]
        if loss is None and self._strategy.placement.world_size > 1:
            raise MisconfigurationError(
                "`training_step` returned None on one of several workers, where all have to take each step together. "
                "Return a loss that is multiplied by 0 instead."
            )
        if loss is not None and not isinstance(loss, Tensor):
            raise MisconfigurationError(
                f"`training_step` returned a {type(loss).__name__}. Return a tensor, a dict with `loss`, or None."
            )
        return loss
