"""Workers that do not have the same: fewer batches, no loss, no call. Nothing hangs, and the numbers are right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.index_data import IndexData
from tests.integration import uneven_tasks as tasks
from torch.utils.data import DataLoader

from paceline import Trainer, seed_everything
from paceline.data import CombinedLoader
from paceline.errors import MisconfigurationError

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(90)]


def trainer(tmp_path: Path, callbacks: Any = (), devices: int = 2, **arguments: Any) -> Trainer:
    return Trainer(
        devices=devices,
        default_root_dir=tmp_path,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        resources_per_worker={"CPU": 0.5},
        **{"max_epochs": 1, **arguments},
    )


def notes(folder: Path, rank: int) -> list[str]:
    return (folder / f"notes-{rank}").read_text().splitlines()


@pytest.mark.parametrize("make", [tasks.counted, tasks.stream, tasks.liar, tasks.both], ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3, "max_epochs": 2}], ids=str)
def test_an_epoch_ends_for_all_where_one_worker_has_no_more(tmp_path: Path, make: Any, options: dict[str, Any]) -> None:
    seed_everything(1)
    runner = trainer(tmp_path, [tasks.Notes(str(tmp_path))], multiple_trainloader_mode="min_size", **options)
    runner.fit(tasks.Uneven(make, (4, 7)))
    epochs = options.get("max_epochs", 1)
    expected = [f"{epoch} {batch}" for epoch in range(epochs) for batch in range(4)]
    steps_per_epoch = 2 if "accumulate_grad_batches" in options else 4
    assert notes(tmp_path, 0)[:-1] == notes(tmp_path, 1)[:-1] == expected
    assert notes(tmp_path, 0)[-1] == notes(tmp_path, 1)[-1]
    assert runner.global_step == steps_per_epoch * epochs
    assert runner.callback_metrics["val_sum"] == 10


def test_the_worker_whose_data_ended_is_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer(tmp_path, max_epochs=3).fit(tasks.Uneven(tasks.stream, (5, 3)))
    text, output = "The training data of worker 1 ended after 3 batches, while worker 0 had more", ""
    deadline = time.monotonic() + 10
    while text not in output and time.monotonic() < deadline:  # workers' output takes a moment
        time.sleep(0.2)
        output += "".join(capfd.readouterr())
    assert output.count(text) == 1


def test_data_that_is_empty_on_one_worker_ends_the_fit(tmp_path: Path) -> None:
    for make in (tasks.stream, tasks.counted):
        runner = trainer(tmp_path, max_epochs=-1)
        runner.fit(tasks.Uneven(make, (0, 3)))
        assert runner.global_step == 0


def test_an_error_in_one_workers_data_reaches_the_caller(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(OSError, match="the disk is gone"):
        trainer(tmp_path).fit(tasks.Uneven(tasks.breaking, (0, 0)))
    assert time.monotonic() - begin < 20


def test_a_step_that_all_workers_skip_is_no_step(tmp_path: Path) -> None:
    runner = trainer(tmp_path, [tasks.Notes(str(tmp_path))])
    runner.fit(tasks.Uneven(tasks.counted, (5, 5), skip=tasks.none_everywhere))
    assert runner.global_step == 3
    assert notes(tmp_path, 0) == notes(tmp_path, 1)


def test_a_step_that_one_worker_skips_is_an_error_on_all(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(
        MisconfigurationError, match="`training_step` returned None on worker 1, but not on all of them"
    ):
        trainer(tmp_path).fit(tasks.Uneven(tasks.counted, (5, 5), skip=tasks.none_on_one))
    assert time.monotonic() - begin < 30


def test_an_epoch_that_ends_early_does_so_on_all_workers(tmp_path: Path) -> None:
    runner = trainer(tmp_path, [tasks.EndsEpoch((0, 1))], max_epochs=2)
    runner.fit(tasks.Uneven(tasks.counted, (5, 5)))
    assert runner.global_step == 4
    with pytest.raises(MisconfigurationError, match="`on_train_batch_start` returned -1 on worker 0, but not on all"):
        trainer(tmp_path, [tasks.EndsEpoch((0,))]).fit(tasks.Uneven(tasks.counted, (5, 5)))


def test_a_checkpoint_is_saved_by_all_workers_or_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.ckpt"
    trainer(tmp_path, [tasks.SavesEverywhere(str(path))]).fit(tasks.Uneven(tasks.counted, (3, 3)))
    assert torch.load(path, weights_only=True)["global_step"] == 3
    with pytest.raises(MisconfigurationError, match="`trainer.save_checkpoint` was called on worker 0, but not on all"):
        trainer(tmp_path, [tasks.SavesOnRankZero(str(path))]).fit(tasks.Uneven(tasks.counted, (3, 3)))


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_several_loaders_in_step_are_evaluated_as_on_one_device(tmp_path: Path, devices: int) -> None:
    loaders = {"a": DataLoader(IndexData(5), batch_size=1), "b": DataLoader(IndexData(2), batch_size=1)}
    pairs = {"max_size_cycle": [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)], "min_size": [(0, 0), (1, 1)]}
    for mode, expected in pairs.items():
        runner = trainer(tmp_path, devices=devices)
        data = CombinedLoader(loaders, mode)
        (result,) = runner.test(tasks.Pairs(), data, verbose=False)
        assert result == {"count": len(expected), "pairs": sum((10 * a + b) ** 2 for a, b in expected)}
        assert runner.predict(tasks.Pairs(), data) == expected
