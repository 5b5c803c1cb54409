"""LambdaCallback: a callback made of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError, nearest

_STATE = ("state_dict", "load_state_dict")


class LambdaCallback(Callback):
    """Calls a function at each hook that is given one; they take what the hook of a `Callback` takes.

    Args:
        hooks: functions by the names of hooks.

    Raises:
        MisconfigurationError: there is no hook of that name; the nearest one is suggested.

    Example:
        >>> LambdaCallback(on_train_epoch_end=lambda trainer, module: print(trainer.callback_metrics))
    """

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        known = [name for name, value in vars(Callback).items() if callable(value) and name not in _STATE]
        known = [name for name in known if not name.startswith("__")]
        for name, function in hooks.items():
            if name not in known:
                raise MisconfigurationError(
                    f"`LambdaCallback({name}=...)`: there is no such hook.{nearest(name, known)}"
                )
            # On the object, so that hooks which nobody gave cost nothing.
            setattr(self, name, function)
