"""TensorBoardLogger: a run's values, hyperparameters and graph for TensorBoard."""

from __future__ import annotations

import base64
import importlib
import io
import os
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

from paceline.errors import ArgumentTypeError, MisconfigurationError, nearest
from paceline.loggers import names
from paceline.loggers.file_logger import FileLogger, plain
from paceline.loggers.files import is_local
from paceline.loggers.spool import Record

if TYPE_CHECKING:
    from paceline.loggers.event_files import EventWriter
    from paceline.module import Module

_WRITER_ARGUMENTS = ("max_queue", "flush_secs", "filename_suffix")
_EVENTS_BETWEEN_UPLOADS = 1000


class TensorBoardLogger(FileLogger):
    """Writes event files and `hparams.yaml` into `<save_dir>/<name>/<version>`: `tensorboard --logdir <save_dir>`.

    A step that is run again after a restart is recorded once.

    Args:
        save_dir: folder or URL; by default the Trainer's `default_root_dir`, and without one the working folder.
        name: of the experiment; "" for no folder of its own.
        version: of the run: an int for `version_<int>`, or the folder's name. By default one more than is there.
        log_graph: record the module's graph, if it has an `example_input_array`; needs the package tensorboard.
        default_hp_metric: with hyperparameters that come without metrics, record `hp_metric` as -1, so that TensorBoard
            lists the run among its hyperparameters. Log `hp_metric` to give it a value.
        prefix: put before each name that is logged, with a "-" between.
        sub_dir: a folder in that of the run, for the event files only.
        writer_kwargs: `max_queue` (10 events; 1000 for a URL), `flush_secs` (120 s) and `filename_suffix` of the
            SummaryWriter.

    Raises:
        MisconfigurationError: a package that is needed is not installed.
        ArgumentTypeError: there is no such argument.

    Example:
        >>> trainer = Trainer(logger=[CSVLogger(), TensorBoardLogger()])
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str = "paceline_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = True,
        prefix: str = "",
        sub_dir: str | None = None,
        **writer_kwargs: Any,
    ) -> None:
        for argument in writer_kwargs:
            if argument not in _WRITER_ARGUMENTS:
                raise ArgumentTypeError(
                    f"TensorBoardLogger has no argument `{argument}`; for the writer it takes "
                    f"{', '.join(_WRITER_ARGUMENTS)}.{nearest(argument, _WRITER_ARGUMENTS)}"
                )
        _require("tensorboardX", "TensorBoardLogger")
        if log_graph:
            _require("tensorboard", "`log_graph=True`")
        super().__init__(save_dir, name, version, prefix)
        self._log_graph = log_graph
        self._default_hp_metric = default_hp_metric
        self._sub_dir = sub_dir
        self._writer_options = writer_kwargs
        self._highest: dict[str, int] = {}
        self._read_folder = ""

    @property
    def experiment(self) -> EventWriter:
        """The SummaryWriter, for images, histograms and more: `logger.experiment.add_image(...)`.

        On workers what it is given goes to the driver, which writes it; `add_scalars`, `add_hparams` and
        `add_embedding` write files of their own, and are for runs in one process.
        """
        with self._lock:
            if self._store is None:
                self._store = self._open()
            writer: EventWriter = self._store
            return writer

    def _open(self) -> EventWriter:
        from paceline.loggers.event_files import EventWriter, highest_steps

        if self._sink is not None:
            return EventWriter(self._event_dir, send=self._send)
        if self._version is None:
            self._take_folder("")
        # Of a run that another process began, only what is new is recorded. One that goes on in this process has
        # come to another entry point: what that records is new, at whatever step.
        self._highest = highest_steps(self._event_dir) if self._read_folder != self._event_dir else {}
        self._read_folder = self._event_dir
        options = {"max_queue": 10 if is_local(self._event_dir) else _EVENTS_BETWEEN_UPLOADS, **self._writer_options}
        return EventWriter(self._event_dir, **options)

    @property
    def _event_dir(self) -> str:
        return f"{self.log_dir}/{self._sub_dir}" if self._sub_dir else self.log_dir

    def _send(self, event: bytes) -> None:
        self._put({"kind": "event", "data": base64.b64encode(event).decode()})

    # -- what is logged -------------------------------------------------------------------------------------------

    def log_hyperparams(self, params: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> None:
        """Record hyperparameters in `hparams.yaml` and for TensorBoard's table of them.

        Args:
            params: mappings in it may be nested.
            metrics: shown beside them, with these first values; by default `hp_metric` of -1.
        """
        self._put({"kind": "params", "values": plain(params), "metrics": names.numbers(metrics or {})})

    def log_graph(self, module: Module) -> None:
        """Record the graph of the module's forward pass, if `log_graph=True` and it has an `example_input_array`.

        The module must be in a run: call it in a hook.
        """
        if not self._log_graph:
            return
        if module.example_input_array is None:
            warnings.warn("`log_graph=True`: the module has no `example_input_array` to follow.", stacklevel=2)
            return
        from paceline.data.transfer import to_device
        from paceline.evaluation_mode import evaluation_mode
        from paceline.seed import isolated_random_state

        device = next((parameter.device for parameter in module.parameters()), None)
        example = module.example_input_array if device is None else to_device(module.example_input_array, device)
        try:
            # Torch prints what it raises, and warns of what its tracing cannot see, which a picture need not have.
            with (
                evaluation_mode(module),
                isolated_random_state(),
                redirect_stdout(io.StringIO()),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                self.experiment.add_graph(module, example)
        except Exception as error:  # a module that cannot be traced is no reason to end a run
            warnings.warn(f"`log_graph=True`: the module cannot be followed: {error}", stacklevel=2)

    def save(self) -> None:
        """Write the events that wait in memory."""
        with self._lock:
            if self._store is not None:
                try:
                    self._store.flush()
                except OSError as error:
                    self._warn(error)

    def _write(self, record: Record) -> None:
        writer = self.experiment
        match record["kind"]:
            case "row":
                for tag, value in record["values"].items():
                    self._add_scalar(tag, value, record["step"], record["time_ms"] / 1000)
            case "params":
                self._write_hyperparameters(record["values"])
                self._add_hyperparameters(record["values"], record["metrics"])
            case "event":
                writer.add_sent(base64.b64decode(record["data"]))

    def _add_scalar(self, tag: str, value: float, step: int, time_s: float | None = None) -> None:
        if step > self._highest.get(tag, step - 1):
            self._highest[tag] = step
            self.experiment.add_scalar(tag, value, step, time_s)

    def _add_hyperparameters(self, values: dict[str, Any], metrics: dict[str, float]) -> None:
        from tensorboardX.summary import hparams

        if not metrics and self._default_hp_metric:
            metrics = {"hp_metric": -1.0}
        events = self.experiment._get_file_writer()
        for summary in hparams(_flat(values), metrics):
            events.add_summary(summary)
        for tag, value in metrics.items():
            if tag not in self._highest:
                # Not by `_add_scalar`: what is measured at step 0 later is no repetition of this.
                self.experiment.add_scalar(tag, value, 0)

    def _close_store(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except OSError as error:
                self._warn(error)
            self._store = None


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested hyperparameters as one level, `optimizer/lr`; numbers stay numbers."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, bool | int | float) else names.canonical(value)
    return flat


def _require(package: str, what: str) -> None:
    try:
        importlib.import_module(package)
    except ImportError:
        raise MisconfigurationError(f"{what} needs the package {package}: `pip install {package}`.") from None
