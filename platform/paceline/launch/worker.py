"""The worker: carries one run out on one device. Every launcher hosts this same function."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.callbacks.prediction_writer import BasePredictionWriter
from paceline.checkpoint import state
from paceline.checkpoint.writer import CheckpointWriter
from paceline.errors import StopRun
from paceline.hooks import Hooks, overridden
from paceline.launch.spec import RunResult, RunSpec
from paceline.launch.torch_settings import anomaly_detection, torch_settings
from paceline.loops.link import RESIZE, Link
from paceline.loops.loaders import Loaders
from paceline.loops.optimizers import parse_optimizers
from paceline.loops.run import Run
from paceline.metrics import Metrics
from paceline.progress import FitProgress
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
    if live.compile is not None:
        # What `log` does with values is no computation to be compiled.
        live.metrics.log = torch.compiler.disable(live.metrics.log)  # type: ignore
    trainer.attach(live)
    span = live.span if live.profiler is not None else None
    live.hooks = Hooks(trainer, live.module, live.datamodule, live.callbacks, live.metrics.enter, span)
    with torch_settings(spec.config), _profiled(live, spec.fn), _torn_down(live, trainer):
        live.state.fn, live.state.status, live.state.stage = spec.fn, "running", _STAGES[spec.fn]
        try:
            result = _carry_out(spec, live)
        except StopRun as stop:
            # A whole batch has ended and the state is saved: this is an end, if an early one.
            result = RunResult(stopped_by=stop.signum)
            if stop.signum != RESIZE:
                _tell_exception(live, _STOP_EXCEPTIONS[stop.signum]())
                if spec.fn == "fit":
                    result.checkpoint = state.capture(live)
        except BaseException as error:
            _tell_exception(live, error)
            raise
        else:
            live.state.status = "finished"
        live.writer.wait()
    result.metrics, result.num_batches = live.metrics.values, live.num_batches
    result.num_workers = placement.world_size
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
        metrics=Metrics(strategy.gather_objects, strategy.is_global_zero, spec.config.move_metrics_to_cpu),
        log_dir=spec.log_dir,
        restart_dir=spec.restart_dir,
        keeps_predictions=spec.return_predictions or any(map(_writes_at_the_end, spec.callbacks)),
        profiler=spec.profiler,
        compile=spec.compile,
        writer=CheckpointWriter(spec.checkpoint_io),
        progress=copy.deepcopy(spec.progress) if spec.progress is not None else FitProgress(),
        ckpt_path=spec.ckpt_path,
    )


@contextmanager
def _torn_down(live: Run, trainer: Any) -> Iterator[None]:
    live.module.bind(trainer, None if live.config.barebones else live.metrics)
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


@contextmanager
def _profiled(live: Run, fn: str) -> Iterator[None]:
    profiler = live.profiler
    if profiler is None:
        yield
        return
    profiler.setup(fn, live.strategy.placement.global_rank, live.log_dir)
    try:
        yield
    finally:
        profiler.detach()
        live.tell(profiler.describe())
        profiler.teardown(fn)


def _tell_exception(live: Run, error: BaseException) -> None:
    live.state.status = "interrupted"
    live.hooks.call("on_exception", error)


def _carry_out(spec: RunSpec, live: Run) -> RunResult:
    _prepare(spec, live)
    # Where a fit goes on in the same script, weights and callbacks are as the user left them; the rest is from before.
    checkpoint = spec.checkpoint
    if spec.ckpt_path:
        checkpoint = live.writer.io.load_checkpoint(spec.ckpt_path, trusted=spec.config.trusted_checkpoints)
        state.restore_weights(live, checkpoint)
    live.strategy.setup(live.module)
    if live.profiler is not None:
        live.profiler.attach(live.module)
    loaders = Loaders(live, spec.train_loader, spec.eval_loaders)
    # The driver's loop stays without any part of a run, to be connected anew by the next one.
    live.loop = copy.copy(spec.loop)
    if spec.fn == "fit":
        return _fit(spec, live, loaders, checkpoint)
    live.loop.connect(live, loaders)
    outcome = live.loop.run()
    weights = _loaded_weights(spec, live)
    if spec.fn == "predict":
        return RunResult(weights, predictions=outcome if spec.return_predictions else None)
    return RunResult(weights, results=outcome)


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


def _fit(spec: RunSpec, live: Run, loaders: Loaders, checkpoint: dict[str, Any] | None) -> RunResult:
    if checkpoint is not None:
        state.restore_progress(live, checkpoint)
    live.loop.connect(live, loaders)
    configured = parse_optimizers(live.module.configure_optimizers())
    live.optimizers, live.scheduler_configs = configured.optimizers, configured.schedulers
    live.frequencies = configured.frequencies
    live.progress.expect(len(live.optimizers))
    if checkpoint is not None:
        if spec.ckpt_path:
            state.restore_callbacks(live, checkpoint)
        state.restore_training(live, checkpoint, same_run=spec.attempt > 0)
    if live.strategy.is_global_zero:
        for logger in live.loggers:
            logger.log_graph(live.module)
    with anomaly_detection(live.config.detect_anomaly):
        live.loop.run()
    return RunResult(checkpoint=state.capture(live))


def _writes_at_the_end(callback: Any) -> bool:
    return isinstance(callback, BasePredictionWriter) and callback.writes_epochs
