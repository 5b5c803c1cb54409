"""CsvTable: rows of values in a CSV file that gets new columns as it goes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from paceline.loggers.files import is_local, open_storage, read_text, write_text

Row = dict[str, str]


class CsvTable:
    """A column for each name, and of each name one value per step: the newest.

    Args:
        path: path or URL; what is there already stays.
        axes: columns that do not count as values: several rows of one step may have them.
    """

    def __init__(self, path: str, axes: tuple[str, ...]) -> None:
        self.path = path
        self._axes = axes
        self._waiting: list[Row] = []
        rows = self._read()
        self._columns = list(dict.fromkeys(["step", *(name for row in rows for name in row)]))
        self._highest = {name: max(int(row["step"]) for row in rows if name in row) for name in self._columns if rows}
        # A file that is new, or whose last line a kill may have cut, is written anew; else lines are appended.
        self._is_to_rewrite = True

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Take a row; `flush` writes it. NaN and infinities are kept."""
        for name in values:
            if name not in self._columns:
                self._columns.append(name)
                self._is_to_rewrite = True
            elif name not in self._axes and step <= self._highest.get(name, step - 1):
                self._is_to_rewrite = True
            self._highest[name] = max(step, self._highest.get(name, step))
        self._waiting.append({name: repr(float(value)) for name, value in values.items()} | {"step": str(step)})

    def flush(self) -> None:
        """Write the rows that wait.

        Raises:
            OSError: they cannot be written, and wait on.
        """
        if not self._waiting:
            return
        if self._is_to_rewrite or not is_local(self.path):
            write_text(self.path, self._text(self._newest([*self._read(), *self._waiting]), header=True))
        else:
            with open(open_storage(self.path)[1], "a", encoding="utf-8", newline="") as file:
                file.write(self._text(self._waiting, header=False))
        self._waiting.clear()
        self._is_to_rewrite = False

    def _read(self) -> list[Row]:
        text = read_text(self.path)
        whole_lines = text[: text.rfind("\n") + 1]
        return [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(io.StringIO(whole_lines))]

    def _text(self, rows: list[Row], header: bool) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _newest(self, rows: list[Row]) -> list[Row]:
        """The rows without the values that a later row has for the same step, and without those left empty."""
        seen: set[tuple[str, str]] = set()
        kept = []
        for row in reversed(rows):
            names = [name for name in row if name not in self._axes]
            fresh = [name for name in names if (row["step"], name) not in seen]
            seen.update((row["step"], name) for name in fresh)
            if fresh or not names:
                kept.append({name: row[name] for name in row if name in self._axes or name in fresh})
        return kept[::-1]
