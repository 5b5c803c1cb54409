"""CSVLogger: a run's values as a table."""

from __future__ import annotations

import os

from paceline.errors import MisconfigurationError
from paceline.loggers.csv_table import CsvTable
from paceline.loggers.file_logger import AXES, FileLogger
from paceline.loggers.spool import Record


class CSVLogger(FileLogger):
    """Writes `metrics.csv` and `hparams.yaml` into `<save_dir>/<name>/<version>`.

    `metrics.csv` has a row for each call, with a column for each name. A step that is run again after a restart has its
    values replaced, not doubled.

    Args:
        save_dir: folder or URL; by default the Trainer's `default_root_dir`, and without one the working folder.
        name: of the experiment; "" for no folder of its own.
        version: of the run: an int for `version_<int>`, or the folder's name. By default one more than is there.
        prefix: put before each name that is logged, with a "-" between.
        flush_logs_every_n_steps: rows wait in memory until so many steps have passed since they were last written.

    Raises:
        MisconfigurationError: `flush_logs_every_n_steps` is less than 1.

    Example:
        >>> trainer = Trainer(logger=CSVLogger("results", name="digits"))
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str = "csv_logs",
        version: int | str | None = None,
        prefix: str = "",
        flush_logs_every_n_steps: int = 100,
    ) -> None:
        if flush_logs_every_n_steps < 1:
            raise MisconfigurationError(
                f"`flush_logs_every_n_steps={flush_logs_every_n_steps}` must be 1 or more; 1 writes every row at once."
            )
        super().__init__(save_dir, name, version, prefix)
        self._flush_every = flush_logs_every_n_steps
        self._flushed_at: int | None = None

    def save(self) -> None:
        """Write the rows that wait in memory."""
        with self._lock:
            if self._store is not None:
                try:
                    self._store.flush()
                except OSError as error:
                    self._warn(error)

    def _write(self, record: Record) -> None:
        if record["kind"] == "params":
            self._write_hyperparameters(record["values"])
            return
        if self._store is None:
            self._store = CsvTable(f"{self.log_dir}/metrics.csv", AXES)
            self._flushed_at = None
        step = record["step"]
        self._store.add(record["values"], step)
        # A step may be less than the last one: after a restart, or in an evaluation after a fit.
        if self._flushed_at is None or abs(step - self._flushed_at) >= self._flush_every:
            self._flushed_at = step
            self._store.flush()

    def _close_store(self) -> None:
        self.save()
        self._store = None
