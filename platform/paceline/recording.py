"""What a Trainer records of a run besides its values: hyperparameters, the trained model; and tables for people."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from typing import Any, Literal

from paceline.callbacks.model_checkpoint import ModelCheckpoint
from paceline.checkpoint import storage
from paceline.checkpoint.weights import load_weights
from paceline.config import TrainerConfig
from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.loggers.logger import Logger
from paceline.module import Module

Status = Literal["finished", "failed", "killed"]


def make_loggers(choice: Any) -> list[Logger]:
    """The loggers that `Trainer(logger=)` asks for: True is MLflow, None or False nothing.

    Raises:
        ArgumentTypeError: it is neither of these, nor a Logger or a list of them.
    """
    if choice is True:
        from paceline.loggers import MLflowLogger

        return [MLflowLogger()]
    if choice is None or choice is False:
        return []
    loggers = list(choice) if isinstance(choice, list | tuple) else [choice]
    for logger in loggers:
        if not isinstance(logger, Logger):
            raise ArgumentTypeError(
                f"`logger={choice!r}` is no Logger. Use True for MLflow, False for none, a Logger or a list of them."
            )
    return loggers


def hyperparameters(config: TrainerConfig, module: Module, datamodule: Any) -> dict[str, Any]:
    """The hyperparameters of module and data module, and under "trainer" the trainer's arguments.

    Raises:
        MisconfigurationError: module and data module have one with different values under the same name.
    """
    of_module, of_data = module.hparams, datamodule.hparams if datamodule is not None else {}
    clashing = [name for name in of_module if name in of_data and not _equal(of_module[name], of_data[name])]
    if clashing:
        raise MisconfigurationError(
            f"Module and data module have hyperparameters of the same names with different values: {clashing}. "
            "Rename them, or leave them out by `save_hyperparameters(ignore=...)`."
        )
    arguments = {
        name: value
        for name in TrainerConfig.model_fields
        if isinstance(value := getattr(config, name), str | int | float | bool | tuple | None)
    }
    return {**of_module, **of_data, "trainer": arguments}


def log_model(loggers: list[Logger], module: Module, checkpoints: ModelCheckpoint | None) -> None:
    """Hand the trained model, and the checkpoint that it comes from, to the loggers that want it.

    Args:
        loggers: of which an MLflowLogger has the attribute `log_model`: "best", "last", True or False.
        module: with its last weights.
        checkpoints: knows the best file, and the last one if it keeps it.
    """
    for logger in loggers:
        which = getattr(logger, "log_model", False)
        if not which:
            continue
        path = ""
        if checkpoints is not None:
            path = checkpoints.best_model_path if which == "best" else checkpoints.last_model_path
        trained = module
        if which == "best" and path:
            trained = copy.deepcopy(module)
            load_weights(trained, storage.load(path)["state_dict"])
        if path and "://" not in path:
            logger.log_artifact(path, "checkpoints")
        logger.log_module(_pickled(trained, logger.spool))


def _pickled(module: Module, folder: str | None) -> str:
    import cloudpickle

    handle, path = tempfile.mkstemp(suffix=".module", dir=folder)
    with os.fdopen(handle, "wb") as file:
        cloudpickle.dump({"module": module, "input": module.example_input_array, "name": "model"}, file)
    return path


def table(results: list[dict[str, float]]) -> str:
    """The values of each loader, for people."""
    names = list(dict.fromkeys(name for result in results for name in result))
    width = max([len(name) for name in names] + [6])
    head = ["metric".ljust(width)] + [f"loader {index}".rjust(12) for index in range(len(results))]
    if len(results) == 1:
        head[1:] = ["value".rjust(12)]
    rows = [
        [name.ljust(width)] + [(f"{result[name]:.5g}" if name in result else "").rjust(12) for result in results]
        for name in names
    ]
    return "\n".join("  ".join(row) for row in [head, *rows])


def warn(text: str) -> None:
    """Warn at the line of the user's that called the Trainer."""
    warnings.warn(text, stacklevel=3)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):
        return one is other  # tensors and arrays
