"""Loaders: a run's loaders, from the entry point's arguments or from hooks, as feeds for this worker."""

from __future__ import annotations

import math
from typing import Any

from paceline.data.feed import Feed
from paceline.data.sources import evaluation_loaders
from paceline.hooks import overridden
from paceline.loops.run import Run


class Loaders:
    """Makes the feeds of one run.

    Args:
        run: the parts of the run; its `loaders` and `num_batches` are filled in.
        train: the training loader that was given; None takes the one of data module or module.
        evaluation: the loaders of validation, test or prediction that were given; likewise.
    """

    def __init__(self, run: Run, train: Any = None, evaluation: Any = None) -> None:
        self._run = run
        self._train = train
        self._evaluation = evaluation

    def train(self) -> Feed:
        """The feed of training; the loader hook is asked if no loader was given."""
        run, config = self._run, self._run.config
        loader = self._train if self._train is not None else self._from_hook("train_dataloader")
        feed = Feed(
            loader,
            run.strategy,
            run.seed,
            config.limit_train_batches,
            "overfit_batches" if config.overfit_batches else "limit_train_batches",
            shard=config.use_distributed_sampler,
            mode=config.multiple_trainloader_mode,
            fixed_order=bool(config.overfit_batches),
        )
        run.loaders["train"] = loader
        run.num_batches["train"] = [feed.num_batches]
        run.items_per_step = feed.items_per_step
        return feed

    def evaluation(self, kind: str) -> list[Feed]:
        """The feeds of "val", "test" or "predict"; the loader hook is asked if no loader was given."""
        run, config = self._run, self._run.config
        given = self._evaluation if self._evaluation is not None else self._from_hook(f"{kind}_dataloader")
        loaders = evaluation_loaders(given) if given is not None else []
        name = f"limit_{kind}_batches"
        limit = getattr(config, name)
        if kind == "val" and config.overfit_batches and run.num_batches.get("train", [math.inf])[0] < math.inf:
            limit = int(run.num_batches["train"][0])  # as many as in training, of the loaders' own data
        feeds = [
            Feed(
                loader,
                run.strategy,
                run.seed,
                limit,
                name,
                training=False,
                shard=config.use_distributed_sampler,
                fixed_order=bool(config.overfit_batches),
            )
            for loader in loaders
        ]
        run.loaders[kind] = loaders
        run.num_batches[kind] = [feed.num_batches for feed in feeds]
        return feeds

    def are_from_hook(self, kind: str) -> bool:
        """Whether a loader hook may be asked again for "train" or "val"."""
        return (self._train if kind == "train" else self._evaluation) is None

    def _from_hook(self, name: str) -> Any:
        for owner in (self._run.datamodule, self._run.module):
            if owner is not None and overridden(owner, name):
                return self._run.span(name, getattr(owner, name))()
        return None
