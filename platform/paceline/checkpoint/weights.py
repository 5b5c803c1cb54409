"""A module's weights under the names that its own code gives them, whether or not parts of it are compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

# What `torch.compile` puts between a module's name and its parameters' names.
_COMPILED = "_orig_mod."


def weights(module: nn.Module) -> dict[str, Any]:
    """The module's `state_dict`, without a trace of compilation."""
    return plain_names(module.state_dict())


def plain_names(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The state without a trace of compilation."""
    return {name.replace(_COMPILED, ""): value for name, value in state_dict.items()}


def load_weights(module: nn.Module, state_dict: Mapping[str, Any], strict: bool = True) -> None:
    """Load weights into a module, of which the same or other parts may be compiled.

    Raises:
        RuntimeError: names or shapes do not fit; names alone may differ with `strict=False`.
    """
    own = {name.replace(_COMPILED, ""): name for name in module.state_dict()}
    named = {own.get(name, name): value for name, value in plain_names(state_dict).items()}
    module.load_state_dict(named, strict=strict)
