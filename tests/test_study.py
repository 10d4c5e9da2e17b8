"""The programs of results/study: which runs are made, what is selected, and what the tables say."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[1]
STUDY = ROOT / "results" / "study"


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A copy of the study's programs without its runs, in a folder like that of the project."""
    folder = tmp_path / "results" / "study"
    shutil.copytree(STUDY, folder, ignore=shutil.ignore_patterns("runs", "*.png", "__pycache__"))
    page = tmp_path / "docs" / "evidence.md"
    page.parent.mkdir()
    page.write_text((ROOT / "docs" / "evidence.md").read_text())
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(tmp_path)
    for name in ("run", "effects", "figures", "tables", "trees"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import run
    import tables

    yield folder, run, tables
    for name in ("run", "effects", "figures", "tables", "trees"):
        sys.modules.pop(name, None)


def write_run(folder, seed, mae, curve=(), status="finished", **metrics):
    """Write the files of a finished run with the given test error."""
    folder.mkdir(parents=True)
    record = json.loads((ROOT / "results/study/runs/sums-800/ce/seed0/run.json").read_text())
    content = {**record, "seed": seed, "status": status, "steps": 800, "train_seconds": 10.0}
    (folder / "run.json").write_text(json.dumps(content))
    metrics = {"mae": mae, "count": 1000, "constant_mae": 100.0, "noise_mae": 20.0, **metrics}
    (folder / "metrics.json").write_text(json.dumps({"validation": metrics, "test": metrics}))
    points = [{"step": step, "eval_mae": error} for step, error in curve or [(800, mae)]]
    right = metrics.get("exact_number")
    points = [{**point, "eval_count": 250, "eval_exact_number": right} for point in points]
    (folder / "learning_curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def rows_below(folder, heading):
    """The rows of the first table below a heading of tables.md, as dictionaries."""
    text = (folder / "tables.md").read_text().split(f"## {heading}\n")[1]
    table = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_every_run_has_a_folder_of_its_own(study):
    _, run, _ = study
    runs = {one for part in run.parts() for one in part}
    assert len({one.folder for one in runs}) == len(runs)


def test_each_part_depends_only_on_earlier_parts(study, monkeypatch):
    _, run, _ = study
    done = set()
    monkeypatch.setattr(run.Run, "is_finished", lambda self: self in done)
    monkeypatch.setattr(run.RunFolder, "metrics", lambda self: {"validation": {"mae": 1.0}})
    for part in run.parts():
        # One seed of each: composing takes a while.
        for one in {(one.task, one.objective): one for one in part}.values():
            assert one.settings().seed == one.seed
        done |= set(part)


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
    with pytest.raises(run.UserError, match=r"run.py selection"):
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
        write_run(folder / f"runs/sums-800/ce/seed{seed}", seed, ce, curve, median_mae=ce - 3 - seed)
        early = [(400, 20.0), (800, was)]
        write_run(folder / f"runs/sums-800/ntl_was/seed{seed}", seed, was, early, median_mae=ce - 3 - seed)
    write_run(folder / "runs/sums-800/ntl_was/seed9", 9, 1.0, status="running")
    tables.main()
    _, was, *_ = rows_below(folder, "sums-800")
    assert was["minus CE"] == "-1.5 ± 1.2"  # 2, 1.5, 1: mean 1.5, standard error 0.289, t 4.30
    assert was["won"] == "3 of 3"
    assert was["CE's result at"] == "50 %"
    claims = (folder / "tables.md").read_text()
    assert "Cross-entropy's median beats its greedy answer: yes in 1, no in 0, undecided in 0" in claims
    assert (folder / "overview.png").stat().st_size > 10_000


def test_exact_tasks_are_compared_by_the_share_of_exact_answers(study):
    folder, _, tables = study
    for seed, (ce, was) in enumerate([(0.5, 0.6), (0.6, 0.8), (0.7, 1.0)]):
        write_run(folder / f"runs/exact_sums-600/ce/seed{seed}", seed, 2.0, exact_number=ce)
        write_run(folder / f"runs/exact_sums-600/ntl_was/seed{seed}", seed, 3 * (1 - was), exact_number=was)
    tables.main()
    ce, was = rows_below(folder, "exact_sums-600")
    assert was["minus CE"] == "+20 ± 25"  # points: 10, 20, 30
    assert was["won"] == "3 of 3"
    assert (ce["wrong by"], was["wrong by"]) == ("5 (1200)", "3 (600)")
    assert was["CE's result at"] == "100 %"


def test_only_seeds_that_both_objectives_have_are_compared(study):
    folder, _, tables = study
    for seed, ce in enumerate((24.0, 25.0, 26.0)):
        write_run(folder / f"runs/sums-800/ce/seed{seed}", seed, ce)
        write_run(folder / f"runs/sums-800/crps/seed{seed + 1}", seed + 1, 22 + 1.2 * seed)  # seeds 1 to 3
    tables.main()
    crps = next(row for row in rows_below(folder, "sums-800") if row["objective"] == "CE + CRPS")
    assert crps["MAE"] == "23.2 ± 3.0"  # of all three seeds
    assert (crps["minus CE"], crps["won"]) == ("-2.9 ± 1.3", "2 of 2")  # 22 - 25, 23.2 - 26


def test_a_zero_difference_has_p_1_and_a_zero_baseline_has_no_relative_share(study):
    folder, _, tables = study
    for seed in range(3):
        write_run(folder / f"runs/sums-800/ce/seed{seed}", seed, 24.0 + seed, exact_number=0.0)
        write_run(folder / f"runs/sums-800/crps/seed{seed}", seed, 24.0 + seed, exact_number=0.1 * seed)
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
            write_run(folder / f"runs/gsm8k-600/{objective}/seed{seed}", seed, None, **losses)
    tables.main()
    _, was, crps = rows_below(folder, "gsm8k-600")
    raw = tables.effect(
        *(tables.load_settings()["gsm8k-600"][o] for o in ("ntl_was", "ce")), metric="ce_text"
    ).p
    assert was["NLL of text, minus CE"] == "+0.110 ± 0.025"
    assert was["NLL of text, p"] == f"{2 * raw:.2g}"
    assert was["error of a digit"] == "2"
    assert crps["error of a digit"] == ""


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
    import effects

    corrected = effects.holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert [round(corrected[name], 10) for name in "acb"] == [0.03, 0.06, 0.06]
    assert effects.holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_the_tables_and_the_page_in_the_repository_are_those_of_its_runs(study):
    folder, _, tables = study
    if not (STUDY / "tables.md").exists():
        pytest.skip("no run of the study is finished")
    shutil.copytree(STUDY / "runs", folder / "runs", dirs_exist_ok=True)
    tables.main()
    assert (folder / "tables.md").read_text() == (STUDY / "tables.md").read_text()
    assert tables.PAGE.read_text() == (ROOT / "docs" / "evidence.md").read_text()


def test_a_run_that_ended_before_it_was_recorded_is_recorded_and_cleaned(study, monkeypatch):
    _, run, _ = study
    one = run.Run("sums", 0, "ce", 1000, 0.003)
    write_run(one.folder, 1000, 21.0)
    (one.folder / "model.safetensors").write_bytes(b"weights")
    (one.folder / "checkpoint-800").mkdir()
    monkeypatch.setattr(run, "parts", lambda: [[one]])
    monkeypatch.setattr(sys, "argv", ["run.py"])
    assert run.main() == 0
    assert {path.name for path in one.folder.iterdir()} == run.KEPT
    assert json.loads((one.folder / "made.json").read_text())["commit"] == "unknown"


def test_the_program_lists_what_is_missing(study):
    folder, _, _ = study
    command = [sys.executable, str(folder / "run.py"), "--list", "selection"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    runs, missing = re.match(r"(\d+) runs, (\d+) of them missing", done.stdout).groups()
    assert int(runs) == int(missing) > 0
