"""TrainerConfig: every argument of the Trainer, declared once: its name, type, default, meaning and check."""

from __future__ import annotations

import ast
import inspect
import os
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from paceline import checks
from paceline.errors import ArgumentTypeError, MisconfigurationError, nearest
from paceline.old_arguments import translate

ENVIRONMENT_PREFIX = "PACELINE_TRAINER_"

Devices = int | Literal["auto"] | list[int] | tuple[int, int]


# What `barebones` sets.
_BAREBONES: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "fast_dev_run": 0,
    "detect_anomaly": False,
    "profiler": None,
    "track_grad_norm": -1,
}

_STAGE_LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches")


class TrainerConfig(BaseModel):
    """The arguments of `Trainer`, checked and frozen; the environment's `PACELINE_TRAINER_<NAME>` sets a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    accelerator: Any = Field("auto", description='"cpu", "gpu" or "cuda", "mps", or "auto" for the best one present.')
    devices: Annotated[Devices, BeforeValidator(checks.devices)] = Field(
        "auto",
        description='Workers on each node: a count, a list of ids, -1 for all, "auto" for all GPUs or one CPU; or two '
        'bounds, (1, 4) or "1-4": as many workers as the cluster has room for, more or fewer as nodes come and go.',
    )
    num_nodes: Annotated[int, checks.at_least("num_nodes", 1)] = Field(
        1, description="Nodes that each hold `devices` workers; 1: wherever there is room, on as few as possible."
    )
    strategy: Any = Field(
        "auto", description='"single_device", "ddp", a Strategy, or "auto": by the number of devices.'
    )
    precision: Annotated[str, BeforeValidator(checks.precision)] = Field(
        "32-true",
        description='Number format: "64-true", "32-true", "16-mixed", "bf16-mixed", "16-true" or "bf16-true".',
    )
    max_epochs: Annotated[int | None, checks.at_least("max_epochs", -1, "; -1 is unlimited")] = Field(
        None, description="Stop after so many epochs; 1000 when neither epochs, steps nor time are limited."
    )
    min_epochs: Annotated[int | None, checks.at_least("min_epochs", 0)] = Field(
        None, description="A request to stop waits until so many epochs are over."
    )
    max_steps: Annotated[int, checks.at_least("max_steps", -1, "; -1 is unlimited")] = Field(
        -1, description="Stop after so many optimizer steps."
    )
    min_steps: Annotated[int | None, checks.at_least("min_steps", 0)] = Field(
        None, description="A request to stop waits until so many optimizer steps are taken."
    )
    max_time: Annotated[timedelta | None, BeforeValidator(checks.duration)] = Field(
        None, description='Stop after so long: "DD:HH:MM:SS", a timedelta, or a dict of its keywords.'
    )
    limit_train_batches: Annotated[int | float, checks.limit("limit_train_batches")] = Field(
        1.0, description="Training batches per epoch: a count, or a share."
    )
    limit_val_batches: Annotated[int | float, checks.limit("limit_val_batches")] = Field(
        1.0, description="Batches of each validation loader: a count, or a share."
    )
    limit_test_batches: Annotated[int | float, checks.limit("limit_test_batches")] = Field(
        1.0, description="Batches of each test loader: a count, or a share."
    )
    limit_predict_batches: Annotated[int | float, checks.limit("limit_predict_batches")] = Field(
        1.0, description="Batches of each loader to predict on: a count, or a share."
    )
    overfit_batches: Annotated[int | float, checks.limit("overfit_batches")] = Field(
        0.0, description="Train and validate on the same first batches, unshuffled: a count, or a share; 0.0 is off."
    )
    fast_dev_run: Annotated[int, BeforeValidator(checks.fast_dev_run)] = Field(
        0, description="Run one epoch of so many batches of each stage, without logging or saving, to find mistakes."
    )
    num_sanity_val_steps: Annotated[int, checks.at_least("num_sanity_val_steps", -1, "; -1 is all")] = Field(
        2, description="Validation batches that run before training, to find mistakes early."
    )
    check_val_every_n_epoch: Annotated[int | None, checks.at_least("check_val_every_n_epoch", 1, ", or None")] = Field(
        1, description="Validate in every so manieth epoch; None: `val_check_interval` counts across epochs."
    )
    val_check_interval: Annotated[int | float, BeforeValidator(checks.interval)] = Field(
        1.0, description="Validate after a share of the epoch, or every so many training batches."
    )
    log_every_n_steps: Annotated[int, checks.at_least("log_every_n_steps", 0, "; 0 is never")] = Field(
        50, description="Step values go to the loggers every so many optimizer steps."
    )
    accumulate_grad_batches: Annotated[int | dict[int, int], BeforeValidator(checks.accumulation)] = Field(
        1, description="Batches whose gradients make one optimizer step; or a dict: from which epoch on how many."
    )
    gradient_clip_val: Annotated[float | None, BeforeValidator(checks.clip_value)] = Field(
        None, description="Largest gradient norm, or largest absolute value."
    )
    gradient_clip_algorithm: Annotated[Literal["norm", "value"], BeforeValidator(checks.clip_algorithm)] = Field(
        "norm", description='"norm" or "value".'
    )
    track_grad_norm: Annotated[float, BeforeValidator(checks.norm_type)] = Field(
        -1, description='Log the p-norm of each gradient and of all: p, or "inf"; -1 does not.'
    )
    deterministic: Annotated[bool | Literal["warn"] | None, BeforeValidator(checks.deterministic)] = Field(
        None, description='Use deterministic algorithms only; "warn": where there are any. None: as torch is set.'
    )
    benchmark: bool | None = Field(
        None, description="Let cuDNN try its algorithms out; None: as torch is set, but not when deterministic."
    )
    detect_anomaly: bool = Field(
        False, description="Look for NaN in the backward pass of training, and show which operation it comes from."
    )
    inference_mode: bool = Field(
        True, description="Evaluate under `torch.inference_mode` where that works, else under `torch.no_grad`."
    )
    sync_batchnorm: bool = Field(False, description="BatchNorm over the batches of all GPUs together.")
    use_distributed_sampler: bool = Field(
        True, description="Share each loader's batches among the workers; False leaves the sampler as it is."
    )
    reload_dataloaders_every_n_epochs: Annotated[int, checks.at_least("reload_dataloaders_every_n_epochs", 0)] = Field(
        0, description="Ask for training and validation loaders again every so many epochs; 0 never."
    )
    multiple_trainloader_mode: Annotated[str, BeforeValidator(checks.combine_mode)] = Field(
        "max_size_cycle",
        description='How several training loaders combine: "max_size_cycle", "min_size", "max_size", "sequential".',
    )
    callbacks: Any = Field(None, description="One callback, or a list of them.")
    enable_checkpointing: bool = Field(True, description="Add a ModelCheckpoint where none is given.")
    enable_progress_bar: bool = Field(True, description="Add a progress bar where none is given.")
    enable_model_summary: bool = Field(True, description="Add a ModelSummary where none is given.")
    logger: Any = Field(True, description="True for MLflow, None or False for none, a Logger, or a list of them.")
    default_root_dir: str | os.PathLike[str] | None = Field(
        None, description="Folder or URL for whatever has no place of its own; the working folder by default."
    )
    profiler: Any = Field(None, description='"simple", "advanced", "pytorch" or a Profiler; None measures nothing.')
    plugins: Any = Field(
        None, description="A Precision, a CheckpointIO or a Launcher in place of the usual one, or a list of them."
    )
    move_metrics_to_cpu: bool = Field(
        False, description="Bring logged values to the CPU as they are logged, to spare the device's memory."
    )
    barebones: bool = Field(
        False, description="Switch off everything that costs time besides training, to measure with."
    )
    launcher: Literal["auto", "in_process", "actors", "ray_train"] = Field(
        "auto",
        description='What hosts the workers: "in_process", Ray "actors", or "ray_train" for Ray Train\'s controller; '
        '"auto": this process for one worker without a cluster, else actors.',
    )
    resources_per_worker: Annotated[dict[str, float] | None, BeforeValidator(checks.resources)] = Field(
        None,
        description='What Ray sets aside for each worker, as in {"CPU": 4}; a CPU, and a GPU if used, by default.',
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description='How Ray places the workers of one run: "PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD".'
    )
    start_timeout: Annotated[float, checks.seconds("start_timeout")] = Field(
        600.0, description="Seconds to wait for the cluster to have room for the workers."
    )
    idle_timeout: Annotated[float, checks.seconds("idle_timeout")] = Field(
        600.0, description="Seconds that workers are kept ready for the next entry point."
    )
    max_failures: Annotated[int, checks.at_least("max_failures", 0)] = Field(
        3, description="How often a fit goes on from its restart checkpoint after a worker died."
    )
    restart_every_n_steps: Annotated[int | None, checks.at_least("restart_every_n_steps", 1)] = Field(
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
        self._placement_makes_sense()
        if self.check_val_every_n_epoch is None and not isinstance(self.val_check_interval, int):
            raise ValueError(
                "`check_val_every_n_epoch=None` counts training batches across epochs: give their number as an int, "
                f"as in `val_check_interval=100`, not {self.val_check_interval}."
            )
        if self.barebones:
            given = [name for name in _BAREBONES if name in self.model_fields_set]
            conflicting = [name for name in given if getattr(self, name) not in (_BAREBONES[name], None)]
            if conflicting:
                argument = f"{conflicting[0]}={getattr(self, conflicting[0])!r}"
                raise ValueError(f"`barebones=True` switches off what `{argument}` asks for: remove one of the two.")
        return self

    def _placement_makes_sense(self) -> None:
        if self.launcher == "in_process" and self.address is not None:
            raise ValueError(f'`launcher="in_process"` has no use for `address={self.address!r}`: remove one of them.')
        if self.launcher == "ray_train" and self.num_nodes > 1:
            raise ValueError(
                f'`launcher="ray_train"` knows no `num_nodes={self.num_nodes}`: give the number of all workers as '
                '`devices`, and say by `placement_strategy` where they are; or use `launcher="actors"`.'
            )
        if self.num_nodes > 1 and isinstance(self.devices, tuple):
            raise ValueError(
                f"`devices={self.devices}` lets the number of workers change with the cluster, which "
                f"`num_nodes={self.num_nodes}` does not: leave `num_nodes` out, or give `devices` as one number."
            )
        if "placement_strategy" in self.model_fields_set and (self.num_nodes > 1 or isinstance(self.devices, tuple)):
            other = f"num_nodes={self.num_nodes}" if self.num_nodes > 1 else f"devices={self.devices}"
            raise ValueError(f"`placement_strategy` has no meaning with `{other}`, which says where workers are.")

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
    arguments = translate(arguments)
    known = TrainerConfig.model_fields
    for name in arguments:
        if name not in known:
            hint = nearest(name, known) or f" It has: {', '.join(known)}."
            raise ArgumentTypeError(f"Trainer has no argument `{name}`.{hint}")
    try:
        config = TrainerConfig(**{**_from_environment(), **arguments})
    except ValidationError as error:
        text = "\n".join(map(_sentence, error.errors()))
        is_type = any(isinstance(one.get("ctx", {}).get("error"), TypeError) for one in error.errors())
        raise (ArgumentTypeError if is_type else MisconfigurationError)(text) from None
    for name in (*_STAGE_LIMITS, "overfit_batches", "val_check_interval"):
        if type(arguments.get(name)) is int and arguments[name] == 1:
            warnings.warn(f"`{name}=1` means one batch; write 1.0 for a whole epoch.", stacklevel=3)
    return _with_modes(config)


def _with_modes(config: TrainerConfig) -> TrainerConfig:
    """The configuration with what those arguments that stand for several others set."""
    changes: dict[str, Any] = {}
    if config.fast_dev_run:
        n = config.fast_dev_run
        changes = dict.fromkeys(_STAGE_LIMITS, n)
        changes |= {"max_epochs": 1, "max_steps": -1, "max_time": None, "logger": False, "num_sanity_val_steps": 0}
        changes |= {"check_val_every_n_epoch": 1, "val_check_interval": 1.0}
        warnings.warn(
            f"`fast_dev_run={n}`: {n} batches of each stage in one epoch; loggers, checkpoints, early stopping and the "
            "searches for a learning rate and a batch size are off.",
            stacklevel=4,
        )
    if config.barebones:
        changes |= _BAREBONES
    if config.overfit_batches:
        changes |= {"limit_train_batches": config.overfit_batches, "limit_val_batches": config.overfit_batches}
    return config.model_copy(update=changes) if changes else config


def _from_environment() -> dict[str, Any]:
    values = {}
    for name in TrainerConfig.model_fields:
        text = os.environ.get(ENVIRONMENT_PREFIX + name.upper())
        if text:
            values[name] = _literal(text)
    return values


def _literal(text: str) -> Any:
    """The Python value that is written, or the text: "0,1" is no tuple, for a list of ids is written so."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return text if isinstance(value, tuple) and not text.startswith("(") else value


def _sentence(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"`{error['loc'][0]}={error['input']!r}`: {error['msg'][0].lower()}{error['msg'][1:]}."
