"""Nested lists, tuples and dicts of loaders: taken apart into their loaders, and put together again with batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

Rebuild = Callable[[Iterator[Any]], Any]


def take_apart(tree: Any, is_top: bool = True, path: str = "") -> tuple[list[tuple[str, Any]], Rebuild]:
    """The loaders in a structure.

    A dict is always part of the structure, and so is the outermost list or tuple; one further in only if there is a
    loader somewhere in it: a list of plain batches is a loader itself.

    Args:
        tree: nested lists, tuples, named tuples and dicts; or one loader.
        is_top: whether this is the outermost container.
        path: where in the structure it is, as Python would write it.

    Returns:
        The loaders, each with its path, and a function that makes the same structure of as many other things.
    """
    if isinstance(tree, Mapping):
        children = [take_apart(value, False, f"{path}[{key!r}]") for key, value in tree.items()]
        kind = OrderedDict if isinstance(tree, OrderedDict) else dict

        def rebuild(items: Iterator[Any]) -> Any:
            return kind((key, make(items)) for key, (_, make) in zip(tree, children, strict=True))

    elif isinstance(tree, list | tuple) and (is_top or holds_loaders(tree)):
        children = [take_apart(value, False, f"{path}[{place}]") for place, value in enumerate(tree)]
        is_named = hasattr(tree, "_fields")

        def rebuild(items: Iterator[Any]) -> Any:
            made = (make(items) for _, make in children)
            return type(tree)(*made) if is_named else type(tree)(made)

    else:
        return [(path, tree)], next
    return [leaf for leaves, _ in children for leaf in leaves], rebuild


def holds_loaders(tree: Any) -> bool:
    """Whether there is a loader somewhere in nested lists, tuples and dicts of batches."""
    if isinstance(tree, Mapping):
        return any(map(holds_loaders, tree.values()))
    if isinstance(tree, list | tuple):
        return any(map(holds_loaders, tree))
    return isinstance(tree, Iterable) and not isinstance(tree, str | bytes | Tensor) and not hasattr(tree, "__array__")
