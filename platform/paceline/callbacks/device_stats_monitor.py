"""DeviceStatsMonitor: memory and load of the devices, as curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from paceline.callbacks.callback import Callback
from paceline.errors import MisconfigurationError

if TYPE_CHECKING:
    from paceline.module import Module
    from paceline.trainer import Trainer


class DeviceStatsMonitor(Callback):
    """Logs what the first worker's device is busy with, as batches begin and end.

    Rows come every `log_every_n_steps` steps, in evaluation every so many batches.

    The names are `DeviceStatsMonitor.on_train_batch_start/<what>` and the like. Of a GPU it is what
    `torch.cuda.memory_stats` says; of the CPU the load in percent, and the machine's and this process's memory.

    Args:
        cpu_stats: log those of the CPU; None does so where training runs on it.

    Raises:
        MisconfigurationError: when a run starts: there is no logger.
    """

    def __init__(self, cpu_stats: bool | None = None) -> None:
        self.cpu_stats = cpu_stats
        self._logged_at: dict[str, int] = {}

    def setup(self, trainer: Trainer, pl_module: Module, stage: str) -> None:
        """See whether there is a logger, and start to measure the CPU's load."""
        if not trainer.loggers and not trainer.config.fast_dev_run:
            raise MisconfigurationError(
                "DeviceStatsMonitor has nowhere to log to: give the Trainer a logger, or leave it out."
            )
        self._logged_at.clear()
        self._stats(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        """Before a batch."""
        self._log(trainer, "on_train_batch_start", trainer.run.progress.stepped_batches)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After a batch."""
        self._log(trainer, "on_train_batch_end", trainer.run.progress.stepped_batches - 1)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a batch."""
        if not trainer.sanity_checking:
            self._log(trainer, "on_validation_batch_end", trainer.run.progress.evaluated_batches)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """After a batch."""
        self._log(trainer, "on_test_batch_end", trainer.run.progress.evaluated_batches)

    def _log(self, trainer: Trainer, hook: str, step: int) -> None:
        every = trainer.config.log_every_n_steps
        # A step may take several batches, and the first of them end before there is any step.
        if not every or (step + 1) % every or step <= self._logged_at.get(hook, -1) or not trainer.is_global_zero:
            return
        self._logged_at[hook] = step
        values = {f"{type(self).__name__}.{hook}/{name}": value for name, value in self._stats(trainer).items()}
        trainer.run.log_row(values, step)

    def _stats(self, trainer: Trainer) -> dict[str, float]:
        device = trainer.strategy.device
        stats: dict[str, float] = {}
        if device.type == "cuda":
            stats |= {name: float(value) for name, value in torch.cuda.memory_stats(device).items()}
        if self.cpu_stats or (self.cpu_stats is None and device.type == "cpu"):
            stats |= cpu_stats()
        return stats


def cpu_stats() -> dict[str, float]:
    """The CPUs' load since the last call, the machine's memory in use, both in percent; this process's memory in MB."""
    import psutil

    return {
        "cpu_percent": float(psutil.cpu_percent()),
        "cpu_vm_percent": float(psutil.virtual_memory().percent),
        "cpu_process_rss_mb": psutil.Process().memory_info().rss / 1e6,
    }
