"""The training loop."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from paceline.errors import MisconfigurationError
from paceline.hooks import overridden
from paceline.loops.automatic import AutomaticOptimization
from paceline.loops.consensus import Consensus
from paceline.loops.evaluate import EvaluationLoop
from paceline.loops.fit_messages import say_why_it_ends, warn_of_few_rows, warn_of_modes
from paceline.loops.loaders import Loaders
from paceline.loops.manual import ManualOptimization
from paceline.loops.restart import RestartCheckpoints
from paceline.loops.run import Run
from paceline.loops.schedulers import Schedulers
from paceline.loops.steps import transfer_call
from paceline.loops.validation_schedule import ValidationSchedule
from paceline.seed import isolated_random_state, random_state, set_random_state


class FitLoop:
    """Trains until a limit is reached or somebody asks to stop, and validates where that is due.

    Args:
        validation: the loop of the validations within a fit.

    Attributes:
        feed: training batches.
        validation: the loop of validations; None when nothing is validated.
        accumulate_grad_batches: batches whose gradients make one step, now.
        max_epochs: epochs to train; infinity for no limit.
        max_steps: optimizer steps to take; likewise.
        progress: where the fit stands.
    """

    def __init__(self, validation: EvaluationLoop | None = None) -> None:
        self._validation = validation or EvaluationLoop("validation", inside_fit=True)

    def connect(self, run: Run, loaders: Loaders) -> None:
        """Take up the parts of a run, and open its data."""
        config = run.config
        self.run_parts = run
        self.progress = run.progress
        self.accumulate_grad_batches = (
            config.accumulate_grad_batches if type(config.accumulate_grad_batches) is int else 1
        )
        self.max_epochs = math.inf if config.max_epochs in (None, -1) else config.max_epochs
        self.max_steps = math.inf if config.max_steps == -1 else config.max_steps
        self._loaders = loaders
        self._hooks = run.hooks
        self._metrics = run.metrics
        self._transfer = transfer_call(run)
        self._batch_start = run.hooks["on_train_batch_start"]
        self._batch_end = run.hooks["on_train_batch_end"]
        self._log_every = config.log_every_n_steps
        self._skip_rest = self._at_group_end = False
        self.feed = loaders.train()
        self.validation: EvaluationLoop | None = None
        if overridden(run.module, "validation_step") and config.limit_val_batches:
            self.validation = copy.copy(self._validation)
            self.validation.connect(run, loaders)
            if not any(feed.num_batches for feed in self.validation.feeds):
                self.validation = None
        self._loaded_at = run.progress.current_epoch
        if self.validation is not None:
            self._schedule = ValidationSchedule(config, self.feed.num_batches)
            # The sanity check's loaders are those of the first epoch, if that is validated at all.
            self._validation_loaded_at = self._loaded_at if self._schedule.includes(self._loaded_at) else -1
        self._consensus = Consensus(run, RestartCheckpoints(run))

    def run(self) -> None:
        """Train."""
        self.begin_optimization()
        if self.progress.epoch.total.processed > self.progress.epoch.total.completed:
            self.complete_epoch()  # whose hooks had run when the checkpoint was taken
        if self.is_over():
            say_why_it_ends(self)
            return
        warn_of_few_rows(self)
        self._hooks.call("on_fit_start")
        self.sanity_check()
        self.run_parts.state.stage = "train"
        warn_of_modes(self.run_parts)
        self._hooks.call("on_train_start")
        self._consensus.look()
        with self.optimization.counted_steps():
            while not self.is_over():
                self._run_epoch()
        say_why_it_ends(self)
        self._hooks.call("on_train_end")
        self._hooks.call("on_fit_end")

    def begin_optimization(self) -> None:
        """The optimizers and schedulers are there."""
        run = self.run_parts
        automatic = run.module.automatic_optimization
        self.optimization = AutomaticOptimization(run) if automatic else ManualOptimization(run)
        self._schedulers = Schedulers(run)
        self._run_epoch = run.span("run_training_epoch", self.run_epoch)
        self._train_batch = run.span("run_training_batch", self.train_batch)

    def run_epoch(self) -> None:
        """One epoch, or what is left of one that a checkpoint was taken in."""
        epoch = self.progress.epoch.total
        if epoch.ready == epoch.completed:
            self.reload_training_data()
            self.progress.begin_epoch()
            self.run_parts.known_position = (0, 0)
            self.take_up_random_state()
            self.run_parts.epoch_random_state = random_state()
        elif self.run_parts.epoch_random_state is not None:
            # In the middle of an epoch: what its start hooks draw must be what they drew before.
            set_random_state(self.run_parts.epoch_random_state)
        self._hooks.call("on_train_epoch_start")
        self.progress.epoch.total.started += 1
        self.run_batches()
        self.find_out_whether_empty()
        is_whole = self.feed.is_last or self._skip_rest
        if is_whole:
            self.progress.epoch.total.processed += 1
        self.end_epoch(is_whole)
        if is_whole:
            self.complete_epoch()

    def run_batches(self) -> None:
        """The batches of this epoch that are still to be trained on."""
        self._skip_rest = False
        done = self.progress.batches_in_epoch
        batches = self.feed.epoch(self.progress.current_epoch, done, self.run_parts.position)
        if self.run_parts.profiler is not None:
            batches = _each_fetch_measured(batches, self.run_parts)
        self.take_up_random_state()
        if done and self.validation_due:
            self.validate()  # the one that was due when the checkpoint was taken
        for batch_idx, batch in enumerate(batches, done):
            self._train_batch(batch, batch_idx)
            if self.validation is not None and self.validation_due:
                self.validate()
            if self._at_group_end:
                self._consensus.after_batch()
            if self._skip_rest or self.stopping or self.progress.global_step >= self.max_steps:
                break
        if self.stopping and self._log_every:
            self.run_parts.log_row(self._metrics.step_row("training"))  # what came since the last row
        if self._skip_rest:
            self.end_group_early()
            self._schedulers.after_last_batch()
        if self.validation_due:
            self.validate()

    def find_out_whether_empty(self) -> None:
        """A loader without length that gives nothing would be read for ever."""
        if self.progress.batches_in_epoch == 0 and self.progress.batch.current.ready == 0:
            self.feed.num_batches = 0
            warnings.warn(f"The training loader, a {type(self.feed.loader).__name__}, gave no batches.", stacklevel=2)

    def train_batch(self, batch: Any, batch_idx: int) -> None:
        """One batch, hooks included."""
        count = self.progress.batch.total
        count.ready += 1
        if batch is None:
            self.pass_over(batch_idx)
            return
        if self._transfer is not None:
            batch = self._transfer(batch, 0)
        self._metrics.begin_batch("on_train_batch_start", batch)
        for hook in self._batch_start:
            if hook(batch, batch_idx) == -1:
                self.run_parts.strategy.unanimous(
                    "`on_train_batch_start` returned -1", "Decide by what is the same on all workers."
                )
                self._skip_rest = True
                count.processed += 1
                count.completed += 1
                return
        count.started += 1

        optimizer_steps = self.progress.optimizer.total
        steps_before, is_last = optimizer_steps.completed, self.feed.is_last
        group = 1 if self.accumulate_grad_batches == 1 else self.group_size(batch_idx)
        self._at_group_end = is_last or (batch_idx + 1) % self.accumulate_grad_batches == 0
        output = self.optimization.run(batch, batch_idx, self.feed.dataloader_idx, group, self._at_group_end)
        stepped = optimizer_steps.completed > steps_before
        if stepped:
            self.count_step()
        if is_last:
            self._schedulers.after_last_batch()
        count.processed += 1

        if self._batch_end:
            self._metrics.hook = "on_train_batch_end"
            outputs = _outputs(output)
            for hook in self._batch_end:
                hook(outputs, batch, batch_idx)
        count.completed += 1
        if stepped and self._log_every and self.progress.stepped_batches % self._log_every == 0:
            self.run_parts.log_row(self._metrics.step_row("training"))

    def pass_over(self, batch_idx: int) -> None:
        """A loader gave None in place of a batch: nothing is computed, and everybody is told that it is over."""
        warnings.warn("The training loader gave None as a batch: such batches are skipped.", stacklevel=2)
        count = self.progress.batch.total
        self._at_group_end = self.feed.is_last
        count.started += 1
        count.processed += 1
        self._hooks.call("on_train_batch_end", None, None, batch_idx)
        count.completed += 1

    def end_group_early(self) -> None:
        """Step with the gradients that there are; those that the workers have not exchanged yet are dropped."""
        if self.run_parts.strategy.placement.world_size > 1:
            self.progress.gathered = [0] * len(self.progress.gathered)
            return
        steps_before = self.progress.global_step
        last = self.progress.batches_in_epoch - 1
        self.optimization.finish_group(self.group_size(last), last)
        if self.progress.global_step > steps_before:
            self.count_step()

    def count_step(self) -> None:
        """An optimizer has stepped."""
        self.progress.stepped_batches += 1
        self._schedulers.after_optimizer_step()

    def group_size(self, batch_idx: int) -> int:
        """How many batches make the optimizer step that this batch takes part in: fewer at an epoch's end."""
        group = self.accumulate_grad_batches
        left = self.feed.end - batch_idx // group * group
        return group if left == math.inf else min(group, int(left))

    def validate(self) -> None:
        """A validation in the middle, or at the end, of the epoch."""
        assert self.validation is not None
        self.reload_validation_data()
        self.run_parts.state.stage = "validate"
        self.run_parts.span("run_validation", self.validation.run)()
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
        began_at = self.progress.batch.before.processed
        validated = self.validation is None or self.progress.validated_at > began_at
        self._schedulers.after_epoch(self._metrics.values, missing_is_final=validated)
        self.progress.epoch.total.completed += 1

    def sanity_check(self) -> None:
        """A few validation batches before training; afterwards everything is as if there had been none."""
        steps = self.run_parts.config.num_sanity_val_steps
        if self.validation is None or steps == 0 or self.progress.batch.total.ready:
            return
        run = self.run_parts
        requests = set(run.stop_requests)
        run.state.stage = "sanity_check"
        with isolated_random_state():
            self._hooks.call("on_sanity_check_start")
            self.validation.run(limit=math.inf if steps == -1 else steps)
            self._hooks.call("on_sanity_check_end")
        run.metrics.forget()
        run.stop_requests = requests
        run.stop_agreed = False

    def reload_training_data(self) -> None:
        """Ask the loader hook again where `reload_dataloaders_every_n_epochs` says so."""
        if self._is_to_reload("train", self._loaded_at):
            self._loaded_at = self.progress.current_epoch
            self.feed = self._loaders.train()
            if self.validation is not None:
                self._schedule = ValidationSchedule(self.run_parts.config, self.feed.num_batches)

    def reload_validation_data(self) -> None:
        """Likewise, before the first validation of an epoch."""
        if self.validation is not None and self._is_to_reload("val", self._validation_loaded_at):
            self._validation_loaded_at = self.progress.current_epoch
            self.validation.connect(self.run_parts, self._loaders)

    def _is_to_reload(self, kind: str, loaded_at: int) -> bool:
        n = self.run_parts.config.reload_dataloaders_every_n_epochs
        return n > 0 and self._loaders.are_from_hook(kind) and self.progress.current_epoch // n != loaded_at // n

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
    def validation_due(self) -> bool:
        """Whether a validation has to run now, which did not run at this batch yet."""
        progress = self.progress
        if self.validation is None or progress.validated_at == progress.batch.total.processed:
            return False
        if progress.batches_in_epoch == 0:
            return False
        return self.stopping or self._schedule.is_due(self.progress, self.feed.is_last)

    def estimated_steps(self) -> float:
        """Optimizer steps of the whole fit; infinity when neither a limit nor a length bounds them.

        Raises:
            MisconfigurationError: batches per step change from epoch to epoch.
        """
        schedule = self.run_parts.accumulation_schedule
        if set(schedule) - {0}:
            raise MisconfigurationError(
                f"The number of steps is not estimated with an accumulation schedule such as {schedule}: use one "
                "number of batches per step, or `max_steps`."
            )
        group = schedule.get(0, self.accumulate_grad_batches)
        if self.max_epochs == 0:
            return 0
        batches = self.feed.num_batches
        per_epoch = batches if batches == math.inf else math.ceil(batches / group)
        return min(per_epoch * self.max_epochs, self.max_steps) if per_epoch else 0


def _outputs(output: Any) -> Any:
    """What `on_train_batch_end` gets: a dict with the loss cut off from its graph, or None; of several a list."""
    if isinstance(output, Tensor):
        return {"loss": output.detach()}
    if isinstance(output, Mapping):
        return {key: value.detach() if isinstance(value, Tensor) else value for key, value in output.items()}
    return [_outputs(one) for one in output] if isinstance(output, list) else output


def _each_fetch_measured(batches: Iterator[Any], run: Run) -> Iterator[Any]:
    end = object()
    fetch = run.span("train_dataloader_next", next)
    while (batch := fetch(batches, end)) is not end:
        yield batch
