"""Automatic optimization of one batch: forward, clear, backward, clip, step, in the order in which they happen."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from paceline.errors import MisconfigurationError
from paceline.hooks import overridden
from paceline.loops.optimization import Optimization
from paceline.loops.run import Run
from paceline.loops.steps import takes
from paceline.loops.trainer_optimizer import TrainerOptimizer, needs_closure


class AutomaticOptimization(Optimization):
    """Steps the optimizers with the gradients of the loss that `training_step` returns.

    Several optimizers are each stepped with a loss of their own: `training_step` is called for each, with its
    `optimizer_idx`; while one is at work the parameters of the others need no gradients. Optimizers with frequencies
    take turns.

    Args:
        run: whose module and optimizers.

    Raises:
        MisconfigurationError: several optimizers, and no way for `training_step` to tell which one is at work.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        module, config = run.module, run.config
        self._refuse_what_cannot_work(run)
        self._everybody = tuple(range(len(run.optimizers)))
        self._turns = tuple(itertools.chain.from_iterable([i] * n for i, n in enumerate(run.frequencies)))
        clips = config.gradient_clip_val or overridden(module, "configure_gradient_clipping")
        self._clip = module.configure_gradient_clipping if clips else None
        self._clip_arguments = (config.gradient_clip_val, config.gradient_clip_algorithm)
        self._before_zero_grad = run.hooks["on_before_zero_grad"]
        self._own_zero_grad = module.optimizer_zero_grad if overridden(module, "optimizer_zero_grad") else None
        own_step = overridden(module, "optimizer_step")
        self._by_closure = [own_step or needs_closure(optimizer) for optimizer in run.optimizers]
        self._group = 1
        run.trainer_optimizers = [
            TrainerOptimizer(optimizer, run, partial(self._finish_gradients, index))
            for index, optimizer in enumerate(run.optimizers)
        ]

    def run(self, batch: Any, batch_idx: int, dataloader_idx: int, group: int, steps: bool) -> Any:
        """One batch: its gradients are added to those of its group, and the last of a group steps."""
        self._group = group
        if len(self._everybody) == 1:
            return self._optimize(0, batch, batch_idx, dataloader_idx, steps)
        if not self._everybody:
            self._metrics.hook = "training_step"
            return self.training_step(batch, batch_idx, dataloader_idx, 0)
        turn = self._everybody if not self._turns else (self._turns[batch_idx % len(self._turns)],)
        outputs = []
        for index in turn:
            # Only this optimizer's parameters need gradients.
            self._module.toggle_optimizer(self._optimizers[index])
            try:
                outputs.append(self._optimize(index, batch, batch_idx, dataloader_idx, steps))
            finally:
                self._module.untoggle_optimizer(self._optimizers[index])
        return outputs[0] if len(outputs) == 1 else outputs

    def finish_group(self, group: int, batch_idx: int) -> None:
        """Step with the gradients that are gathered, though the group is not complete."""
        self._group = group
        for index, gathered in enumerate(self._progress.gathered):
            if gathered:
                self._take_step(index, batch_idx, lambda: None)

    def _optimize(self, index: int, batch: Any, batch_idx: int, dataloader_idx: int, steps: bool) -> Any:
        if not steps:
            with self._strategy.no_sync():
                return self._forward_backward(index, batch, batch_idx, dataloader_idx)[0]
        if self._by_closure[index]:
            forward_backward = partial(self._forward_backward, index, batch, batch_idx, dataloader_idx)
            return self._step_with_closure(index, forward_backward, batch_idx)
        output, _ = self._forward_backward(index, batch, batch_idx, dataloader_idx)
        if self._progress.gathered[index]:
            optimizer = self._optimizers[index]
            self._finish_gradients(index, optimizer)
            self._step(optimizer)
            self._progress.gathered[index] = 0
        return output

    def _forward_backward(
        self, index: int, batch: Any, batch_idx: int, dataloader_idx: int
    ) -> tuple[Any, Tensor | None]:
        self._metrics.hook = "training_step"
        output = self.training_step(batch, batch_idx, dataloader_idx, index)
        loss = output if isinstance(output, Tensor) else self._loss_in(output)
        if loss is None:
            return output, None
        gathered = self._progress.gathered
        if not gathered[index]:
            self._zero_grad(self._optimizers[index], batch_idx)
        gathered[index] += 1
        self._backward(loss if self._group == 1 else loss / self._group)
        return output, loss

    def _zero_grad(self, optimizer: Optimizer, batch_idx: int) -> None:
        for hook in self._before_zero_grad:
            self._metrics.hook = "on_before_zero_grad"
            hook(optimizer)
        if self._own_zero_grad is not None:
            self._own_zero_grad(self._progress.current_epoch, batch_idx, optimizer)
        else:
            optimizer.zero_grad()

    def _step_with_closure(self, index: int, forward_backward: Callable[[], Any], batch_idx: int) -> Any:
        """For optimizers, and an `optimizer_step` of the user's, that call for the gradients themselves."""
        gathered, before = self._progress.gathered, self._progress.gathered[index]
        outputs = []

        def closure() -> Any:
            gathered[index] = before  # called once more, it computes the same gradients anew
            output, loss = forward_backward()
            outputs.append(output)
            if loss is None:
                raise _NoLossError
            return loss

        try:
            self._take_step(index, batch_idx, closure)
        except _NoLossError:
            gathered[index] = before
        return outputs[0] if outputs else None

    def _take_step(self, index: int, batch_idx: int, closure: Callable[[], Any]) -> None:
        optimizer = self._run.trainer_optimizers[index]
        if self._by_closure[index]:
            self._module.optimizer_step(self._progress.current_epoch, batch_idx, optimizer, closure)
        else:
            closure()
            optimizer.step()
        self._progress.gathered[index] = 0

    def _finish_gradients(self, index: int, optimizer: Optimizer) -> None:
        """All that comes between the last backward pass of a group and the step."""
        gathered = self._progress.gathered[index]
        if gathered and gathered != self._group:
            # A group that turned out shorter than it was said to be, since its loader's length was not known.
            for parameters in optimizer.param_groups:
                for parameter in parameters["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(self._group / gathered)
        if self._is_watched:
            self.before_step(optimizer)
        if self._clip is not None:
            self._clip(optimizer, *self._clip_arguments)

    def _loss_in(self, output: Any) -> Tensor | None:
        loss = output
        if isinstance(output, Mapping):
            if "loss" not in output:
                raise MisconfigurationError(f"`training_step` returned a dict without `loss`; it has {list(output)}.")
            loss = output["loss"]
        if loss is None:
            self._strategy.unanimous(
                "`training_step` returned None",
                "Return a loss that is multiplied by 0 where a worker has nothing to add.",
            )
        if loss is not None and not isinstance(loss, Tensor):
            raise MisconfigurationError(
                f"`training_step` returned a {type(loss).__name__}. Return a tensor, a dict with `loss`, or None."
            )
        return loss

    def _refuse_what_cannot_work(self, run: Run) -> None:
        module, accumulates = run.module, run.accumulates
        if len(run.optimizers) > 1 and not run.frequencies and not takes(module.training_step, "optimizer_idx"):
            raise MisconfigurationError(
                f"`configure_optimizers` returned {len(run.optimizers)} optimizers. Let `training_step` take "
                "`optimizer_idx` and return that one's loss, give each optimizer a `frequency` to take turns, or set "
                "`self.automatic_optimization = False` and step them in `training_step`."
            )
        if run.frequencies and accumulates:
            raise MisconfigurationError(
                "Optimizers that take turns by `frequency` cannot accumulate: use `accumulate_grad_batches=1`, or "
                "manual optimization."
            )
        if accumulates and any(needs_closure(optimizer) for optimizer in run.optimizers):
            raise MisconfigurationError(
                "An optimizer that computes the loss several times per step, such as LBFGS, cannot accumulate: use "
                "`accumulate_grad_batches=1` and larger batches."
            )
        for hook in ("optimizer_step", "optimizer_zero_grad"):
            if accumulates and overridden(module, hook):
                warnings.warn(
                    f"`{hook}` of {type(module).__name__} is called once per optimizer step, not once per batch.",
                    stacklevel=2,
                )


class _NoLossError(Exception):
    """Unwinds an optimizer's step when `training_step` returned None in it."""
