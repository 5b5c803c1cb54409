"""DataView: what a Trainer shows of its data: loaders, numbers of batches, and how many steps they make."""

from __future__ import annotations

from typing import Any

from paceline.config import TrainerConfig
from paceline.loops.run import Run


class DataView:
    """The properties of `Trainer` that are about data: of the live run, afterwards of the last one.

    Loaders are those of this process; numbers of batches are ints, infinity for a loader without length.
    """

    config: TrainerConfig
    _live_run: Run | None
    _loaders: dict[str, Any]
    _num_batches: dict[str, list[float]]

    @property
    def train_dataloader(self) -> Any:
        """The training loader, or the structure of loaders."""
        return self._current_loaders.get("train")

    @property
    def val_dataloaders(self) -> list[Any]:
        """The validation loaders."""
        return list(self._current_loaders.get("val", []))

    @property
    def test_dataloaders(self) -> list[Any]:
        """The test loaders."""
        return list(self._current_loaders.get("test", []))

    @property
    def predict_dataloaders(self) -> list[Any]:
        """The loaders to predict on."""
        return list(self._current_loaders.get("predict", []))

    @property
    def num_training_batches(self) -> float:
        """Training batches in an epoch of this worker; 0 before the first fit."""
        return self._counts("train")[0] if self._counts("train") else 0

    @property
    def num_val_batches(self) -> list[float]:
        """Batches of each validation loader."""
        return self._counts("val")

    @property
    def num_sanity_val_batches(self) -> list[float]:
        """Batches of each validation loader that run before training."""
        steps = self.config.num_sanity_val_steps
        return [count if steps == -1 else min(count, steps) for count in self.num_val_batches]

    @property
    def num_test_batches(self) -> list[float]:
        """Batches of each test loader."""
        return self._counts("test")

    @property
    def num_predict_batches(self) -> list[float]:
        """Batches of each loader to predict on."""
        return self._counts("predict")

    @property
    def enable_validation(self) -> bool:
        """Whether fits validate: the module has a validation step, and there is something to validate on."""
        return any(self.num_val_batches)

    def _counts(self, kind: str) -> list[float]:
        live = self._live_run
        counts = (live.num_batches if live is not None else self._num_batches).get(kind, [])
        return [int(count) if count < float("inf") else count for count in counts]

    @property
    def _current_loaders(self) -> dict[str, Any]:
        return self._live_run.loaders if self._live_run is not None else self._loaders
