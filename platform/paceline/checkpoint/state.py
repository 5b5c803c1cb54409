"""What is in a checkpoint, under the keys that this field's users know, and how a run takes it up again."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

from torch import Tensor

from paceline.checkpoint.storage import loads_without_trust
from paceline.checkpoint.weights import load_weights, weights
from paceline.checkpoint.writer import copy_to_cpu
from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.metrics import Metrics
from paceline.progress import FitProgress
from paceline.seed import derive, isolated_random_state, random_state
from paceline.strategies.base import Strategy

VERSION = "0.1.0"
# The format of the keys is that of this Lightning version, whose loader asks for it.
LIGHTNING_VERSION = "2.6.0"
OWN_KEY = "paceline"

_SCALER_KEY = "MixedPrecision"
_TRAINING_KEYS = ("loops", "callbacks", "optimizer_states", "lr_schedulers", _SCALER_KEY)
_PLAIN = (str, int, float, bool, type(None))


class Stateful(Protocol):
    """The parts of a run that a checkpoint holds."""

    run_key: str
    seed: int
    module: Any
    datamodule: Any
    callbacks: list[Any]
    optimizers: list[Any]
    scheduler_configs: list[Any]
    progress: FitProgress
    metrics: Metrics
    strategy: Strategy
    config: TrainerConfig
    looked_at: set[str]
    """Owners of states that were found to be loadable."""
    items_per_step: int
    known_position: tuple[int, int]
    stop_requests: set[str]
    resumed_random_state: dict[str, Any] | None
    """To be set when the first batch is read, after everything that may draw random numbers before it."""
    epoch_random_state: dict[str, Any] | None
    """As the running epoch began."""

    @property
    def position(self) -> int:
        """Items of the training data that all workers together have done with in this epoch."""

    def announce(self, hook: str, checkpoint: dict[str, Any]) -> None:
        """Let callbacks and module change the checkpoint."""


def capture(run: Stateful, weights_only: bool = False) -> dict[str, Any]:
    """The state of a run, copied to the CPU: training may go on at once. All workers have to call it.

    Args:
        run: whose state.
        weights_only: leave out everything that only training needs.

    Returns:
        The checkpoint on rank 0; on the other workers an empty dict.
    """
    checkpoint: dict[str, Any] = {
        "epoch": run.progress.current_epoch,
        "global_step": run.progress.global_step,
        "pytorch-lightning_version": LIGHTNING_VERSION,
        "state_dict": _whole(run, weights(run.module)),
        "hparams_name": "kwargs",
        "hyper_parameters": portable(run.module.hparams),
        OWN_KEY: {"version": VERSION, "run": run.run_key},
    }
    if run.datamodule is not None:
        checkpoint["datamodule_hyper_parameters"] = portable(run.datamodule.hparams)
        if state := run.datamodule.state_dict():
            checkpoint[type(run.datamodule).__qualname__] = _loadable(run, type(run.datamodule).__qualname__, state)
    if not weights_only:
        checkpoint |= {
            "loops": {"fit_loop": run.progress.state_dict()},
            "callbacks": {
                c.state_key: _loadable(run, c.state_key, state) for c in run.callbacks if (state := c.state_dict())
            },
            "optimizer_states": [_whole(run, optimizer.state_dict()) for optimizer in run.optimizers],
            "lr_schedulers": [config.scheduler.state_dict() for config in run.scheduler_configs],
        }
        if run.strategy.precision.scaler is not None:
            checkpoint[_SCALER_KEY] = run.strategy.precision.scaler.state_dict()
        mine = {
            "random": random_state(),
            "epoch_random": run.epoch_random_state,
            "metrics": run.metrics.state_dict(),
            "gradients": _gathered_gradients(run),
        }
        workers = run.strategy.gather_objects(mine)
        checkpoint[OWN_KEY] |= {
            "seed": run.seed,
            "workers": workers,
            "position": run.position,
            "items_per_step": run.items_per_step,
            "values": run.metrics.values.state_dict(),
            "stop_requests": sorted(run.stop_requests),
        }
    run.announce("on_save_checkpoint", checkpoint)
    return copy_to_cpu(checkpoint) if run.strategy.is_global_zero else {}


def without_training(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint without what only training needs."""
    return {key: value for key, value in checkpoint.items() if key not in _TRAINING_KEYS}


def restore_weights(run: Stateful, checkpoint: dict[str, Any]) -> None:
    """Load the module's weights and the data module's state."""
    run.announce("on_load_checkpoint", checkpoint)
    load_weights(run.module, checkpoint["state_dict"])
    if run.datamodule is not None:
        state = checkpoint.get(type(run.datamodule).__qualname__)
        if state is not None:
            run.datamodule.load_state_dict(state)


def restore_callbacks(run: Stateful, checkpoint: dict[str, Any]) -> None:
    """Give each callback its state; warn of states that nobody takes."""
    states = checkpoint.get("callbacks", {})
    for callback in run.callbacks:
        if callback.state_key in states:
            callback.load_state_dict(states[callback.state_key])
    absent = sorted(set(states) - {callback.state_key for callback in run.callbacks})
    if absent:
        warnings.warn(f"The checkpoint has the state of callbacks that are not there now: {absent}.", stacklevel=2)


def restore_progress(run: Stateful, checkpoint: dict[str, Any]) -> None:
    """Go on counting, under the same seed: before loaders are made, which may look at the epoch.

    Raises:
        MisconfigurationError: the checkpoint has only weights.
    """
    if "optimizer_states" not in checkpoint:
        raise MisconfigurationError(
            "This checkpoint holds weights only: training cannot go on from it. Load it with "
            f"`{type(run.module).__name__}.load_from_checkpoint(path)` and start a new fit."
        )
    run.seed = checkpoint.get(OWN_KEY, {}).get("seed", run.seed)
    run.progress.load_state_dict(checkpoint["loops"]["fit_loop"])
    # A file written in the hooks at a batch's end counts that batch as done.
    for counts in (run.progress.batch.total, run.progress.batch.before):
        counts.completed = counts.ready = counts.started = counts.processed


def restore_training(run: Stateful, checkpoint: dict[str, Any], same_run: bool) -> None:
    """Go on with optimizers, schedulers, metrics and random numbers as they were.

    Args:
        run: the run that goes on.
        checkpoint: where from.
        same_run: True after a worker's death: a stop that was requested stays requested.

    Raises:
        MisconfigurationError: the checkpoint fits other optimizers.
    """
    schedulers = [config.scheduler for config in run.scheduler_configs]
    for kind, owners, states in (
        ("optimizers", run.optimizers, checkpoint["optimizer_states"]),
        ("schedulers", schedulers, checkpoint["lr_schedulers"]),
    ):
        if len(owners) != len(states):
            raise MisconfigurationError(f"The checkpoint has {len(states)} {kind}, this run has {len(owners)}.")
    for optimizer, state in zip(run.optimizers, checkpoint["optimizer_states"], strict=True):
        run.strategy.load_optimizer(optimizer, state)
    for scheduler, state in zip(schedulers, checkpoint["lr_schedulers"], strict=True):
        scheduler.load_state_dict(state)
    if run.strategy.precision.scaler is not None and _SCALER_KEY in checkpoint:
        run.strategy.precision.scaler.load_state_dict(checkpoint[_SCALER_KEY])
    own = checkpoint.get(OWN_KEY, {})
    if "workers" in own:
        run.stop_requests = set(own["stop_requests"]) if same_run else set()
        run.metrics.values.load_state_dict(own["values"])
        run.known_position = (run.progress.batches_in_epoch, own["position"])
        if len(own["workers"]) == run.strategy.placement.world_size:
            _restore_worker(run, own["workers"][run.strategy.placement.global_rank])
        else:
            _restore_on_other_workers(run, own)


def _restore_worker(run: Stateful, mine: dict[str, Any]) -> None:
    """Take up what was this worker's own."""
    run.metrics.load_state_dict(mine["metrics"])
    for parameter, gradient in zip(run.module.parameters(), mine["gradients"], strict=False):
        parameter.grad = run.strategy.from_own_part(gradient, parameter) if gradient is not None else None
    run.resumed_random_state, run.epoch_random_state = mine["random"], mine["epoch_random"]


def _restore_on_other_workers(run: Stateful, own: dict[str, Any]) -> None:
    """Share out among another number of workers what those before had."""
    placement = run.strategy.placement
    for theirs in own["workers"][placement.global_rank :: placement.world_size]:
        run.metrics.load_state_dict(theirs["metrics"])
    # The gradients of an unfinished group are those of other batches than these workers would read: it begins anew.
    batches = run.progress.drop_unfinished_group()
    run.known_position = (run.progress.batches_in_epoch, own["position"] - batches * own["items_per_step"])
    # Random numbers of their own, which no worker has drawn before.
    with isolated_random_state(derive(run.seed, placement.global_rank, run.progress.batch.total.processed)):
        run.resumed_random_state = random_state()


def portable(hparams: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters that can be loaded without trust; the others are named in a warning."""
    kept = {name: value for name, value in hparams.items() if isinstance(value, _PLAIN) or loads_without_trust(value)}
    left_out = [name for name in hparams if name not in kept]
    if left_out:
        warnings.warn(
            f"Hyperparameters that checkpoints do not keep, for loading them would run their code: {left_out}.",
            stacklevel=3,
        )
    return kept


def _loadable(run: Stateful, owner: str, state: dict[str, Any]) -> dict[str, Any]:
    """A state that can be loaded without trust; looked at once per run, when the first checkpoint is taken.

    Raises:
        MisconfigurationError: it cannot; better now than when somebody needs the checkpoint.
    """
    if owner not in run.looked_at and not run.config.trusted_checkpoints and not loads_without_trust(state):
        raise MisconfigurationError(
            f"The `state_dict` of {owner} holds objects whose code would run when a checkpoint is loaded. Return plain "
            "values and tensors, or use `Trainer(trusted_checkpoints=True)`."
        )
    run.looked_at.add(owner)
    return state


def _gathered_gradients(run: Stateful) -> list[Any]:
    """This worker's gradients in the middle of an accumulation group, which the next batches add to; else nothing."""
    if not any(run.progress.gathered):
        return []
    gradients = [parameter.grad for parameter in run.module.parameters()]
    return [None if grad is None else copy_to_cpu(run.strategy.own_part(grad)) for grad in gradients]


def _whole(run: Stateful, tree: Any) -> Any:
    """The tree with its tensors in one piece; where workers hold parts, on the CPU of rank 0 only."""
    if isinstance(tree, dict):
        return {key: _whole(run, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_whole(run, value) for value in tree]
    if not isinstance(tree, Tensor):
        return tree
    whole = run.strategy.whole(tree)
    if whole is tree:
        return tree
    return whole.detach().cpu() if run.strategy.is_global_zero else None
