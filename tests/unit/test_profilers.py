"""What the profilers measure, where their reports go, and that a module is as it was afterwards."""

import json
import os
import pickle
import pstats
import re
import time

import fsspec
import pytest
import torch
from tests.unit.models import Calls, Line, indexed, quiet_trainer
from torch.profiler import ProfilerAction

from paceline.errors import ArgumentTypeError, MisconfigurationError
from paceline.profilers import AdvancedProfiler, Profiler, PyTorchProfiler, SimpleProfiler, make_profiler

KINDS = pytest.mark.parametrize("kind", [SimpleProfiler, AdvancedProfiler, PyTorchProfiler])


def rows(text):
    """A SimpleProfiler's table: action -> calls, mean s, total s, share %."""
    lines = text.splitlines()
    assert re.split(r" {2,}", lines[1]) == ["action", "calls", "mean s", "total s", "share %"]
    cells = [line.rsplit(maxsplit=4) for line in lines[3:]]
    return {action: tuple(float(number) for number in numbers) for action, *numbers in cells}


def traces(folder):
    names = sorted(name for name in os.listdir(folder) if name.endswith(".pt.trace.json"))
    return {name: json.loads((folder / name).read_text())["traceEvents"] for name in names}


def spans(events, name):
    return [event for event in events if event.get("name") == name and event.get("cat") == "user_annotation"]


# -- which one ----------------------------------------------------------------------------------------------------


def test_a_profiler_is_chosen_by_name_or_given():
    mine = SimpleProfiler()
    assert make_profiler(None) is None
    assert make_profiler(mine) is mine
    kinds = [type(make_profiler(name)) for name in ("simple", "Advanced", "PYTORCH")]
    assert kinds == [SimpleProfiler, AdvancedProfiler, PyTorchProfiler]


@pytest.mark.parametrize(
    ("choice", "error", "text"),
    [
        ("simpel", MisconfigurationError, "Did you mean `simple`"),
        ("xla", MisconfigurationError, '"simple", "advanced", "pytorch"'),
        (True, ArgumentTypeError, "is no Profiler"),
        (SimpleProfiler, ArgumentTypeError, "is no Profiler"),
    ],
)
def test_another_choice_is_an_error_that_lists_them(choice, error, text):
    with pytest.raises(error, match=text):
        make_profiler(choice)


# -- all ----------------------------------------------------------------------------------------------------------


@KINDS
def test_an_action_within_itself_and_an_end_without_a_beginning_are_errors(kind):
    profiler = kind()
    profiler.start("load")
    with pytest.raises(MisconfigurationError, match="'load' is being measured already"):
        profiler.start("load")
    profiler.stop("load")
    with pytest.raises(MisconfigurationError, match="'load' is not being measured"):
        profiler.stop("load")


@KINDS
def test_an_action_that_raises_has_ended(kind):
    profiler = kind()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), profiler.profile("divide"):
            _ = 1 / 0


@KINDS
def test_each_stage_and_rank_has_its_report_under_the_log_dir(kind, tmp_path, capsys):
    name = kind.default_filename
    trainer = quiet_trainer(tmp_path, profiler=kind(), max_epochs=1)
    module = Line()
    trainer.fit(module, indexed(5))
    told = capsys.readouterr()
    trainer.validate(module, indexed(5), verbose=False)
    reports = [file for file in sorted(os.listdir(tmp_path)) if file.endswith(".txt")]
    assert reports == [f"fit-{name}-0.txt", f"validate-{name}-0.txt"]
    assert (tmp_path / reports[0]).read_text().strip() in told.out + told.err
    assert "run_training_batch" in (tmp_path / reports[0]).read_text()
    assert "run_training_batch" not in (tmp_path / reports[1]).read_text()


@KINDS
def test_a_folder_and_a_name_can_be_given(kind, tmp_path):
    url = f"memory://{tmp_path.name}"
    profiler = kind(dirpath=url, filename="mine")
    profiler.setup("test", 3, str(tmp_path / "unused"))
    with profiler.profile("load"):
        pass
    text = profiler.describe()
    with fsspec.open(f"{url}/test-mine-3.txt", "rt") as file:
        assert file.read() == text
    assert not os.listdir(tmp_path)
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@KINDS
def test_a_report_that_cannot_be_written_is_said(kind, tmp_path):
    (tmp_path / "file").write_text("")
    profiler = kind(tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be written"):
        assert profiler.describe()


@KINDS
def test_a_profiler_travels_with_its_settings_and_without_what_it_measured(kind, tmp_path):
    profiler = kind(tmp_path, "mine")
    profiler.setup("fit", 0, None)
    profiler.start("going on")
    with profiler.profile("load"):
        copy = pickle.loads(pickle.dumps(profiler))
    profiler.stop("going on")
    profiler.teardown("fit")
    assert (copy.dirpath, copy.filename) == (str(tmp_path), "mine")
    assert "load" not in copy.summary()
    with copy.profile("going on"):
        pass


@KINDS
def test_a_run_that_fails_is_reported_on(kind, tmp_path):
    class Fails(Line):
        def training_step(self, batch, batch_idx):
            if batch_idx == 4:
                raise ZeroDivisionError
            return super().training_step(batch, batch_idx)

    module = Fails()
    with pytest.raises(ZeroDivisionError):
        quiet_trainer(tmp_path, profiler=kind(), max_epochs=1).fit(module, indexed(5))
    assert "[Module]Fails.training_step" in (tmp_path / f"fit-{kind.default_filename}-0.txt").read_text()
    assert not module.layer._forward_hooks
    assert not module.layer._forward_pre_hooks


def test_ones_own_profiler_is_told_what_goes_on(tmp_path):
    class Counts(Profiler):
        def _reset(self):
            super()._reset()
            self._order = []

        def start(self, action):
            super().start(action)
            self._order.append(action)

        def summary(self):
            return " ".join(self._order)

    trainer = quiet_trainer(tmp_path, profiler=Counts(), max_epochs=1)
    trainer.fit(Line(), indexed(1))
    told = (tmp_path / "fit-profile-0.txt").read_text().split()
    expected = ["run_training_epoch", "train_dataloader_next", "run_training_batch", "[Module]Line.training_step"]
    assert [action for action in told if action in expected][:4] == expected


# -- SimpleProfiler -----------------------------------------------------------------------------------------------


def test_simple_counts_the_calls_of_loops_hooks_and_strategy(tmp_path):
    trainer = quiet_trainer(
        tmp_path,
        profiler="simple",
        max_epochs=2,
        num_sanity_val_steps=0,
        callbacks=[Calls(on_train_batch_end=None, on_validation_end=None)],
    )
    trainer.fit(Line(), indexed(3), indexed(4))
    calls = {action: numbers[0] for action, numbers in rows((tmp_path / "fit-simple-0.txt").read_text()).items()}
    expected = {
        "run_training_epoch": 2,
        "run_training_batch": 6,
        "[Module]Line.training_step": 6,
        "[Strategy]SingleDeviceStrategy.backward": 6,
        "optimizer_step": 6,
        "run_validation": 2,
        "[Module]Line.validation_step": 8,
        "[Callback]Calls.on_train_batch_end": 6,
        "[Callback]Calls.on_validation_end": 2,
    }
    assert {action: calls.get(action) for action in expected} == expected
    assert calls["train_dataloader_next"] >= 6


def test_simple_gives_seconds_per_call_in_all_and_their_share_of_the_run():
    profiler = SimpleProfiler()
    profiler.setup("fit", 0, None)
    for _ in range(3):
        with profiler.profile("sleep"):
            time.sleep(0.02)
    with profiler.profile("nothing"):
        pass
    time.sleep(0.06)
    text = profiler.summary()
    run_s = float(re.match(r"Profile of (\S+) s", text)[1])
    table = rows(text)
    assert list(table) == ["sleep", "nothing"]
    calls, mean_s, total_s, share = table["sleep"]
    assert calls == 3
    assert 0.06 <= total_s <= run_s - 0.06
    assert mean_s == pytest.approx(total_s / 3, rel=1e-3)
    assert share == pytest.approx(100 * total_s / run_s, abs=0.02)


def test_simple_without_calls_and_shares():
    profiler = SimpleProfiler(extended=False)
    with profiler.profile("load"):
        pass
    head, _, row = profiler.summary().splitlines()[1:]
    assert head.split() == ["action", "mean", "s", "total", "s"]
    assert len(row.split()) == 3


def test_a_second_run_begins_anew():
    profiler = SimpleProfiler()
    for _ in range(2):
        profiler.setup("fit", 0, None)
        with profiler.profile("load"):
            pass
        profiler.teardown("fit")
    assert rows(profiler.summary())["load"][0] == 1


# -- AdvancedProfiler ---------------------------------------------------------------------------------------------


def inner_work():
    return sorted(range(10))


def outer_work():
    return [inner_work() for _ in range(3)]


def calls_of(stats, function):
    return sum(entry[1] for (_, _, name), entry in stats.stats.items() if name == function)


def test_advanced_shows_the_functions_of_each_action_and_of_those_within_it(tmp_path):
    profiler = AdvancedProfiler(tmp_path, dump_stats=True)
    with profiler.profile("epoch"):
        inner_work()
        with profiler.profile("[Module]Net.training_step"):
            outer_work()
        inner_work()
    with profiler.profile("alone"):
        inner_work()
    text = profiler.describe()
    assert re.findall("^Profile of (.*)$", text, re.MULTILINE) == ["epoch", "[Module]Net.training_step", "alone"]
    assert "(inner_work)" in text
    of_epoch, of_step, alone = (
        pstats.Stats(str(tmp_path / f"advanced-0-{name}.prof"))
        for name in ("epoch", "Module_Net.training_step", "alone")
    )
    assert [calls_of(stats, "inner_work") for stats in (of_epoch, of_step, alone)] == [5, 3, 1]
    assert [calls_of(stats, "outer_work") for stats in (of_epoch, of_step, alone)] == [1, 1, 0]


def test_advanced_can_be_read_while_an_action_goes_on():
    profiler = AdvancedProfiler()
    profiler.start("epoch")
    inner_work()
    assert "(inner_work)" in profiler.summary()
    outer_work()
    profiler.stop("epoch")
    assert re.search(r"^ +4 .*\(inner_work\)", profiler.summary(), re.MULTILINE)


@pytest.mark.parametrize(("restriction", "lines"), [(2, 2), (1.0, None)])
def test_advanced_shows_so_many_lines_of_each_action(restriction, lines):
    profiler = AdvancedProfiler(line_count_restriction=restriction)
    with profiler.profile("work"):
        outer_work()
    shown = re.findall(r"^ +\d+ .*\(?\w+\)?", profiler.summary().split("filename:lineno(function)")[1], re.MULTILINE)
    assert len(shown) == lines if lines else len(shown) > 2


@pytest.mark.parametrize("restriction", [0, -1, 1.5, 0.0])
def test_advanced_refuses_other_restrictions(restriction):
    with pytest.raises(MisconfigurationError, match="line_count_restriction"):
        AdvancedProfiler(line_count_restriction=restriction)


# -- PyTorchProfiler ----------------------------------------------------------------------------------------------


def test_pytorch_records_three_batches_with_operators_actions_and_submodules(tmp_path):
    module = Line()
    trainer = quiet_trainer(tmp_path, profiler="pytorch", max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(module, indexed(4), indexed(2))
    (events,) = traces(tmp_path).values()
    assert len(spans(events, "run_training_batch")) == 3
    assert len(spans(events, "[Module]Line.training_step")) == 3
    assert len(spans(events, "run_validation")) == 1  # after the fourth batch, between those recorded
    assert len(spans(events, "[Linear]layer")) == 3
    assert "aten::linear" in (tmp_path / "fit-pytorch-0.txt").read_text()
    assert not module.layer._forward_hooks
    assert not module.layer._forward_pre_hooks


def test_pytorch_trains_to_the_same_weights(tmp_path):
    plain, profiled = Line(), Line()
    quiet_trainer(tmp_path, max_epochs=2).fit(plain, indexed(4))
    quiet_trainer(tmp_path, profiler="pytorch", max_epochs=2).fit(profiled, indexed(4))
    assert torch.equal(plain.layer.weight, profiled.layer.weight)


def test_pytorch_writes_a_trace_for_each_recording_of_its_schedule(tmp_path):
    seen = []
    profiler = PyTorchProfiler(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=2),
        record_module_names=False,
        profile_memory=True,
        on_trace_ready=lambda recording: seen.append(recording.step_num),
    )
    quiet_trainer(tmp_path, profiler=profiler, max_epochs=1).fit(Line(), indexed(6))
    found = traces(tmp_path)
    assert list(found) == ["fit-pytorch-0-0.pt.trace.json", "fit-pytorch-0-1.pt.trace.json"]
    for events in found.values():
        assert len(spans(events, "run_training_batch")) == 1
        assert not spans(events, "[Linear]layer")
    assert len(seen) == 2
    assert "CPU Mem" in (tmp_path / "fit-pytorch-0.txt").read_text()


@pytest.mark.parametrize(
    ("stage", "action"),
    [("validate", "run_evaluation_batch"), ("test", "run_evaluation_batch"), ("predict", "run_predict_batch")],
)
def test_pytorch_counts_the_batches_of_each_stage(stage, action, tmp_path):
    profiler = PyTorchProfiler(export_to_chrome=False)
    profiler.setup(stage, 0, str(tmp_path))
    for _ in range(5):
        with profiler.profile("run_training_batch"):  # of no meaning here
            pass
        with profiler.profile(action):
            torch.ones(3).add(1)
    text = profiler.describe()
    assert text.startswith("Profile of 5 steps")
    assert re.search(rf"^ *{action} .* 3 *$", text, re.MULTILINE)
    assert os.listdir(tmp_path) == [f"{stage}-pytorch-0.txt"]


def test_pytorch_shows_so_many_rows_sorted_by_a_key(tmp_path):
    profiler = PyTorchProfiler(tmp_path, export_to_chrome=False, row_limit=1, sort_by_key="count")
    profiler.setup("fit", 0, None)
    for _ in range(3):
        with profiler.profile("run_training_batch"):
            for _ in range(9):
                torch.ones(3).add(1)
    (row,) = re.findall(r"^ *\S+ .* \d+ *$", profiler.summary().split("# of Calls")[1], re.MULTILINE)
    assert row.split()[0] in ("aten::empty", "aten::ones", "aten::fill_", "aten::add")
    assert row.split()[-1] == "9"


def test_pytorch_says_when_a_run_was_too_short_to_record(tmp_path):
    quiet_trainer(tmp_path, profiler="pytorch", max_epochs=1).fit(Line(), indexed(1))
    text = (tmp_path / "fit-pytorch-0.txt").read_text()
    assert "over after 1 step," in text
    assert "wait=0" in text
    assert not traces(tmp_path)


def test_pytorch_keeps_the_hooks_of_a_module_that_raises_in_pairs(tmp_path):
    class Raises(torch.nn.Module):
        def forward(self, x):
            raise ZeroDivisionError

    profiler = PyTorchProfiler(tmp_path, schedule=lambda step: ProfilerAction.RECORD_AND_SAVE)
    profiler.setup("fit", 0, None)
    module = torch.nn.Sequential(Raises())
    profiler.attach(module)
    for _ in range(2):
        with profiler.profile("run_training_batch"), pytest.raises(ZeroDivisionError):
            module(torch.ones(1))
    profiler.detach()
    (events, *_) = traces(tmp_path).values()
    ends = [s["ts"] + s["dur"] for name in ("[Raises]0", "run_training_batch") for s in spans(events, name)]
    assert ends == sorted(ends)
    assert len(ends) == 2
    assert not module[0]._forward_hooks


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"schedule": 3}, ArgumentTypeError, "cannot be called"),
        ({"schedule": lambda step: "record"}, MisconfigurationError, "ProfilerAction"),
        ({"sort_by_key": "cpu_time_totl"}, MisconfigurationError, "Did you mean `cpu_time_total`"),
        ({"profile_memry": True}, ArgumentTypeError, "Did you mean `profile_memory`"),
        ({"group_by_input_shapes": True}, MisconfigurationError, "record_shapes=True"),
    ],
)
def test_pytorch_refuses_what_cannot_work_at_once(options, error, text):
    with pytest.raises(error, match=text):
        PyTorchProfiler(**options)


def test_pytorch_takes_every_key_that_it_names():
    from paceline.profilers.pytorch import _SORT_KEYS

    with torch.profiler.profile() as recording:
        torch.ones(3).add(1)
    for key in _SORT_KEYS:
        assert recording.key_averages().table(sort_by=key, row_limit=1)
