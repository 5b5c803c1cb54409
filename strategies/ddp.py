"""Data parallel training: every worker holds the whole module, gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.errors import MisconfigurationError
from paceline.strategies.process_group import ProcessGroupStrategy


class _Step(nn.Module):
    """Lets DistributedDataParallel see a training step as the forward of a module."""

    def __init__(self, module: nn.Module, step: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self._step = step

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(*args, **kwargs)


class DDPStrategy(ProcessGroupStrategy):
    """Trains on several workers with `torch.nn.parallel.DistributedDataParallel`.

    Args:
        options: passed on to DistributedDataParallel: `find_unused_parameters=True` for losses that leave parameters
            out, `static_graph=True` where every step uses the same ones, `gradient_as_bucket_view=True`, and more.
    """

    name = "ddp"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._wrapped: DistributedDataParallel | None = None

    def setup(self, module: nn.Module) -> None:
        """Bring the module to the device, with BatchNorm layers that see the whole batch if that is wanted."""
        if self.sync_batchnorm:
            nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        super().setup(module)

    def wrap(self, module: nn.Module, step: Callable[..., Any], training: bool) -> Callable[..., Any]:
        """The training step inside DistributedDataParallel, which averages the gradients in the backward pass."""
        if not training or not self._has_others or not any(p.requires_grad for p in module.parameters()):
            return step
        device_ids = [self.device.index] if self.device.type == "cuda" else None
        self._wrapped = wrapped = DistributedDataParallel(_Step(module, step), device_ids=device_ids, **self._options)

        def call(*args: Any) -> Any:
            try:
                return wrapped(*args)
            except RuntimeError as error:
                if "Expected to have finished reduction" not in str(error):
                    raise
                raise MisconfigurationError(
                    "Parameters of the module took no part in the last loss, and the workers wait for their gradients. "
                    'Use `strategy="ddp_find_unused_parameters_true"`, or leave such parameters out by '
                    "`requires_grad_(False)`."
                ) from error

        return call

    def teardown(self, module: nn.Module) -> None:
        """Let go of the wrapper, and leave the module on the CPU."""
        self._wrapped = None
        super().teardown(module)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are gathered on each worker only."""
        if self._wrapped is None:
            yield
        else:
            with self._wrapped.no_sync():
                yield
