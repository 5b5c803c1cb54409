"""DDP and FSDP on real workers: one device's results, on any number of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration import strategy_tasks, tasks
from torch import nn

from paceline import Module, Trainer, seed_everything
from paceline.callbacks import ModelCheckpoint, WeightAveraging
from paceline.errors import MisconfigurationError
from paceline.strategies import FSDPStrategy, register_strategy
from paceline.strategies.accelerators import Accelerator, CUDAAccelerator

pytestmark = pytest.mark.usefixtures("local_ray")

GLOBAL_BATCH = 24
EPOCHS = 2


def fit(
    tmp_path: Path, module: Module, workers: int, strategy: Any, ckpt_path: Any = None, **arguments: Any
) -> Trainer:
    runner = Trainer(
        devices=workers,
        strategy=strategy,
        resources_per_worker={"CPU": 0.5},
        default_root_dir=tmp_path,
        **{
            "max_epochs": EPOCHS,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": "callbacks" in arguments,
            **arguments,
        },
    )
    loader = tasks.loader(GLOBAL_BATCH // workers, shuffle=False)
    runner.fit(module, loader, tasks.loader(10, shuffle=False), ckpt_path=ckpt_path)
    return runner


def bare(module: Any, accumulate: int = 1, clip: float | None = None, epochs: int = EPOCHS) -> nn.Module:
    """The same in a PyTorch loop on one device."""
    module = copy.deepcopy(module)
    optimizer = module.configure_optimizers()
    data = tasks.points()
    batches = [data[first : first + GLOBAL_BATCH] for first in range(0, len(data), GLOBAL_BATCH)]
    for _ in range(epochs):
        for start in range(0, len(batches), accumulate):
            group = batches[start : start + accumulate]
            optimizer.zero_grad()
            for inputs, labels in group:
                loss = nn.functional.binary_cross_entropy_with_logits(module(inputs), labels)
                (loss / len(group)).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
    return module


def assert_close(one: nn.Module, other: nn.Module, tolerance: float = 1e-5) -> None:
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], weight, rtol=tolerance, atol=tolerance)


def blocks() -> strategy_tasks.Blocks:
    seed_everything(11)
    return strategy_tasks.Blocks()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_any_number_of_workers_trains_like_one_device(tmp_path: Path, workers: int, strategy: str) -> None:
    for options in ({}, {"accumulate": 3}, {"clip": 0.02}):
        module = blocks()
        expected = bare(module, **options)
        names = {"accumulate": "accumulate_grad_batches", "clip": "gradient_clip_val"}
        fit(tmp_path, module, workers, strategy, **{names[name]: value for name, value in options.items()})
        assert_close(expected, module)


@pytest.mark.parametrize(
    "options",
    [
        {"mesh": (2, 1)},
        {"mesh": (1, 2), "reshard_after_forward": False},
        {"cpu_offload": True, "wrap_policy": {nn.Linear}},
        {"activation_checkpointing": {nn.Sequential}, "wrap_policy": lambda layer: isinstance(layer, nn.LayerNorm)},
    ],
    ids=str,
)
def test_the_ways_to_shard_give_the_same_weights(tmp_path: Path, options: dict[str, Any]) -> None:
    module = blocks()
    expected = bare(module, clip=0.02)
    fit(tmp_path, module, 2, FSDPStrategy(**options), gradient_clip_val=0.02)
    assert_close(expected, module)


def test_a_worker_holds_its_part_and_gradients_are_global(tmp_path: Path) -> None:
    module = blocks()
    numbers = sum(parameter.numel() for parameter in module.parameters())
    fit(tmp_path, module, 2, "fsdp", callbacks=[strategy_tasks.Observes(str(tmp_path))], max_epochs=1)
    held = [{int(line.split()[1]) for line in _observed(tmp_path, rank)} for rank in (0, 1)]
    assert held[0] | held[1] != {numbers}
    assert sum(map(sum, held)) == numbers
    assert all(line.endswith("True") for rank in (0, 1) for line in _observed(tmp_path, rank))


def _observed(folder: Path, rank: int) -> list[str]:
    return (folder / f"observed-{rank}").read_text().splitlines()


def test_ddp_exchanges_gradients_only_where_a_group_ends(tmp_path: Path) -> None:
    seed_everything(1)
    callback = strategy_tasks.Observes(str(tmp_path))
    fit(tmp_path, tasks.Classifier(), 2, "ddp", callbacks=[callback], accumulate_grad_batches=3, max_epochs=1)
    equal = [line.split()[2] for line in _observed(tmp_path, 0)]
    assert equal == ["False", "False", "True", "True"]  # four batches: a group of three, and one of one


def test_gradient_norms_are_those_of_one_device(tmp_path: Path) -> None:
    norms = {}
    for workers, strategy in ((1, "auto"), (2, "fsdp")):
        runner = fit(tmp_path, blocks(), workers, strategy, track_grad_norm=2, log_every_n_steps=1)
        norms[strategy] = {name: v.item() for name, v in runner.callback_metrics.items() if name.startswith("grad_")}
    assert len(norms["auto"]) == 1 + len(list(blocks().parameters()))
    assert norms["fsdp"] == pytest.approx(norms["auto"], rel=1e-4, abs=1e-7)


def test_a_run_goes_on_with_another_strategy_and_number_of_workers(tmp_path: Path) -> None:
    for accumulate in (1, 3):
        every = ModelCheckpoint(dirpath=tmp_path / f"every-{accumulate}", every_n_train_steps=1, save_top_k=-1)
        module = blocks()
        expected = bare(module, accumulate)
        fit(tmp_path, module, 2, "fsdp", callbacks=[every], accumulate_grad_batches=accumulate)
        files = sorted(Path(every.dirpath).iterdir(), key=lambda path: path.stat().st_mtime)
        for workers, strategy in ((2, "fsdp"), (3, "fsdp"), (2, "ddp"), (1, "auto")):
            resumed = blocks()
            fit(tmp_path, resumed, workers, strategy, ckpt_path=files[0], accumulate_grad_batches=accumulate)
            assert_close(expected, resumed)
        plain = torch.load(files[0], weights_only=True)
        assert all(type(value) is torch.Tensor for value in plain["state_dict"].values())
        alone = blocks()
        fit(tmp_path, alone, 1, "auto", callbacks=[every], accumulate_grad_batches=accumulate)
        sharded = blocks()
        fit(tmp_path, sharded, 2, "fsdp", ckpt_path=every.best_model_path, accumulate_grad_batches=accumulate)
        assert_close(expected, sharded)


def test_sharded_modules_evaluate_and_predict(tmp_path: Path) -> None:
    module = blocks()
    runner = fit(tmp_path, module, 2, "fsdp", precision="bf16-mixed", max_epochs=4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = module(tasks.points()[:][0])
    for batch_size in (24, 40, 96):  # four batches, three, and one for two workers
        predictions = torch.cat(runner.predict(module, tasks.loader(batch_size, shuffle=False)))
        torch.testing.assert_close(predictions, expected, rtol=0.02, atol=0.02)
    (result,) = runner.validate(module, tasks.loader(10, shuffle=False), verbose=False)
    assert result["val_loss"] < 0.69


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_averaged_weights_are_those_of_one_device_and_go_on(tmp_path: Path, strategy: str) -> None:
    def averaging(name: str) -> dict[str, Any]:
        keeper = ModelCheckpoint(dirpath=tmp_path / name, every_n_train_steps=3, save_top_k=-1)
        return {"callbacks": [WeightAveraging(ema_decay=0.7, update_starting_at_step=2), keeper]}

    alone, sharded, resumed = blocks(), blocks(), blocks()
    one = fit(tmp_path, alone, 1, "auto", **averaging("one"))
    two = fit(tmp_path, sharded, 2, strategy, **averaging("two"))
    assert_close(alone, sharded)
    assert two.callback_metrics["val_loss"].item() == pytest.approx(one.callback_metrics["val_loss"].item(), abs=1e-5)
    newest, average = (
        torch.load(next((tmp_path / "two").glob("*step=3.ckpt")))[key] for key in ("current_model_state", "state_dict")
    )
    assert not torch.equal(newest["scale"], average["scale"])
    fit(tmp_path, resumed, 2, strategy, ckpt_path=next((tmp_path / "two").glob("*step=3.ckpt")), **averaging("three"))
    assert_close(sharded, resumed)


def test_workers_end_with_the_same_buffers(tmp_path: Path) -> None:
    seed_everything(1)
    module = strategy_tasks.Normed()
    fit(tmp_path, module, 2, "ddp")
    # Rank 0's, which saw the even samples: as of a loop that goes over them alone, the weights aside.
    assert module.net[1].num_batches_tracked == EPOCHS * 4
    assert not torch.equal(module.net[1].running_mean, torch.zeros(8))


def test_a_parameter_that_no_loss_depends_on_is_told(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationError, match='strategy="ddp_find_unused_parameters_true"'):
        fit(tmp_path, strategy_tasks.Unused(), 2, "ddp")
    fit(tmp_path, strategy_tasks.Unused(), 2, "ddp_find_unused_parameters_true")


def test_workers_exchange_what_a_module_asks_for(tmp_path: Path) -> None:
    assert fit(tmp_path, strategy_tasks.Gathers(), 2, "ddp").callback_metrics["checked"] == 1


def test_a_strategy_of_ones_own_is_used_by_its_name(tmp_path: Path) -> None:
    register_strategy("half_ddp", strategy_tasks.HalfDDP)
    module = blocks()
    expected = bare(module)
    fit(tmp_path, module, 2, "half_ddp")
    assert_close(expected, module, tolerance=0.02)
    with pytest.raises(AssertionError):
        assert_close(expected, module, tolerance=1e-7)
    with pytest.raises(MisconfigurationError, match=r"half_ddp.*Did you mean `half_ddp`\?"):
        Trainer(strategy="half_dpp")
    with pytest.raises(MisconfigurationError, match="`ddp` is a strategy of paceline's"):
        register_strategy("ddp", strategy_tasks.HalfDDP)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": (2,)}, "such as (2, 4)"),
        ({"mesh": (0, 2)}, "number of replicas"),
        ({"wrap_policy": nn.Linear}, "must be classes of layers"),
        ({"activation_checkpointing": [nn.Linear(1, 1)]}, "must be classes of layers"),
    ],
    ids=str,
)
def test_wrong_arguments_of_fsdp_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationError) as caught:
        FSDPStrategy(**arguments)
    assert message in str(caught.value)


def test_parts_that_stay_on_the_cpu_have_a_backend_of_their_own() -> None:
    assert FSDPStrategy(cpu_offload=True).backend(CUDAAccelerator()) == "cpu:gloo,cuda:nccl"
    assert FSDPStrategy().backend(CUDAAccelerator()) == "nccl"
    assert FSDPStrategy(cpu_offload=True).backend(Accelerator()) == "gloo"


def test_what_fsdp_cannot_do_is_told_before_anything_starts() -> None:
    with pytest.raises(MisconfigurationError, match='Use "norm"'):
        Trainer(devices=2, strategy="fsdp", gradient_clip_val=1.0, gradient_clip_algorithm="value", logger=False)
    with pytest.raises(MisconfigurationError, match=r"`mesh=\(2, 2\)` is of 4 workers.*of 3"):
        Trainer(devices=3, strategy=FSDPStrategy(mesh=(2, 2)), logger=False)
    with pytest.raises(MisconfigurationError, match="of 4 workers.*are of \\(2, 4\\)"):
        Trainer(devices=(2, 4), strategy=FSDPStrategy(mesh=(2, 2)), logger=False)
