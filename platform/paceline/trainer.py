"""Trainer: arguments, entry points, and properties that show a run."""

from __future__ import annotations

import datetime
import os
import signal
import uuid
from typing import Any, Self

from paceline import recording
from paceline.callbacks.defaults import with_defaults, with_module_callbacks
from paceline.callbacks.timer import Timer
from paceline.checkpoint import CheckpointIO, storage
from paceline.checkpoint.resolve import resolve
from paceline.checkpoint.state import OWN_KEY, without_training
from paceline.config import make_config, signature
from paceline.datamodule import DataModule
from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.launch.choose import choose_launcher, refuse_launcher
from paceline.launch.compiled import uncompiled
from paceline.launch.spec import RunResult, RunSpec
from paceline.launch.verify import verify
from paceline.launch.world import choose_accelerator, count_workers
from paceline.module import Module
from paceline.plugins import sort_plugins
from paceline.profilers import make_profiler
from paceline.progress import FitProgress
from paceline.run_view import RunView
from paceline.seed import current_seed
from paceline.strategies.precision import make_precision
from paceline.strategies.registry import make_strategy

_UNSENT_TIMEOUT_S = 30.0
_DEFAULT_MAX_EPOCHS = 1000


class Trainer(RunView):
    """Trains, validates, tests and predicts, on one device in this process or on many through Ray.

    All arguments are keyword arguments, declared in `paceline.config.TrainerConfig`. An argument that is not given
    takes its default from the environment, as in `PACELINE_TRAINER_MAX_EPOCHS=3`, if it is set there.

    Attributes:
        accelerator: the kind of devices.
        cluster_address: of the Ray cluster; None for this machine.
        profiler: measures what takes how long; None for nothing.

    Raises:
        MisconfigurationError: an argument is unknown or its value not allowed; the message says what is.

    Example:
        >>> trainer = Trainer(max_epochs=3, devices=2)
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.test(datamodule=data, ckpt_path="best")
    """

    __signature__ = signature()

    def __init__(self, **arguments: Any) -> None:
        config = make_config(arguments)
        address = config.address or os.environ.get("RAY_ADDRESS") or None
        if config.launcher == "in_process":
            address = None
        accelerator = choose_accelerator(config, address)
        workers = count_workers(config, accelerator, address)
        strategy = make_strategy(config.strategy, workers)
        strategy.refuse(config, workers)
        plugins = sort_plugins(config.plugins)
        refuse_launcher(config, workers, plugins.launcher)
        strategy.precision = plugins.precision or make_precision(config.precision, accelerator.name)
        strategy.sync_batchnorm = config.sync_batchnorm and accelerator.name == "cuda" and workers > 1
        if config.sync_batchnorm and not strategy.sync_batchnorm:
            recording.warn("`sync_batchnorm=True` does nothing here: BatchNorm is synchronised over several GPUs only.")
        super().__init__(config, with_defaults(config), recording.make_loggers(config.logger), strategy, workers)
        for logger in self.loggers:
            logger.default_root_dir = self.default_root_dir
        self.profiler = make_profiler(config.profiler)
        self.accelerator = accelerator
        self.cluster_address = address
        self._arguments = arguments
        self._own_callbacks = self.callbacks
        self._launcher = plugins.launcher
        self._checkpoint_io = plugins.checkpoint_io or CheckpointIO()
        self._run_key = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}"
        self._checkpoint: dict[str, Any] | None = None

    # -- entry points ---------------------------------------------------------------------------------------------

    def fit(
        self,
        model: Module | None = None,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: DataModule | None = None,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Train. Afterwards `model` holds the trained weights, on the CPU.

        A second call goes on where the first ended; raise `max_epochs` or `max_steps` before it.

        Args:
            model: what to train; the one of the last call by default.
            train_dataloaders: a DataLoader or another iterable of batches; or a DataModule.
            val_dataloaders: one loader, or a list of them.
            datamodule: data in place of loaders.
            ckpt_path: go on from "last", "best", "hpc" (the newest restart checkpoint), a path or a URL.

        Raises:
            MisconfigurationError: something is missing; before any worker starts.
            KeyboardInterrupt: Ctrl-C was pressed; the state was saved at the end of the batch.
        """
        if isinstance(train_dataloaders, DataModule):
            train_dataloaders, datamodule = None, train_dataloaders
        has_timer = any(isinstance(callback, Timer) for callback in self.callbacks)
        if self.config.max_epochs is None and self.config.max_steps == -1 and not has_timer:
            recording.warn(f"Neither `max_epochs` nor `max_steps` is given: {_DEFAULT_MAX_EPOCHS} epochs are trained.")
            self.max_epochs = _DEFAULT_MAX_EPOCHS
        module = self._take(model)
        if self.config.max_epochs == 0 or self.config.max_steps == 0:
            return
        self._run("fit", module, datamodule, train_dataloaders, val_dataloaders, ckpt_path)

    def validate(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run the validation loaders; see `test`."""
        return self._evaluate("validate", model, dataloaders, ckpt_path, verbose, datamodule)

    def test(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        ckpt_path: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        datamodule: DataModule | None = None,
    ) -> list[dict[str, float]]:
        """Run the test loaders; each sample counts once, whatever the number of workers.

        Args:
            model: the module with its current weights; by default the last one, from its best checkpoint if there is
                one.
            dataloaders: one loader, or a list of them; or a DataModule.
            ckpt_path: take the weights of "best", "last", a path or a URL.
            verbose: print the values.
            datamodule: data in place of loaders.

        Returns:
            A dict of values for each loader.
        """
        return self._evaluate("test", model, dataloaders, ckpt_path, verbose, datamodule)

    def predict(
        self,
        model: Module | None = None,
        dataloaders: Any = None,
        datamodule: DataModule | None = None,
        return_predictions: bool = True,
        ckpt_path: str | os.PathLike[str] | None = None,
    ) -> list[Any] | None:
        """Run the loaders through `predict_step`.

        Args:
            model: as in `test`.
            dataloaders: as in `test`.
            datamodule: as in `test`.
            return_predictions: False leaves them to callbacks.
            ckpt_path: as in `test`.

        Returns:
            One item per batch, in the order of the data; for several loaders a list of them each. None if they are
            not returned.
        """
        dataloaders, datamodule = _sort_out(dataloaders, datamodule)
        result = self._run(
            "predict", self._take(model), datamodule, None, dataloaders, self._for_evaluation(model, ckpt_path),
            return_predictions,
        )  # fmt: skip
        if not return_predictions:
            return None
        predictions: list[Any] = result.predictions
        return predictions[0] if len(predictions) == 1 else predictions

    def save_checkpoint(
        self,
        filepath: str | os.PathLike[str],
        weights_only: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Save the state, in a hook of a run on all workers, or after a fit.

        Args:
            filepath: path or URL.
            weights_only: leave out what only training needs.
            storage_options: for the fsspec file system of the URL.

        Raises:
            MisconfigurationError: no fit has run yet.
        """
        path = os.fspath(filepath)
        if self._live_run is not None:
            self._live_run.strategy.unanimous(
                "`trainer.save_checkpoint` was called", "Call it on every worker: rank 0 writes what all have."
            )
            self._live_run.save_checkpoint(path, weights_only, storage_options=storage_options)
            self._live_run.writer.wait()
        elif self._checkpoint is not None:
            checkpoint = without_training(self._checkpoint) if weights_only else self._checkpoint
            self._checkpoint_io.save_checkpoint(checkpoint, path, storage_options)
        else:
            raise MisconfigurationError("There is no state to save: call `fit` first.")

    def close(self) -> None:
        """End the workers that are kept ready, and wait a while for records that are not sent yet."""
        if self._launcher is not None:
            self._launcher.close()
        for logger in self.loggers:
            logger.close(_UNSENT_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one run --------------------------------------------------------------------------------------------------

    def _evaluate(
        self, fn: str, model: Any, dataloaders: Any, ckpt_path: Any, verbose: bool, datamodule: Any
    ) -> list[dict[str, float]]:
        dataloaders, datamodule = _sort_out(dataloaders, datamodule)
        ckpt_path = self._for_evaluation(model, ckpt_path)
        results = self._run(fn, self._take(model), datamodule, None, dataloaders, ckpt_path).results
        if verbose:
            print(recording.table(results))
        return results

    def _take(self, model: Any) -> Module:
        model = model if model is not None else self._module
        if model is None:
            raise MisconfigurationError("There is no module yet: pass one as `model`.")
        model, compiled = uncompiled(model)
        if not isinstance(model, Module):
            raise ArgumentTypeError(f"`model` must be a paceline.Module, not a {type(model).__name__}.")
        if compiled is not None or model is not self._module:
            self._compiled = compiled
        if compiled is not None and self._num_workers > 1:
            raise MisconfigurationError(
                f"A compiled module runs on one device, not on {self._num_workers}. Call `torch.compile` on its parts "
                "in `configure_model` instead, which every worker does for itself."
            )
        if model is not self._module:
            self._module, self._checkpoint = model, None
            self.callbacks = with_module_callbacks(self._own_callbacks, model)
        return model

    def _for_evaluation(self, model: Any, ckpt_path: Any) -> Any:
        """The given path; where neither that nor a module is given, the best checkpoint if there is one."""
        if ckpt_path is not None or model is not None or len(self.checkpoint_callbacks) != 1:
            return ckpt_path
        return "best" if self.checkpoint_callbacks[0].best_model_path else None

    def _run(
        self,
        fn: str,
        module: Module,
        datamodule: Any,
        train_loader: Any,
        eval_loaders: Any,
        ckpt_path: Any,
        return_predictions: bool = True,
    ) -> RunResult:
        verify(fn, module, datamodule, train_loader, eval_loaders)
        hyperparameters = recording.hyperparameters(self.config, module, datamodule) if fn == "fit" else {}
        if ckpt_path is not None:
            ckpt_path = resolve(ckpt_path, fn, self.checkpoint_callbacks, self._restart_root, self._checkpoint_folders)
            if ckpt_path is not None and fn == "fit":
                checkpoint = self._checkpoint_io.load_checkpoint(ckpt_path, self.config.trusted_checkpoints)
                self._run_key = checkpoint.get(OWN_KEY, {}).get("run", self._run_key)
        self._ckpt_path = ckpt_path
        self.datamodule = datamodule
        for logger in self.loggers:
            logger.start(self._run_key, self._spool_root)
            if hyperparameters:
                logger.log_hyperparams(hyperparameters)
        spec = RunSpec(
            fn=fn,
            trainer_class=type(self),
            config=self.config,
            module=module,
            datamodule=datamodule,
            train_loader=train_loader,
            eval_loaders=eval_loaders,
            callbacks=self.callbacks,
            loggers=self.loggers,
            strategy=self._strategy,
            accelerator=self.accelerator,
            num_workers=self._num_workers,
            run_key=self._run_key,
            seed=current_seed(),
            log_dir=self.log_dir,
            restart_dir=f"{self._restart_root}/{self._run_key}",
            loop=self._loops[fn],
            profiler=self.profiler,
            progress=self._progress if fn != "fit" else None,
            checkpoint_io=self._checkpoint_io,
            compile=self._compiled.dynamo_ctx if self._compiled is not None else None,
            checkpoint=self._checkpoint if fn == "fit" and ckpt_path is None else None,
            ckpt_path=ckpt_path,
            return_predictions=return_predictions,
        )
        return self._launch(spec)

    def _launch(self, spec: RunSpec) -> RunResult:
        self._launcher = choose_launcher(self._launcher, self.config.launcher, self._num_workers, self.cluster_address)
        status: recording.Status = "failed"
        try:
            result = self._launcher.launch(spec, self)
            self._values, self._num_workers = result.metrics, result.num_workers
            self._num_batches |= result.num_batches
            if spec.fn == "fit":
                self._checkpoint = result.checkpoint
                self._progress = FitProgress()
                self._progress.load_state_dict(result.checkpoint["loops"]["fit_loop"])
            if result.stopped_by:
                status = "killed"
                raise KeyboardInterrupt if result.stopped_by == signal.SIGINT else SystemExit(128 + result.stopped_by)
            if spec.fn == "fit":
                storage.remove(spec.restart_dir)
                recording.log_model(self.loggers, spec.module, self.checkpoint_callback)
            status = "finished"
        except KeyboardInterrupt:
            status = "killed"
            raise
        finally:
            self.state.fn, self.state.stage = spec.fn, None
            self.state.status = "finished" if status == "finished" else "interrupted"
            for logger in self.loggers:
                logger.finalize(status)
        return result

    @classmethod
    def in_worker(cls, spec: RunSpec) -> Self:
        """The trainer that hooks see in a worker."""
        trainer = cls.__new__(cls)
        RunView.__init__(trainer, spec.config, spec.callbacks, spec.loggers, spec.strategy, spec.num_workers)
        trainer._ckpt_path, trainer._module, trainer.datamodule = spec.ckpt_path, spec.module, spec.datamodule
        return trainer


def _sort_out(dataloaders: Any, datamodule: Any) -> tuple[Any, Any]:
    return (None, dataloaders) if isinstance(dataloaders, DataModule) else (dataloaders, datamodule)
