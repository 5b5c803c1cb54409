"""Norms of gradients, for logs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def gradient_norms(
    module: nn.Module, norm_type: float, whole: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Tensor]:
    """The p-norm of each parameter's gradient, and that of all of them together.

    Args:
        module: after a backward pass; parameters without gradient are left out.
        norm_type: p; infinity for the largest absolute value.
        whole: makes one number of a norm of which each worker may have a part.

    Returns:
        `grad_{p}_norm/{parameter}` for each, and `grad_{p}_norm_total`; empty without gradients.
    """
    p = "inf" if norm_type == math.inf else f"{norm_type:g}"
    norms = {
        f"grad_{p}_norm/{name}": whole(torch.linalg.vector_norm(parameter.grad, norm_type))
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    if norms:
        together = torch.stack([norm.float() for norm in norms.values()])
        norms[f"grad_{p}_norm_total"] = torch.linalg.vector_norm(together, norm_type)
    return norms
