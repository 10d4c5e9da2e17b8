import pytest
from report_cases import NUMBERS, make_readings, make_run, report, rows_of
from tolerances import approx

from ntl.report.tables import latex_table

pytestmark = pytest.mark.usefixtures("quick_figures")


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
    assert [row["interpolate accuracy"] for row in rows_of(tmp_path)] == [approx(0.15), approx(0.2)]


def test_the_best_mean_is_bold_only_if_its_interval_overlaps_with_no_other(tmp_path):
    for seed, noise in enumerate((-0.001, 0.001)):
        make_run(tmp_path / f"runs/ce/{seed}", "T5", seed, 0.2 + noise)
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, 0.5 + noise)
    assert report(tmp_path) == 0
    # ± 12.706 * 0.001
    assert "| T5 + NTL-WAS | **0.500 ± 0.013** |" in (tmp_path / "out/table.md").read_text()
    for seed, accuracy in enumerate((0.4, 0.6)):
        make_run(tmp_path / f"runs/was/{seed}", "T5 + NTL-WAS", seed, accuracy)
    assert report(tmp_path) == 0
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


def test_errors_of_a_table_come_first_and_in_its_unit(tmp_path):
    metrics = {"exact_number": 0.0, "accuracy": 0.0, "mae": 5.0, "constant_mae": 6.0, **NUMBERS}
    named = {"dataset_args": {"dataset_name": "tabular", "file": "data/bikes.csv"}}
    make_run(tmp_path / "runs/a", "T5", 0, dataset="bikes", config=named, metrics=metrics)
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "| objective | seeds | interpolate MAE | interpolate exact |" in text
    assert "Reference MAE on interpolate: 6.00 for always answering the median" in text
    assert "log MAE" not in text


def test_the_report_names_what_errors_are_compared_with(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, metrics=noisy(25.0))
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "MAE on interpolate: 130 for always answering the median of the training answers" in text
    assert "; 20.2 for answering without the noise." in text
    assert (tmp_path / "out/arithmetic_errors.svg").exists()


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
    assert (tmp_path / "out/arithmetic_digit_confusion_interpolate.svg").exists()
    assert not (tmp_path / "out/multirc_error_by_magnitude.svg").exists()
    for row in rows_of(tmp_path):
        assert (row["val bleu"] == row["val bleu"]) == (row["dataset"] == "multirc")


def test_exact_numbers_come_first_and_runs_without_them_have_no_mean(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0, metrics={"exact_number": 0.25, "accuracy": 0.5, **NUMBERS})
    make_run(tmp_path / "runs/b", "RT", 0)
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "| objective | interpolate exact |" in text
    assert "| T5 | 0.250 |" in text
    assert "| RT | n/a |" in text


def test_runs_without_predictions_are_reported_with_fewer_figures(tmp_path):
    for objective, accuracy in {"T5": 0.5, "T5 + NTL-MSE": 0.75}.items():
        run = make_run(tmp_path / "runs" / objective, objective, 0, accuracy, test="validation")
        run.evaluation("test").predictions_path("validation").unlink()
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "because predictions are missing: validation." in text
    assert "| T5 | 0.500 |" in text
    figures = sorted(path.name for path in (tmp_path / "out").glob("*.svg"))
    assert figures == ["arithmetic_accuracy.svg", "arithmetic_learning_curves.svg"]


def test_the_report_names_test_sets_that_differ_between_runs(tmp_path):
    make_run(tmp_path / "runs/a", "T5", 0)
    for seed, differs in ((1, False), (0, True)):  # seeds may have questions of their own
        folder = make_run(tmp_path / "runs" / str(seed), "RT", seed)
        folder.evaluation("test").finish(folder.update(questions={"interpolate": "others"}))
        assert report(tmp_path) == 0
        text = (tmp_path / "out/table.md").read_text()
        assert ("The questions differ between runs: interpolate." in text) == differs


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
    assert r"T5, median" in (tmp_path / "out" / "table.tex").read_text()


def test_texts_of_a_foreign_run_are_shown_as_they_are(tmp_path, capsys):
    name = "T5 <img src=x onerror=alert(1)> | $a$ and $\\b$\n# x"
    make_run(tmp_path / "runs/a", name, 0, dataset="<b>d")
    make_run(tmp_path / "runs/b", "T5", 0, dataset="<b>d", status="running")
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "<" not in text
    assert "| T5 &lt;img src=x onerror=alert(1)&gt; \\| $a$ and $\\b$ # x |" in text
    assert "## &lt;b&gt;d" in text


def test_latex_names_are_escaped_and_titles_span_their_columns():
    columns = {
        ("", "objective"): ["T5_1 & 50 %"],
        ("arithmetic__mul", "MAE"): ["**0.5 ± n/a**"],
        ("arithmetic__mul", "R²"): ["a\\b"],
    }
    text = latex_table(columns)
    assert r" & \multicolumn{2}{c}{arithmetic\_\_mul} \\" in text
    assert r"T5\_1 \& 50 \% & \textbf{0.5 ± n/a} & a\textbackslash b \\" in text
    assert r"\begin{tabular}{lrr}" in text
