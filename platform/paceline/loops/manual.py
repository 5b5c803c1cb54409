"""Manual optimization: the module's `training_step` computes gradients and steps by itself."""

from __future__ import annotations

from typing import Any

from paceline.errors import MisconfigurationError
from paceline.loops.optimization import Optimization
from paceline.loops.run import Run
from paceline.loops.trainer_optimizer import TrainerOptimizer


class ManualOptimization(Optimization):
    """Calls `training_step`, which takes the optimizers from `self.optimizers()`.

    Args:
        run: whose module and optimizers.

    Raises:
        MisconfigurationError: the trainer is asked to clip, to accumulate or to alternate, which is the module's work.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        config = run.config
        if config.gradient_clip_val:
            raise MisconfigurationError(
                f"`gradient_clip_val={config.gradient_clip_val}` does nothing in manual optimization: call "
                "`self.clip_gradients(optimizer, gradient_clip_val=...)` in `training_step`."
            )
        if run.accumulates:
            raise MisconfigurationError(
                "`accumulate_grad_batches` does nothing in manual optimization: step "
                "and clear the gradients in every so manieth `training_step`."
            )
        if run.frequencies:
            raise MisconfigurationError(
                "A `frequency` of optimizers does nothing in manual optimization: `training_step` chooses among them."
            )
        run.trainer_optimizers = [TrainerOptimizer(one, run, self._before_step) for one in run.optimizers]

    def run(self, batch: Any, batch_idx: int, dataloader_idx: int, group: int, steps: bool) -> Any:
        """One batch; it always is a group of its own."""
        self._metrics.hook = "training_step"
        progress = self._progress
        before = list(progress.optimizer_steps)
        output = self.training_step(batch, batch_idx, dataloader_idx, 0)
        # A checkpoint keeps the gradients of optimizers that did not step: the module may be adding some up.
        progress.gathered = [int(now == then) for now, then in zip(progress.optimizer_steps, before, strict=True)]
        return output

    def _before_step(self, optimizer: Any) -> None:
        self.before_step(optimizer)
        self._metrics.hook = "training_step"  # which goes on
