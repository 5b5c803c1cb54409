"""FileLogger: what loggers of files share: the folder of a run, and the way there from the workers."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import yaml

from paceline.loggers import names
from paceline.loggers.files import names_in, open_storage, read_text, write_text
from paceline.loggers.follower import Follower
from paceline.loggers.logger import Logger, Sink
from paceline.loggers.spool import Record, Spool, now_ms

# Attributes that do not travel.
_OF_THIS_PROCESS = ("_sink", "_follower", "_store", "_lock")
# What a row has besides its values.
AXES = ("step", "epoch")


class FileLogger(Logger):
    """Writes the files of each run into a folder of its own, `<save_dir>/<name>/<version>`.

    A run that is resumed goes on in its folder. By hand, without a Trainer, a logger may be used at once. The driver
    writes all files: what workers log comes to a spool on its machine, and is written from there.

    Args:
        save_dir: folder or URL; by default the Trainer's `default_root_dir`, and without one the working folder.
        name: of the experiment; "" for no folder of its own.
        version: of the run: an int for `version_<int>`, or the folder's name. By default one more than is there.
        prefix: put before each name that is logged, with a "-" between.
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None,
        name: str,
        version: int | str | None,
        prefix: str,
    ) -> None:
        self._given_save_dir = os.fspath(save_dir) if save_dir is not None else None
        self._name = name
        self._given_version = f"version_{version}" if isinstance(version, int) else version
        self._prefix = prefix
        self._version: str | None = None
        self._run_key = ""
        self._hyperparameters: dict[str, Any] = {}
        self._begin_here()

    def __getstate__(self) -> dict[str, Any]:
        """A copy elsewhere has no open files; `attach` says where its records go."""
        return {name: value for name, value in vars(self).items() if name not in _OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without open files."""
        vars(self).update(state)
        self._begin_here()

    def _begin_here(self) -> None:
        self._sink: Sink | None = None
        self._follower: Follower | None = None
        self._store: Any = None
        self._lock = threading.RLock()

    # -- places ---------------------------------------------------------------------------------------------------

    @property
    def save_dir(self) -> str:
        """Folder or URL of all experiments."""
        place = self._given_save_dir or self.default_root_dir or os.getcwd()
        return place if "://" in place else os.path.abspath(os.path.expanduser(place))

    @property
    def name(self) -> str:
        """The experiment."""
        return self._name

    @property
    def version(self) -> str:
        """The folder of the run; before it has begun, the one that it would have if it began now."""
        return self._version or self._given_version or f"version_{self._next_number()}"

    @property
    def root_dir(self) -> str:
        """Folder or URL of the experiment."""
        return f"{self.save_dir}/{self._name}".rstrip("/")

    @property
    def log_dir(self) -> str:
        """Folder or URL of the run."""
        return f"{self.root_dir}/{self.version}"

    def _next_number(self) -> int:
        taken = [re.fullmatch(r"version_(\d+)", name) for name in names_in(self.root_dir)]
        return max((int(match[1]) for match in taken if match), default=-1) + 1

    # -- what is logged -------------------------------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record one row of values; what is no number is left out, with a warning."""
        values = names.numbers(metrics)
        if self._prefix:
            values = {key if key in AXES else f"{self._prefix}-{key}": value for key, value in values.items()}
        self._put({"kind": "row", "step": int(step), "time_ms": now_ms(), "values": values})

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record hyperparameters in `hparams.yaml`, the newest value of each; what is no plain value as text."""
        self._put({"kind": "params", "values": plain(params)})

    def _put(self, record: Record) -> None:
        if self._sink is not None:
            self._sink.put(record)
        else:
            self._take(record)

    def _take(self, record: Record) -> None:
        with self._lock:
            try:
                if self._version is None:
                    self._take_folder("")
                self._write(record)
            except OSError as error:  # what cannot be written is no reason to end a run
                self._warn(error)

    @abstractmethod
    def _write(self, record: Record) -> None:
        """Write a record into the run's folder, or keep it until `save`."""

    def _write_hyperparameters(self, values: dict[str, Any]) -> None:
        self._hyperparameters.update(values)
        text = yaml.safe_dump(self._hyperparameters, sort_keys=False, allow_unicode=True)
        write_text(f"{self.log_dir}/hparams.yaml", text)

    def _warn(self, error: OSError) -> None:
        warnings.warn(f"{type(self).__name__} cannot write to {self.log_dir}: {error}.", stacklevel=4)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, run_key: str, spool_root: str) -> None:
        """Take the folder of the run: the one it has, if it is resumed.

        Raises:
            OSError: it cannot be made.
        """
        self._end_following()
        with self._lock:
            if run_key != self._run_key:
                self._close_store()
                self._hyperparameters = {}
                self._take_folder(run_key)
        digest = hashlib.sha256(self.log_dir.encode()).hexdigest()[:8]
        # Not among the spools, which `paceline sync` sends to MLflow.
        folder = os.path.join(os.path.dirname(os.path.abspath(spool_root)), "rows", f"{run_key}-{digest}")
        self.spool = folder
        self._follower = Follower(Spool(folder), self._take)

    def attach(self, sink: Sink) -> None:
        """In a worker: records go to `sink`, which brings them to the driver's machine."""
        self._sink = sink

    def finalize(self, status: Literal["finished", "failed", "killed"]) -> None:
        """Write what is still to be written, and close the files."""
        self._end_following()
        with self._lock:
            self._close_store()

    def close(self, timeout_s: float) -> None:
        """Close the files."""
        self.finalize("finished")

    def _end_following(self) -> None:
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    @abstractmethod
    def _close_store(self) -> None:
        """Write what is kept, and close the files if any are open."""

    def _take_folder(self, run_key: str) -> None:
        """Find the run's folder by its key, or make one."""
        note = f"{self.root_dir}/.runs/{run_key}"
        known = read_text(note) if run_key else ""
        began_by_hand = self._version if not self._run_key else None
        if self._given_version is not None:
            self._version = self._given_version
            if run_key and known != self._version and not began_by_hand and names_in(self.log_dir):
                warnings.warn(
                    f"{self.log_dir} has files of another run: those of this one are added to them. Give another "
                    "`version`, or none.",
                    stacklevel=5,
                )
        else:
            self._version = known or began_by_hand or self._make_folder()
        self._run_key = run_key
        if run_key and known != self._version:
            write_text(note, self._version)

    def _make_folder(self) -> str:
        number = self._next_number()
        while True:
            filesystem, inner = open_storage(f"{self.root_dir}/version_{number}")
            try:
                filesystem.makedirs(inner, exist_ok=False)
            except FileExistsError:  # another process was faster
                number += 1
            else:
                return f"version_{number}"


def plain(value: Any) -> Any:
    """A value as YAML and JSON have it: mappings, lists, numbers, and text for everything else."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return names.canonical(value)
