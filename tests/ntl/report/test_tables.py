from __future__ import annotations

import csv
import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tolerances import approx

from ntl.cli import main
from ntl.report.formats import latex_table
from ntl.report.groups import load_datasets, mean_and_interval
from ntl.report.style import styles
from ntl.report.uncertainty import draw_calibration, draw_intervals
from ntl.training.run_folder import Prediction, RunFolder, RunRecord

NUMBERS = {
    "log_mae": 0.5,
    "log_r2": 0.25,
    "invalid_rate": 0.0,
    "exact_match": 0.0,
    "bleu": 0.0,
    "rougeL": 0.0,
}
PREDICTIONS = [Prediction("q", str(i), str(i + 1), i + 1.0, float(i)) for i in range(20)]


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch):
    """Write figures without rendering them, which takes seconds; test_figures.py renders them."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, dpi: path.write_text("drawn")
    )


def make_run(path, objective, seed, accuracy=0.5, *, dataset="arithmetic", test="interpolate", **changes):
    """Make a run, which is finished unless `changes` to its record say otherwise."""
    folder = RunFolder(path)
    config = changes.pop("config", {})
    config = {"training_args": {"seed": seed, "output_dir": str(path)}, **config}
    metrics = changes.pop("metrics", {"accuracy": accuracy, **NUMBERS})
    record = RunRecord("model", objective, dataset, seed, config, status="finished", steps=10)
    folder.write_record(replace(record, **changes))
    folder.write_results(test, metrics, PREDICTIONS, {"questions": "the same"})
    folder.add_to_curve({"step": 5, "eval_accuracy": accuracy})
    return folder


def report(tmp_path, *more):
    return main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *more])


def rows_of(tmp_path):
    with (tmp_path / "out" / "table.csv").open() as file:
        return list(csv.DictReader(file))


def test_rows_are_means_and_confidence_intervals_over_seeds(tmp_path, capsys):
    for seed, accuracy in enumerate([0.1, 0.2, 0.3]):
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, accuracy)
    make_run(tmp_path / "runs/ce", "T5", 0, 0.15)
    assert report(tmp_path) == 0
    # s = 0.1, t(0.975, 2) = 4.302653: 4.302653 * 0.1 / sqrt(3)
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[2] == "| objective | seeds | interpolate accuracy |"
    assert lines[4] == "| T5 | 1 | 0.150 |"
    assert lines[5] == "| T5 + NTL-WAS | 3 | 0.200 ± 0.248 |"
    assert lines[7].startswith("The same in all rows: interpolate log MAE 0.500, interpolate log R² 0.250, ")
    assert "\n".join(lines) in capsys.readouterr().out
    ce, was = rows_of(tmp_path)
    assert (ce["interpolate accuracy"], ce["interpolate accuracy ±"]) == ("0.15", "")
    assert float(was["interpolate accuracy ±"]) == approx(0.248414)


def test_the_best_mean_is_bold_only_if_its_interval_overlaps_with_no_other(tmp_path):
    for seed, noise in enumerate((-0.001, 0.001)):
        make_run(tmp_path / f"runs/ce/{seed}", "T5", seed, 0.2 + noise)
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, 0.5 + noise)
    assert report(tmp_path) == 0
    # ± 12.706 * 0.001
    assert "| T5 + NTL-WAS | **0.500 ± 0.013** |" in (tmp_path / "out/table.md").read_text()
    for seed, accuracy in enumerate((0.4, 0.6)):
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, accuracy)
    assert report(tmp_path, "--overwrite") == 0
    assert "| T5 + NTL-WAS | 0.50 ± 1.27 |" in (tmp_path / "out/table.md").read_text()


def noisy(mae):
    return {"accuracy": 0.1, "mae": mae, "constant_mae": 130.0, "noise_mae": 20.25}


def test_differences_are_paired_by_seed(tmp_path):
    # Seeds differ by far more than objectives, so only a paired difference shows the effect.
    for seed, mae in enumerate((10.0, 20.0, 30.0)):
        make_run(tmp_path / f"runs/ce/{seed}", "T5", seed, metrics=noisy(mae))
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, metrics=noisy(0.9 * mae))
    make_run(tmp_path / "runs/was/3", "T5 + NTL-WAS", 3, metrics=noisy(1000.0))  # without a partner
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "interpolate MAE | interpolate MAE vs T5 |" in text
    # -1, -2, -3: s = 1, t(0.975, 2) / sqrt(3) = 2.484
    assert "-2.00 ± 2.48 (lower on 3 of 3) |" in text
    assert "| T5 | 3 | 20.0 ± 24.8 |  |" in text


def test_the_report_names_what_errors_are_compared_with(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, metrics=noisy(25.0))
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "MAE on interpolate: 130 for always answering the median of the training answers" in text
    assert "; 20.2 for answering without the noise." in text
    assert (tmp_path / "out/arithmetic_overview.png").exists()


def test_the_confidence_interval_uses_students_t(tmp_path):
    mean, width = mean_and_interval([1.0, 3.0])
    assert (mean, width) == (2.0, approx(12.7062047))
    assert mean_and_interval([1.0]) == (1.0, None)
    assert mean_and_interval([1.0, 2.0, 6.0]) == (3.0, approx(4.3026527 * math.sqrt(7 / 3)))
    assert mean_and_interval([1.0, None]) == (None, None)


def test_a_metric_that_one_seed_lacks_has_no_mean(tmp_path):
    make_run(tmp_path / "runs/0", "T5", 0)
    make_run(tmp_path / "runs/1", "T5", 1, metrics={"accuracy": 0.5, **NUMBERS, "log_r2": None})
    assert report(tmp_path) == 0
    assert "| T5 | 2 | 0.500 ± 0.000 | 0.500 ± 0.000 | n/a |" in (tmp_path / "out/table.md").read_text()


def test_each_dataset_has_its_own_tables_and_figures(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    texts = {"exact_match": 0.25, "bleu": 12.3, "rougeL": 0.5}
    make_run(tmp_path / "runs/b", "T5", 0, dataset="multirc", test="val", metrics=texts)
    solutions = {"accuracy": 0.5, "final_answer_accuracy": 0.125, **NUMBERS}
    make_run(tmp_path / "runs/c", "T5", 0, dataset="gsm8k", test="test", metrics=solutions)
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "## multirc\n\n| objective | seeds | val exact match | val BLEU | val ROUGE-L |" in text
    assert "| T5 | 1 | 0.250 | 12.3 | 0.500 |" in text
    assert "| objective | seeds | test final answer | test accuracy |" in text
    assert (tmp_path / "out/arithmetic_digit_confusion_interpolate.png").exists()
    assert not (tmp_path / "out/multirc_error_by_magnitude.png").exists()
    for row in rows_of(tmp_path):
        assert (row["val bleu"] != "") == (row["dataset"] == "multirc")


def test_runs_of_the_same_name_with_different_settings_are_separate_rows(tmp_path):
    for weight in (0.3, 0.8):
        config = {"model_args": {"number_token_loss_weight": weight}}
        for seed in (0, 1):
            make_run(tmp_path / f"runs/{weight}/{seed}", "T5 + NTL-WAS", seed, weight, config=config)
    assert report(tmp_path) == 0
    assert [(row["objective"], row["seeds"]) for row in rows_of(tmp_path)] == [
        ("T5 + NTL-WAS (number_token_loss_weight=0.3)", "2"),
        ("T5 + NTL-WAS (number_token_loss_weight=0.8)", "2"),
    ]


def test_the_first_of_two_equal_runs_is_kept_and_both_are_named(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, 0.25)
    make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    assert report(tmp_path) == 0
    warning = f"{tmp_path}/runs/b repeats {tmp_path}/runs/a (arithmetic, T5, seed 0"
    assert warning in capsys.readouterr().err
    assert warning in (tmp_path / "out/table.md").read_text()
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == ["0.25"]
    # The first folder on the command line wins.
    folders = [str(tmp_path / "runs" / name) for name in "ba"]
    assert main(["report", *folders, "--output", str(tmp_path / "out"), "--overwrite"]) == 0
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == ["0.75"]


def test_an_evaluated_checkpoint_is_a_separate_row(tmp_path):
    run = make_run(tmp_path / "runs/b", "T5", 0, 0.75)
    make_run(tmp_path / "runs/a", "T5", 0, 0.25, config={"evaluated": f"{run}/checkpoint-5"})
    assert report(tmp_path) == 0
    found = {row["objective"]: row["interpolate accuracy"] for row in rows_of(tmp_path)}
    assert found == {"T5 (checkpoint=5)": "0.25", "T5 (checkpoint=null)": "0.75"}


def test_runs_with_different_test_sets_share_a_table(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    config = {"dataset_args": {"mode": "dataset_comparison"}}
    make_run(tmp_path / "runs/b", "T5", 0, 0.75, test="arithmetic__mul", config=config)
    assert report(tmp_path) == 0
    one, other = rows_of(tmp_path)
    assert (one["interpolate accuracy"], one["arithmetic__mul accuracy"]) == ("", "0.75")
    assert (other["interpolate accuracy"], other["arithmetic__mul accuracy"]) == ("0.5", "")
    for test in ("interpolate", "arithmetic__mul"):
        assert (tmp_path / f"out/arithmetic_digit_confusion_{test}.png").exists()


def test_exact_numbers_come_first_and_runs_without_them_have_no_mean(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, metrics={"exact_number": 0.25, "accuracy": 0.5, **NUMBERS})
    make_run(tmp_path / "runs/b", "RT", 0)
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "| objective | interpolate exact |" in text
    assert "| T5 | 0.250 |" in text
    assert "| RT | n/a |" in text


def test_the_report_names_the_evaluations_that_it_shows_and_omits(tmp_path):
    config = {"evaluation": {"beams": 4, "samples": None, "samples_during_training": 50}}
    run = make_run(tmp_path / "runs/a", "T5", 0, config=config)
    few = run.evaluation("samples=20")
    make_run(few.path, "T5", 0, 0.9, config={"evaluation": {**config["evaluation"], "samples": 20}})
    assert report(tmp_path) == 0
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == ["0.5"]
    text = (tmp_path / "out/table.md").read_text()
    assert "Evaluated with beams=4, samples=null." in text
    assert "Not shown: evaluations with samples=20 (1 run)" in text
    assert json.loads((tmp_path / "out/report.json").read_text())["not_shown"] == [str(few)]
    assert main(["report", str(few), "--output", str(tmp_path / "few")]) == 0
    text = (tmp_path / "few/table.md").read_text()
    assert "Evaluated with beams=4, samples=20." in text
    assert "| T5 | 1 | 0.900 |" in text
    assert main(["report", str(run), str(few), "--output", str(tmp_path / "both")]) == 0
    text = (tmp_path / "both/table.md").read_text()
    assert "Evaluated with beams=4, samples=20 (1 run); beams=4, samples=null (1 run)." in text
    assert "| T5 (samples=20) | 0.900 |" in text
    assert "Not shown" not in text


def test_runs_without_predictions_are_reported_with_fewer_figures(tmp_path):
    for objective, accuracy in {"T5": 0.5, "T5 + NTL-MSE": 0.75}.items():
        run = make_run(tmp_path / "runs" / objective, objective, 0, accuracy, test="validation")
        run.predictions_path("validation").unlink()
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "because predictions are missing: validation." in text
    assert "| T5 | 0.500 |" in text
    figures = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert figures == ["arithmetic_accuracy.png", "arithmetic_learning_curves.png"]


def test_a_failed_report_leaves_nothing_behind_and_can_be_repeated(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)

    def fail(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.figures.draw_dataset", fail)
        assert report(tmp_path) == 130
        assert not (tmp_path / "out").exists()
    assert report(tmp_path) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.figures.draw_dataset", fail)
        assert report(tmp_path, "--overwrite") == 130
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_full_disk_while_drawing_leaves_no_report(tmp_path, monkeypatch, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("matplotlib.figure.Figure.savefig", full)
        assert report(tmp_path) == 2
    assert "cannot be written (No space left on device)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert report(tmp_path) == 0


def test_an_error_of_the_disk_without_a_number_is_quoted(tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise OSError("image file is truncated")

    make_run(tmp_path / "runs/a", "T5", 0)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    assert report(tmp_path) == 2
    assert "cannot be written (image file is truncated)" in capsys.readouterr().err


def test_a_killed_report_does_not_block_the_next_one(tmp_path, monkeypatch):
    make_run(tmp_path / "runs/a", "T5", 0)
    (tmp_path / "out/.unfinished-abc").mkdir(parents=True)  # killed while drawing
    assert report(tmp_path) == 0
    replace_file = os.replace

    def replace_one(source, target):  # killed while moving
        if Path(target).name == "table.csv":
            raise KeyboardInterrupt
        replace_file(source, target)

    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    with monkeypatch.context() as patched:
        patched.setattr("ntl.report.program.os.replace", replace_one)
        assert report(tmp_path, "--overwrite") == 130
    assert report(tmp_path, "--overwrite") == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == "0.75"


def test_unfinished_runs_are_omitted_and_listed(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, 0.5)
    make_run(tmp_path / "runs/b", "T5", 1, 0.9, status="running", steps=7)
    assert report(tmp_path) == 0
    assert rows_of(tmp_path)[0]["interpolate accuracy"] == "0.5"
    assert "runs/b (T5, seed 1) is running, at step 7" in (tmp_path / "out/table.md").read_text()


def test_folders_without_a_finished_run_are_an_error(tmp_path, capsys):
    make_run(tmp_path / "runs/b", "T5", 1, status="running")
    assert report(tmp_path) == 2
    assert "no run is finished" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "no run in these folders or their subfolders" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_report_names_test_sets_that_differ_between_runs(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    folder = make_run(tmp_path / "runs/b", "RT", 0)
    folder.write_results("interpolate", folder.metrics()["interpolate"], [], {"questions": "others"})
    assert report(tmp_path) == 0
    assert "The questions differ between runs: interpolate." in (tmp_path / "out/table.md").read_text()


def test_a_report_is_replaced_only_on_request_and_completely(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0, dataset="gsm8k")
    assert report(tmp_path) == 0
    before = (tmp_path / "out/table.md").read_text()
    make_run(tmp_path / "runs/a", "T5", 0, 0.75)
    assert report(tmp_path) == 2
    assert "holds a report" in capsys.readouterr().err
    assert (tmp_path / "out/table.md").read_text() == before
    (tmp_path / "out/mine.txt").write_text("kept")
    assert report(tmp_path, "--overwrite") == 0
    assert "Replaced" in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert "mine.txt" in written
    assert not any(name.startswith("gsm8k") for name in written)
    assert set(json.loads((tmp_path / "out/report.json").read_text())["files"]) < written


def test_a_folder_with_other_files_is_never_written_to(tmp_path, capsys):
    make_run(tmp_path / "runs/a", "T5", 0)
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "runs"), "--overwrite"]) == 2
    assert "holds files that are not a report" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]


def test_latex_names_are_escaped_and_rules_span_their_columns():
    columns = {
        ("", "objective"): ["T5 + λ_1 & 50 %"],
        ("arithmetic__mul", "MAE"): ["**0.5 ± n/a**"],
        ("arithmetic__mul", "R²"): ["a\\b^2"],
    }
    text = latex_table(columns, "On $ and #")
    assert r" & \multicolumn{2}{c}{arithmetic\_\_mul} \\" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert (
        r"T5 + $\lambda$\_1 \& 50 \% & \textbf{0.5 $\pm$ n/a} & a\textbackslash{}b\textasciicircum{}2 \\"
        in text
    )
    assert r"\caption{On \$ and \#}" in text
    assert r"\begin{tabular}{lrr}" in text


def make_readings(path, objective, seed, **errors):
    """Make a run with readings: the MAE of each, and a model whose intervals cover 80 %."""
    metrics = {"accuracy": 0.0, **NUMBERS, "noise_mae": 1.0, "mae": errors.pop("greedy")}
    metrics |= {f"{reading}_mae": error for reading, error in errors.items()}
    if errors:
        metrics |= {"crps": 2.0, "interval_coverage": 0.8, "interval_width": 4.0 + seed}
        metrics |= {f"coverage_{percent}": percent / 100 for percent in (95, 55, 5)}
    folder = make_run(path, objective, seed, dataset="noisy_regression", test="test", metrics=metrics)
    read = [p._replace(lower=p.true - 2, median=p.true, upper=p.true + 2) for p in PREDICTIONS]
    folder.write_results("test", metrics, read if errors else PREDICTIONS, {"questions": "the same"})
    return folder


def test_each_reading_is_a_row_and_distributions_have_a_table_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("ntl.report.figures.draw_dataset", lambda *given: [])
    for seed in (0, 1):
        make_readings(tmp_path / f"runs/ce/{seed}", "T5", seed, greedy=9.0 + seed, median=7.0, mean=8.0)
        make_readings(tmp_path / f"runs/head/{seed}", "T5 regression head", seed, greedy=6.0)
    assert report(tmp_path) == 0
    text = (tmp_path / "out" / "table.md").read_text()
    first, second = text.split("| objective |")[1:3]
    rows = [line.split(" | ")[:3] for line in first.splitlines() if line.startswith("| T5")]
    assert rows == [
        ["| T5, greedy", "9.50 ± 6.35", ""],
        ["| T5, median", "7.00 ± 0.00", "-2.50 ± 6.35 (lower on 2 of 2)"],
        ["| T5, mean", "8.00 ± 0.00", "-1.50 ± 6.35 (lower on 2 of 2)"],
        ["| T5 regression head", "6.00 ± 0.00", "-3.50 ± 6.35 (lower on 2 of 2)"],
    ]
    assert second.splitlines()[0] == " seeds | test CRPS | test coverage | test width |"
    assert "| T5 | 2 | 2.00 ± 0.00 | 0.800 ± 0.000 | 4.50 ± 6.35 |" in second
    assert "regression head" not in second.partition("CRPS: continuous")[0]
    table = {row["objective"]: row for row in rows_of(tmp_path)}
    assert float(table["T5, median"]["test mae"]) == 7
    assert float(table["T5, median"]["test mae ±"]) == 0
    assert r"T5, median" in (tmp_path / "out" / "table.tex").read_text()


def test_figures_of_uncertainty_show_the_runs_that_were_read(tmp_path):
    for seed in (0, 1):
        make_readings(tmp_path / f"ce/{seed}", "T5", seed, greedy=9.0, median=7.0)
        make_readings(tmp_path / f"head/{seed}", "T5 regression head", seed, greedy=6.0)
    ((dataset,), _) = load_datasets([tmp_path])
    groups = dataset.groups
    looks = styles([group.label for group in groups])
    (ax,) = draw_calibration(groups, ["test"], looks).axes
    assert [line.get_label() for line in ax.lines] == ["calibrated", "T5"]
    assert list(ax.lines[1].get_xdata()) == list(ax.lines[1].get_ydata()) == approx([0.05, 0.55, 0.95])
    answers = {group.label: group.predictions("test") for group in groups}
    (ax,) = draw_intervals("test", answers, looks).axes
    assert ax.get_title() == "T5 (seed 0)"
    covered, missed = (len(bars.get_segments()) for bars in ax.collections[:2])
    assert (covered, missed) == (20, 0)
    # Without readings there is nothing to draw.
    others = [group for group in groups if group.label != "T5"]
    assert draw_calibration(others, ["test"], looks) is None
    del answers["T5"]
    assert draw_intervals("test", answers, looks) is None


def test_runs_whose_losses_are_divided_by_different_counts_are_not_compared(tmp_path, capsys):
    make_run(tmp_path / "runs/old", "T5", 0)  # recorded before there was a choice: the paper's count
    make_run(tmp_path / "runs/paper", "T5 + NTL-WAS", 0, config={"loss": {"normalize_by": "numbers"}})
    assert report(tmp_path) == 0
    make_run(tmp_path / "runs/items", "T5 + CRPS", 0, config={"loss": {"normalize_by": "items"}})
    assert report(tmp_path, "--overwrite") != 0
    assert "loss.normalize_by=items in" in capsys.readouterr().err
