"""ModelCheckpoint: keeps the best and the newest states of a training run."""

from __future__ import annotations

import math
import os
import re
import time
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import fsspec

from paceline.callbacks.callback import Callback
from paceline.checkpoint import storage
from paceline.errors import MisconfigurationError, nearest
from paceline.values import not_logged

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class ModelCheckpoint(Callback):
    """Saves checkpoints during training.

    Files are written while training goes on. What a new file replaces is removed once the new one is complete.

    Args:
        dirpath: folder or URL; `<log_dir>/checkpoints` by default.
        filename: name with placeholders, such as "{epoch}-{val_loss:.2f}"; "{epoch}-{step}" by default.
        monitor: the logged name that says which states are best; None keeps the newest.
        mode: "min" or "max": which values are better.
        save_top_k: how many of the best are kept; -1 all, 0 none.
        save_last: keep `last.ckpt`, always the newest state, as well; "link" makes it a symbolic link to the newest
            file where that is one of those that are kept, on a local disk.
        every_n_epochs: how often, in epochs; 1 by default, 0 never.
        every_n_train_steps: how often, in optimizer steps, instead.
        train_time_interval: how often, in time, instead: at the first batch after so long.
        save_on_train_epoch_end: at the end of training epochs, not of validations; by default where every epoch ends
            with a validation, or where there is none.
        save_weights_only: leave out what only training needs.
        auto_insert_metric_name: write "epoch=3", not "3", for "{epoch}".
        verbose: say what is saved.
        enable_version_counter: give a file another name where its own is taken by another run; False replaces it.

    Attributes:
        best_model_path: file of the best value; "" before there is one.
        best_model_score: that value; None before there is one.
        best_k_models: the kept files and their values.
        last_model_path: the newest `last` file; "" before there is one.
    """

    reads_metrics: ClassVar[bool] = True

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        mode: str = "min",
        save_top_k: int = 1,
        save_last: bool | Literal["link"] = False,
        every_n_epochs: int | None = None,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        save_on_train_epoch_end: bool | None = None,
        save_weights_only: bool = False,
        auto_insert_metric_name: bool = True,
        verbose: bool = False,
        enable_version_counter: bool = True,
    ) -> None:
        if mode not in ("min", "max"):
            raise MisconfigurationError(f'`ModelCheckpoint(mode={mode!r})`: use "min" or "max".')
        if type(save_top_k) is not int or save_top_k < -1:
            raise MisconfigurationError(
                f"`ModelCheckpoint(save_top_k={save_top_k!r})`: use -1, 0 or a number of files."
            )
        if monitor is None and save_top_k not in (-1, 0, 1):
            raise MisconfigurationError(
                f"`ModelCheckpoint(save_top_k={save_top_k})` keeps the best files: say by which `monitor`."
            )
        for name, every in (("every_n_epochs", every_n_epochs), ("every_n_train_steps", every_n_train_steps)):
            if every is not None and (type(every) is not int or every < 0):
                raise MisconfigurationError(f"`ModelCheckpoint({name}={every!r})`: use an int of at least 0.")
        if train_time_interval is not None and not train_time_interval > timedelta(0):
            raise MisconfigurationError(
                f"`ModelCheckpoint(train_time_interval={train_time_interval!r})`: use a timedelta above 0."
            )
        if save_last not in (True, False, "link"):
            raise MisconfigurationError(f'`ModelCheckpoint(save_last={save_last!r})`: use True, False or "link".')
        triggers = {
            "every_n_epochs": every_n_epochs,
            "every_n_train_steps": every_n_train_steps,
            "train_time_interval": train_time_interval,
        }
        given = [name for name, value in triggers.items() if value is not None]
        if len(given) > 1:
            raise MisconfigurationError(
                f"`ModelCheckpoint` goes by one of {', '.join(triggers)}, not by {' and '.join(given)}."
            )
        self.dirpath = os.fspath(dirpath) if dirpath is not None else None
        if self.dirpath is not None and "://" not in self.dirpath:
            self.dirpath = os.path.abspath(self.dirpath)
        self.filename = filename or "{epoch}-{step}"
        self.monitor = monitor
        self.mode = mode
        self.save_top_k = save_top_k
        self.save_last = save_last
        self.every_n_train_steps = every_n_train_steps or 0
        goes_otherwise = bool(every_n_train_steps) or train_time_interval is not None
        self.every_n_epochs = (0 if goes_otherwise else 1) if every_n_epochs is None else every_n_epochs
        self.train_time_interval = train_time_interval
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.save_weights_only = save_weights_only
        self.auto_insert_metric_name = auto_insert_metric_name
        self.verbose = verbose
        self.enable_version_counter = enable_version_counter
        self.best_model_path = ""
        self.best_model_score: float | None = None
        self.best_k_models: dict[str, float] = {}
        self.last_model_path = ""
        self._last_step_saved = 0
        self._last_time_s = 0.0
        self._awaits_validation = False
        self._folder = self.dirpath or ""

    @property
    def state_key(self) -> str:
        """By what it goes, so that two that go by different things both keep their state."""
        return (
            f"{type(self).__qualname__}{{'monitor': {self.monitor!r}, 'mode': {self.mode!r}, "
            f"'every_n_train_steps': {self.every_n_train_steps}, 'every_n_epochs': {self.every_n_epochs}, "
            f"'train_time_interval': {self.train_time_interval!r}}}"
        )

    def state_dict(self) -> dict[str, Any]:
        """The kept files and their values."""
        return {
            "dirpath": self._folder,
            "best_model_path": self.best_model_path,
            "best_model_score": self.best_model_score,
            "best_k_models": dict(self.best_k_models),
            "last_model_path": self.last_model_path,
            "last_step_saved": self._last_step_saved,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the kept files, if they are in this callback's folder: others' files are never removed."""
        self.best_model_path = state_dict["best_model_path"]
        self.best_model_score = state_dict.get("best_model_score")
        self._last_step_saved = state_dict.get("last_step_saved", 0)
        if not self._folder or state_dict["dirpath"] == self._folder:
            self._folder = state_dict["dirpath"]
            self.best_k_models = dict(state_dict["best_k_models"])
            self.last_model_path = state_dict["last_model_path"]
        else:
            warnings.warn(
                f"ModelCheckpoint now saves to {self._folder}; the files in {state_dict['dirpath']} stay as they are.",
                stacklevel=2,
            )

    # -- when -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """Settle the folder."""
        if stage != "fit":
            return
        self._folder = self.dirpath or f"{trainer.log_dir}/checkpoints"
        starts_anew = trainer.run.attempt == 0 and trainer.ckpt_path is None and not self.best_k_models
        if self.dirpath and starts_anew and trainer.is_global_zero and storage.find(f"{self.dirpath}/*.ckpt"):
            warnings.warn(f"The folder of ModelCheckpoint, {self.dirpath}, has checkpoints already.", stacklevel=2)

    def on_train_start(self, trainer: Trainer, pl_module: Module) -> None:
        """Start the clock."""
        self._last_time_s = time.monotonic()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Save by steps or time; where a validation is due as well, after it."""
        if self._due_by_steps(trainer) or self._due_by_time(trainer):
            if trainer.fit_loop.validation_due:
                self._awaits_validation = True
            else:
                self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Save what was due before, or by epochs where validations do not come with the end of each epoch."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        awaited, self._awaits_validation = self._awaits_validation, False
        awaited = awaited or self._due_by_steps(trainer)  # also after a resume in between
        if awaited or (self._due_by_epochs(trainer) and not self._at_train_epoch_end(trainer)):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Module) -> None:
        """Save by epochs."""
        if self._due_by_epochs(trainer) and self._at_train_epoch_end(trainer):
            self._save(trainer)

    def _due_by_steps(self, trainer: Trainer) -> bool:
        n = self.every_n_train_steps
        return n > 0 and trainer.global_step % n == 0 and trainer.global_step != self._last_step_saved

    def _due_by_time(self, trainer: Trainer) -> bool:
        if self.train_time_interval is None:
            return False
        # Clocks differ: the first worker's decides for all.
        passed_s = time.monotonic() - self._last_time_s
        return bool(trainer.strategy.broadcast_object(passed_s >= self.train_time_interval.total_seconds()))

    def _due_by_epochs(self, trainer: Trainer) -> bool:
        n = self.every_n_epochs
        return n > 0 and (trainer.current_epoch + 1) % n == 0 and trainer.global_step != self._last_step_saved

    def _at_train_epoch_end(self, trainer: Trainer) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        config = trainer.config
        # An int would be a number of batches, be it 1.
        after_each_epoch = config.check_val_every_n_epoch == 1 and isinstance(config.val_check_interval, float)
        return (after_each_epoch and config.val_check_interval == 1.0) or trainer.fit_loop.validation is None

    # -- saving ---------------------------------------------------------------------------------------------------

    def _save(self, trainer: Trainer) -> None:
        if trainer.config.fast_dev_run:
            return
        score = self._score(trainer)
        removed = self._make_room(score)
        keep = removed is not None
        if not keep and not self.save_last:
            return
        self._last_step_saved, self._last_time_s = trainer.global_step, time.monotonic()
        last = f"{self._folder}/last.ckpt"
        path = self._path(trainer) if keep else last
        if keep:
            self.best_k_models[path] = score if score is not None else math.nan
            self._choose_best(path, score)
        if self.save_last:
            self.last_model_path = last

        def tidy() -> None:
            if keep and self.save_last:
                (storage.link if self.save_last == "link" else storage.copy)(path, last)
            for old in removed or []:
                if old != path and storage.folder_of(old) == self._folder:
                    trainer.run.writer.io.remove_checkpoint(old)

        trainer.run.save_checkpoint(path, self.save_weights_only, then=tidy)
        if self.verbose:
            trainer.run.tell(f"Checkpoint at step {trainer.global_step}: {path}")

    def _score(self, trainer: Trainer) -> float | None:
        """The monitored value; None without a monitor.

        Raises:
            MisconfigurationError: it was not logged.
        """
        if self.monitor is None:
            return None
        values = trainer.run.metrics.values.callback
        if self.monitor not in values:
            raise MisconfigurationError(not_logged("ModelCheckpoint", self.monitor, values))
        return float(values[self.monitor])

    def _make_room(self, score: float | None) -> list[str] | None:
        """Files that the new one takes the place of; None when the new one is not kept."""
        if self.save_top_k == 0 or (self.save_top_k != -1 and score is not None and math.isnan(score)):
            return None
        if score is None:
            removed = list(self.best_k_models) if self.save_top_k == 1 else []
        elif self.save_top_k == -1 or len(self.best_k_models) < self.save_top_k:
            removed = []
        else:
            # Of equal ones the latest is the worst, so that earlier files stay.
            worst = max(reversed(self.best_k_models), key=lambda path: self._badness(self.best_k_models[path]))
            if self._badness(score) >= self._badness(self.best_k_models[worst]):
                return None
            removed = [worst]
        for path in removed:
            del self.best_k_models[path]
        return removed

    def _choose_best(self, path: str, score: float | None) -> None:
        if score is None:
            self.best_model_path = path
        else:
            numbers = {path: score for path, score in self.best_k_models.items() if not math.isnan(score)}
            if numbers:
                # Of equal ones the first is the best.
                self.best_model_path = min(numbers, key=lambda path: self._badness(numbers[path]))
                self.best_model_score = numbers[self.best_model_path]

    def _badness(self, score: float) -> float:
        return score if self.mode == "min" else -score

    def _path(self, trainer: Trainer) -> str:
        """A path that no other file has; the same on all workers."""
        trainer.run.writer.wait()  # what is about to be removed is no file to make way for
        values: dict[str, Any] = {
            **trainer.run.metrics.values.callback,
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
        }
        stem = f"{self._folder}/{self.format_name(values)}"
        path, version = f"{stem}.ckpt", 0
        if not self.enable_version_counter:
            return path
        # After a restart the files of the attempt before are written again, by the same name.
        while path in self.best_k_models or (trainer.run.attempt == 0 and storage.exists(path)):
            version += 1
            path = f"{stem}-v{version}.ckpt"
        return str(trainer.strategy.broadcast_object(path))

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept files and their values.

        Args:
            filepath: path or URL; `best_k_models.yaml` in the folder of the files by default.
        """
        import yaml

        path = os.fspath(filepath) if filepath is not None else f"{self._folder}/best_k_models.yaml"
        with fsspec.open(path, "w", auto_mkdir=True) as file:
            yaml.safe_dump(dict(self.best_k_models), file, sort_keys=False)

    def format_name(self, values: dict[str, Any]) -> str:
        """The file's name, without ending, for logged values, "epoch" and "step".

        Raises:
            MisconfigurationError: a placeholder names nothing that was logged.
        """

        def fill(match: re.Match[str]) -> str:
            name, form = match.group(1), match.group(2) or ""
            if name not in values:
                raise MisconfigurationError(
                    f"`ModelCheckpoint(filename={self.filename!r})`: `{{{name}}}` was not logged."
                    f"{nearest(name, values)} There are: {', '.join(sorted(values))}."
                )
            text = format(values[name], form)
            return f"{name}={text}" if self.auto_insert_metric_name else text

        return re.sub(r"\{([^:{}]+)(?::([^{}]*))?\}", fill, self.filename).replace("/", "_")
