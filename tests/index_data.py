"""A data set whose samples say which they are."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset


class IndexData(Dataset[Tensor]):
    """Sample i is the one-element tensor [i]."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])
