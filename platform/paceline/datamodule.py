"""DataModule: data sets, their preparation and their loaders in one object."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset

from paceline.hyperparameters import HasHyperParameters

if TYPE_CHECKING:
    from paceline.trainer import Trainer


class DataModule(HasHyperParameters):
    """Data for every entry point. Override the loader hooks that you need, and `prepare_data` and `setup` if useful.

    Attributes:
        trainer: the live trainer inside a run, else None.
        prepare_data_per_node: True (default): `prepare_data` runs once on each node; False: once in the cluster.
    """

    _defines_hooks = True
    prepare_data_per_node: bool = True
    trainer: Trainer | None = None

    def prepare_data(self) -> None:
        """Download or write data: called in one process, before `setup`; set no attributes here."""

    def setup(self, stage: str) -> None:
        """Build data sets, in every process; `stage` is "fit", "validate", "test" or "predict"."""

    def train_dataloader(self) -> Any:
        """The training loader."""

    def val_dataloader(self) -> Any:
        """The validation loader, or a list of them."""

    def test_dataloader(self) -> Any:
        """The test loader, or a list of them."""

    def predict_dataloader(self) -> Any:
        """The loader to predict on, or a list of them."""

    def teardown(self, stage: str) -> None:
        """Clean up after a run, also after one that failed."""

    def on_exception(self, exception: BaseException) -> None:
        """The run ends with this exception."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Change the checkpoint before it is written."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Look at, or change, a checkpoint before it is loaded."""

    def state_dict(self) -> dict[str, Any]:
        """What checkpoints keep of this object."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "trainer"}

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
    ) -> DataModule:
        """A data module over plain data sets; the training one is shuffled if it has a length.

        Args:
            train_dataset: a data set, as are the others; a list of data sets gives a list of loaders.
            val_dataset: validation.
            test_dataset: test.
            predict_dataset: prediction.
            batch_size: samples per batch and worker.
            num_workers: loading processes of each loader.
        """

        def loaders(data: Any, shuffle: bool = False) -> Any:
            if isinstance(data, list | tuple):
                return [loaders(one, shuffle) for one in data]
            shuffle = shuffle and isinstance(data, Sized) and not isinstance(data, IterableDataset)
            return DataLoader(data, batch_size=batch_size, shuffle=shuffle, num_workers=num_workers)

        given = {
            "train_dataloader": train_dataset,
            "val_dataloader": val_dataset,
            "test_dataloader": test_dataset,
            "predict_dataloader": predict_dataset,
        }
        hooks = {
            name: (lambda self, data=data, name=name: loaders(data, shuffle=name == "train_dataloader"))
            for name, data in given.items()
            if data is not None
        }
        return type("DataModuleOfDatasets", (DataModule,), hooks)()  # type: ignore[no-any-return]
