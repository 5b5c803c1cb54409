"""The command `paceline`."""

from __future__ import annotations

import argparse
import glob
import os
import sys

from paceline.loggers.address import without_password
from paceline.loggers.sender import send_now
from paceline.loggers.spool import Spool


def sync(folders: list[str]) -> int:
    """Send the records that wait under these folders to MLflow.

    Returns:
        0 if no record waits any more, else 1.
    """
    waiting = 0
    spools = [path for folder in folders for path in sorted(glob.glob(f"{glob.escape(folder)}/.paceline/spool/*/"))]
    if not spools:
        print("Nothing waits.")
    for path in spools:
        spool = Spool(os.path.abspath(path))
        destination = next((record["tracking_uri"] for record in spool.lives() if record["kind"] == "start"), "")
        outcome = send_now(spool, lambda text: print(f"  {text}"))
        if destination:
            print(
                f"{os.path.basename(spool.folder)}: {outcome.records} records with {outcome.points} values sent to "
                + without_password(destination)
            )
        if outcome.waiting:
            print(f"  {outcome.waiting} records still wait: {outcome.reason}")
        waiting += outcome.waiting
    return 1 if waiting else 0


def main(argv: list[str] | None = None) -> int:
    """Carry out a command; `argv` is what follows `paceline`, by default from the command line."""
    parser = argparse.ArgumentParser(prog="paceline", description="Experiments with paceline.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("sync", help="send records that wait on this machine to MLflow")
    command.add_argument(
        "folders", metavar="DIR", nargs="*", default=["."], help="where runs were started (default: .)"
    )
    arguments = parser.parse_args(argv)
    return sync(arguments.folders)


if __name__ == "__main__":
    sys.exit(main())
