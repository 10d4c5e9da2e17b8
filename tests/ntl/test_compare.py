from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ntl.cli import main
from ntl.comparison.configuration import load_config
from ntl.comparison.program import main as compare
from ntl.comparison.workers import Run, run_all


def output(overrides: list[str]) -> Path:
    return Path(overrides[-1].partition("=")[2])


def run_files(overrides: list[str]) -> list[str]:
    return sorted(path.name for path in (output(overrides) / "runs").iterdir())


def test_a_comparison_writes_table_results_figures_and_runs_and_a_second_call_continues(tiny, capsys):
    assert main(["compare", *tiny]) == 0
    printed = capsys.readouterr().out
    assert "CE + NTL-WAS" in printed
    assert "predicting everything except the noise" in printed

    folder = output(tiny)
    assert run_files(tiny) == ["ce-seed0.json", "ntl_was-seed0.json"]
    for figure in ("learning_curves.png", "predicted_vs_true.png", "overview.png"):
        assert (folder / figure).read_bytes().startswith(b"\x89PNG")
    assert "| CE + NTL-WAS | 1 |" in (folder / "table.md").read_text()

    results = json.loads((folder / "results.json").read_text())
    assert [(run["objective"], run["seed"]) for run in results["runs"]] == [("ce", 0), ("ntl_was", 0)]
    for run in results["runs"]:
        assert [point["step"] for point in run["curve"]] == [2, 4]
        assert set(run["metrics"]["test"]) == {
            "exact", "mae", "rmse", "r2", "pearson", "accuracy", "invalid",
        }  # fmt: skip
        assert run["config"]["training"]["steps"] == 4
        assert run["versions"]["torch"]
    assert str(folder.parent) not in json.dumps(results)
    record = json.loads((folder / "runs" / "ce-seed0.json").read_text())
    assert len(record["predictions"]["test"]["predicted"]) == 20

    # One more objective, without new runs of the others.
    before = {name: (folder / "runs" / name).stat().st_mtime_ns for name in run_files(tiny)}
    assert compare([*tiny, "objectives=[ce,ntl_was,regression_head]"]) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 runs are already finished" in printed
    assert "regression head" in printed
    assert before == {name: (folder / "runs" / name).stat().st_mtime_ns for name in before}


def test_runs_of_another_configuration_are_an_error_and_kept_until_overwrite(tiny, capsys):
    assert compare([*tiny, "objectives=[ce]"]) == 0
    path = output(tiny) / "runs" / "ce-seed0.json"
    first = path.read_bytes()
    capsys.readouterr()

    changed = [*tiny, "objectives=[ce]", "training.steps=2"]
    assert compare(changed) == 2
    error = capsys.readouterr().err
    assert "training.steps is 4 there, 2 here" in error
    assert "overwrite=true" in error
    assert path.read_bytes() == first

    assert compare([*changed, "overwrite=true"]) == 0
    assert json.loads(path.read_text())["config"]["training"]["steps"] == 2


def test_an_unreadable_run_is_an_error_that_names_it_and_it_is_kept(tiny, capsys):
    path = output(tiny) / "runs" / "ce-seed0.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert compare(tiny) == 2
    assert f"{path} is not a run of a comparison" in capsys.readouterr().err
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    "overrides",
    [
        ["task=poetry"],
        ["jobs=0"],
        ["task.noise=-1"],
        ["tokenizer=/nowhere"],
        ["task=arithmetic", "task.data_dir=/nowhere"],
    ],
)
def test_an_invalid_setting_is_a_one_line_error_with_code_2_and_nothing_is_written(tiny, overrides, capsys):
    if "task=arithmetic" in overrides:
        tiny = [o for o in tiny if not o.startswith("task.")]
    assert compare([*tiny, *overrides]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ntl compare: ")
    assert error.count("\n") == 1
    assert not output(tiny).exists()


def test_an_output_folder_that_is_a_file_is_an_error(tiny, capsys):
    output(tiny).write_text("mine")
    assert compare(tiny) == 2
    assert "is a file; expected a folder" in capsys.readouterr().err
    assert output(tiny).read_text() == "mine"


def test_a_failed_run_is_shown_and_the_exit_code_is_not_zero(tiny, capsys):
    assert compare([*tiny, "model.feed_forward_proj=nonsense", "objectives=[ce]"]) == 1
    printed = capsys.readouterr().out
    assert "ce, seed 0 FAILED" in printed
    assert "nonsense" in printed
    assert run_files(tiny) == []


def test_a_worker_that_dies_fails_one_run_and_the_others_continue(tiny):
    runs = [Run("ce", 0), Run("ce", 1)]
    done, failed, killed = [], {}, []

    def kill_first(run, step):
        if not killed:
            killed.append(run)
            multiprocessing.active_children()[0].kill()

    run_all(
        load_config([*tiny, "training.steps=200"]),
        runs,
        jobs=1,
        on_progress=kill_first,
        on_done=lambda run, result: done.append(run),
        on_failed=failed.__setitem__,
    )
    assert "killed by signal 9" in failed[runs[0]]
    assert done == [runs[1]]
    assert not multiprocessing.active_children()


@pytest.mark.skipif(os.name != "posix", reason="needs process groups to send Ctrl-C")
def test_ctrl_c_keeps_finished_runs_and_the_same_command_continues(tiny):
    overrides = [*tiny, "seeds=[0,1,2]", "jobs=1", "training.steps=150"]
    command = [sys.executable, "-m", "ntl.comparison.program", *overrides]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Background processes of a shell ignore Ctrl-C, and a child of these tests would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first = output(tiny) / "runs" / "ce-seed0.json"
    deadline = time.monotonic() + 60
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130, printed
    assert "To continue: ntl compare" in printed
    assert "Traceback" not in printed
    assert (output(tiny) / "table.md").exists()
    stamp = first.stat().st_mtime_ns

    assert compare(overrides) == 0
    assert len(run_files(tiny)) == 6
    assert first.stat().st_mtime_ns == stamp


def test_the_command_lists_its_subcommands_and_rejects_others(capsys):
    assert main(["--help"]) == 0
    assert "compare" in capsys.readouterr().out
    assert main(["compare", "--help"]) == 0
    assert "learning_rate" in capsys.readouterr().out
    assert main(["publish"]) == 2
    assert "'publish' is unknown" in capsys.readouterr().err
