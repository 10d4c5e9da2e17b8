"""The programs of studies/: which runs are made and packed, what is selected, and what the tables say."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from tolerances import approx

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "small_models"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """The folder that runs are written to, and the programs, in a copy of the project without runs."""
    shutil.copytree(ROOT / "studies", tmp_path / "studies", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "results/small_models").mkdir(parents=True)
    (tmp_path / "results/small_models/trees.json").write_text("{}")
    forget_studies()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    modules = (importlib.import_module(f"studies.small_models.{name}") for name in ("run", "tables"))
    yield tmp_path / "outputs/small_models", *modules
    forget_studies()


def forget_studies():
    for name in [name for name in sys.modules if name.partition(".")[0] == "studies"]:
        del sys.modules[name]


def write_run(folder, seed, mae, curve=(), status="finished", **metrics):
    """Write the files of a run with the given test error; a finished one is recorded, too."""
    folder.mkdir(parents=True)
    names = {"name": "vanilla_t5", "objective": "T5", "dataset": "noisy_regression"}
    rest = {
        "status": status,
        "steps": 800,
        "train_seconds": 10.0,
        "parameters": 9,
        "versions": {"torch": "2"},
    }
    record = {"format": 1, **names, "seed": seed, "config": {"training_args": {"seed": seed}}, **rest}
    (folder / "run.json").write_text(json.dumps(record))
    metrics = {"mae": mae, "count": 1000, "constant_mae": 100.0, "noise_mae": 20.0, **metrics}
    (folder / "metrics.json").write_text(json.dumps({"validation": metrics, "test": metrics}))
    points = [{"step": step, "eval_mae": error} for step, error in curve or [(800, mae)]]
    right = metrics.get("exact_number")
    points = [{**point, "eval_count": 250, "eval_exact_number": right} for point in points]
    (folder / "learning_curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
    if status == "finished":
        (folder / "made.json").write_text(json.dumps({"machine": "two cores"}))


def tables_of(folder):
    return folder.parents[1] / "results/small_models/tables.md"


def rows_below(folder, heading):
    """The rows of the first table below a heading of tables.md, as dictionaries."""
    text = tables_of(folder).read_text().split(f"## {heading}\n")[1]
    table = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_every_run_has_a_folder_of_its_own(study):
    _, run, _ = study
    runs = {one for part in run.parts() for one in part}
    assert len({one.folder for one in runs}) == len(runs)


def test_each_part_depends_only_on_earlier_parts(study, monkeypatch):
    _, run, _ = study
    done, stored = set(), {"metrics": {"validation": {"mae": 1.0}}}
    monkeypatch.setattr(run.RUNS, "get", lambda name: stored if name in done else None)
    monkeypatch.setattr(run, "compose", lambda overrides: {"training_args": {}})  # takes a while
    monkeypatch.setattr(run, "read_settings", lambda sections: sections["training_args"])
    for part in run.parts():
        for one in part:
            assert one.settings()["seed"] == one.seed
        done |= {one.name for one in part}


def test_the_candidate_with_the_least_validation_error_is_selected(study):
    _, run, _ = study
    for rate, error in zip(run.STUDY["selection"]["rates"], (30.0, 21.0, 90.0), strict=True):
        write_run(run.Run("sums", 0, "ce", 1000, rate).folder, 1000, error)
    for weight, error in zip(run.candidates("ntl_was"), (22.0, 23.0, 21.5), strict=True):
        write_run(run.Run("sums", 0, "ntl_was", 1000, weight).folder, 1000, error)
    rate, weight = run.STUDY["selection"]["rates"][1], run.candidates("ntl_was")[2]
    assert run.selected("sums", "ce") == rate
    settings = run.Run("sums_noisy", 1, "ntl_was", 3).settings()
    assert settings.loss.weight == weight
    assert settings.trainer["learning_rate"] == rate
    assert (settings.seed, settings.data["noise"], settings.data["data_seed"]) == (3, 80, 0)
    assert settings.output_dir.resolve() == run.Run("sums_noisy", 1, "ntl_was", 3).folder.resolve()


def test_a_run_whose_selection_is_not_finished_is_an_error_that_says_what_to_run(study):
    _, run, _ = study
    with pytest.raises(run.UserError, match=r"small_models.run selection"):
        run.Run("sums", 0, "ntl_was", 0).settings()


def test_all_settings_and_objectives_of_the_study_compose(study, monkeypatch):
    _, run, _ = study
    monkeypatch.setattr(run, "selected", lambda family, objective: 0.5)
    for setting in run.STUDY["tasks"]:
        assert run.Run(setting, 0, "ce", 0).settings().trainer["max_steps"]
    for objective in run.STUDY["objectives"]:
        assert run.Run("sums", 0, objective, 0).settings().objective


def test_tables_show_paired_differences_and_the_steps_that_a_loss_needs(study):
    folder, _, tables = study
    for seed, (ce, was) in enumerate([(24.0, 22.0), (25.0, 23.5), (23.0, 22.0)]):
        curve = [(400, 40.0), (800, ce)]
        write_run(folder / f"sums-800/ce/seed{seed}", seed, ce, curve, median_mae=ce - 3 - seed)
        early = [(400, 20.0), (800, was)]
        write_run(folder / f"sums-800/ntl_was/seed{seed}", seed, was, early, median_mae=ce - 3 - seed)
    write_run(folder / "sums-800/ntl_was/seed9", 9, 1.0, status="running")
    tables.main()
    _, was, *_ = rows_below(folder, "sums-800")
    assert was["minus CE"] == "-1.5 ± 1.2"  # 2, 1.5, 1: mean 1.5, standard error 0.289, t 4.30
    assert was["won"] == "3 of 3"
    assert was["CE's result at"] == "50 %"
    claims = tables_of(folder).read_text()
    assert "Cross-entropy's median beats its greedy answer: yes in 1, no in 0, undecided in 0" in claims
    assert tables_of(folder).with_name("effects.svg").stat().st_size > 10_000


def test_exact_tasks_are_compared_by_the_share_of_exact_answers(study):
    folder, _, tables = study
    for seed, (ce, was) in enumerate([(0.5, 0.6), (0.6, 0.8), (0.7, 1.0)]):
        write_run(folder / f"exact_sums-600/ce/seed{seed}", seed, 2.0, exact_number=ce)
        write_run(folder / f"exact_sums-600/ntl_was/seed{seed}", seed, 3 * (1 - was), exact_number=was)
    tables.main()
    ce, was = rows_below(folder, "exact_sums-600")
    assert was["minus CE"] == "+20 ± 25"  # points: 10, 20, 30
    assert was["won"] == "3 of 3"
    assert (ce["wrong by"], was["wrong by"]) == ("5 (1200)", "3 (600)")
    assert was["CE's result at"] == "100 %"


def test_only_seeds_that_both_objectives_have_are_compared(study):
    folder, _, tables = study
    for seed, ce in enumerate((24.0, 25.0, 26.0)):
        write_run(folder / f"sums-800/ce/seed{seed}", seed, ce)
        write_run(folder / f"sums-800/crps/seed{seed + 1}", seed + 1, 22 + 1.2 * seed)  # seeds 1 to 3
    tables.main()
    crps = next(row for row in rows_below(folder, "sums-800") if row["objective"] == "CE + CRPS")
    assert crps["MAE"] == "23.2 ± 3.0"  # of all three seeds
    assert (crps["minus CE"], crps["won"]) == ("-2.9 ± 1.3", "2 of 2")  # 22 - 25, 23.2 - 26


def test_a_zero_difference_has_p_1_and_a_zero_baseline_has_no_relative_share(study):
    folder, _, tables = study
    for seed in range(3):
        write_run(folder / f"sums-800/ce/seed{seed}", seed, 24.0 + seed, exact_number=0.0)
        write_run(folder / f"sums-800/crps/seed{seed}", seed, 24.0 + seed, exact_number=0.1 * seed)
    setting = tables.load_settings()["sums-800"]
    found = tables.effect(setting["crps"], setting["ce"])
    assert (found.mean, found.p, found.won) == (0.0, 1.0, 0)
    found = tables.effect(setting["crps"], setting["ce"], metric="exact_number")
    assert (round(found.mean, 10), found.won) == (0.1, 2)
    assert found.share != found.share


def test_losses_on_text_have_p_values_corrected_for_their_number(study):
    folder, _, tables = study
    shifts = {"ce": (0.0, 0.0, 0.0), "ntl_was": (0.1, 0.12, 0.11), "crps": (0.1, -0.1, 0.05)}
    for objective, shift in shifts.items():
        for seed in range(3):
            losses = {"ce_text": 2.0 + shift[seed], "ce_numbers": 3.0, "ntl": 2.0}
            write_run(folder / f"gsm8k-600/{objective}/seed{seed}", seed, None, **losses)
    tables.main()
    _, was, crps = rows_below(folder, "gsm8k-600")
    raw = tables.effect(
        *(tables.load_settings()["gsm8k-600"][o] for o in ("ntl_was", "ce")), metric="ce_text"
    ).p
    assert was["NLL of text, minus CE"] == "+0.110 ± 0.025"
    assert was["NLL of text, p"] == f"{2 * raw:.2g}"
    assert was["error of a digit"] == "2"
    assert crps["error of a digit"] == ""
    # By items, the metric is a mean over all tokens, of which 20 % are numbers here.
    by_items = {"ce": 1.2, "ce_text": 1.0, "ce_numbers": 2.0, "ntl": 0.4}
    assert tables.digit_error(by_items, "ntl_was_items") == approx(2.0)


def test_selection_tables_show_every_candidate_and_mark_the_selected_one(study):
    _, run, tables = study
    for weight, error, coverage in ((0.1, 21.0, 0.95), (0.3, 20.0, 0.9), (1.0, 22.0, 0.8)):
        more = {"median_mae": error - 1, "ce": 1.2, "interval_coverage": coverage}
        write_run(run.Run("sums", 0, "crps", 1000, weight).folder, 1000, error, **more)
    (table,) = tables.selection_tables()
    assert "| CE + CRPS | λ 0.3 | **20** | 19 | 1.2 | 90.0 % |" in table
    assert "**21**" not in table
    assert "80.0 %" in table


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests_and_never_decreases(study):
    *_, tables = study
    corrected = tables.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert [round(corrected[name], 10) for name in "acb"] == [0.03, 0.06, 0.06]
    assert tables.holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


@pytest.mark.skipif(not RESULTS.exists(), reason="an sdist has no results")
def test_the_tables_in_the_repository_are_those_of_its_runs(study):
    folder, _, tables = study
    shutil.copytree(RESULTS, tables_of(folder).parent, dirs_exist_ok=True)
    tables.TREES.update(json.loads((RESULTS / "trees.json").read_text()))
    tables.main()
    assert tables_of(folder).read_text() == (RESULTS / "tables.md").read_text()


def test_a_run_that_ended_before_it_was_recorded_is_recorded_and_cleaned(study, monkeypatch):
    _, run, _ = study
    one = run.Run("sums", 0, "ce", 1000, 0.003)
    write_run(one.folder, 1000, 21.0)
    (one.folder / "made.json").unlink()
    (one.folder / "model.safetensors").write_bytes(b"weights")
    (one.folder / "checkpoint-800").mkdir()
    monkeypatch.setattr(run, "parts", lambda: [[one]])
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run.RUNS.merge() == []  # not recorded yet
    assert run.main() == 0
    assert {path.name for path in one.folder.iterdir()} == {
        "run.json", "metrics.json", "learning_curve.jsonl", "made.json"
    }  # fmt: skip
    assert run.RUNS.loose(one.name)["made"]["commit"] == "unknown"


def list_runs(run, monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["run.py", "--list", *arguments])
    assert run.main() == 0
    return tuple(map(int, re.match(r"(\d+) runs, (\d+) of them missing", capsys.readouterr().out).groups()))


def test_the_program_lists_what_is_missing_and_packed_runs_are_not(study, monkeypatch, capsys):
    _, run, _ = study
    show = partial(list_runs, run, monkeypatch, capsys)
    every, missing = show("selection")
    assert every == missing > 0
    packed, loose = (run.Run("sums", 0, "ce", 1000, rate) for rate in run.STUDY["selection"]["rates"][:2])
    write_run(packed.folder, 1000, 21.0)
    assert run.RUNS.merge() == [packed.name]
    write_run(loose.folder, 1000, 22.0)
    assert show("selection") == (every, every - 2)
    assert show("selection", "--again") == (every, every - 1)
    assert show(packed.name) == (1, 0)


def test_a_reader_that_closes_the_pipe_is_no_error(study, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from studies.packing import print_lines; print_lines(['a', 'b'])"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_packed_runs_are_the_ones_that_were_written(study, tmp_path):
    folder, run, tables = study
    for seed in range(3):
        write_run(folder / f"sums-800/ce/seed{seed}", seed, 24.0 + seed, median_mae=None)
    before = run.RUNS.all()
    assert run.RUNS.merge() == [f"sums-800/ce/seed{seed}" for seed in range(3)]
    assert not [*folder.rglob("run.json")]
    packing = importlib.import_module("studies.packing")
    assert packing.read_pack(run.RUNS.pack) == run.RUNS.all() == before
    for name, stored in before.items():
        packing.write_run(tmp_path / "unpacked" / name, stored)
        assert packing.read_run(tmp_path / "unpacked" / name) == stored
    assert tables.load_settings()["sums-800"]["ce"][2].metrics["mae"] == 26.0


def test_packing_again_changes_nothing(study):
    folder, run, _ = study
    for _ in range(2):  # the second time, an equal run comes back
        write_run(folder / "sums-800/ce/seed0", 0, 24.0)
        run.RUNS.merge()
        content, time = run.RUNS.pack.read_bytes(), run.RUNS.pack.stat().st_mtime_ns
        assert run.RUNS.merge() == []
        assert (run.RUNS.pack.read_bytes(), run.RUNS.pack.stat().st_mtime_ns) == (content, time)


def test_a_run_in_both_is_read_from_its_folder_and_replaces_the_packed_one(study):
    folder, run, _ = study
    for error in (24.0, 23.0):
        write_run(folder / "sums-800/ce/seed0", 0, error)
        assert run.RUNS.get("sums-800/ce/seed0")["metrics"]["test"]["mae"] == error
        assert len(run.RUNS.all()) == 1
        run.RUNS.merge()
        assert run.RUNS.packed["sums-800/ce/seed0"]["metrics"]["test"]["mae"] == error


def test_unfinished_runs_are_not_packed(study):
    folder, run, _ = study
    write_run(folder / "sums-800/ce/seed0", 0, 24.0, status="running")
    assert run.RUNS.merge() == []
    assert (folder / "sums-800/ce/seed0/run.json").exists()


@pytest.mark.parametrize("survived", range(5))
def test_an_interrupted_packing_loses_nothing(study, monkeypatch, survived):
    folder, run, _ = study
    for seed in range(2):
        write_run(folder / f"sums-800/ce/seed{seed}", seed, 24.0 + seed)
    before = run.RUNS.all()
    left = iter(range(survived))

    def interrupt(original):
        def call(*args, **kwargs):
            next(left)  # StopIteration stands for the interruption
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupt(os.replace))
        patched.setattr(shutil, "rmtree", interrupt(shutil.rmtree))
        with pytest.raises(StopIteration):
            run.RUNS.merge()
    run.RUNS.__dict__.pop("packed", None)  # another process
    assert run.RUNS.all() == before
    run.RUNS.merge()
    assert run.RUNS.packed == before
    assert [path.name for path in folder.parent.iterdir()] == ["small_models"]


def test_a_damaged_pack_is_named(study):
    _, run, _ = study
    run.RUNS.pack.write_bytes(b"no pack")
    with pytest.raises(run.UserError, match=r"runs.jsonl.xz cannot be read .* Restore it with git"):
        run.RUNS.all()
