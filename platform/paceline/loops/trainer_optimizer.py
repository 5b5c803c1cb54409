"""TrainerOptimizer: an optimizer as a module's own code sees it, whose step goes the way of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch.optim import Optimizer

from paceline.errors import MisconfigurationError
from paceline.loops.run import Run


class TrainerOptimizer:
    """What `self.optimizers()` and an `optimizer_step` of the user's get: all that the optimizer has, and its step.

    Args:
        optimizer: the one that `configure_optimizers` returned.
        run: whose precision is used.
        before_step: called once the gradients are there, before they are stepped with.

    Attributes:
        optimizer: the one that `configure_optimizers` returned.
    """

    def __init__(self, optimizer: Optimizer, run: Run, before_step: Callable[[Optimizer], None]) -> None:
        self.optimizer = optimizer
        self._run = run
        self._before_step = before_step

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step, with hooks, precision and counters.

        Args:
            closure: computes the loss and its gradients; an optimizer such as LBFGS calls it several times.
            kwargs: passed on to the optimizer.

        Returns:
            What the optimizer returns: with a closure, its loss.
        """
        precision = self._run.strategy.precision
        if closure is None:
            self._before_step(self.optimizer)
            return precision.step(self.optimizer, **kwargs)
        if precision.scaler is not None:
            if needs_closure(self.optimizer):
                raise MisconfigurationError(
                    f'{type(self.optimizer).__name__} cannot be used with `precision="16-mixed"`: it computes the loss '
                    'several times per step. Use "bf16-mixed".'
                )
            loss = closure()
            self._before_step(self.optimizer)
            precision.step(self.optimizer, **kwargs)
            return loss

        def whole() -> Any:
            loss = closure()
            self._before_step(self.optimizer)
            return loss

        return self.optimizer.step(closure=whole, **kwargs)

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        """Inside, only this optimizer's parameters need gradients.

        Args:
            sync_grad: whether the workers exchange the gradients that are computed inside.
        """
        module = self._run.module
        module.toggle_optimizer(self)
        try:
            with nullcontext() if sync_grad else self._run.strategy.no_sync():
                yield
        finally:
            module.untoggle_optimizer(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"TrainerOptimizer({self.optimizer!r})"


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether an optimizer, as LBFGS does, computes the loss by itself, perhaps several times."""
    import inspect

    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty
