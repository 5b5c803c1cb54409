"""What is logged is on disk soon, whole and in order, and logging never waits for the disk."""

import math
import os
import random
import statistics
import subprocess
import sys
import time

import pytest

from paceline.errors import MisconfigurationError
from paceline.loggers import MLflowLogger, names
from paceline.loggers.address import resolve, without_password
from paceline.loggers.recorder import Recorder
from paceline.loggers.spool import Spool, decode


def row(step, **values):
    return {"kind": "metrics", "step": step, "time_ms": 1, "values": values}


def records(folder):
    return [decode(line) for line, _ in Spool(folder).lines()]


@pytest.fixture
def folder(tmp_path):
    return f"{tmp_path}/spool/run"


def test_a_row_costs_the_loop_microseconds_and_rows_keep_their_order(folder):
    recorder = Recorder(folder)
    costs = []
    for step in range(2000):
        record = row(step, loss=0.5, accuracy=0.25)
        begin = time.perf_counter_ns()
        recorder.put(record)
        costs.append((time.perf_counter_ns() - begin) / 1000)
    assert recorder.flush(timeout_s=30.0)
    recorder.close()
    assert statistics.median(costs) < 50.0
    assert [record["step"] for record in records(folder)] == list(range(2000))


def test_steps_that_are_run_again_after_a_restart_are_recorded_once(folder):
    recorder = Recorder(folder)
    for step in (0, 1, 2, 1, 2, 3):
        recorder.put(row(step, loss=float(step)))
    recorder.put(row(2, other=1.0, loss=9.0))
    recorder.close()
    written = records(folder)
    assert [record["step"] for record in written] == [0, 1, 2, 3, 2]
    assert written[-1]["values"] == {"other": 1.0}


def test_a_fresh_stretch_records_its_steps_whatever_came_before(folder):
    recorder = Recorder(folder)
    recorder.put(row(5, loss=1.0))
    recorder.forget()
    recorder.put(row(0, loss=2.0))
    recorder.close()
    assert [record["step"] for record in records(folder)] == [5, 0]


def test_nan_and_infinities_survive(folder):
    recorder = Recorder(folder)
    recorder.put(row(0, a=math.nan, b=math.inf, c=-math.inf))
    recorder.close()
    values = records(folder)[0]["values"]
    assert math.isnan(values["a"])
    assert (values["b"], values["c"]) == (math.inf, -math.inf)


def test_two_processes_that_write_one_spool_lose_no_line(folder):
    script = (
        "import sys\nfrom paceline.loggers.recorder import Recorder\nrecorder = Recorder(sys.argv[1])\n"
        "for step in range(3000):\n"
        "    values = {sys.argv[2]: float(step), 'filling': 'x' * 200}\n"
        "    recorder.put({'kind': 'metrics', 'step': step, 'time_ms': 1, 'values': values})\n"
        "recorder.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, folder, name]) for name in ("one", "two")]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    written = records(folder)
    assert len(written) == 6000
    for name in ("one", "two"):
        assert [record["step"] for record in written if name in record["values"]] == list(range(3000))


def lose_rows(recorder, count, first=0):
    for step in range(first, first + count):
        recorder.put(row(step, loss=1.0))
    assert recorder.flush(timeout_s=10.0)


def test_a_full_disk_warns_once_and_training_goes_on(folder):
    os.makedirs(folder)
    os.symlink("/dev/full", f"{folder}/records.jsonl")
    recorder = Recorder(folder)
    with pytest.warns(UserWarning, match="No space left") as caught:
        lose_rows(recorder, 50)
    recorder.close()
    assert len(caught) == 1
    assert recorder.dropped == 50


def test_what_a_full_disk_cost_is_said_when_the_logger_closes(tmp_path, capfd):
    logger = MLflowLogger(tracking_uri="http://127.0.0.1:9")
    logger.start("run", f"{tmp_path}/.paceline/spool")
    logger.log_metrics({"loss": 1.0}, 0)
    assert logger._recorder.flush(timeout_s=10.0)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, logger._recorder._descriptor)
    os.close(full)
    with pytest.warns(UserWarning, match="No space left"):
        lose_rows(logger._recorder, 5, first=1)
    logger.finalize("finished")
    logger.close(timeout_s=0.5)
    logger._process.kill()
    logger._process.wait()
    assert "6 records of run run are lost" in capfd.readouterr().err  # five rows, and how it ended


def test_a_spool_that_was_deleted_meanwhile_is_made_again(folder):
    recorder = Recorder(folder)
    recorder.put(row(0, loss=1.0))
    assert recorder.flush(timeout_s=10.0)
    Spool(folder).clear()
    recorder.forget()
    recorder.put(row(0, loss=2.0))
    recorder.close()
    assert [record["values"] for record in records(folder)] == [{"loss": 2.0}]


def test_every_name_can_be_read_back_and_has_a_place_of_its_own():
    tricky = [
        "recall@1", "recall|1", "recall_x40_1", "recall_x5f_x40_1", "_x40@", "train/loss", "train_xent", "a\n", "", ".",
        "..", "./a", "a/../b", "..a", "/a", "a/", "a//b", "a///b", "é日本", "x" * 250, "50%", "a_x110000_", "\0",
        "\ud800",
    ]  # fmt: skip
    letters = random.Random(0)
    tricky += ["".join(letters.choices("_x40af@/. |\\", k=letters.randint(1, 9))) for _ in range(20000)]
    tricky = list(dict.fromkeys(tricky))
    escaped = [names.escape(name) for name in tricky]
    assert [names.unescape(name) for name in escaped] == tricky
    assert len(set(escaped)) == len(tricky)
    assert names.escape("train/loss") == "train/loss"
    assert names.escape("recall@1") == "recall_x40_1"


def test_mlflow_takes_every_escaped_name():
    from mlflow.utils.validation import _validate_metric_name

    letters = random.Random(1)
    for _ in range(3000):
        name = "".join(letters.choices("_x4@/. |\\:-é\n\t%", k=letters.randint(0, 9)))
        _validate_metric_name(names.escape(name))


def test_names_over_250_characters_are_cut_and_stay_apart():
    one, two = "m" * 300, "m" * 299 + "n"
    cut = {names.escape(one): one, names.escape(two): two}
    assert [len(name) for name in cut] == [250, 250]
    assert names.read_mapping(names.mapping_tags(cut)) == cut


def test_hyperparameters_are_flat_and_the_same_text_each_time():
    class Thing:
        pass

    flat = names.flatten(
        {"optimizer": {"lr": 0.1, "betas": (0.9, 0.999)}, "cls": Thing, "thing": Thing(), "none": None}
    )
    assert flat["optimizer/lr"] == "0.1"
    assert flat["optimizer/betas"] == "[0.9, 0.999]"
    assert flat["none"] == "None"
    assert " at 0x" not in flat["thing"]
    assert flat["cls"].endswith("Thing")


def test_a_store_has_the_same_address_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    logger = MLflowLogger()
    assert logger.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert logger.ui_command == f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/mlflow.db"
    assert logger.version == ""
    assert MLflowLogger(tracking_uri="http://127.0.0.1:5000/").ui_command == "http://127.0.0.1:5000"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:80")
    assert MLflowLogger().tracking_uri == "http://tracker:80"
    assert without_password("postgresql://me:secret@host/db") == "postgresql://...@host/db"
    for impossible in ("sqlite:///:memory:", "file:///tmp/mlruns", "./mlruns"):
        with pytest.raises(MisconfigurationError, match="cannot hold runs"):
            resolve(impossible)


def test_logging_before_the_run_has_started_says_so():
    with pytest.raises(MisconfigurationError, match="has not started"):
        MLflowLogger(tracking_uri="http://127.0.0.1:1").log_metrics({"loss": 1.0}, step=0)
    with pytest.raises(MisconfigurationError, match="log_model"):
        MLflowLogger(log_model="all")


def test_what_sends_records_imports_nothing_heavy():
    script = (
        "import sys, paceline.cli, paceline.loggers.sender\n"
        "assert not {'torch', 'ray', 'mlflow'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_line_that_a_kill_cut_does_not_take_the_next_record_with_it(folder):
    spool = Spool(folder)
    spool.append({"kind": "start", "run_key": "run"})
    with open(spool.records, "ab") as file:
        file.write(b'{"kind": "metrics", "step": 3, "val')
    spool.append({"kind": "status", "status": "killed"})
    assert [record["kind"] for record in spool.lives()] == ["start", "status"]
