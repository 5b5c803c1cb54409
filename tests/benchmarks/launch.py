"""Time from a call to work on two Ray workers: `python -m tests.benchmarks.launch CONTENDER` prints seconds.

Every contender finds a Ray of two CPUs that has just been started, and its own imports on the driver done.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from tests.benchmarks.measure import Measure, in_turns


def first_fit(folder: str) -> tuple[Any, float]:
    """A trainer after its first fit, and seconds from the call to the first step."""
    from tests.benchmarks import tasks

    from paceline import Trainer

    path = f"{folder}/fit"
    trainer = Trainer(
        devices=2,
        max_steps=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[tasks.FirstStep(path)],
    )
    module, loader = tasks.TinyModule(), tasks.loader()
    begin = time.time()
    trainer.fit(module, loader)
    return trainer, float(Path(path).read_text()) - begin


def paceline(folder: str) -> float:
    """The first fit."""
    import paceline.launch.actors
    import paceline.trainer  # noqa: F401

    return first_fit(folder)[1]


def warm(folder: str) -> float:
    """A test on the workers of the fit before it."""
    from tests.benchmarks import tasks

    trainer, _ = first_fit(folder)
    path = f"{folder}/test"
    trainer.callbacks = [tasks.FirstStep(path)]
    loader = tasks.loader()
    begin = time.time()
    trainer.test(dataloaders=loader, verbose=False)
    return float(Path(path).read_text()) - begin


def bare_actors(folder: str) -> float:
    """Two actors that import torch, form a gloo group and exchange one number."""
    return _bare(folder, trains=False)


def bare_step(folder: str) -> float:
    """The same two actors, which then take one optimizer step, as every training does."""
    return _bare(folder, trains=True)


def _bare(folder: str, trains: bool) -> float:

    @ray.remote(num_cpus=1)
    class Bare:
        def ready(self) -> None:
            import torch.distributed  # noqa: F401

        def exchange(self, rank: int, store: str) -> float:
            import torch
            import torch.distributed as dist

            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
            value = torch.ones(1)
            dist.all_reduce(value)
            if trains:
                line = torch.nn.Linear(1, 1)
                optimizer = torch.optim.SGD(line.parameters(), lr=0.1)
                line(value).backward()
                optimizer.step()
            return float(value)

    store = f"{folder}/store"
    begin = time.time()
    actors = [Bare.remote() for _ in range(2)]
    ray.get([actor.ready.remote() for actor in actors])
    ray.get([actor.exchange.remote(rank, store) for rank, actor in enumerate(actors)])
    return time.time() - begin


def torch_trainer(folder: str) -> float:
    """Ray Train's TorchTrainer with a function that only says when it began."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    path = f"{folder}/began"

    def train() -> None:
        Path(path).write_text(repr(time.time()))

    trainer = TorchTrainer(
        train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=folder, name="bare")
    )
    begin = time.time()
    trainer.fit()
    return float(Path(path).read_text()) - begin


CONTENDERS: dict[str, Callable[[str], float]] = {
    "bare-actors": bare_actors,
    "bare-step": bare_step,
    "paceline": paceline,
    "warm": warm,
    "torch-trainer": torch_trainer,
}


def run(say: Callable[[str], None]) -> list[Measure]:
    """All contenders in turns."""
    figures = in_turns("tests.benchmarks.launch", list(CONTENDERS), 3, say)
    own = figures["paceline"]
    return [
        Measure(
            "first fit on two workers, to its first step", "two bare actors", 1.5, own, figures["bare-actors"], "s"
        ),
        Measure("the same", "two bare actors with an optimizer step", 1.5, own, figures["bare-step"], "s"),
        Measure("the same", "bare `TorchTrainer.fit`", 0.5, own, figures["torch-trainer"], "s"),
        Measure("test on the warm group, to its first step", "the first fit", 0.05, figures["warm"], own, "s"),
    ]


if __name__ == "__main__":
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        seconds = CONTENDERS[sys.argv[1]](folder)
    ray.shutdown()
    print(seconds)
