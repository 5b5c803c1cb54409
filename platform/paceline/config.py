"""TrainerConfig: every argument of the Trainer, declared once: its name, type, default, meaning and check."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import ArgumentTypeError, MisconfigurationError, nearest

ENVIRONMENT_PREFIX = "PACELINE_TRAINER_"

Devices = int | Literal["auto"] | tuple[int, ...]


def _devices(value: Any) -> Any:
    """A count, "auto", or a tuple of device ids, from all the ways in which people write them."""
    allowed = 'Use a count such as 2, a list of ids such as [0, 1], -1 for all devices, or "auto".'
    if isinstance(value, str) and value != "auto":
        parts = [part.strip() for part in value.split(",")]
        if not all(part.lstrip("-").isdigit() for part in parts):
            raise ValueError(f"`devices={value!r}` is no number of devices. {allowed}")
        value = int(parts[0]) if len(parts) == 1 else [int(part) for part in parts]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value or len(set(value)) != len(value) or not all(type(i) is int and i >= 0 for i in value):
            raise ValueError(f"`devices={list(value)!r}`: device ids are different ints from 0. {allowed}")
        return tuple(value)
    if value != "auto" and (type(value) is not int or value == 0 or value < -1):
        raise ValueError(f"`devices={value!r}` runs on no device. {allowed}")
    return value


def _limit(name: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        allowed = "Use an int number of batches, a float share from 0.0 to 1.0, or 0 to switch the stage off."
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise ValueError(f"`{name}={value!r}` is no number of batches. {allowed}")
        if isinstance(value, float) and value > 1:
            raise ValueError(f"`{name}={value!r}` is more than all batches. {allowed}")
        return value

    return BeforeValidator(check)


def _at_least(name: str, least: int, meaning: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"`{name}={value!r}` must be an int of at least {least}{meaning}.")
        return value

    return BeforeValidator(check)


def _precision(value: Any) -> Any:
    if value in ("32-true", "32", 32):
        return "32-true"
    raise ValueError(f'`precision={value!r}` is not available. Use "32-true".')


def _clip_value(value: Any) -> Any:
    if value is None:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"`gradient_clip_val={value!r}` must be a number, or None for no clipping.")
    if not value >= 0:
        raise ValueError(f"`gradient_clip_val={value!r}` must not be negative; None or 0 does not clip.")
    return float(value)


def _clip_algorithm(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("norm", "value"):
        return value.lower()
    raise ValueError(f'`gradient_clip_algorithm={value!r}` is not known. Use "norm" or "value".')


class TrainerConfig(BaseModel):
    """The arguments of `Trainer`, checked and frozen; the environment's `PACELINE_TRAINER_<NAME>` sets a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    accelerator: Any = Field("auto", description='"cpu", "gpu" or "cuda", "mps", or "auto" for the best one present.')
    devices: Annotated[Devices, BeforeValidator(_devices)] = Field(
        "auto", description='Workers on each node: a count, a list of ids, -1 for all, "auto" for all GPUs or one CPU.'
    )
    strategy: Any = Field(
        "auto", description='"single_device", "ddp", a Strategy, or "auto": by the number of devices.'
    )
    precision: Annotated[Literal["32-true"], BeforeValidator(_precision)] = Field(
        "32-true", description="Number format of weights and computation."
    )
    max_epochs: Annotated[int | None, _at_least("max_epochs", -1, "; -1 is unlimited")] = Field(
        None, description="Stop after so many epochs; 1000 when neither epochs nor steps are limited."
    )
    min_epochs: Annotated[int | None, _at_least("min_epochs", 0, "")] = Field(
        None, description="A request to stop waits until so many epochs are over."
    )
    max_steps: Annotated[int, _at_least("max_steps", -1, "; -1 is unlimited")] = Field(
        -1, description="Stop after so many optimizer steps."
    )
    min_steps: Annotated[int | None, _at_least("min_steps", 0, "")] = Field(
        None, description="A request to stop waits until so many optimizer steps are taken."
    )
    limit_train_batches: Annotated[int | float, _limit("limit_train_batches")] = Field(
        1.0, description="Training batches per epoch: a count, or a share."
    )
    limit_val_batches: Annotated[int | float, _limit("limit_val_batches")] = Field(
        1.0, description="Batches of each validation loader: a count, or a share."
    )
    limit_test_batches: Annotated[int | float, _limit("limit_test_batches")] = Field(
        1.0, description="Batches of each test loader: a count, or a share."
    )
    limit_predict_batches: Annotated[int | float, _limit("limit_predict_batches")] = Field(
        1.0, description="Batches of each loader to predict on: a count, or a share."
    )
    num_sanity_val_steps: Annotated[int, _at_least("num_sanity_val_steps", -1, "; -1 is all")] = Field(
        2, description="Validation batches that run before training, to find mistakes early."
    )
    check_val_every_n_epoch: Annotated[int, _at_least("check_val_every_n_epoch", 1, "")] = Field(
        1, description="Validate in every so manieth epoch."
    )
    log_every_n_steps: Annotated[int, _at_least("log_every_n_steps", 0, "; 0 is never")] = Field(
        50, description="Step values go to the loggers every so many optimizer steps."
    )
    accumulate_grad_batches: Annotated[int, _at_least("accumulate_grad_batches", 1, "")] = Field(
        1, description="Batches whose gradients make one optimizer step."
    )
    gradient_clip_val: Annotated[float | None, BeforeValidator(_clip_value)] = Field(
        None, description="Largest gradient norm, or largest absolute value."
    )
    gradient_clip_algorithm: Annotated[Literal["norm", "value"], BeforeValidator(_clip_algorithm)] = Field(
        "norm", description='"norm" or "value".'
    )
    callbacks: Any = Field(None, description="One callback, or a list of them.")
    enable_checkpointing: bool = Field(True, description="Add a ModelCheckpoint where none is given.")
    enable_progress_bar: bool = Field(True, description="Add a progress bar where none is given.")
    enable_model_summary: bool = Field(True, description="Add a ModelSummary where none is given.")
    logger: Any = Field(True, description="True for MLflow, None or False for none, a Logger, or a list of them.")
    default_root_dir: str | os.PathLike[str] | None = Field(
        None, description="Folder or URL for whatever has no place of its own; the working folder by default."
    )
    use_distributed_sampler: bool = Field(
        True, description="Share each loader's batches among the workers; False leaves the sampler as it is."
    )
    max_failures: Annotated[int, _at_least("max_failures", 0, "")] = Field(
        3, description="How often a fit goes on from its restart checkpoint after a worker died."
    )
    restart_every_n_steps: Annotated[int | None, _at_least("restart_every_n_steps", 1, "")] = Field(
        None, description="Optimizer steps between restart checkpoints; None: by time, under 2 % of the run."
    )
    trusted_checkpoints: bool = Field(
        False, description="Load checkpoints that hold pickled classes, which can run any code: only for your own."
    )
    address: str | None = Field(
        None, description='Address of a Ray cluster, or "auto"; RAY_ADDRESS by default, else a Ray of this machine.'
    )

    @model_validator(mode="after")
    def _no_contradictions(self) -> TrainerConfig:
        if self.max_steps == -1 and self.min_steps is not None and self.max_epochs == 0:
            raise ValueError("`min_steps` cannot be reached with `max_epochs=0`.")
        if self.strategy == "single_device" and isinstance(self.devices, int) and self.devices > 1:
            raise ValueError(
                f'`strategy="single_device"` runs on one device, not on `devices={self.devices}`. Use "ddp" or "auto".'
            )
        return self

    @property
    def root_dir(self) -> str:
        """`default_root_dir`: a URL as it was given, or an absolute path."""
        root = os.fspath(self.default_root_dir) if self.default_root_dir is not None else os.getcwd()
        return root if "://" in root else os.path.abspath(os.path.expanduser(root))


def signature() -> inspect.Signature:
    """The arguments as keywords, with types and defaults: what `help` and notebooks show."""
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
            for name, field in TrainerConfig.model_fields.items()
        ]
    )


def make_config(arguments: Mapping[str, Any]) -> TrainerConfig:
    """The configuration from keyword arguments, and from the environment where an argument is not given.

    Raises:
        ArgumentTypeError: there is no argument of that name; the nearest one is suggested.
        MisconfigurationError: a value is not allowed; the message says which are.
    """
    known = TrainerConfig.model_fields
    for name in arguments:
        if name not in known:
            hint = nearest(name, known) or f" It has: {', '.join(known)}."
            raise ArgumentTypeError(f"Trainer has no argument `{name}`.{hint}")
    try:
        return TrainerConfig(**{**_from_environment(), **arguments})
    except ValidationError as error:
        text = "\n".join(map(_sentence, error.errors()))
        is_type = any(isinstance(one.get("ctx", {}).get("error"), TypeError) for one in error.errors())
        raise (ArgumentTypeError if is_type else MisconfigurationError)(text) from None


def _from_environment() -> dict[str, Any]:
    values = {}
    for name in TrainerConfig.model_fields:
        text = os.environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text:
            try:
                values[name] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                values[name] = text
    return values


def _sentence(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"`{error['loc'][0]}={error['input']!r}`: {error['msg'][0].lower()}{error['msg'][1:]}."
