"""Logged values: kept on their device, read once per row, and reduced over all workers in one collective per epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.errors import MisconfigurationError
from paceline.values import EpochValue, Reduce, Values, batch_size_of, combine, number, read, scalar, wide

Gather = Callable[[Any], list[Any]]

REDUCTIONS = ("mean", "sum", "min", "max")
_BY_FUNCTION = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.min: "min",
    torch.max: "max",
    min: "min",
    max: "max",
}

# Where values may be logged from: the default (on_step, on_epoch) of each hook, and whether on_step is allowed there.
_STEP_HOOKS = {
    "training_step": (True, False),
    "on_train_batch_start": (True, False),
    "on_train_batch_end": (True, False),
    "on_before_zero_grad": (True, False),
    "on_before_backward": (True, False),
    "on_after_backward": (True, False),
    "on_before_optimizer_step": (True, False),
    **{
        hook: (False, True)
        for stage in ("validation", "test")
        for hook in (f"{stage}_step", f"on_{stage}_batch_start", f"on_{stage}_batch_end")
    },
}
_EPOCH_HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    *(f"on_{stage}{part}" for stage in ("validation", "test") for part in ("_start", "_epoch_start", "_epoch_end")),
)


@dataclass(slots=True)
class _Entry:
    """One name logged from one hook: its options, the newest value, and what the epoch has gathered."""

    stage: str
    name: str
    on_step: bool
    on_epoch: bool
    reduce: Reduce
    prog_bar: bool
    logger: bool
    sync_step: bool
    sync_epoch: bool
    loader: int | None
    options: tuple[Any, ...] | None  # as `log` got them; None when the entry comes from a checkpoint
    newest: Any = None  # logged since the last row
    unread: bool = False  # ... and not yet among the shown values
    total: Tensor | float | None = None  # a tensor where values come from another device: nothing waits for them
    weight: float = 0.0
    values: list[Tensor | float] = field(default_factory=list)
    source: Any = None  # a metric object, which does its own accumulation

    @property
    def step_name(self) -> str:
        return f"{self.name}_step" if self.on_epoch else self.name

    @property
    def epoch_name(self) -> str:
        return f"{self.name}_epoch" if self.on_step else self.name

    def add_to_epoch(self, value: Tensor | float, batch_size: float) -> None:
        """Add one step's value to what the epoch has so far."""
        if callable(self.reduce):
            self.values.append(value)
            return
        weight = batch_size if self.reduce == "mean" else 1
        self.weight += weight
        if not isinstance(value, Tensor) or isinstance(self.total, float):
            self.total = _added(self.reduce, self.total, float(value), weight)
            return
        if self.total is None:
            self.total = value.to(wide(value), copy=True).mul_(weight)
            return
        if value.device != self.total.device:
            value = value.to(self.total.device)
        if self.reduce in ("mean", "sum"):
            self.total.add_(value, alpha=weight)
        else:
            choose = torch.minimum if self.reduce == "min" else torch.maximum
            self.total = choose(self.total, value.to(self.total.dtype))

    @property
    def has_epoch_value(self) -> bool:
        return self.on_epoch and (self.total is not None or bool(self.values) or self.source is not None)

    def share(self) -> _Share:
        """This worker's part of the epoch value, in plain numbers that travel well."""
        if self.source is not None:
            # A metric object accumulates, and reduces over workers, by itself: equal values have themselves as mean.
            total, weight, kind = [float(self.source.compute())], 1.0, "mean"
        elif callable(self.reduce):
            total, weight, kind = [float(value) for value in self.values], 0.0, "function"
        else:
            total, weight, kind = [float(self.total)], self.weight, self.reduce  # type: ignore[arg-type]
        return _Share(self.name, self.epoch_name, kind, total, weight, self.logger, self.prog_bar, self.loader)

    def clear(self) -> None:
        self.total, self.weight, self.values = None, 0.0, []
        if self.source is not None:
            self.source.reset()
            self.source = None


def _added(reduce: Reduce, total: Tensor | float | None, value: float, weight: float) -> float:
    if total is None:
        return value * weight
    if reduce in ("mean", "sum"):
        return float(total) + value * weight
    if math.isnan(value):
        return value
    return min(float(total), value) if reduce == "min" else max(float(total), value)


@dataclass(slots=True)
class _Share:
    """One worker's part of one epoch value."""

    name: str
    epoch_name: str
    kind: str
    total: list[float]
    weight: float
    logger: bool
    prog_bar: bool
    loader: int | None


class Metrics:
    """Everything that one worker's run logs.

    Args:
        gather: gives a list with every worker's object, in rank order.
        is_global_zero: whether this worker's step values are those that are shown.
        to_cpu: bring values off their device as they are logged.
    """

    def __init__(self, gather: Gather, is_global_zero: bool = True, to_cpu: bool = False) -> None:
        self._gather = gather
        self._to_cpu = to_cpu
        self._is_global_zero = is_global_zero
        self._entries: dict[tuple[str, str, int | None], _Entry] = {}
        self._values = Values()
        self._batch: Any = None
        self._batch_size: int | None = None
        self.hook = ""
        self.dataloader_idx: int | None = None

    # -- where we are ---------------------------------------------------------------------------------------------

    def enter(self, hook: str) -> None:
        """Say which hook's values come next."""
        self.hook = hook

    def begin_batch(self, hook: str, batch: Any) -> None:
        """Say that a new batch is at work: its size weighs the epoch means."""
        self.hook = hook
        self._batch = batch
        self._batch_size = None

    # -- logging --------------------------------------------------------------------------------------------------

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Reduce = "mean",
        sync_dist: bool | None = None,
        batch_size: int | None = None,
        add_dataloader_idx: bool = True,
        rank_zero_only: bool = False,
    ) -> None:
        """Take one value; the arguments are those of `Module.log`."""
        loader = self.dataloader_idx if add_dataloader_idx else None
        key = (self.hook, name, loader)
        options = (prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, rank_zero_only)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._new_entry(name, loader, options)
        elif entry.options is None:
            entry.options = options
        elif entry.options != options:
            raise MisconfigurationError(
                f"`log({name!r})` in `{self.hook}` was called with other arguments before. One name has one meaning: "
                "use the same arguments, or another name."
            )
        if rank_zero_only and not self._is_global_zero:
            return
        if isinstance(value, Tensor):
            if value.ndim:
                value = scalar(name, value)
            # A copy: the user may change it in place.
            stays = value.device.type != "cpu" and not self._to_cpu
            value = value.detach().clone() if stays else float(value.item())
        elif hasattr(value, "compute") and hasattr(value, "reset"):
            self._log_metric_object(entry, value)
            return
        else:
            value = number(name, value)
        if entry.on_step:
            entry.newest, entry.unread = value, True
        if entry.on_epoch:
            size = batch_size if batch_size is not None else self._size_of_batch()
            entry.add_to_epoch(value, size)

    def _new_entry(self, name: str, loader: int | None, options: tuple[Any, ...]) -> _Entry:
        prog_bar, logger, on_step, on_epoch, reduce_fx, sync_dist, _ = options
        if not isinstance(name, str) or not name:
            raise MisconfigurationError(f"A logged value needs a name, a non-empty str, not {name!r}.")
        if "/dataloader_idx_" in name:
            raise MisconfigurationError(f"`log({name!r})`: the part `/dataloader_idx_` is added by the trainer.")
        on_step, on_epoch = self._levels(name, on_step, on_epoch)
        reduce = reduce_fx.lower() if isinstance(reduce_fx, str) else _BY_FUNCTION.get(reduce_fx, reduce_fx)
        if not callable(reduce) and reduce not in REDUCTIONS:
            raise MisconfigurationError(
                f"`log({name!r}, reduce_fx={reduce_fx!r})`: use one of {', '.join(REDUCTIONS)}, or a function of a "
                "1-d tensor."
            )
        shown = name if loader is None else f"{name}/dataloader_idx_{loader}"
        return _Entry(
            stage=stage_of(self.hook),
            name=shown,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce=reduce,
            prog_bar=prog_bar,
            logger=logger,
            sync_step=sync_dist is True,
            sync_epoch=sync_dist is not False,
            loader=loader,
            options=options,
        )

    def _levels(self, name: str, on_step: bool | None, on_epoch: bool | None) -> tuple[bool, bool]:
        if self.hook in _STEP_HOOKS:
            step_default, epoch_default = _STEP_HOOKS[self.hook]
        elif self.hook in _EPOCH_HOOKS:
            step_default, epoch_default = False, True
            if on_step:
                raise MisconfigurationError(
                    f"`log({name!r}, on_step=True)` in `{self.hook}`, which is not called per step: use on_epoch=True."
                )
        else:
            raise MisconfigurationError(
                f"`log({name!r})` was called in `{self.hook or 'no hook'}`. Values can be logged in the training, "
                "validation and test steps and in the hooks around them."
            )
        step = step_default if on_step is None else on_step
        epoch = epoch_default if on_epoch is None else on_epoch
        if not step and not epoch:
            raise MisconfigurationError(f"`log({name!r}, on_step=False, on_epoch=False)` would log nothing.")
        return step, epoch

    def _log_metric_object(self, entry: _Entry, metric: Any) -> None:
        entry.source = metric
        if entry.on_step:
            # What torchmetrics' objects returned for this batch; others have only their value so far.
            batch_value = getattr(metric, "_forward_cache", None)
            entry.newest, entry.unread = float(batch_value if batch_value is not None else metric.compute()), True

    def _size_of_batch(self) -> int:
        if self._batch_size is None:
            self._batch_size = batch_size_of(self._batch) or 1
        return self._batch_size

    # -- reading --------------------------------------------------------------------------------------------------

    def step_row(self, stage: str) -> dict[str, float]:
        """The newest values of the names logged per step in `stage` ("training", "validation", "test"), for loggers.

        Every worker has to call it: names logged with `sync_dist=True` are averaged over the workers, in training.
        """
        entries = [e for e in self._entries.values() if e.stage == stage and e.newest is not None]
        shown = self.values.callback
        synced = [e for e in entries if e.sync_step] if stage == "training" else []
        if synced:
            shares = self._gather({e.step_name: shown[e.step_name] for e in synced})
            for entry in synced:
                values = [share[entry.step_name] for share in shares if entry.step_name in share]
                self._values.take(entry.step_name, combine(entry.reduce, values), entry.logger, entry.prog_bar)
        for entry in entries:
            entry.newest = None
        return {e.step_name: shown[e.step_name] for e in entries if e.logger}

    def reduce_epoch(self, stage: str, is_over: bool = True) -> list[EpochValue]:
        """Reduce what `stage` has logged per epoch since the last call over all workers.

        Every worker has to call it; a name that only some have logged is reduced over those.

        Args:
            stage: "training", "validation" or "test".
            is_over: start anew; False for an epoch that a later fit may go on with.
        """
        entries = {
            "|".join(map(str, key)): entry
            for key, entry in self._entries.items()
            if entry.stage == stage and entry.has_epoch_value
        }
        shares = {key: entry.share() for key, entry in entries.items()}
        gathered = self._gather({key: share for key, share in shares.items() if entries[key].sync_epoch})
        self.values  # noqa: B018 - step values that nobody has read yet are older than the epoch's
        results = []
        for key in dict.fromkeys([*(key for worker in gathered for key in worker), *shares]):
            parts = [worker[key] for worker in gathered if key in worker] or [shares[key]]
            entry = entries.get(key)
            share = parts[0]
            if share.kind == "function":
                if entry is None:
                    continue
                value = combine(entry.reduce, [one for part in parts for one in part.total])
            elif share.kind == "mean":
                value = sum(part.total[0] for part in parts) / max(sum(part.weight for part in parts), 1e-300)
            else:
                value = combine(share.kind, [part.total[0] for part in parts])
            self._values.take(share.epoch_name, value, share.logger, share.prog_bar)
            self._values.callback[share.name] = value
            self._values.fresh |= {share.epoch_name, share.name}
            results.append(EpochValue(share.epoch_name, value, share.logger, share.loader))
        if is_over:
            for entry in entries.values():
                entry.clear()
        return results

    @property
    def values(self) -> Values:
        """The newest values of all names. Reading it waits for the device; the loop itself does not."""
        entries = [entry for entry in self._entries.values() if entry.unread]
        for entry, value in zip(entries, read([entry.newest for entry in entries]), strict=True):
            entry.unread = False
            self._values.take(entry.step_name, value, entry.logger, entry.prog_bar)
            if entry.on_epoch:
                self._values.callback[entry.name] = value
        return self._values

    # -- sanity check and checkpoints -----------------------------------------------------------------------------

    def forget(self) -> None:
        """As if nothing had ever been logged: after the sanity check."""
        for entry in self._entries.values():
            entry.clear()
        self._entries.clear()
        self._values = Values()

    def state_dict(self) -> list[dict[str, Any]]:
        """This worker's part of the training epoch so far.

        A value with a reduction function of the user's own is left out, for code is not kept in checkpoints; so is a
        metric object, which is part of the module.
        """
        return [
            {
                "key": list(key),
                **{name: getattr(entry, name) for name in _KEPT},
                "total": entry.total.to("cpu", copy=True) if isinstance(entry.total, Tensor) else entry.total,
            }
            for key, entry in self._entries.items()
            if entry.stage == "training" and entry.total is not None
        ]

    def load_state_dict(self, state: list[dict[str, Any]]) -> None:
        """Go on from `state_dict`; a second call adds what another worker had."""
        for kept in state:
            hook, name, loader = kept["key"]
            entry = self._entries.get((hook, name, loader))
            if entry is None:
                fields = {field: kept[field] for field in (*_KEPT, "total")}
                self._entries[hook, name, loader] = _Entry(**fields, options=None)
            else:
                entry.total = _added(entry.reduce, entry.total, float(kept["total"]), 1.0)
                entry.weight += kept["weight"]


_KEPT = (
    "stage",
    "name",
    "on_step",
    "on_epoch",
    "reduce",
    "prog_bar",
    "logger",
    "sync_step",
    "sync_epoch",
    "loader",
    "weight",
)


def stage_of(hook: str) -> str:
    """The stage whose rows a value logged in `hook` belongs to."""
    return next((stage for stage in ("validation", "test") if stage in hook), "training")
