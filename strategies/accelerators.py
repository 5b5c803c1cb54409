"""Kinds of devices: whether one is present, how many there are, and which one a worker takes."""

from __future__ import annotations

from typing import Any

import torch

from paceline.errors import MisconfigurationError, nearest


class Accelerator:
    """One kind of device.

    Attributes:
        name: what `Trainer(accelerator=)` calls it.
        backend: the process-group backend that its tensors need.
    """

    name = "cpu"
    backend = "gloo"

    def count(self) -> int:
        """How many of them this machine has; a CPU can host any number of workers, and counts as one."""
        return 1

    @property
    def ray_resources(self) -> dict[str, float]:
        """What Ray sets aside for one worker."""
        return {"CPU": 1.0}

    def device(self, index: int) -> torch.device:
        """The device with an index, counted among those that this process sees."""
        return torch.device("cpu")


class CUDAAccelerator(Accelerator):
    """NVIDIA GPUs."""

    name = "cuda"
    backend = "nccl"

    def count(self) -> int:
        """The GPUs that this process sees."""
        return torch.cuda.device_count()

    @property
    def ray_resources(self) -> dict[str, float]:
        """A GPU, and a CPU to feed it."""
        return {"CPU": 1.0, "GPU": 1.0}

    def device(self, index: int) -> torch.device:
        """The GPU with an index, made the current one."""
        torch.cuda.set_device(index)
        return torch.device("cuda", index)


class MPSAccelerator(Accelerator):
    """Apple's GPU."""

    name = "mps"

    def count(self) -> int:
        """One, if the machine has one."""
        return int(torch.backends.mps.is_available())

    def device(self, index: int) -> torch.device:
        """The GPU."""
        return torch.device("mps", 0)


_KINDS: dict[str, type[Accelerator]] = {"cpu": Accelerator, "cuda": CUDAAccelerator, "mps": MPSAccelerator}


def find_accelerator(choice: Any, anywhere: bool = False) -> Accelerator:
    """The accelerator that `Trainer(accelerator=)` asks for.

    Args:
        choice: a name, "gpu", "auto" (CUDA, then MPS, then the CPU), or an `Accelerator`.
        anywhere: True when the workers run on other machines, whose devices cannot be seen from here.

    Raises:
        MisconfigurationError: no such kind, or none of it is present.
    """
    if isinstance(choice, Accelerator):
        return choice
    present = [name for name, kind in _KINDS.items() if kind().count()]
    if choice == "auto":
        return _KINDS[next(name for name in ("cuda", "mps", "cpu") if name in present)]()
    kind = ("mps" if "mps" in present else "cuda") if choice == "gpu" else choice
    if kind not in _KINDS:
        names = [*_KINDS, "gpu", "auto"]
        raise MisconfigurationError(
            f"`accelerator={choice!r}` is not known. Use one of {', '.join(names)}.{nearest(str(choice), names)}"
        )
    if kind not in present and not anywhere:
        raise MisconfigurationError(f"`accelerator={choice!r}`: there is none here. Present: {', '.join(present)}.")
    return _KINDS[kind]()
