"""MLflowRun: one run in an MLflow store, found or made, and what is added to it."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from paceline.loggers import names
from paceline.loggers.address import sqlite_path
from paceline.loggers.spool import Record, locked

# MLflow's own retries would wait for minutes, out of sight; the sender has its own. Set where a store is written to.
HTTP_SETTINGS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
_FILE_TIMEOUT_S = "120"
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
_LONGEST_PARAM = 6000
_LONGEST_TAG = 8000


class Point(NamedTuple):
    """A value of a metric, under the name that the store knows it by."""

    name: str
    value: float
    time_ms: int
    step: int


class StoreError(Exception):
    """The store, or the run in it, cannot be used now."""


class MLflowRun:
    """Opens the store of a start record, and finds the record's run or makes it.

    Args:
        start: the start record.
        log: takes one line of text.

    Raises:
        Exception: whatever MLflow raises when the store is not there or refuses.
    """

    def __init__(self, start: Record, log: Callable[[str], None]) -> None:
        self._log = log
        self.uri: str = start["tracking_uri"]
        path = sqlite_path(self.uri)
        if path is None:
            self._client, self.experiment_id = self._open(start)
        else:
            folder = os.path.dirname(path)
            os.makedirs(f"{folder}/.paceline", exist_ok=True)
            # Two that create the tables of one database at once break it. And artifacts go beside the database.
            with locked(f"{folder}/.paceline/store.lock"), contextlib.chdir(folder):
                self._client, self.experiment_id = self._open(start)
        run = self._find(start) or self._create(start)
        self.run_id: str = run.info.run_id
        self._params: dict[str, str] = dict(run.data.params)
        self._mapping = names.read_mapping(run.data.tags)
        self._known = {name: escaped for escaped, name in self._mapping.items()}
        self._infinite = {tag for tag in run.data.tags if tag.startswith("paceline.inf/")}

    def _open(self, start: Record) -> tuple[Any, str]:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        client = MlflowClient(self.uri)
        name = start["experiment"]
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return client, client.create_experiment(name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                experiment = client.get_experiment_by_name(name)
        if experiment.lifecycle_stage != "active":
            raise StoreError(f"the experiment {name!r} is deleted in MLflow; restore it, or delete it for good")
        return client, experiment.experiment_id

    def _find(self, start: Record) -> Any:
        if start["run_id"]:
            run = self._client.get_run(start["run_id"])
            self.experiment_id = run.info.experiment_id
            return run
        key = start["run_key"].replace("'", "")
        runs = self._client.search_runs([self.experiment_id], f"tags.`paceline.run` = '{key}'", max_results=1)
        return runs[0] if runs else None

    def _create(self, start: Record) -> Any:
        return self._client.create_run(
            self.experiment_id,
            start_time=start["time_ms"],
            tags={"paceline.run": start["run_key"].replace("'", "")},
            run_name=start["run_name"],
        )

    def check(self) -> None:
        """Ask the store for the run.

        Raises:
            Exception: the store does not answer.
            StoreError: the run is deleted.
        """
        if self._client.get_run(self.run_id).info.lifecycle_stage != "active":
            raise StoreError(f"the run {self.run_id} is deleted in MLflow; restore it")

    # -- what is added, each at most as much as one request takes -------------------------------------------------

    def point(self, name: str, value: float, time_ms: int, step: int) -> Point:
        """A value under a name that the store takes."""
        return Point(self._name(name), value, time_ms, step)

    def log_points(self, points: Sequence[Point]) -> None:
        """At most 1000."""
        from mlflow.entities import Metric

        for point in points:
            if not -(2**63) <= point.step < 2**63:
                raise ValueError(f"the step {point.step} does not fit into 64 bits")
        self._tell_names()
        self._client.log_batch(
            self.run_id,
            metrics=[Metric(name, _finite(value), time_ms, step) for name, value, time_ms, step in points],
            synchronous=True,
        )
        self._tag_infinite(points)

    def log_params(self, params: Sequence[tuple[str, str]]) -> None:
        """At most 100. A parameter that has another value already keeps it; the new one becomes a tag."""
        from mlflow.entities import Param

        new, changed = {}, []
        for key, value in params:
            name, fitting = self._name(key), self._fit("params", key, value, _LONGEST_PARAM)
            if name not in self._params:
                new[name] = fitting
            elif self._params[name] != fitting:
                changed.append((key, value))
        self._tell_names()
        if new:
            entities = [Param(name, value) for name, value in new.items()]
            self._client.log_batch(self.run_id, params=entities, synchronous=True)
            self._params.update(new)
        if changed:
            self._log(
                "hyperparameters that differ from those the run began with are kept as tags paceline.changed/...: "
                + ", ".join(f"{key}: {self._params[self._name(key)]} -> {value}"[:200] for key, value in changed)
            )
            self.log_tags([(f"paceline.changed/{key}", value) for key, value in changed])

    def log_tags(self, tags: Sequence[tuple[str, str]]) -> None:
        """At most 100."""
        from mlflow.entities import RunTag

        if tags:
            entities = [RunTag(self._name(key), self._fit("tags", key, value, _LONGEST_TAG)) for key, value in tags]
            self._client.log_batch(self.run_id, tags=entities, synchronous=True)

    def set_status(self, status: str, time_ms: int) -> None:
        """`finished`, `failed` or `killed`."""
        self._client.set_terminated(self.run_id, _STATUS[status], end_time=time_ms)

    def set_running(self) -> None:
        """The run goes on, or begins."""
        self._client.update_run(self.run_id, status="RUNNING")

    def log_file(self, path: str, folder: str | None) -> None:
        """Upload a file, or a folder with all that is in it."""
        if not os.path.exists(path):
            raise ValueError(f"{path} is not there")
        with _patience():
            if os.path.isdir(path):
                self._client.log_artifacts(self.run_id, path, folder)
            else:
                self._client.log_artifact(self.run_id, path, folder)

    def log_module(self, path: str, import_path: list[str]) -> None:
        """Log the module in a file, as a graph traced from its example input; without that, only say so in a tag."""
        import cloudpickle
        import mlflow
        import torch

        sys.path.extend(folder for folder in import_path if folder not in sys.path)
        with open(path, "rb") as file:
            content = cloudpickle.load(file)
        if content["input"] is None:
            self._log("the model is not logged: it has no `example_input_array` to trace it with")
            self.log_tags([("paceline.model", "not logged: no example_input_array")])
            return
        import mlflow.pytorch

        mlflow.set_tracking_uri(self.uri)
        mlflow.set_experiment(experiment_id=self.experiment_id)  # where it puts the model, whatever the run's is
        example = content["input"]
        with _patience():
            mlflow.pytorch.log_model(
                content["module"].eval(),
                name=content["name"],
                input_example=example.detach().cpu().numpy() if isinstance(example, torch.Tensor) else example,
                serialization_format="pt2",
                pip_requirements=[f"torch=={torch.__version__.split('+')[0]}"],
                run_id=self.run_id,
            )

    # -- names and values -----------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = names.escape(name)
        return self._known[name]

    def _tell_names(self) -> None:
        mapping = {escaped: name for name, escaped in self._known.items() if escaped != name}
        if mapping != self._mapping:
            self.log_tags(list(names.mapping_tags(mapping).items()))
            self._mapping = mapping

    def _fit(self, kind: str, key: str, value: str, limit: int) -> str:
        """A value that is too long goes whole into an artifact, and cut to where it was."""
        if len(value) <= limit:
            return value
        digest = hashlib.sha256(value.encode()).hexdigest()[:16]
        place = f"paceline/{kind}/{self._name(key)[:100].replace('/', '.')}-{digest}.json"
        with _patience():
            self._client.log_dict(self.run_id, {key: value}, place)
        note = f"... ({len(value)} characters, the whole is the artifact {place})"
        return value[: limit - len(note)] + note

    def _tag_infinite(self, points: Sequence[Point]) -> None:
        """MLflow stores infinity as the largest number: a tag tells the one from the other, where it first came."""
        first = {point.name: point for point in reversed(points) if math.isinf(point.value)}
        tags = [
            (tag, f"{point.value} at step {point.step}")
            for name, point in first.items()
            if self._name(tag := f"paceline.inf/{self._mapping.get(name, name)}") not in self._infinite
        ]
        for start in range(0, len(tags), 100):
            self.log_tags(tags[start : start + 100])
        self._infinite.update(self._name(tag) for tag, _ in tags)


def is_refusal(error: Exception) -> bool:
    """Whether the store will never take this, however often it is sent."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST") or "error code 413" in str(error)
    return isinstance(error, TypeError | ValueError | OverflowError) and not isinstance(error, OSError)


def _finite(value: float) -> float:
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Files take longer to arrive than numbers."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ.get(name)
    os.environ[name] = _FILE_TIMEOUT_S
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
