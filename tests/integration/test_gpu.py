"""On GPUs: what the CPU computes, in every precision, alone and together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration import strategy_tasks, tasks

from paceline import Module, Trainer, seed_everything
from paceline.strategies import FSDPStrategy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU here."),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="There are no two GPUs here.")

GLOBAL_BATCH = 24


def fit(tmp_path: Path, module: Module, devices: int = 1, **arguments: Any) -> Trainer:
    runner = Trainer(
        devices=devices,
        max_epochs=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **{"accelerator": "gpu", **arguments},
    )
    runner.fit(module, tasks.loader(GLOBAL_BATCH // devices, shuffle=False), tasks.loader(10, shuffle=False))
    return runner


def blocks() -> Module:
    seed_everything(11)
    return strategy_tasks.Blocks()


@pytest.fixture
def on_cpu(tmp_path: Path) -> Module:
    """The module after the same fit on the CPU."""
    module = blocks()
    fit(tmp_path / "cpu", module, accelerator="cpu")
    return module


def assert_close(one: Module, other: Module, tolerance: float) -> None:
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name].cpu(), weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("32-true", 1e-4), ("64-true", 1e-4), ("16-mixed", 5e-2), ("bf16-mixed", 5e-2)]
)
def test_a_gpu_computes_what_the_cpu_does(tmp_path: Path, on_cpu: Module, precision: str, tolerance: float) -> None:
    module = blocks()
    runner = fit(tmp_path, module, precision=precision)
    assert_close(on_cpu.float(), module.float(), tolerance)
    assert next(module.parameters()).device.type == "cpu"
    assert runner.strategy.device.type == "cuda"


@pytest.mark.parametrize("launcher", ["actors", "ray_train"])
def test_a_worker_on_ray_has_a_gpu(tmp_path: Path, on_cpu: Module, local_ray: Any, launcher: str) -> None:
    module = blocks()
    fit(tmp_path, module, launcher=launcher)
    assert_close(on_cpu, module, 1e-4)


class Evaluates(tasks.IndexModule):
    """Says whether it runs in torch's inference mode."""

    def test_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("in_inference_mode", float(torch.is_inference_mode_enabled()))


def test_evaluation_is_in_inference_mode(tmp_path: Path) -> None:
    runner = Trainer(accelerator="gpu", devices=1, logger=False, default_root_dir=tmp_path)
    (result,) = runner.test(Evaluates(), tasks.loader(), verbose=False)
    assert result == {"in_inference_mode": 1.0}


@needs_two
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", FSDPStrategy(cpu_offload=True)])
def test_two_gpus_train_like_one_device(tmp_path: Path, on_cpu: Module, local_ray: Any, strategy: Any) -> None:
    module = blocks()
    fit(tmp_path, module, devices=2, strategy=strategy)
    assert_close(on_cpu, module, 1e-4)


@needs_two
def test_batchnorm_is_over_the_batches_of_both(tmp_path: Path, local_ray: Any) -> None:
    def normed() -> Module:
        seed_everything(11)
        return strategy_tasks.Normed()

    alone, together = normed(), normed()
    fit(tmp_path / "cpu", alone, accelerator="cpu")
    fit(tmp_path, together, devices=2, sync_batchnorm=True)
    assert_close(alone, together, 1e-4)
