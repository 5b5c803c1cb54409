"""PyTorchProfiler: the operators of a few steps, by torch.profiler."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerAction, record_function

from paceline.errors import ArgumentTypeError, MisconfigurationError, nearest
from paceline.profilers.profiler import Profiler

Schedule = Callable[[int], ProfilerAction]

# What ends a step of each stage's schedule. Validations inside a fit are seen, but are no steps.
_STEPS = {
    "fit": "run_training_batch",
    "validate": "run_evaluation_batch",
    "test": "run_evaluation_batch",
    "predict": "run_predict_batch",
}

_DEVICES = ("cpu", "device", "cuda")
_SORT_KEYS = (
    "count",
    *(f"{device}_time" for device in _DEVICES),
    *(
        f"{own}{device}_{what}"
        for own in ("", "self_")
        for device in _DEVICES
        for what in ("time_total", "memory_usage")
    ),
)


class PyTorchProfiler(Profiler):
    """Records the operators of a few steps: a trace for chrome://tracing or Perfetto, and a table of the longest.

    Args:
        dirpath: folder or URL of the reports; by default the `log_dir` of the run.
        filename: in the names of the reports; "pytorch" by default.
        schedule: a function of the step that says what to do in it, as `torch.profiler.schedule` makes one. A step is
            a batch of the stage. By default one is waited for, one warms up and three are recorded, once.
        export_to_chrome: write each recording as `<stage>-<filename>-<rank>-<number>.pt.trace.json`.
        sort_by_key: what the table is sorted by, such as "cpu_time_total", "device_time_total" or "count".
        row_limit: rows of the table; -1 for all.
        group_by_input_shapes: a row for each shape of inputs; needs `record_shapes=True`.
        record_module_names: show in the trace which submodule each operator was called by.
        profiler_kwargs: further arguments of `torch.profiler.profile`, such as `profile_memory=True`. An
            `on_trace_ready` is called with each recording after it was written.

    Raises:
        ArgumentTypeError: `torch.profiler.profile` has no such argument, or `schedule` cannot be called.
        MisconfigurationError: `schedule` gives no `ProfilerAction`, `sort_by_key` is unknown, or shapes are to be
            grouped by that are not recorded.
    """

    default_filename = "pytorch"

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        schedule: Schedule | None = None,
        export_to_chrome: bool = True,
        sort_by_key: str = "cpu_time_total",
        row_limit: int = 20,
        group_by_input_shapes: bool = False,
        record_module_names: bool = True,
        **profiler_kwargs: Any,
    ) -> None:
        _refuse_unknown(profiler_kwargs)
        if sort_by_key not in _SORT_KEYS:
            raise MisconfigurationError(
                f"`sort_by_key={sort_by_key!r}` is unknown. Use one of {', '.join(_SORT_KEYS)}."
                f"{nearest(sort_by_key, _SORT_KEYS)}"
            )
        if group_by_input_shapes and not profiler_kwargs.get("record_shapes"):
            raise MisconfigurationError("`group_by_input_shapes=True` needs `record_shapes=True` as well.")
        if schedule is not None:
            _refuse_other_schedule(schedule)
        self.schedule = schedule
        self.export_to_chrome = export_to_chrome
        self.sort_by_key = sort_by_key
        self.row_limit = row_limit
        self.group_by_input_shapes = group_by_input_shapes
        self.record_module_names = record_module_names
        self.profiler_kwargs = profiler_kwargs
        super().__init__(dirpath, filename)

    _torch_profiler: torch.profiler.profile | None = None
    _handles: tuple[Any, ...] = ()

    def _reset(self) -> None:
        self._finish()
        super()._reset()
        self._spans: dict[str, Any] = {}
        self._steps = 0
        self._recordings = 0
        self._table = ""

    # -- a run ----------------------------------------------------------------------------------------------------

    def setup(self, stage: str, rank: int, log_dir: str | None) -> None:
        """A run begins, and its schedule."""
        super().setup(stage, rank, log_dir)
        # By default only once: every recording costs time and a file.
        schedule = self.schedule or torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
        options = {**self.profiler_kwargs, "schedule": schedule, "on_trace_ready": self._take}
        self._torch_profiler = torch.profiler.profile(**options)
        self._torch_profiler.start()

    def attach(self, module: nn.Module) -> None:
        """Name each submodule's forward pass in the trace."""
        if self.record_module_names:
            for name, submodule in module.named_modules():
                self._watch(submodule, f"[{type(submodule).__name__}]{name or 'forward'}")

    def _watch(self, submodule: nn.Module, label: str) -> None:
        open_spans: list[Any] = []  # a module may call itself

        def begin(*_: Any) -> None:
            open_spans.append(record_function(label))
            open_spans[-1].__enter__()

        def end(*_: Any) -> None:
            open_spans.pop().__exit__(None, None, None)

        self._handles += (
            submodule.register_forward_pre_hook(begin),
            submodule.register_forward_hook(end, always_call=True),
        )

    def detach(self) -> None:
        """The run is over: nothing is recorded any longer, and the module has no hooks of this profiler."""
        self._finish()

    def _finish(self) -> None:
        for handle in self._handles:
            handle.remove()
        profiler, self._torch_profiler, self._handles = self._torch_profiler, None, ()
        if profiler is not None:
            profiler.stop()

    # -- actions --------------------------------------------------------------------------------------------------

    def start(self, action: str) -> None:
        """An action begins: a span in the trace."""
        super().start(action)
        self._spans[action] = record_function(action)
        self._spans[action].__enter__()

    def stop(self, action: str) -> None:
        """An action ends; the one that is a step moves the schedule on."""
        super().stop(action)
        self._spans.pop(action).__exit__(None, None, None)
        if self._torch_profiler is not None and action == _STEPS.get(self._stage):
            self._steps += 1
            self._torch_profiler.step()

    def _take(self, profiler: torch.profiler.profile) -> None:
        """A recording is complete."""
        averages = profiler.key_averages(group_by_input_shape=self.group_by_input_shapes)
        self._table = averages.table(sort_by=self.sort_by_key, row_limit=self.row_limit)
        if self.export_to_chrome:
            # Torch writes to a local disk only.
            with tempfile.TemporaryDirectory() as folder:
                profiler.export_chrome_trace(f"{folder}/trace.json")
                with open(f"{folder}/trace.json", "rb") as file:
                    self._write(f"{self._rank}-{self._recordings}.pt.trace.json", file.read())
        self._recordings += 1
        if "on_trace_ready" in self.profiler_kwargs:
            self.profiler_kwargs["on_trace_ready"](profiler)

    def summary(self) -> str:
        """The table of the newest recording, or why there is none. Ends the recording that is going on."""
        self._finish()
        steps = f"{self._steps} step{'' if self._steps == 1 else 's'}"
        if self._table:
            return f"Profile of {steps}; of {self._recordings} recordings the last one\n{self._table}"
        if self._recordings:
            return f"Nothing was at work while the profiler recorded, in {steps}."
        return (
            f"The run was over after {steps}, before the profiler's schedule has recorded any. Run more "
            "batches, or give a `schedule` that begins earlier, as torch.profiler.schedule(wait=0, warmup=0, active=1)."
        )


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    known = [name for name in inspect.signature(torch.profiler.profile).parameters if name != "schedule"]
    for name in arguments:
        if name not in known:
            raise ArgumentTypeError(
                f"PyTorchProfiler has no argument `{name}`, and neither has `torch.profiler.profile`, which takes "
                f"{', '.join(known)}.{nearest(name, known)}"
            )


def _refuse_other_schedule(schedule: Any) -> None:
    if not callable(schedule):
        raise ArgumentTypeError(
            f"`schedule={schedule!r}` cannot be called. Use one that `torch.profiler.schedule` makes."
        )
    action = schedule(0)
    if not isinstance(action, ProfilerAction):
        raise MisconfigurationError(
            f"`schedule` gave {action!r} for step 0. It has to give a `torch.profiler.ProfilerAction`, as one that "
            "`torch.profiler.schedule` makes does."
        )
