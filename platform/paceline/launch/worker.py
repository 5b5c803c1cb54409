"""The worker: carries one run out on one device. Every launcher hosts this same function."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline.checkpoint import state, storage
from paceline.data.feed import Feed
from paceline.errors import StopRun
from paceline.hooks import Hooks, overridden
from paceline.launch.spec import RunResult, RunSpec
from paceline.loops.consensus import Consensus
from paceline.loops.evaluate import EvaluationLoop
from paceline.loops.fit import FitLoop
from paceline.loops.link import Link
from paceline.loops.optimizers import parse_optimizers
from paceline.loops.predict import PredictLoop
from paceline.loops.restart import RestartCheckpoints
from paceline.loops.run import Run
from paceline.metrics import Metrics
from paceline.strategies.base import Placement

_STAGES = {"fit": "train", "validate": "validate", "test": "test", "predict": "predict"}
_STOP_EXCEPTIONS: dict[int, Callable[[], BaseException]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: lambda: SystemExit(128 + signal.SIGTERM),
}


def run(spec: RunSpec, placement: Placement, link: Link, trainer: Any = None, device_index: int = 0) -> RunResult:
    """Carry out a run, and say what it has come to.

    Args:
        spec: the run.
        placement: this worker's rank and the number of workers.
        link: the way to the driver.
        trainer: what hooks see as `trainer`; by default one is made for this worker.
        device_index: the device among those that this process sees; Ray shows each worker its own only.

    Raises:
        BaseException: whatever the user's code raised, after `on_exception` and `teardown` have run.
    """
    spec.strategy.connect(placement, spec.accelerator.device(device_index))
    live = _make_run(spec, link)
    trainer = trainer if trainer is not None else spec.trainer_class.in_worker(spec)
    trainer.attach(live)
    live.hooks = Hooks(trainer, live.module, live.datamodule, live.callbacks, live.metrics.enter)
    with _torn_down(live, trainer):
        live.state.fn, live.state.status, live.state.stage = spec.fn, "running", _STAGES[spec.fn]
        try:
            result = _carry_out(spec, live)
        except StopRun as stop:
            # A whole batch has ended and the state is saved: this is an end, if an early one.
            _tell_exception(live, _STOP_EXCEPTIONS[stop.signum]())
            result = RunResult(stopped_by=stop.signum)
            if spec.fn == "fit":
                result.checkpoint = state.capture(live)
        except BaseException as error:
            _tell_exception(live, error)
            raise
        else:
            live.state.status = "finished"
        live.writer.wait()
    result.metrics = live.metrics.values
    return result


def _make_run(spec: RunSpec, link: Link) -> Run:
    strategy = spec.strategy
    return Run(
        run_key=spec.run_key,
        seed=spec.seed,
        attempt=spec.attempt,
        config=spec.config,
        module=spec.module,
        datamodule=spec.datamodule,
        callbacks=spec.callbacks,
        loggers=spec.loggers,
        strategy=strategy,
        link=link,
        metrics=Metrics(strategy.gather_objects, strategy.is_global_zero),
        log_dir=spec.log_dir,
        ckpt_path=spec.ckpt_path,
    )


@contextmanager
def _torn_down(live: Run, trainer: Any) -> Iterator[None]:
    live.module.bind(trainer, live.metrics)
    if live.datamodule is not None:
        live.datamodule.trainer = trainer
    try:
        yield
    finally:
        live.state.stage = None
        try:
            if live.state.fn is not None:
                live.hooks.call("teardown", live.state.fn)
        finally:
            live.writer.close()
            live.strategy.teardown(live.module)
            live.module.bind(None, None)
            if live.datamodule is not None:
                live.datamodule.trainer = None
            trainer.detach()


def _tell_exception(live: Run, error: BaseException) -> None:
    live.state.status = "interrupted"
    live.hooks.call("on_exception", error)


def _carry_out(spec: RunSpec, live: Run) -> RunResult:
    _prepare(spec, live)
    # Where a fit goes on in the same script, weights and callbacks are as the user left them; the rest is from before.
    checkpoint = spec.checkpoint
    if spec.ckpt_path:
        checkpoint = storage.load(spec.ckpt_path, trusted=spec.config.trusted_checkpoints)
        state.restore_weights(live, checkpoint)
    live.strategy.setup(live.module)
    match spec.fn:
        case "fit":
            return _fit(spec, live, checkpoint)
        case "predict":
            feeds = _evaluation_feeds(spec, live, "predict")
            live.loop = PredictLoop(live, feeds, spec.return_predictions)
            return RunResult(_loaded_weights(spec, live), predictions=live.loop.run())
    stage = "validation" if spec.fn == "validate" else "test"
    feeds = _evaluation_feeds(spec, live, "val" if spec.fn == "validate" else "test")
    live.loop = EvaluationLoop(live, stage, feeds, inside_fit=False)
    return RunResult(_loaded_weights(spec, live), results=live.loop.run())


def _loaded_weights(spec: RunSpec, live: Run) -> dict[str, Any]:
    """What an evaluation loaded from a checkpoint, so that the driver's module has it as well."""
    return state.capture(live, weights_only=True) if spec.ckpt_path else {}


def _prepare(spec: RunSpec, live: Run) -> None:
    placement = live.strategy.placement
    for owner in (live.datamodule, live.module):
        if owner is not None and overridden(owner, "prepare_data"):
            rank = placement.local_rank if owner.prepare_data_per_node else placement.global_rank
            if rank == 0:
                owner.prepare_data()
    live.strategy.barrier()
    live.hooks.call("setup", spec.fn)
    if overridden(live.module, "configure_model"):
        live.module.configure_model()


def _fit(spec: RunSpec, live: Run, checkpoint: dict[str, Any] | None) -> RunResult:
    config = spec.config
    live.optimizers, live.scheduler_configs = parse_optimizers(live.module.configure_optimizers())
    if checkpoint is not None:
        live.seed = checkpoint.get(state.OWN_KEY, {}).get("seed", live.seed)
        if spec.ckpt_path:
            state.restore_callbacks(live, checkpoint)
        state.restore_training(live, checkpoint, same_run=spec.attempt > 0)
    live.train_loader = spec.train_loader if spec.train_loader is not None else _hook_loader(live, "train_dataloader")
    feed = Feed(
        live.train_loader,
        live.strategy.placement,
        live.seed,
        config.limit_train_batches,
        shard=config.use_distributed_sampler,
    )
    live.items_per_step = feed.items_per_step
    validation = None
    if overridden(live.module, "validation_step") and config.limit_val_batches:
        feeds = _evaluation_feeds(spec, live, "val")
        if feeds:
            validation = EvaluationLoop(live, "validation", feeds, inside_fit=True)
    restarts = RestartCheckpoints(live, spec.restart_dir, config.restart_every_n_steps)
    max_epochs = math.inf if config.max_epochs in (None, -1) else config.max_epochs
    live.loop = FitLoop(live, feed, validation, Consensus(live, restarts), max_epochs)
    live.loop.run()
    return RunResult(checkpoint=state.capture(live))


def _evaluation_feeds(spec: RunSpec, live: Run, kind: str) -> list[Feed]:
    loaders = spec.eval_loaders if spec.eval_loaders is not None else _hook_loader(live, f"{kind}_dataloader")
    if loaders is None:
        return []
    if not isinstance(loaders, list | tuple):
        loaders = [loaders]
    if kind == "val":
        live.val_loaders = list(loaders)
    name = f"limit_{kind}_batches"
    return [
        Feed(
            loader,
            live.strategy.placement,
            live.seed,
            getattr(spec.config, name),
            name,
            training=False,
            shard=spec.config.use_distributed_sampler,
        )
        for loader in loaders
    ]


def _hook_loader(live: Run, name: str) -> Any:
    for owner in (live.datamodule, live.module):
        if owner is not None and overridden(owner, name):
            return getattr(owner, name)()
    return None
