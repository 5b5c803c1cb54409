"""Arguments of the past: what each of them is called today."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from paceline.errors import ArgumentTypeError


def _on(accelerator: str) -> Callable[[Any], str]:
    return lambda value: f'Trainer(accelerator="{accelerator}", devices={value!r})'


_TODAY: dict[str, Callable[[Any], str]] = {
    "num_processes": _on("cpu"),
    "gpus": _on("gpu"),
    "tpu_cores": _on("tpu"),
    "ipus": _on("ipu"),
    "auto_select_gpus": lambda value: 'Trainer(accelerator="gpu", devices=1)',
    "resume_from_checkpoint": lambda value: f"trainer.fit(module, ckpt_path={value!r})",
    "amp_backend": lambda value: 'Trainer(precision="16-mixed")',
    "amp_level": lambda value: 'Trainer(precision="16-mixed")',
}


def translate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with old names brought up to date.

    Raises:
        ArgumentTypeError: one has no equal today; the message shows the call that does the same.
    """
    for name, today in _TODAY.items():
        if name in arguments:
            raise ArgumentTypeError(f"`{name}` is an argument of the past. Today's call: {today(arguments[name])}.")
    current = dict(arguments)
    if "replace_sampler_ddp" in current:
        value = current.pop("replace_sampler_ddp")
        warnings.warn(f"`replace_sampler_ddp` is called `use_distributed_sampler={value!r}` now.", stacklevel=4)
        current.setdefault("use_distributed_sampler", value)
    return current
