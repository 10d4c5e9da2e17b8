from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from ntl.config.comparison import load_comparison
from ntl.runs.sweep import do_runs
from ntl.runs.sweep import main as compare
from ntl.training.folders import last_complete_checkpoint, new_record, remaining
from tolerances import TRAINED_BY_ADAM, assert_close

from ntl.cli import main
from ntl.errors import UserError
from ntl.run_language_modeling import main as train
from ntl.training.run_folder import RunFolder


def output(overrides: list[str]) -> Path:
    return Path(overrides[-1].partition("=")[2])


def finished(overrides: list[str]) -> list[str]:
    folder = output(overrides)
    runs = (RunFolder(path.parent) for path in sorted(folder.glob("*/seed*/run.json")))
    return [str(run.path.relative_to(folder)) for run in runs if run.record().status == "finished"]


def test_a_comparison_writes_runs_and_a_report_and_a_second_call_continues(tiny, capsys):
    assert main(["compare", *tiny]) == 0
    printed = capsys.readouterr().out
    assert "| T5 + NTL-WAS |" in printed
    assert "for answering without the noise" in printed

    folder = output(tiny)
    assert finished(tiny) == ["ce/seed0", "ntl_was/seed0"]
    for figure in ("overview", "learning_curves", "accuracy"):
        assert "<svg" in (folder / f"report/noisy_regression_{figure}.svg").read_text("utf-8")
    assert (folder / "report/table.md").read_text() in printed
    for name in finished(tiny):
        run = RunFolder(folder / name)
        assert [point["step"] for point in run.curve()] == [2, 4]
        assert run.metrics()["test"]["noise_mae"] > 0
        assert run.record().versions["torch"]
        assert len(run.predictions("test")) == 20

    # One more objective, without new runs of the others.
    before = {name: (folder / name / "run.json").stat().st_mtime_ns for name in finished(tiny)}
    more = [*tiny[:-1], "objectives=[ce,ntl_was,vanilla_t5_regression_head]", tiny[-1]]
    assert compare(more) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 runs are already finished" in printed
    assert "| T5 regression head |" in printed
    assert "test MAE vs T5 |" in printed
    assert before == {name: (folder / name / "run.json").stat().st_mtime_ns for name in before}


def test_rows_are_in_the_order_of_the_objectives_and_differences_are_relative_to_the_first(tiny, capsys):
    assert compare([*tiny[:-1], "objectives=[vanilla_t5_regression_head,ce]", tiny[-1]]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert "MAE vs T5 regression head" in rows[0]
    assert [row.split(" | ")[0] for row in rows[1:3]] == ["| T5 regression head", "| T5"]


def test_a_run_of_a_comparison_is_a_run_of_the_training_program(tiny, tmp_path, capsys):
    assert compare([*tiny[:-1], "objectives=[ntl_was]", tiny[-1]]) == 0
    theirs = RunFolder(output(tiny) / "ntl_was/seed0")
    groups = ("dataset_args.", "training_args.", "model_args.")
    command = ["dataset_args=noisy_regression", "loss=ntl_was", *(o for o in tiny if o.startswith(groups))]
    command += ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
    command += ["++model_args.config_overrides.dropout_rate=0.0", "evaluation.beams=1"]
    for setting in (
        "seed=0", "learning_rate=3.0e-3", "lr_scheduler_type=linear", "warmup_steps=0.1", "use_cpu=true",
        "per_device_eval_batch_size=250", "load_best_model_at_end=false",
    ):  # fmt: skip
        command.append(f"training_args.{setting}")
    assert train([*command, f"training_args.output_dir={tmp_path}/own"]) == 0, capsys.readouterr().err
    assert_close(RunFolder(tmp_path / "own").metrics(), theirs.metrics(), TRAINED_BY_ADAM)
    assert main(["report", str(tmp_path / "own"), "--output", str(tmp_path / "report")]) == 0
    assert "| T5 + NTL-WAS | 1 |" in capsys.readouterr().out


def test_a_report_folder_with_other_files_is_an_error_before_any_run(tiny, capsys):
    foreign = output(tiny) / "report/notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    assert compare(tiny) == 2
    assert "the report's folder, holds files that are not a report" in capsys.readouterr().err
    assert finished(tiny) == []
    assert foreign.read_text() == "mine"


def test_runs_of_another_configuration_are_an_error_and_kept_until_overwrite(tiny, monkeypatch, capsys):
    monkeypatch.setattr("ntl.report.program.report", lambda *_, **__: None)  # figures take seconds
    first = [*tiny[:-1], "objectives=[ce]", tiny[-1]]
    assert compare(first) == 0
    path = output(tiny) / "ce/seed0/run.json"
    before = path.read_bytes()
    capsys.readouterr()

    changed = [*first[:-1], "training_args.max_steps=2", first[-1]]
    assert compare(changed) == 2
    error = capsys.readouterr().err
    assert "training_args.max_steps is 4 there, 2 here" in error
    assert "overwrite=true" in error
    assert compare([*first, "evaluation.samples=5"]) == 2
    assert "samples is None there, 5 here" in capsys.readouterr().err
    assert path.read_bytes() == before

    assert compare([*changed, "overwrite=true"]) == 0
    assert RunFolder(path.parent).record().steps == 2


def test_readings_are_added_to_finished_runs_without_training_them_again(tiny):
    settings = load_comparison(tiny).runs["ce, seed 0"]
    folder = RunFolder(settings.output_dir)
    folder.write_record(replace(new_record(settings), status="finished"))

    def missing(*more):
        return remaining(load_comparison([*tiny, *more]).runs["ce, seed 0"], overwrite=False)

    assert missing() is None
    again = missing("evaluation.read=[greedy,median]")
    assert (again.only_evaluate, again.model.checkpoint) == (True, str(folder))
    folder.write_record(replace(new_record(again), status="finished"))
    assert missing("evaluation.read=[median]") is missing() is None  # what is asked for is there
    with pytest.raises(UserError, match=r"interval is 0\.9 there, 0\.5 here"):
        missing("evaluation.read=[median]", "evaluation.interval=0.5")


def test_an_unreadable_run_is_an_error_that_names_it_and_it_is_kept(tiny, capsys):
    path = output(tiny) / "ce/seed0/run.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert compare(tiny) == 2
    assert f"{path} cannot be read" in capsys.readouterr().err
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    "overrides",
    [
        ["jobs=0"],
        ["objectives=[ce,'loss=ntl_was dataset_args=arithmetic dataset_args.data_dir=nowhere']"],
        ["model_args.tokenizer_name_or_path=/nowhere"],
        ["model_args.config_overrides={color: red}"],
        ["model_args.config_overrides={feed_forward_proj: nonsense}"],
        ["objectives=[ce,'loss=ntl_was loss.options={p: 2}']"],
    ],
)
def test_an_invalid_setting_is_a_one_line_error_with_code_2_and_nothing_is_written(tiny, overrides, capsys):
    assert compare([*tiny, *overrides]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ntl compare: ")
    assert error.count("\n") == 1
    assert not output(tiny).exists()


def test_an_output_folder_that_is_a_file_is_an_error(tiny, capsys):
    output(tiny).write_text("mine")
    assert compare(tiny) == 2
    assert "is not a folder and cannot be created" in capsys.readouterr().err
    assert output(tiny).read_text() == "mine"


def test_a_failed_run_is_shown_and_the_exit_code_is_not_zero(tiny, capsys):
    wild = ["training_args.learning_rate=1e30", "training_args.max_grad_norm=0"]
    assert compare([*tiny, *wild, "objectives=[ce]"]) == 1
    printed = capsys.readouterr().out
    assert "ce, seed 0 FAILED" in printed
    assert "eval_loss is not finite" in printed
    assert finished(tiny) == []


@pytest.mark.skipif(os.name != "posix", reason="needs process groups to send Ctrl-C")
def test_ctrl_c_keeps_finished_runs_and_the_same_command_continues(tiny, capsys):
    steps = ["training_args.max_steps=100", "training_args.eval_steps=100", "training_args.save_steps=20"]
    overrides = [*tiny[:-1], *steps, tiny[-1]]
    process = subprocess.Popen(
        [sys.executable, "-m", "ntl.runs.sweep", *overrides],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Background processes of a shell ignore Ctrl-C, and a child of these tests would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    first, second = (output(tiny) / f"{name}/seed0" for name in ("ce", "ntl_was"))
    deadline = time.monotonic() + 240
    while last_complete_checkpoint(second) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 130, printed
    assert "To continue: ntl compare" in printed
    assert "Traceback" not in printed
    assert "leaked" not in printed
    assert (output(tiny) / "report/table.md").exists()
    stamp = (first / "run.json").stat().st_mtime_ns

    assert compare(overrides) == 0
    assert len(finished(tiny)) == 2
    assert (first / "run.json").stat().st_mtime_ns == stamp
    state = json.loads((second / "checkpoint-100/trainer_state.json").read_text())
    assert RunFolder(second).record().steps == state["global_step"] == 100


def test_the_progress_bar_counts_the_updates_of_all_runs(monkeypatch, capsys):
    events = [
        ("a", "progress", 0.5),
        ("b", "progress", 0.5),
        ("a", "done", "test: mae 2.5"),
    ]
    monkeypatch.setattr("ntl.runs.sweep.run_all", lambda runs, jobs: (event for event in events))
    monkeypatch.setattr("ntl.runs.sweep.LINE_EVERY", 0.0)
    assert list(do_runs(dict.fromkeys("abcd"), jobs=2)) == ["a"]
    printed = capsys.readouterr()
    assert " 12% of all updates, 0 of 4 runs" in printed.err
    assert " 38% of all updates, 1 of 4 runs" in printed.err
    assert "a: test: mae 2.5" in printed.out


def test_the_remaining_time_does_not_end_below_zero(monkeypatch, capsys):
    shares = [("b", 0.8), ("a", 0.4), ("b", 0.9)]  # added one by one, they and the rest exceed 2
    events = [*((name, "progress", share) for name, share in shares), ("a", "done", ""), ("b", "done", "")]
    monkeypatch.setattr("ntl.runs.sweep.run_all", lambda runs, jobs: (event for event in events))
    monkeypatch.setattr("ntl.runs.sweep.LINE_EVERY", 0.0)
    assert list(do_runs(dict.fromkeys("ab"), jobs=2)) == ["a", "b"]
    printed = capsys.readouterr().err
    assert "100% of all updates, 2 of 2 runs" in printed
    assert "about -" not in printed


def test_the_command_lists_its_subcommands_and_rejects_others(capsys):
    assert main(["--help"]) == 0
    assert "compare" in capsys.readouterr().out
    for command in ("compare", "train"):
        assert main([command, "--help"]) == 0
        assert "learning_rate: 0.0001" in capsys.readouterr().out
    assert main(["publish"]) == 2
    assert "'publish' is unknown" in capsys.readouterr().err
