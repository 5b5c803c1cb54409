"""The training loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from paceline.data.feed import Feed
from paceline.loops.consensus import Consensus
from paceline.loops.evaluate import EvaluationLoop
from paceline.loops.optimization import Optimization
from paceline.loops.run import Run
from paceline.loops.schedulers import Schedulers
from paceline.loops.steps import transfer_call
from paceline.seed import isolated_random_state, random_state, set_random_state


class FitLoop:
    """Trains until a limit is reached or somebody asks to stop, and validates where that is due.

    Args:
        run: the parts of this run.
        feed: training batches.
        validation: None to train without validation.
        consensus: what the workers decide together.
        max_epochs: epochs to train; infinity for no limit.
    """

    def __init__(
        self, run: Run, feed: Feed, validation: EvaluationLoop | None, consensus: Consensus, max_epochs: float
    ) -> None:
        self.run_parts = run
        self.feed = feed
        self.validation = validation
        self.max_epochs = max_epochs
        self.max_steps = run.config.max_steps if run.config.max_steps != -1 else math.inf
        self.progress = run.progress
        self._consensus = consensus
        self._optimization = Optimization(run)
        self._schedulers = Schedulers(run.scheduler_configs, run.progress)
        self._metrics = run.metrics
        self._hooks = run.hooks
        self._transfer = transfer_call(run)
        self._batch_start = run.hooks["on_train_batch_start"]
        self._batch_end = run.hooks["on_train_batch_end"]
        self._group = run.config.accumulate_grad_batches
        self._log_every = run.config.log_every_n_steps
        self._skip_rest = False

    def run(self) -> None:
        """Train."""
        if self.progress.epoch.total.processed > self.progress.epoch.total.completed:
            self.complete_epoch()  # whose hooks had run when the checkpoint was taken
        if self.is_over():
            self.say_why_it_ends()
            return
        self.warn_of_few_rows()
        self._hooks.call("on_fit_start")
        self.sanity_check()
        self.run_parts.state.stage = "train"
        self.warn_of_modes()
        self._hooks.call("on_train_start")
        while not self.is_over():
            self.run_epoch()
        self.say_why_it_ends()
        self._hooks.call("on_train_end")
        self._hooks.call("on_fit_end")

    def run_epoch(self) -> None:
        """One epoch, or what is left of one that a checkpoint was taken in."""
        epoch = self.progress.epoch.total
        if epoch.ready == epoch.completed:
            self.progress.begin_epoch()
            self.take_up_random_state()
            self.run_parts.epoch_random_state = random_state()
        elif self.run_parts.epoch_random_state is not None:
            # In the middle of an epoch: what its start hooks draw must be what they drew before.
            set_random_state(self.run_parts.epoch_random_state)
        self._hooks.call("on_train_epoch_start")
        self.progress.epoch.started()
        self.run_batches()
        is_whole = self.feed.is_last or self._skip_rest
        if is_whole:
            self.progress.epoch.processed()
        self.end_epoch(is_whole)
        if is_whole:
            self.complete_epoch()

    def run_batches(self) -> None:
        """The batches of this epoch that are still to be trained on."""
        self._skip_rest = False
        done = self.progress.batch.current.completed
        batches = self.feed.epoch(self.progress.current_epoch, done)
        self.take_up_random_state()
        for batch_idx, batch in enumerate(batches, done):
            self.train_batch(batch, batch_idx)
            if self.validation_due:
                self.validate()
            if self._ends_group(batch_idx):
                self._consensus.after_batch()
            if self._skip_rest or self.stopping or self.progress.global_step >= self.max_steps:
                break
        if self._skip_rest:
            self.end_group_early()
            self._schedulers.after_last_batch()
        if self.validation_due:
            self.validate()

    def train_batch(self, batch: Any, batch_idx: int) -> None:
        """One batch, hooks included."""
        count = self.progress.batch
        count.ready()
        if self._transfer is not None:
            batch = self._transfer(batch, 0)
        self._metrics.begin_batch("on_train_batch_start", batch)
        for hook in self._batch_start:
            if hook(batch, batch_idx) == -1:
                self._skip_rest = True
                count.processed()
                count.completed()
                return
        count.started()

        steps_before = self.progress.global_step
        is_last = self.feed.is_last
        steps = self._ends_group(batch_idx)
        output = self._optimization.run(batch, batch_idx, self.group_size(batch_idx), steps)
        stepped = self.progress.global_step > steps_before
        if stepped:
            self.count_step()
        if is_last:
            self._schedulers.after_last_batch()
        count.processed()

        if self._batch_end:
            self._metrics.hook = "on_train_batch_end"
            outputs = _outputs(output)
            for hook in self._batch_end:
                hook(outputs, batch, batch_idx)
        count.completed()
        if stepped and self._log_every and self.progress.stepped_batches % self._log_every == 0:
            self.run_parts.log_row(self._metrics.step_row("training"))

    def end_group_early(self) -> None:
        """Step with the gradients that there are; those that the workers have not exchanged yet are dropped."""
        if self.run_parts.strategy.placement.world_size > 1:
            self.progress.gathered = 0
        elif self.progress.gathered:
            self._optimization.step(self.group_size(self.progress.batch.current.processed - 1))
            self.count_step()

    def count_step(self) -> None:
        """An optimizer has stepped."""
        self.progress.stepped_batches += 1
        self._schedulers.after_optimizer_step()

    def _ends_group(self, batch_idx: int) -> bool:
        return self.feed.is_last or (batch_idx + 1) % self._group == 0

    def group_size(self, batch_idx: int) -> int:
        """How many batches make the optimizer step that this batch takes part in: fewer at an epoch's end."""
        if self._group == 1:
            return 1
        left = self.feed.num_batches - batch_idx // self._group * self._group
        return self._group if left == math.inf else min(self._group, int(left))

    def validate(self) -> None:
        """A validation in the middle, or at the end, of the epoch."""
        assert self.validation is not None
        self.run_parts.state.stage = "validate"
        self.validation.run()
        self.run_parts.state.stage = "train"
        self._consensus.look()

    def end_epoch(self, is_whole: bool) -> None:
        """Reduce what the epoch logged; callbacks that look at metrics come after the module has logged its own."""
        row = self._metrics.reduce_epoch("training", is_whole)
        if self._hooks.call_logging("on_train_epoch_end"):
            row += self._metrics.reduce_epoch("training", is_whole)
        self.run_parts.log_epoch(row)
        self._hooks.call_reading("on_train_epoch_end")
        self._consensus.look()

    def complete_epoch(self) -> None:
        """Schedulers that wait for a metric of the whole epoch are the last that it has to do."""
        began_at = self.progress.batch.total.processed - self.progress.batch.current.processed
        validated = self.validation is None or self.progress.validated_at > began_at
        self._schedulers.after_epoch(self._metrics.values, missing_is_final=validated)
        self.progress.epoch.completed()

    def sanity_check(self) -> None:
        """A few validation batches before training; afterwards everything is as if there had been none."""
        steps = self.run_parts.config.num_sanity_val_steps
        if self.validation is None or steps == 0 or self.progress.batch.total.ready:
            return
        run = self.run_parts
        run.state.stage = "sanity_check"
        with isolated_random_state():
            self._hooks.call("on_sanity_check_start")
            self.validation.run(limit=math.inf if steps == -1 else steps)
            self._hooks.call("on_sanity_check_end")
        run.metrics.forget()
        run.stop_requests.clear()
        run.stop_agreed = False

    def take_up_random_state(self) -> None:
        """Go on with the random numbers of the checkpoint, from the place in the epoch where it was taken."""
        state, self.run_parts.resumed_random_state = self.run_parts.resumed_random_state, None
        if state is not None:
            set_random_state(state)

    # -- when -----------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """Whether there is nothing more to train."""
        return (
            self.progress.global_step >= self.max_steps
            or self.progress.current_epoch >= self.max_epochs
            or self.feed.num_batches == 0
            or self.stopping
        )

    @property
    def stopping(self) -> bool:
        """Whether all workers know of a request to stop, and the minimum is reached."""
        return self.run_parts.stop_agreed and self.may_stop

    @property
    def may_stop(self) -> bool:
        """Whether `min_epochs` and `min_steps` are reached."""
        config = self.run_parts.config
        epochs = max(self.progress.epoch.total.processed, self.progress.current_epoch)
        return epochs >= (config.min_epochs or 0) and self.progress.global_step >= (config.min_steps or 0)

    @property
    def validates_this_epoch(self) -> bool:
        """Whether this epoch ends with a validation."""
        every = self.run_parts.config.check_val_every_n_epoch
        return (self.progress.current_epoch + 1) % every == 0

    @property
    def validation_due(self) -> bool:
        """Whether a validation has to run now: at the end of its epochs, and before a requested stop; once."""
        return (
            self.validation is not None
            and ((self.feed.is_last and self.validates_this_epoch) or self.stopping)
            and self.progress.validated_at != self.progress.batch.total.processed
        )

    # -- words ----------------------------------------------------------------------------------------------------

    def say_why_it_ends(self) -> None:
        """One line on why the fit is over."""
        if self.feed.num_batches == 0:
            why = "there are no training batches"
        elif self.progress.global_step >= self.max_steps:
            why = f"`max_steps={self.max_steps}` reached"
        elif self.progress.current_epoch >= self.max_epochs:
            why = f"`max_epochs={self.max_epochs}` reached"
        else:
            why = "a stop was requested"
        self.run_parts.tell(f"Fit ends: {why} (epoch {self.progress.current_epoch}, step {self.progress.global_step}).")

    def warn_of_modes(self) -> None:
        """Submodules stay in the mode that the user put them in, which may not be what the user wants."""
        modules = list(self.run_parts.module.modules())
        evaluating = sum(not module.training for module in modules)
        if evaluating and self.run_parts.strategy.is_global_zero:
            warnings.warn(
                f"{evaluating} of {len(modules)} submodules are in evaluation mode, and stay in it. Call "
                "`module.train()` before `fit` if that is not wanted.",
                stacklevel=2,
            )

    def warn_of_few_rows(self) -> None:
        """Step values would never be seen in an epoch of fewer batches than there are steps between rows."""
        batches = self.feed.num_batches / self._group
        if self.run_parts.loggers and self.run_parts.strategy.is_global_zero and batches < self._log_every:
            warnings.warn(
                f"An epoch has {math.ceil(batches)} steps, fewer than `log_every_n_steps={self._log_every}`: "
                "set a smaller value to see step values of every epoch.",
                stacklevel=2,
            )


def _outputs(output: Any) -> Any:
    """What `on_train_batch_end` gets: a dict with the loss cut off from its graph, or None."""
    if isinstance(output, Mapping):
        return {key: value.detach() if isinstance(value, Tensor) else value for key, value in output.items()}
    return {"loss": output.detach()} if isinstance(output, Tensor) else output
