"""A wrong argument is refused at once, in words that say what is allowed; the environment sets defaults."""

import inspect
import math
import warnings

import pytest
from tests.unit.models import Rows

from paceline import Callback, Trainer
from paceline.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelSummary,
    Timer,
    TQDMProgressBar,
)
from paceline.checkpoint import CheckpointIO
from paceline.config import TrainerConfig
from paceline.errors import MisconfigurationError
from paceline.strategies import DDPStrategy, Precision, SingleDeviceStrategy


class Plain(Callback):
    pass


class OtherBar(TQDMProgressBar):
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
        ({"devices": (0, 2)}, ["devices=(0, 2)", "smallest and the largest number of workers", "(1, 4)"]),
        ({"devices": (3, 2)}, ["devices=(3, 2)", "smallest and the largest"]),
        ({"devices": (1, 2, 3)}, ["devices=(1, 2, 3)", "smallest and the largest"]),
        ({"devices": "4-2"}, ["devices=(4, 2)", "smallest and the largest"]),
        ({"devices": (1, 4), "num_nodes": 2}, ["devices=(1, 4)", "num_nodes=2", "one number"]),
        ({"devices": (1, 4), "placement_strategy": "SPREAD"}, ["placement_strategy", "devices=(1, 4)"]),
        ({"num_nodes": 2, "placement_strategy": "PACK"}, ["placement_strategy", "num_nodes=2"]),
        ({"num_nodes": 0}, ["num_nodes=0", "at least 1"]),
        ({"placement_strategy": "pack"}, ["placement_strategy='pack'", "'PACK'", "'STRICT_SPREAD'"]),
        ({"launcher": "ray-train"}, ["launcher='ray-train'", "'actors'", "'ray_train'"]),
        ({"launcher": "in_process", "address": "auto"}, ["in_process", "address='auto'", "remove one"]),
        ({"launcher": "ray_train", "num_nodes": 2}, ["ray_train", "num_nodes=2", "placement_strategy"]),
        ({"resources_per_worker": {}}, ["resources_per_worker={}", "asks for nothing", '{"CPU": 2, "GPU": 1}']),
        ({"resources_per_worker": {"CPU": 0}}, ["asks for nothing"]),
        ({"resources_per_worker": {"CPU": -1}}, ["what is no amount", "from 0"]),
        ({"resources_per_worker": {"CPU": "2"}}, ["what is no amount"]),
        ({"resources_per_worker": {"cpu": 2}}, ["Ray calls it 'CPU'"]),
        ({"resources_per_worker": {"GPU": 1.5}}, ["GPU is given in whole numbers"]),
        ({"start_timeout": -1}, ["start_timeout=-1", "seconds from 0"]),
        ({"idle_timeout": "1h"}, ["idle_timeout='1h'", "seconds from 0"]),
        ({"accelerator": "cuba"}, ["accelerator='cuba'", "cpu", "Did you mean `cuda`?"]),
        ({"strategy": "dpp"}, ["strategy='dpp'", "single_device", "Did you mean `ddp`?"]),
        ({"strategy": DDPStrategy}, ["is not known", "a Strategy"]),
        ({"strategy": "single_device", "devices": 2}, ["single_device", "devices=2", '"ddp" or "auto"']),
        ({"strategy": SingleDeviceStrategy(), "devices": 2}, ["single_device", "2 are asked for", '"ddp" or "auto"']),
        ({"max_epochs": 0, "min_steps": 3}, ["`min_steps` cannot be reached with `max_epochs=0`"]),
        ({"precision": "17-mixed"}, ["precision='17-mixed'", "32-true", "Did you mean `16-mixed`?"]),
        ({"precision": None}, ["precision=None", "32-true"]),
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
        ({"accumulate_grad_batches": {-1: 2}}, ["accumulate_grad_batches={-1: 2}", "epochs from 0", "{0: 1, 4: 2}"]),
        ({"accumulate_grad_batches": {1: 0}}, ["accumulate_grad_batches={1: 0}", "numbers of batches from 1"]),
        ({"accumulate_grad_batches": {1.5: 2}}, ["accumulate_grad_batches={1.5: 2}", "epochs from 0"]),
        ({"accumulate_grad_batches": {}}, ["accumulate_grad_batches={}", "Use an int"]),
        ({"max_time": "1:00"}, ["max_time='1:00'", "DD:HH:MM:SS"]),
        ({"max_time": 3}, ["max_time=3", "DD:HH:MM:SS"]),
        ({"max_time": {"second": 3}}, ["max_time", "second"]),
        ({"overfit_batches": 1.5}, ["overfit_batches=1.5", "more than all"]),
        ({"overfit_batches": -1}, ["overfit_batches=-1", "int number of batches"]),
        ({"fast_dev_run": -1}, ["fast_dev_run=-1", "True for one"]),
        ({"fast_dev_run": 1.0}, ["fast_dev_run=1.0", "True for one"]),
        ({"fast_dev_run": "yes"}, ["fast_dev_run='yes'", "True for one"]),
        ({"val_check_interval": 1.5}, ["val_check_interval=1.5", "more than an epoch"]),
        ({"val_check_interval": -1}, ["val_check_interval=-1", "0.0 to 1.0"]),
        ({"val_check_interval": 0}, ["val_check_interval=0", "`limit_val_batches=0` switches it off"]),
        ({"val_check_interval": math.nan}, ["val_check_interval=nan", "0.0 to 1.0"]),
        ({"val_check_interval": True}, ["val_check_interval=True", "0.0 to 1.0"]),
        ({"check_val_every_n_epoch": None}, ["check_val_every_n_epoch=None", "val_check_interval=100", "not 1.0"]),
        (
            {"check_val_every_n_epoch": None, "val_check_interval": 0.5},
            ["check_val_every_n_epoch=None", "as an int", "not 0.5"],
        ),
        ({"check_val_every_n_epoch": 1.5}, ["check_val_every_n_epoch=1.5", "at least 1, or None"]),
        ({"track_grad_norm": 0}, ["track_grad_norm=0", '"inf"', "-1 for none"]),
        ({"track_grad_norm": "two"}, ["track_grad_norm='two'", "above 0"]),
        ({"track_grad_norm": True}, ["track_grad_norm=True", "above 0"]),
        ({"track_grad_norm": math.nan}, ["track_grad_norm=nan", "above 0"]),
        ({"deterministic": "maybe"}, ["deterministic='maybe'", '"warn"']),
        ({"benchmark": "often"}, ["benchmark='often'"]),
        ({"detect_anomaly": "often"}, ["detect_anomaly='often'"]),
        ({"reload_dataloaders_every_n_epochs": -1}, ["reload_dataloaders_every_n_epochs=-1", "at least 0"]),
        ({"multiple_trainloader_mode": "max_cycle"}, ["multiple_trainloader_mode='max_cycle'", "`max_size_cycle`?"]),
        ({"profiler": "simpel"}, ["profiler='simpel'", "Did you mean `simple`?"]),
        ({"profiler": 3}, ["profiler=3", "advanced"]),
        ({"plugins": 3}, ["`plugins` holds 3", "a Precision, a CheckpointIO, a Launcher"]),
        ({"plugins": [Precision]}, ["`plugins` holds", "objects of these kinds"]),
        ({"plugins": [Precision(), Precision()]}, ["two of one kind: precision"]),
        ({"plugins": [CheckpointIO(), CheckpointIO()]}, ["two of one kind: checkpoint_io"]),
        ({"precision": "16-mixed", "accelerator": "cpu"}, ["16-mixed", "needs a GPU", '"bf16-mixed"']),
        ({"precision": "16", "accelerator": "cpu"}, ["needs a GPU", '"bf16-mixed"']),
        ({"precision": True}, ["precision=True", "bf16-mixed"]),
        (
            {"accumulate_grad_batches": 2, "callbacks": [GradientAccumulationScheduler({1: 2})]},
            ["`accumulate_grad_batches` and a GradientAccumulationScheduler", "give one"],
        ),
        ({"callbacks": [TQDMProgressBar(), OtherBar()]}, ["2 progress bars", "TQDMProgressBar, OtherBar"]),
        ({"barebones": True, "profiler": "simple"}, ["`barebones=True`", "`profiler='simple'`"]),
        ({"barebones": True, "enable_checkpointing": True}, ["`barebones=True`", "`enable_checkpointing=True`"]),
        ({"barebones": True, "enable_progress_bar": True}, ["`barebones=True`", "`enable_progress_bar=True`"]),
        ({"barebones": True, "enable_model_summary": True}, ["`barebones=True`", "`enable_model_summary=True`"]),
        ({"barebones": True, "num_sanity_val_steps": 1}, ["`barebones=True`", "`num_sanity_val_steps=1`"]),
        ({"barebones": True, "fast_dev_run": 2}, ["`barebones=True`", "`fast_dev_run=2`"]),
        ({"barebones": True, "detect_anomaly": True}, ["`barebones=True`", "`detect_anomaly=True`"]),
        ({"barebones": True, "logger": True}, ["`barebones=True`", "`logger=True`"]),
        ({"barebones": True, "track_grad_norm": 2}, ["`barebones=True`", "`track_grad_norm=2.0`"]),
        ({"barebones": True, "callbacks": [ModelCheckpoint()]}, ["enable_checkpointing=False"]),
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
    [
        (1, 1), (2, 2), ("2", 2), ([0, 1, 2], 3), ("0,1", 2), ([5], 1), ("auto", 1), (-1, 1), ("-1", 1),
        ((1, 3), 3), ("2-8", 8), (" 2 - 8 ", 8), ((2, 2), 2),
    ],
)  # fmt: skip
def test_devices_are_written_in_many_ways(given, workers):
    assert Trainer(accelerator="cpu", devices=given, logger=False).num_devices == workers


@pytest.mark.parametrize(("devices", "on_each"), [(3, 3), ([0, 1], 2), ("auto", 1)])
def test_nodes_multiply_the_workers(devices, on_each):
    trainer = Trainer(accelerator="cpu", devices=devices, num_nodes=4, logger=False)
    assert (trainer.world_size, trainer.num_nodes, trainer.num_devices) == (4 * on_each, 4, on_each)


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


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((value, "32-true") for value in ("32-true", "32", 32)),
        *((value, "64-true") for value in ("64-true", "64", 64)),
        *((value, "bf16-mixed") for value in ("bf16-mixed", "bf16")),
        ("bf16-true", "bf16-true"),
        ("16-true", "16-true"),
    ],
)
def test_precision_has_several_names(value, name):
    assert Trainer(**refuse(precision=value)).precision == name


@pytest.mark.parametrize(
    ("arguments", "today"),
    [
        ({"gpus": 2}, 'Trainer(accelerator="gpu", devices=2)'),
        ({"gpus": [0, 3]}, 'Trainer(accelerator="gpu", devices=[0, 3])'),
        ({"num_processes": 4}, 'Trainer(accelerator="cpu", devices=4)'),
        ({"tpu_cores": 8}, 'Trainer(accelerator="tpu", devices=8)'),
        ({"ipus": 4}, 'Trainer(accelerator="ipu", devices=4)'),
        ({"auto_select_gpus": True}, 'Trainer(accelerator="gpu", devices=1)'),
        ({"resume_from_checkpoint": "a.ckpt"}, "trainer.fit(module, ckpt_path='a.ckpt')"),
        ({"amp_backend": "native"}, 'Trainer(precision="16-mixed")'),
        ({"amp_level": "O2"}, 'Trainer(precision="16-mixed")'),
    ],
    ids=str,
)
def test_an_argument_of_the_past_is_answered_with_todays_call(arguments, today):
    with pytest.raises(TypeError, match=f"`{next(iter(arguments))}` is an argument of the past") as caught:
        Trainer(**refuse(**arguments))
    assert today in str(caught.value)


def test_the_old_name_of_the_distributed_sampler_works_with_a_warning():
    with pytest.warns(UserWarning, match="`replace_sampler_ddp` is called `use_distributed_sampler=False` now"):
        trainer = Trainer(**refuse(replace_sampler_ddp=False))
    assert trainer.config.use_distributed_sampler is False


@pytest.mark.parametrize(
    "name",
    [*LIMITS, "overfit_batches", "val_check_interval"],
)
def test_one_as_an_int_is_one_batch_and_said_to_be(name):
    with pytest.warns(UserWarning, match=f"`{name}=1` means one batch; write 1.0 for a whole epoch"):
        Trainer(**refuse(**{name: 1}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(**refuse(**{name: 1.0}))


def test_a_run_to_find_mistakes_switches_off_what_would_leave_traces():
    with pytest.warns(UserWarning, match="`fast_dev_run=3`: 3 batches of each stage in one epoch; loggers, .* are off"):
        trainer = Trainer(devices=1, fast_dev_run=3, max_epochs=9, max_steps=2, logger=Rows())
    assert trainer.loggers == []
    assert (trainer.max_epochs, trainer.max_steps) == (1, -1)
    config = trainer.config
    assert [getattr(config, name) for name in LIMITS] == [3] * 4
    assert config.num_sanity_val_steps == 0


def test_barebones_leaves_nothing_but_training():
    trainer = Trainer(devices=1, barebones=True, max_epochs=1)
    assert trainer.callbacks == []
    assert trainer.loggers == []
    assert trainer.profiler is None
    assert trainer.config.num_sanity_val_steps == 0


def test_a_time_limit_brings_a_timer_unless_there_is_one():
    assert any(isinstance(c, Timer) for c in Trainer(**refuse(max_time="00:01:00:00")).callbacks)
    own = Timer(duration="00:00:00:05")
    with pytest.warns(UserWarning, match="`max_time` is ignored, since `callbacks` holds a Timer"):
        trainer = Trainer(**refuse(max_time="00:01:00:00", callbacks=own))
    assert [c for c in trainer.callbacks if isinstance(c, Timer)] == [own]


def test_the_callers_list_of_callbacks_stays_as_it_is():
    given = [Plain()]
    Trainer(**refuse(callbacks=given, max_time="00:01:00:00"))
    assert len(given) == 1


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
        ("devices", "0,1", [0, 1]),
        ("devices", "2-8", (2, 8)),
        ("devices", "(2, 8)", (2, 8)),
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
