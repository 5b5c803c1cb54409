"""What a fit tells its user."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from paceline.loops.run import Run

if TYPE_CHECKING:
    from paceline.loops.fit import FitLoop


def say_why_it_ends(loop: FitLoop) -> None:
    """One line on why the fit is over."""
    progress = loop.progress
    if loop.feed.num_batches == 0:
        why = "there are no training batches"
    elif progress.global_step >= loop.max_steps:
        why = f"`max_steps={loop.max_steps}` reached"
    elif progress.current_epoch >= loop.max_epochs:
        why = f"`max_epochs={loop.max_epochs}` reached"
    else:
        by = ", ".join(sorted(loop.run_parts.stop_requests - {"user"}))
        why = f"a stop was requested{by and ' by '}{by}"
    loop.run_parts.tell(f"Fit ends: {why} (epoch {progress.current_epoch}, step {progress.global_step}).")


def warn_of_modes(run: Run) -> None:
    """Submodules stay in the mode that the user put them in, which may not be what the user wants."""
    modules = list(run.module.modules())
    evaluating = sum(not module.training for module in modules)
    if evaluating and run.strategy.is_global_zero:
        warnings.warn(
            f"{evaluating} of {len(modules)} submodules are in evaluation mode, and stay in it. Call "
            "`module.train()` before `fit` if that is not wanted.",
            stacklevel=3,
        )


def warn_of_few_rows(loop: FitLoop) -> None:
    """Step values would never be seen in an epoch of fewer batches than there are steps between rows."""
    run, every = loop.run_parts, loop.run_parts.config.log_every_n_steps
    steps = loop.feed.num_batches / loop.accumulate_grad_batches
    if run.loggers and run.strategy.is_global_zero and steps < every:
        warnings.warn(
            f"An epoch has {math.ceil(steps)} steps, fewer than `log_every_n_steps={every}`: use a smaller one to see "
            "step values of every epoch.",
            stacklevel=3,
        )
