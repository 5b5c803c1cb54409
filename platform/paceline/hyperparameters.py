"""Constructor arguments of modules and data modules: captured, kept in checkpoints, given back to the constructor."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any, TypeVar

LARGEST_BYTES = 1_000_000

T = TypeVar("T")


class HyperParameters(dict[str, Any]):
    """A dict whose keys are attributes as well: `hparams.lr` is `hparams["lr"]`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"There is no hyperparameter `{name}`. There are: {sorted(self)}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class HasHyperParameters:
    """What modules and data modules share: `save_hyperparameters` and `hparams`."""

    _hparams: HyperParameters | None = None
    _hparams_initial: HyperParameters | None = None

    @property
    def hparams(self) -> HyperParameters:
        """The saved hyperparameters; may be changed, which changes what the next checkpoint keeps."""
        if self._hparams is None:
            self._hparams = HyperParameters()
        return self._hparams

    @property
    def hparams_initial(self) -> HyperParameters:
        """A copy of the hyperparameters as they were saved: what the loggers record."""
        return copy.deepcopy(self._hparams_initial or HyperParameters())

    def save_hyperparameters(
        self, *args: Any, ignore: str | Iterable[str] = (), frame: FrameType | None = None
    ) -> None:
        """Keep the arguments of the constructor that calls this, subclasses' arguments included.

        Args:
            args: nothing for all arguments; names of arguments; or one dict, `Namespace` or dataclass object.
            ignore: names to leave out.
            frame: the constructor's frame, when it is not the direct caller.

        A value that cannot be pickled, or that takes more than 1 MB, is left out with a warning.
        """
        if frame is None:
            current = inspect.currentframe()
            frame = current.f_back if current is not None else None
        ignored = {ignore} if isinstance(ignore, str) else set(ignore)
        if len(args) == 1 and not isinstance(args[0], str):
            values = as_mapping(args[0])
        else:
            values = constructor_arguments(self, frame) if frame is not None else {}
            if args:
                unknown = [name for name in args if name not in values]
                if unknown:
                    raise ValueError(f"{unknown} are not arguments of the constructor, which has {sorted(values)}.")
                values = {name: values[name] for name in args}
        kept = {name: value for name, value in values.items() if name not in ignored and _can_be_kept(name, value)}
        self.hparams.update(kept)
        self._hparams_initial = copy.deepcopy(self.hparams)


def as_mapping(values: Any) -> dict[str, Any]:
    """A plain dict of a mapping, a `Namespace` or a dataclass object.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, Namespace):
        return vars(values)
    if is_dataclass(values) and not isinstance(values, type):
        return {field.name: getattr(values, field.name) for field in fields(values)}
    raise TypeError(f"Hyperparameters are a dict, a Namespace or a dataclass object, not a {type(values).__name__}.")


def constructor_arguments(owner: object, frame: FrameType | None) -> dict[str, Any]:
    """Arguments of every `__init__` of `owner` that is running, the outermost class's winning."""
    collected: dict[str, Any] = {}
    while frame is not None and frame.f_code.co_name == "__init__":
        names, varargs, varkw, local = inspect.getargvalues(frame)
        if not names or local.get(names[0]) is not owner:
            break
        own = {name: local[name] for name in names[1:]}
        own |= local[varkw] if varkw else {}
        # Python's own getargvalues leaves keyword-only arguments among `names`; positional rests have no name.
        del varargs
        collected |= own
        frame = frame.f_back
    return collected


def build(cls: type[T], saved: Mapping[str, Any], overrides: Mapping[str, Any]) -> T:
    """An object of `cls` from saved hyperparameters, of which the constructor gets those that it takes."""
    values = {**saved, **overrides}
    parameters = inspect.signature(cls.__init__).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        values = {name: value for name, value in values.items() if name in parameters}
    return cls(**values)


def _can_be_kept(name: str, value: Any) -> bool:
    try:
        size = len(pickle.dumps(value))
    except Exception as error:
        warnings.warn(f"Hyperparameter `{name}` is not kept: it cannot be pickled ({error}).", stacklevel=4)
        return False
    if size > LARGEST_BYTES:
        warnings.warn(f"Hyperparameter `{name}` is not kept: it takes {size / 1e6:.1f} MB.", stacklevel=4)
        return False
    return True
