"""A wrong argument is refused at once, in words that say what is allowed; the environment sets defaults."""

import inspect
import math

import pytest
from tests.unit.models import Rows

from paceline import Callback, Trainer
from paceline.callbacks import EarlyStopping, ModelCheckpoint, ModelSummary, TQDMProgressBar
from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.strategies import DDPStrategy


class Plain(Callback):
    pass


def refuse(**arguments):
    return {"devices": 1, "logger": False, **arguments}


LIMITS = ["limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": 0}, ["devices=0", "-1 for all", '"auto"']),
        ({"devices": -2}, ["devices=-2", "count such as 2"]),
        ({"devices": []}, ["devices=[]", "list of ids"]),
        ({"devices": [1, 1]}, ["devices=[1, 1]", "different ints"]),
        ({"devices": [0, -1]}, ["devices=[0, -1]", "ints from 0"]),
        ({"devices": "0,0"}, ["devices=[0, 0]", "different ints"]),
        ({"devices": "x"}, ["devices='x'", '"auto"']),
        ({"devices": ""}, ["devices=''", '"auto"']),
        ({"devices": 1.0}, ["devices=1.0", '"auto"']),
        ({"devices": True}, ["devices=True", '"auto"']),
        ({"accelerator": "cuba"}, ["accelerator='cuba'", "cpu", "Did you mean `cuda`?"]),
        ({"strategy": "dpp"}, ["strategy='dpp'", "single_device", "Did you mean `ddp`?"]),
        ({"strategy": DDPStrategy}, ["is not known", "a Strategy"]),
        ({"strategy": "single_device", "devices": 2}, ["single_device", "devices=2", '"ddp" or "auto"']),
        ({"precision": "17-mixed"}, ["precision='17-mixed'", '"32-true"']),
        ({"precision": None}, ["precision=None", '"32-true"']),
        ({"max_epochs": -2}, ["max_epochs=-2", "at least -1", "unlimited"]),
        ({"max_epochs": 1.5}, ["max_epochs=1.5", "must be an int"]),
        ({"max_epochs": True}, ["max_epochs=True", "must be an int"]),
        ({"max_epochs": "3"}, ["max_epochs='3'", "must be an int"]),
        ({"max_steps": -2}, ["max_steps=-2", "at least -1"]),
        ({"min_epochs": -1}, ["min_epochs=-1", "at least 0"]),
        ({"min_steps": -1}, ["min_steps=-1", "at least 0"]),
        ({"num_sanity_val_steps": -2}, ["num_sanity_val_steps=-2", "-1 is all"]),
        ({"check_val_every_n_epoch": 0}, ["check_val_every_n_epoch=0", "at least 1"]),
        ({"log_every_n_steps": -1}, ["log_every_n_steps=-1", "0 is never"]),
        ({"accumulate_grad_batches": 0}, ["accumulate_grad_batches=0", "at least 1"]),
        ({"accumulate_grad_batches": 2.0}, ["accumulate_grad_batches=2.0", "must be an int"]),
        ({"gradient_clip_val": -1}, ["gradient_clip_val=-1", "must not be negative"]),
        ({"gradient_clip_val": math.nan}, ["gradient_clip_val=nan"]),
        ({"gradient_clip_algorithm": "algorithm"}, ["gradient_clip_algorithm='algorithm'", '"norm" or "value"']),
        ({"gradient_clip_algorithm": None}, ["gradient_clip_algorithm=None", '"norm" or "value"']),
        ({"callbacks": [3]}, ["`callbacks` holds int", "no Callback"]),
        ({"callbacks": [Plain]}, ["`callbacks` holds Plain", "no Callback object"]),
        ({"callbacks": [Plain(), Plain()]}, ["Two callbacks", "Plain", "state_key"]),
        ({"callbacks": [EarlyStopping("a"), EarlyStopping("a", patience=9)]}, ["Two callbacks", "'monitor': 'a'"]),
        ({"callbacks": [ModelCheckpoint()], "enable_checkpointing": False}, ["enable_checkpointing=False"]),
        ({"callbacks": [TQDMProgressBar()], "enable_progress_bar": False}, ["enable_progress_bar=False"]),
        ({"callbacks": [ModelSummary()], "enable_model_summary": False}, ["enable_model_summary=False"]),
        ({"logger": 3}, ["logger=3", "True for MLflow"]),
        ({"logger": [Rows(), "x"]}, ["True for MLflow"]),
        ({"max_failures": -1}, ["max_failures=-1", "at least 0"]),
        ({"restart_every_n_steps": 0}, ["restart_every_n_steps=0", "at least 1"]),
        ({"enable_progress_bar": "sometimes"}, ["enable_progress_bar='sometimes'"]),
        *(
            ({name: value}, [f"{name}={value!r}", "int number of batches", "0 to switch the stage off"])
            for name in LIMITS
            for value in (-1, -0.5, 1.5, True, math.nan, "all", None)
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else ",".join(f"{k}={v!r}"[:50] for k, v in value.items()),
)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(arguments, words):
    with pytest.raises(MisconfigurationError) as caught:
        Trainer(**refuse(**arguments))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("max_epoch", "max_epochs"), ("limit_train_batch", "limit_train_batches"), ("acelerator", "accelerator")],
)
def test_an_unknown_argument_is_a_type_error_that_names_the_nearest(name, nearest):
    with pytest.raises(TypeError, match=f"no argument `{name}`. Did you mean `{nearest}`"):
        Trainer(**refuse(**{name: 1}))


def test_an_unknown_argument_that_is_near_to_none_gets_the_whole_list():
    with pytest.raises(MisconfigurationError, match=r"no argument `qqq`. It has: accelerator, devices"):
        Trainer(**refuse(qqq=1))


def test_arguments_have_to_be_given_by_name():
    with pytest.raises(TypeError):
        Trainer(1)


@pytest.mark.parametrize("arguments", [{"gradient_clip_val": "x"}, {"callbacks": 3}, {"logger": 3}], ids=str)
def test_a_value_of_a_wrong_type_is_a_type_error(arguments):
    with pytest.raises(TypeError, match=next(iter(arguments))):
        Trainer(**refuse(**arguments))


def test_all_wrong_arguments_are_named_together():
    with pytest.raises(MisconfigurationError) as caught:
        Trainer(**refuse(max_epochs=-5, limit_val_batches=7.0))
    assert "max_epochs=-5" in str(caught.value)
    assert "limit_val_batches=7.0" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "workers"),
    [(1, 1), (2, 2), ("2", 2), ([0, 1, 2], 3), ("0,1", 2), ((5,), 1), ("auto", 1), (-1, 1), ("-1", 1)],
)
def test_devices_are_written_in_many_ways(given, workers):
    assert Trainer(accelerator="cpu", devices=given, logger=False).num_devices == workers


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "single_device"),
        ({"devices": 2}, "ddp"),
        ({"strategy": "ddp"}, "ddp"),
        ({"strategy": DDPStrategy()}, "ddp"),
    ],
    ids=str,
)
def test_the_strategy_goes_by_the_number_of_devices(arguments, name):
    assert Trainer(**refuse(accelerator="cpu", **arguments)).strategy.name == name


@pytest.mark.parametrize("value", ["32-true", "32", 32])
def test_precision_has_several_names(value):
    assert Trainer(**refuse(precision=value)).config.precision == "32-true"


@pytest.mark.parametrize(
    ("switches", "kinds"),
    [
        ({}, ["TQDMProgressBar", "ModelSummary", "ModelCheckpoint"]),
        ({"enable_progress_bar": False}, ["ModelSummary", "ModelCheckpoint"]),
        ({"enable_checkpointing": False, "enable_model_summary": False}, ["TQDMProgressBar"]),
        ({"callbacks": Plain()}, ["Plain", "TQDMProgressBar", "ModelSummary", "ModelCheckpoint"]),
        # Checkpoints come last, wherever they were given.
        (
            {"callbacks": [ModelCheckpoint(monitor="a"), Plain()]},
            ["Plain", "TQDMProgressBar", "ModelSummary", "ModelCheckpoint"],
        ),
    ],
    ids=["all", "no bar", "no files, no summary", "one alone", "checkpoint first"],
)
def test_default_callbacks_are_added_where_none_of_their_kind_is_given(switches, kinds):
    assert [type(callback).__name__ for callback in Trainer(**refuse(**switches)).callbacks] == kinds


@pytest.mark.parametrize(
    ("logger", "count"), [(None, 0), (False, 0), (Rows(), 1), ([Rows(), Rows()], 2), ([], 0)], ids=str
)
def test_loggers_are_none_one_or_several(logger, count):
    assert len(Trainer(devices=1, logger=logger).loggers) == count


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_epochs", "3", 3),
        ("limit_val_batches", "0.5", 0.5),
        ("limit_val_batches", "1", 1),
        ("enable_progress_bar", "False", False),
        ("gradient_clip_algorithm", "value", "value"),
        ("gradient_clip_val", "None", None),
        ("devices", "0,1", (0, 1)),
        ("default_root_dir", "/somewhere/else", "/somewhere/else"),
    ],
)
def test_the_environment_sets_a_default(monkeypatch, name, text, value):
    monkeypatch.setenv(f"PACELINE_TRAINER_{name.upper()}", text)
    arguments = {} if name == "devices" else {"devices": 1}
    assert getattr(Trainer(accelerator="cpu", logger=False, **arguments).config, name) == value


def test_an_explicit_argument_beats_the_environment(monkeypatch):
    monkeypatch.setenv("PACELINE_TRAINER_MAX_EPOCHS", "3")
    assert Trainer(**refuse(max_epochs=7)).max_epochs == 7
    # None is explicit too.
    assert Trainer(**refuse(max_epochs=None)).max_epochs is None


def test_a_wrong_value_in_the_environment_is_refused_like_an_argument(monkeypatch):
    monkeypatch.setenv("PACELINE_TRAINER_MAX_EPOCHS", "many")
    with pytest.raises(MisconfigurationError, match="max_epochs='many'"):
        Trainer(**refuse())


def test_limits_can_be_raised_between_two_fits_and_stay_checked():
    trainer = Trainer(**refuse(max_epochs=1))
    trainer.max_epochs, trainer.max_steps = 5, 9
    assert (trainer.max_epochs, trainer.max_steps, trainer.config.devices) == (5, 9, 1)
    with pytest.raises(MisconfigurationError, match="max_steps=-3"):
        trainer.max_steps = -3


@pytest.mark.parametrize(("given", "root"), [("memory://runs/a", "memory://runs/a"), ("/tmp/../tmp/x", "/tmp/x")])
def test_the_root_folder_is_a_url_or_an_absolute_path(given, root):
    assert Trainer(**refuse(default_root_dir=given)).default_root_dir == root


def test_the_root_folder_is_the_working_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Trainer(**refuse()).default_root_dir == str(tmp_path)
    assert Trainer(**refuse(default_root_dir="below")).default_root_dir == str(tmp_path / "below")


def test_every_argument_says_what_it_means():
    assert [name for name, field in TrainerConfig.model_fields.items() if not field.description] == []


def test_help_shows_every_argument_with_its_default():
    shown = inspect.signature(Trainer).parameters
    assert shown["max_steps"].default == -1
    assert shown["num_sanity_val_steps"].default == 2
    assert {"devices", "callbacks", "logger", "restart_every_n_steps"} < set(shown)
