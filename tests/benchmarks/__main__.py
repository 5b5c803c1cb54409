"""Measures paceline against its peers, each as a ratio in the same run, and writes RESULTS.md beside this file."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks import launch, step_time
from tests.benchmarks.measure import HEADER

SUBJECTS = {"step_time": step_time, "launch": launch}


def machine() -> str:
    """Cores, processor and versions."""
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].split(":", 1)[1].strip() if models else cpu
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "ray", "lightning"))
    return f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}, {packages}"


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Run the subjects that are named, or all."""
    names = sys.argv[1:] or list(SUBJECTS)
    if unknown := set(names) - set(SUBJECTS):
        sys.exit(f"There is no subject {', '.join(sorted(unknown))}. There are: {', '.join(SUBJECTS)}.")
    measures = [measure for name in names for measure in SUBJECTS[name].run(say)]
    text = "\n".join(
        [
            "# Measures",
            "",
            f"Written by `make bench` on {datetime.date.today():%Y-%m-%d}, on {machine()}.",
            "",
            "Each row is a ratio of two figures of the same run, the smaller the better: the median over repetitions",
            "in fresh processes, and the smallest and largest of them; the contenders take turns.",
            "",
            HEADER,
            *(measure.row() for measure in measures),
            "",
        ]
    )
    print(text)
    if names == list(SUBJECTS):
        Path(__file__).with_name("RESULTS.md").write_text(text)


if __name__ == "__main__":
    main()
