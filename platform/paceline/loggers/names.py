"""Names and values as MLflow takes them: every name finds its own place, and can be read back."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from typing import Any

_LONGEST_NAME = 250
_LONGEST_TAG = 8000
_EMPTY = "_x110000_"  # one past the last code point of Unicode, so no character is written so
_REFUSED = re.compile(
    r"[^\w/. :-]"  # what MLflow refuses anywhere
    r"|^/|(?<=/)/|/$"  # a path that is not in its simplest form
    r"|(?<![^/])\.(?=\.?(?:/|$))|^\.(?=\.)"  # the folders . and .., and what starts like one
    r"|_(?=x[0-9a-f]{2})"  # what would read as an escape
)
_ESCAPE = re.compile(r"_x([0-9a-f]{2,6})_")


def escape(name: str) -> str:
    """The name under which MLflow keeps `name`: refused characters as `_x<code point in hex>_`.

    Two names never become the same. What is over 250 characters then is cut, with a digest at its end, and can be
    read back only through the tags of `mapping_tags`.
    """
    escaped = _REFUSED.sub(lambda match: f"_x{ord(match[0]):02x}_", name) or _EMPTY
    if len(escaped) <= _LONGEST_NAME:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{escaped[: _LONGEST_NAME - 17].rstrip('/.')}-{digest}"


def unescape(name: str) -> str:
    """The name that `escape` turned into this one, unless it was cut."""
    return _ESCAPE.sub(lambda match: "" if match[0] == _EMPTY else chr(int(match[1], 16)), name)


def mapping_tags(mapping: Mapping[str, str]) -> dict[str, str]:
    """Tags from which people and programs read what the escaped names stand for.

    Args:
        mapping: escaped name -> name, only of names that differ.

    Returns:
        `paceline.names`, `paceline.names.2` and so on, each a JSON object that fits into a tag.
    """
    parts: list[dict[str, str]] = [{}]
    for escaped, name in mapping.items():
        part = {**parts[-1], escaped: name[: _LONGEST_TAG // 2]}
        if len(json.dumps(part, ensure_ascii=False)) > _LONGEST_TAG and parts[-1]:
            parts.append({escaped: name[: _LONGEST_TAG // 2]})
        else:
            parts[-1] = part
    return {
        "paceline.names" + (f".{number}" if number > 1 else ""): text(json.dumps(part, ensure_ascii=False))
        for number, part in enumerate(parts, start=1)
        if part
    }


def read_mapping(tags: Mapping[str, str]) -> dict[str, str]:
    """What `mapping_tags` wrote."""
    mapping: dict[str, str] = {}
    for tag, value in tags.items():
        if re.fullmatch(r"paceline\.names(\.\d+)?", tag):
            try:
                mapping.update(json.loads(value))
            except ValueError:
                continue  # someone edited the tag
    return mapping


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested hyperparameters as one level, `optimizer/lr`, with values as text that is the same each time."""
    flat: dict[str, str] = {}
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = canonical(value)
    return flat


def canonical(value: Any) -> str:
    """A value as text that is the same in each process: no addresses, sets in order, floats in full."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool | int) or value is None:
        return str(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(canonical(item) for item in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(canonical(item) for item in value)) + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {canonical(item)}" for key, item in value.items()) + "}"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return text(re.sub(r" at 0x[0-9a-f]+", "", str(value)))
    except Exception:  # a value that cannot be shown is no reason to end a run
        return f"<{type(value).__qualname__}>"


def text(value: str) -> str:
    """The text with what databases refuse, surrogates and NUL, written out."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The metrics as Python floats; what is no number is left out, with a warning."""
    values: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            values[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            warnings.warn(f"The metric {name!r} is not recorded: {value!r:.80} is no number.", stacklevel=3)
    return values
