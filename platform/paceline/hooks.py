"""Every hook in calling order, and the calls of one run: who overrides which hook is found once, before the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

Span = Callable[[str, Callable[..., Any]], Callable[..., Any]]

_OPEN = ("setup", "configure_model")
_CLOSE = ("teardown",)
_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def _evaluation(stage: str) -> tuple[str, ...]:
    return (
        f"on_{stage}_start",
        f"on_{stage}_epoch_start",
        *_TRANSFER,
        f"on_{stage}_batch_start",
        f"{stage}_step",
        f"on_{stage}_batch_end",
        f"on_{stage}_epoch_end",
        f"on_{stage}_end",
    )


VALIDATION_ORDER = _evaluation("validation")

# The table: the order in which a run of each entry point calls its hooks. A hook called several times stands where
# it is first called; the lines marked "per epoch" and "per batch" repeat.
ORDER: dict[str, tuple[str, ...]] = {
    "fit": (
        "prepare_data",
        *_OPEN,
        "configure_optimizers",
        "on_fit_start",
        "on_sanity_check_start",
        "on_sanity_check_end",
        "on_train_start",
        # per epoch
        "on_train_epoch_start",
        # per batch
        *_TRANSFER,
        "on_train_batch_start",
        "training_step",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "configure_gradient_clipping",
        "on_train_batch_end",
        # where due
        *VALIDATION_ORDER,
        # per epoch
        "on_train_epoch_end",
        "on_train_end",
        "on_fit_end",
        *_CLOSE,
    ),
    "validate": ("prepare_data", *_OPEN, *VALIDATION_ORDER, *_CLOSE),
    "test": ("prepare_data", *_OPEN, *_evaluation("test"), *_CLOSE),
    "predict": ("prepare_data", *_OPEN, *_evaluation("predict"), *_CLOSE),
}

# Called where the thing happens, not at a fixed place.
ANYTIME = ("on_exception", "on_save_checkpoint", "on_load_checkpoint")

DATAMODULE_HOOKS = ("setup", "teardown", *ANYTIME)

_OWN = (  # the module's or data module's work, not announcements: callbacks have no hook of these names
    "prepare_data",
    "configure_model",
    "configure_optimizers",
    "configure_gradient_clipping",
    "training_step",
    "validation_step",
    "test_step",
    "predict_step",
    *_TRANSFER,
)
_ANNOUNCED = tuple(
    dict.fromkeys(name for order in ORDER.values() for name in order if name not in _OWN and name not in ANYTIME)
)

# How this field's users may know a hook by an older name, and what it is called today.
RENAMED = {
    "configure_sharded_model": "configure_model",
    "training_epoch_end": "on_train_epoch_end",
    "validation_epoch_end": "on_validation_epoch_end",
    "test_epoch_end": "on_test_epoch_end",
    "on_epoch_start": "on_train_epoch_start",
    "on_epoch_end": "on_train_epoch_end",
    "on_batch_start": "on_train_batch_start",
    "on_batch_end": "on_train_batch_end",
    "on_pretrain_routine_start": "on_fit_start",
    "on_pretrain_routine_end": "on_fit_start",
}


def overridden(owner: Any, name: str) -> bool:
    """Whether somebody gave `owner` a hook `name` of their own.

    paceline's own base classes say so by `_defines_hooks = True`: their hooks do nothing.
    """
    if name in vars(owner):
        return True
    found = getattr(type(owner), name, None)
    bases = (vars(cls).get(name) for cls in type(owner).__mro__ if vars(cls).get("_defines_hooks", False))
    return found is not None and all(found is not base for base in bases)


class Hooks:
    """The hook calls of one run.

    `hooks[name]` is a tuple of functions, callbacks' before the module's, empty when nobody overrides the hook. A
    callback with `reads_metrics` comes after the module: what the module's hook logs can be reduced in between.

    Args:
        trainer: passed to callbacks as their first argument.
        module: passed to callbacks as their second argument.
        datamodule: may be None.
        callbacks: in calling order.
        enter: called with the name of each hook before it runs, so that `log` knows where it is called from.
        span: gives a function that is measured under a name, for profilers.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        datamodule: Any,
        callbacks: Iterable[Any],
        enter: Callable[[str], None],
        span: Span | None = None,
    ) -> None:
        callbacks = list(callbacks)

        def measured(kind: str, owner: Any, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            return call if span is None else span(f"[{kind}]{type(owner).__name__}.{name}", call)

        self._enter = enter
        self._calls: dict[str, tuple[Callable[..., Any], ...]] = {}
        self._reading: dict[str, tuple[Callable[..., Any], ...]] = {}
        for name in (*_ANNOUNCED, *ANYTIME):
            of_callbacks = [
                (
                    callback.reads_metrics,
                    measured("Callback", callback, name, partial(getattr(callback, name), trainer, module)),
                )
                for callback in callbacks
                if overridden(callback, name)
            ]
            # The data module has few of these hooks. It comes first: what it prepares is there for everybody else.
            owners = [o for o in (datamodule,) if o is not None and name in DATAMODULE_HOOKS]
            self._calls[name] = (
                *(measured("DataModule", o, name, getattr(o, name)) for o in owners if overridden(o, name)),
                *(call for last, call in of_callbacks if not last),
                *(measured("Module", o, name, getattr(o, name)) for o in (module,) if overridden(o, name)),
            )
            self._reading[name] = tuple(call for last, call in of_callbacks if last)

    def __getitem__(self, name: str) -> tuple[Callable[..., Any], ...]:
        return self._calls[name] + self._reading[name]

    def call(self, name: str, *args: Any) -> None:
        """Call everybody's hook `name`."""
        self.call_logging(name, *args)
        self.call_reading(name, *args)

    def call_logging(self, name: str, *args: Any) -> bool:
        """Call the hook of all but the callbacks with `reads_metrics`; whether there was any, on all workers alike."""
        self._call(name, self._calls[name], args)
        return bool(self._calls[name])

    def call_reading(self, name: str, *args: Any) -> None:
        """Call the hook of the callbacks with `reads_metrics`."""
        self._call(name, self._reading[name], args)

    def _call(self, name: str, calls: tuple[Callable[..., Any], ...], args: tuple[Any, ...]) -> None:
        if calls:
            self._enter(name)
            for call in calls:
                call(*args)
