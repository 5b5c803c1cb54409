"""Constructor arguments are captured, kept in checkpoints and given back to the constructor."""

import argparse
import copy
import dataclasses
import datetime
import enum
import pathlib
import pickle
import warnings

import numpy as np
import pytest
import torch
from tests.unit.models import Line, indexed, quiet_trainer
from torch import nn

from paceline import DataModule, Module
from paceline.errors import MisconfigurationError


class All(Line):
    def __init__(self, lr=0.1, width=3, *, depth=2, **rest):
        super().__init__()
        self.save_hyperparameters()


class Ignores(Line):
    def __init__(self, lr=0.1, width=3, loss=None):
        super().__init__()
        self.save_hyperparameters(ignore=["loss", "width"])


class IgnoresOne(Line):
    def __init__(self, lr=0.1, width=3):
        super().__init__()
        self.save_hyperparameters(ignore="width")


class Chosen(Line):
    def __init__(self, lr=0.1, width=3, depth=1):
        super().__init__()
        self.save_hyperparameters("lr", "depth")


class Child(All):
    def __init__(self, extra, lr=0.5):
        super().__init__(lr=lr, width=7)


class ChildSaves(Line):
    class Parent(Line):
        def __init__(self, lr):
            super().__init__()
            self.save_hyperparameters()

    def __new__(cls, *args, **kwargs):
        class Own(cls.Parent):
            def __init__(self, lr, extra):
                super().__init__(lr * 2)
                self.save_hyperparameters()

        return Own(*args, **kwargs)


class Data(DataModule):
    def __init__(self, size=4):
        self.save_hyperparameters()


@dataclasses.dataclass
class Settings:
    lr: float = 0.1
    width: int = 3


class FromOne(Line):
    def __init__(self, settings):
        super().__init__()
        self.save_hyperparameters(settings)


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda: All(), {"lr": 0.1, "width": 3, "depth": 2}),
        (lambda: All(0.2, depth=9, more="x"), {"lr": 0.2, "width": 3, "depth": 9, "more": "x"}),
        (lambda: Ignores(lr=0.2, loss=nn.MSELoss()), {"lr": 0.2}),
        (lambda: IgnoresOne(), {"lr": 0.1}),
        (lambda: Chosen(), {"lr": 0.1, "depth": 1}),
        (lambda: Child(extra="e"), {"extra": "e", "lr": 0.5, "width": 7, "depth": 2}),
        # What the subclass was given counts, not what it passed on.
        (lambda: ChildSaves(lr=0.1, extra=1), {"lr": 0.1, "extra": 1}),
        (lambda: Data(), {"size": 4}),
        (lambda: FromOne({"lr": 0.3}), {"lr": 0.3}),
        (lambda: FromOne(argparse.Namespace(lr=0.3, width=1)), {"lr": 0.3, "width": 1}),
        (lambda: FromOne(Settings(lr=0.3)), {"lr": 0.3, "width": 3}),
    ],
    ids=[
        "all",
        "given",
        "ignore",
        "ignore one",
        "chosen",
        "subclass",
        "both save",
        "data",
        "dict",
        "namespace",
        "class",
    ],
)
def test_constructor_arguments_are_captured(make, kept):
    made = make()
    assert dict(made.hparams) == kept
    assert dict(made.hparams_initial) == kept


def test_a_name_that_is_no_argument_is_an_error():
    class Wrong(Line):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters("learning_rate")

    with pytest.raises(ValueError, match=r"\['learning_rate'\] are not arguments.*\['lr'\]"):
        Wrong()


def test_something_else_than_a_mapping_is_a_type_error():
    with pytest.raises(TypeError, match="a dict, a Namespace or a dataclass object, not a list"):
        FromOne([1])


def test_hyperparameters_are_attributes_as_well():
    module = All()
    assert module.hparams.lr == 0.1
    module.hparams.lr = 0.7
    assert module.hparams["lr"] == 0.7
    assert module.hparams_initial.lr == 0.1
    with pytest.raises(AttributeError, match=r"no hyperparameter `lrr`.*'depth', 'lr', 'width'"):
        _ = module.hparams.lrr
    for copied in (copy.deepcopy(module.hparams), pickle.loads(pickle.dumps(module.hparams))):
        assert copied.lr == 0.7
        assert type(copied) is type(module.hparams)


@pytest.mark.parametrize("value", [lambda x: x, (i for i in range(2))], ids=["lambda", "generator"])
def test_a_value_that_cannot_be_pickled_is_named_and_left_out(value):
    with pytest.warns(UserWarning, match="`more` is not kept: it cannot be pickled"):
        module = All(more=value)
    assert dict(module.hparams) == {"lr": 0.1, "width": 3, "depth": 2}


def test_a_huge_value_is_named_and_left_out():
    with pytest.warns(UserWarning, match="`more` is not kept: it takes 4.0 MB"):
        assert "more" not in All(more=torch.zeros(1_000_000)).hparams


def test_a_module_without_hyperparameters_has_none():
    assert dict(Line().hparams) == {}
    assert dict(DataModule().hparams) == {}


def saved(root, module, data=None):
    trainer = quiet_trainer(root, max_epochs=1)
    trainer.fit(module, indexed(2), indexed(1))
    path = f"{root}/saved.ckpt"
    trainer.save_checkpoint(path)
    return path


class Sized(Module):
    def __init__(self, width, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = nn.Linear(1, width)

    def training_step(self, batch):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def test_a_module_is_built_from_its_checkpoint(tmp_path):
    module = Sized(width=5, lr=0.3)
    path = saved(tmp_path, module)
    loaded = Sized.load_from_checkpoint(path)
    assert dict(loaded.hparams) == {"width": 5, "lr": 0.3}
    assert torch.equal(loaded.layer.weight, module.layer.weight)
    assert Sized.load_from_checkpoint(path, lr=0.9).hparams.lr == 0.9
    assert Sized.load_from_checkpoint(pathlib.Path(path)).hparams.width == 5


def test_a_changed_hyperparameter_is_kept_as_it_is_now(tmp_path):
    module = Sized(width=5)
    module.hparams.lr = 0.25
    assert Sized.load_from_checkpoint(saved(tmp_path, module)).hparams.lr == 0.25


def test_a_checkpoint_of_other_shapes_is_refused_and_missing_weights_too_unless_not_strict(tmp_path):
    path = saved(tmp_path, Sized(width=5))
    with pytest.raises(RuntimeError, match="size mismatch"):
        Sized.load_from_checkpoint(path, width=4)

    class More(Sized):
        def __init__(self, width, lr=0.1):
            super().__init__(width, lr)
            self.extra = nn.Linear(1, 1)

    with pytest.raises(RuntimeError, match="extra"):
        More.load_from_checkpoint(path)
    assert More.load_from_checkpoint(path, strict=False).layer.weight.shape == (5, 1)


def test_an_argument_that_was_not_saved_has_to_be_given(tmp_path):
    class Needs(Line):
        def __init__(self, backbone):
            super().__init__()

    path = saved(tmp_path, Needs(None))
    with pytest.raises(MisconfigurationError, match=r"Needs cannot be built.*backbone.*save_hyperparameters"):
        Needs.load_from_checkpoint(path)
    assert isinstance(Needs.load_from_checkpoint(path, backbone=1), Needs)


def test_layers_that_are_built_in_configure_model_are_loaded(tmp_path):
    class Late(Module):
        def __init__(self, width=2):
            super().__init__()
            self.save_hyperparameters()
            self.layer = None

        def configure_model(self):
            if self.layer is None:
                self.layer = nn.Linear(1, self.hparams.width)

        training_step = Sized.training_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Late(width=4)
    loaded = Late.load_from_checkpoint(saved(tmp_path, module))
    assert torch.equal(loaded.layer.weight, module.layer.weight)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        pathlib.Path("/some/where"),
        datetime.datetime(2026, 1, 2, 3, 4),
        datetime.timedelta(seconds=3),
        torch.float16,
        torch.device("cpu"),
        {"nested": [1, (2.0, None)], "b": {1, 2}},
        np.float64(0.1),
        np.int64(3),
        np.arange(3),
        Color.RED,
        Settings(),
        argparse.Namespace(a=1),
        nn.CrossEntropyLoss(),
        torch.optim.Adam,
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else f"class {value.__name__}",
)
def test_no_hyperparameter_makes_the_checkpoint_one_that_cannot_be_loaded(tmp_path, value):
    class Takes(Line):
        def __init__(self, value=None):
            super().__init__()
            self.save_hyperparameters()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = saved(tmp_path, Takes(value))
    kept = Takes.load_from_checkpoint(path).hparams.value
    if kept is None:
        # Left out, then, which is not done in silence.
        assert any("'value'" in str(warning.message) or "`value`" in str(warning.message) for warning in caught)
    else:
        assert np.all(kept == value)
    trainer = quiet_trainer(tmp_path, max_epochs=2)
    trainer.fit(Takes(value), indexed(2), indexed(1), ckpt_path=path)
    assert trainer.global_step == 4
