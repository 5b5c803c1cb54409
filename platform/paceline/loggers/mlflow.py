"""MLflowLogger: records runs in MLflow, without waiting for it."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from paceline.errors import MisconfigurationError
from paceline.loggers import address, names
from paceline.loggers.logger import Logger, Sink
from paceline.loggers.recorder import Recorder
from paceline.loggers.spool import Record, Spool, birth, now_ms

_FAILING_LIMIT_S = 5.0
_POLL_S = 0.05


class MLflowLogger(Logger):
    """Records runs in MLflow: a slow, dead or erring store never slows or ends a run, and nothing is lost.

    What is logged goes to a spool on the local disk, and a process beside the run sends it. What could not be sent
    by the end waits there for `paceline sync`.

    Args:
        experiment_name: the experiment; made if it is not there.
        run_name: what the UI calls the run; by default its key, which holds date and time.
        tracking_uri: the store. By default that of the environment variable `MLFLOW_TRACKING_URI`, else the file
            `mlflow.db` in the working folder.
        run_id: go on with this run of the store.
        tags: of the run.
        log_model: put the trained module into the store when a fit ends: "best", "last" or True (the same).

    Raises:
        MisconfigurationError: the store or `log_model` is none that is known.

    Attributes:
        tracking_uri: the store, with an absolute path.
        log_model: as given.
    """

    def __init__(
        self,
        experiment_name: str = "paceline",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        log_model: bool | Literal["best", "last"] = False,
    ) -> None:
        if log_model not in (True, False, "best", "last"):
            raise MisconfigurationError(f'`log_model={log_model!r}` is unknown. Use "best", "last", True or False.')
        self.tracking_uri = address.resolve(
            tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        )
        self.log_model = log_model
        self._experiment_name = experiment_name
        self._run_name = run_name
        self._given_run_id = run_id
        self._tags = {key: names.canonical(value) for key, value in (tags or {}).items()}
        self._run_key = ""
        self._ids: Record = {}
        self._ended = True
        self._pid = os.getpid()
        self._sink: Sink | None = None
        self._recorder: Recorder | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy elsewhere has neither threads nor processes; `attach` says where its records go."""
        return {**self.__dict__, "_sink": None, "_recorder": None, "_process": None}

    # -- what the user reads --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The experiment."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """The key of the run, also its tag `paceline.run`; empty before it has started."""
        return self._run_key

    @property
    def run_id(self) -> str | None:
        """The run in MLflow. Waits up to 15 s for the store to answer; None if it does not."""
        return self._given_run_id or self._find_id("run_id")

    @property
    def experiment_id(self) -> str | None:
        """The experiment in MLflow. Waits as `run_id` does."""
        return self._find_id("experiment_id")

    @property
    def experiment(self) -> Any:
        """An `mlflow.MlflowClient` for the store: for what the logger does not do. Waits as `run_id` does."""
        from mlflow import MlflowClient

        self._find_id("run_id")  # a new database is set up by the sender, and only by it
        return MlflowClient(self.tracking_uri)

    @property
    def ui_command(self) -> str:
        """What opens the UI: a command for a database, the address of a server."""
        return address.ui_command(self.tracking_uri)

    # -- what is logged -------------------------------------------------------------------------------------------

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Record one row of values; what is no number is left out, with a warning."""
        self._put({"kind": "metrics", "step": int(step), "time_ms": now_ms(), "values": names.numbers(metrics)})

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record hyperparameters: nested ones as `optimizer/lr`, values as text.

        One that a resumed run has with another value keeps the first; the new one is the tag `paceline.changed/...`.
        """
        self._put({"kind": "params", "time_ms": now_ms(), "values": names.flatten(params)})

    def log_tags(self, tags: Mapping[str, Any]) -> None:
        """Set tags of the run; a later value takes the place of an earlier one."""
        values = {key: names.canonical(value) for key, value in tags.items()}
        self._put({"kind": "tags", "time_ms": now_ms(), "values": values})

    def log_artifact(self, path: str, name: str | None = None) -> None:
        """Upload a file or folder.

        Args:
            path: on the driver's machine; it must stay until it is sent.
            name: the folder among the run's artifacts; the topmost by default.
        """
        self._put({"kind": "artifact", "time_ms": now_ms(), "path": os.path.abspath(path), "name": name})

    def log_module(self, path: str) -> None:
        """Log a trained module as an MLflow model, in PyTorch's pt2 format.

        Args:
            path: a file that holds a cloudpickle of {"module": an nn.Module on the CPU, "input": an example tensor or
                None, "name": str}. It is deleted when it was sent. Without an input there is nothing to trace the
                module with: a tag of the run says so.
        """
        import_path = [os.path.abspath(folder) for folder in sys.path]
        record = {"kind": "model", "time_ms": now_ms(), "path": os.path.abspath(path), "import_path": import_path}
        self._put(record)

    def finalize(self, status: Literal["finished", "failed", "killed"]) -> None:
        """The run has ended so: FINISHED, FAILED or KILLED in MLflow."""
        if self._sink is not None:
            self._ended = True
            self._put({"kind": "status", "status": status, "time_ms": now_ms()})
            if self._recorder is not None:
                self._recorder.flush(timeout_s=5.0)

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self, run_key: str, spool_root: str) -> None:
        """Open the spool `<spool_root>/<run_key>` and see to it that a process sends it.

        Raises:
            OSError: the spool cannot be written.
        """
        folder = os.path.abspath(f"{spool_root}/{run_key}")
        if self._recorder is not None and self.spool != folder:
            self.close(_FAILING_LIMIT_S)
        if run_key != self._run_key:
            self._ids = {}
        self._run_key, self.spool, self._pid = run_key, folder, os.getpid()
        if self._recorder is not None:
            self._recorder.flush(timeout_s=5.0)
        self._open(Spool(folder))
        if self._recorder is None:
            self._recorder = self._sink = Recorder(folder)
        self._recorder.forget()
        atexit.unregister(self._close_at_exit)
        atexit.register(self._close_at_exit)

    def _open(self, spool: Spool) -> None:
        # Not above: `python -m paceline.loggers.sender` imports this package first, and then itself once more.
        from paceline.loggers.sender import start_sender

        with spool.gate():
            sending = os.path.exists(spool.records) and self._process is not None and self._process.poll() is None
            for stale in (spool.finish,) if sending else (spool.finish, spool.state_file):
                if os.path.exists(stale):
                    os.remove(stale)
            if self._ended or not sending:
                spool.append(self._start_record())
                self._ended = False
        if not sending:
            self._process = start_sender(spool)

    def attach(self, sink: Sink) -> None:
        """In a worker: records go to `sink`, which brings them to `spool` on the driver's machine."""
        self._sink = sink

    def close(self, timeout_s: float) -> None:
        """Wait until everything is sent: at most so long, and not over 5 s once the store does not answer.

        What still waits then is sent as soon as the store is back, if that is before this process ends, or by
        `paceline sync`; a line on stderr says so.
        """
        if self._recorder is None or self.spool is None:
            return
        if not self._ended:
            self.finalize("killed")
        self._recorder.close()
        lost = self._recorder.dropped
        self._recorder = self._sink = None
        atexit.unregister(self._close_at_exit)
        spool = Spool(self.spool)
        if lost:
            print(
                f"paceline: {lost} records of run {self._run_key} are lost: {spool.folder} could not take them.",
                file=sys.stderr,
            )
        # Without the record that ends the run, which may be among the lost, the sender stays until this process ends.
        ends = any(record["kind"] == "status" for record in spool.lives()[-1:])
        with contextlib.suppress(OSError), open(spool.finish, "w"):  # on a full disk it ends after this process
            pass
        self._wait_for_sender(spool, timeout_s if ends else min(timeout_s, _FAILING_LIMIT_S))
        waiting, state = spool.waiting(), self._look(spool)
        if waiting:
            reason = f" ({state['error']})" if state.get("error") else ""
            print(
                f"paceline: {waiting} records of run {self._run_key} are not in MLflow yet{reason}; they wait in "
                f"{spool.folder}, and `paceline sync {shlex.quote(spool.project)}` sends them.",
                file=sys.stderr,
            )
            return
        if state.get("refused"):
            where = spool.refused if os.path.exists(spool.refused) else "the run's artifacts, under paceline/refused"
            print(f"paceline: MLflow refused {state['refused']} records; see {where}.", file=sys.stderr)
        if self._process is not None and self._process.poll() is not None and not os.path.exists(spool.refused):
            self._clear(spool)

    def _wait_for_sender(self, spool: Spool, timeout_s: float) -> None:
        until, failing_since = time.monotonic() + timeout_s, None
        while self._process is not None and self._process.poll() is None and (now := time.monotonic()) < until:
            if not self._look(spool).get("error"):
                failing_since = None
            elif failing_since is None:
                failing_since = now
            elif now - failing_since > _FAILING_LIMIT_S:
                return
            time.sleep(_POLL_S)

    def _clear(self, spool: Spool) -> None:
        with spool.gate():
            if not os.path.exists(spool.records):  # or another process has gone on with the run
                spool.clear()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._pid:  # and not in a process forked from it
            self.close(timeout_s=30.0)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _start_record(self) -> Record:
        own = {
            "mlflow.user": _user(),
            "mlflow.source.name": os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "python",
            "mlflow.source.type": "LOCAL",
        }
        return {
            "kind": "start",
            "time_ms": now_ms(),
            "tracking_uri": self.tracking_uri,
            "experiment": self._experiment_name,
            "run_name": self._run_name or self._run_key,
            "run_key": self._run_key,
            "run_id": self._given_run_id,
            "tags": {**own, **self._tags},
            "pid": os.getpid(),
            "born": birth(os.getpid()),
            "host": socket.gethostname(),
        }

    def _put(self, record: Record) -> None:
        if self._sink is None:
            raise MisconfigurationError(
                f"Nothing can be logged to {type(self).__name__} now: its run has not started, or is closed. "
                "A Trainer starts it; by hand, call `start(run_key, spool_root)`."
            )
        self._sink.put(record)

    def _find_id(self, which: str, timeout_s: float = 15.0) -> str | None:
        until = time.monotonic() + timeout_s
        while which not in self._ids and self.spool is not None and self._run_key:
            state = self._look(Spool(self.spool))
            over = self._process is None or self._process.poll() is not None
            if which in self._ids or state.get("error") or over or time.monotonic() > until:
                break
            time.sleep(_POLL_S)
        value: str | None = self._ids.get(which)
        return value

    def _look(self, spool: Spool) -> Record:
        state = spool.state
        self._ids.update({key: state[key] for key in ("run_id", "experiment_id") if key in state})
        return state


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
