"""Plugins: objects that take the place of a part of the Trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.checkpoint import CheckpointIO
from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.launch.launcher import Launcher
from paceline.strategies.precision import Precision


@dataclass
class Plugins:
    """One object of each kind at most.

    Attributes:
        precision: the number formats.
        checkpoint_io: how checkpoints are written and read.
        launcher: where the workers are.
    """

    precision: Precision | None = None
    checkpoint_io: CheckpointIO | None = None
    launcher: Launcher | None = None


_KINDS: dict[str, Any] = {"precision": Precision, "checkpoint_io": CheckpointIO, "launcher": Launcher}


def sort_plugins(given: Any) -> Plugins:
    """The plugins by their kinds.

    Args:
        given: None, one plugin, or a list of them.

    Raises:
        ArgumentTypeError: one is of no kind that there is.
        MisconfigurationError: two are of one kind.
    """
    plugins = Plugins()
    for plugin in given if isinstance(given, list | tuple) else [] if given is None else [given]:
        name = next((name for name, kind in _KINDS.items() if isinstance(plugin, kind)), None)
        if name is None or isinstance(plugin, type):
            raise ArgumentTypeError(
                f"`plugins` holds {plugin!r}. It takes objects of these kinds: a Precision, a CheckpointIO, a Launcher."
            )
        if getattr(plugins, name) is not None:
            raise MisconfigurationError(f"`plugins` holds two of one kind: {name}. Give one of them.")
        setattr(plugins, name, plugin)
    return plugins
