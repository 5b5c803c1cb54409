"""Modules that `torch.compile` was called on: trained as they are, known by the module inside."""

from __future__ import annotations

import sys
from typing import Any


def uncompiled(model: Any) -> tuple[Any, Any]:
    """The module inside, and the compiled one; None in its place for a module that is not compiled."""
    # Nobody has a compiled module who did not import this, which takes more than a second.
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        return model._orig_mod, model
    return model, None
