"""LoopView: the loops behind a Trainer's entry points, each of which another one can take the place of."""

from __future__ import annotations

from typing import Any

from paceline.config import TrainerConfig
from paceline.errors import ArgumentTypeError
from paceline.loops.evaluate import EvaluationLoop
from paceline.loops.fit import FitLoop
from paceline.loops.loop import Loop
from paceline.loops.predict import PredictLoop
from paceline.loops.run import Run


def default_loops() -> dict[str, Loop]:
    """The loop of each entry point."""
    return {
        "fit": FitLoop(),
        "validate": EvaluationLoop("validation"),
        "test": EvaluationLoop("test"),
        "predict": PredictLoop(),
    }


class LoopView:
    """The properties of `Trainer` that are about loops; in a hook they show the live one."""

    config: TrainerConfig
    _live_run: Run | None
    _loops: dict[str, Loop]

    @property
    def fit_loop(self) -> Any:
        """The loop of `fit`; set another one, such as an object of a subclass of `paceline.loops.fit.FitLoop`."""
        return self._loop("fit")

    @fit_loop.setter
    def fit_loop(self, loop: Loop) -> None:
        self._set_loop("fit", loop)

    @property
    def validate_loop(self) -> Any:
        """The loop of `validate`; the validations within a fit have one of their own, `fit_loop.validation`."""
        return self._loop("validate")

    @validate_loop.setter
    def validate_loop(self, loop: Loop) -> None:
        self._set_loop("validate", loop)

    @property
    def test_loop(self) -> Any:
        """The loop of `test`."""
        return self._loop("test")

    @test_loop.setter
    def test_loop(self, loop: Loop) -> None:
        self._set_loop("test", loop)

    @property
    def predict_loop(self) -> Any:
        """The loop of `predict`."""
        return self._loop("predict")

    @predict_loop.setter
    def predict_loop(self, loop: Loop) -> None:
        self._set_loop("predict", loop)

    @property
    def is_last_batch(self) -> bool:
        """Whether the training batch at work is the last of its epoch."""
        return self._live_run is not None and self._live_run.state.fn == "fit" and bool(self.fit_loop.feed.is_last)

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches whose gradients make one optimizer step; settable when an epoch starts."""
        if self._live_run is not None and self._live_run.state.fn == "fit":
            return int(self.fit_loop.accumulate_grad_batches)
        batches = self.config.accumulate_grad_batches
        return batches if isinstance(batches, int) else batches.get(0, 1)

    @accumulate_grad_batches.setter
    def accumulate_grad_batches(self, value: int) -> None:
        self.fit_loop.accumulate_grad_batches = value

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps of the whole fit, from lengths, accumulation and limits; infinity when nothing bounds them.

        It can be used in `configure_optimizers`.

        Raises:
            MisconfigurationError: batches per step change from epoch to epoch.
            RuntimeError: no fit runs.
        """
        if self._live_run is None or self._live_run.state.fn != "fit":
            raise RuntimeError("`estimated_stepping_batches` exists in the hooks of a fit.")
        steps = self.fit_loop.estimated_steps()
        return int(steps) if steps < float("inf") else steps

    def _loop(self, fn: str) -> Any:
        live = self._live_run
        return live.loop if live is not None and live.state.fn == fn else self._loops[fn]

    def _set_loop(self, fn: str, loop: Loop) -> None:
        if not isinstance(loop, Loop):
            raise ArgumentTypeError(
                f"A loop has the methods `connect(run, loaders)` and `run()`; {type(loop).__name__} lacks one of them."
            )
        self._loops[fn] = loop
