import pytest
from report_cases import NUMBERS, make_readings, make_run, report

from ntl.report.contrasts import compare_rows
from ntl.report.runs import read_runs
from ntl.report.tables import markdown_report

TABULAR = {"dataset_args": {"dataset_name": "tabular"}}


def text_of(tmp_path):
    table, left_out = read_runs([tmp_path])
    return markdown_report(table, compare_rows(table, [], 5.0)[0], left_out)


def test_rows_are_means_and_confidence_intervals_over_seeds(tmp_path):
    make_run(tmp_path / "ce", "T5", 0, metrics={"accuracy": 0.15})
    for seed, accuracy in enumerate([0.1, 0.2, 0.3]):
        make_run(tmp_path / f"was/{seed}", "T5 + NTL-WAS", seed, metrics={"accuracy": accuracy})
    # s = 0.1, t(0.975, 2) = 4.302653: 4.302653 * 0.1 / sqrt(3)
    assert text_of(tmp_path).splitlines()[2:6] == [
        "| row | seeds | interpolate accuracy |",
        "|---|---:|---:|",
        "| T5 | 1 | 0.150 |",
        "| T5 + NTL-WAS | 3 | 0.200 ± 0.248 |",
    ]


def test_differences_are_paired_by_seed(tmp_path):
    # Seeds differ by far more than objectives, so only a paired difference shows the effect.
    for seed, mae in enumerate((10.0, 20.0, 30.0)):
        for label, factor in (("T5", 1.0), ("T5 + NTL-WAS", 0.9)):
            metrics = {"accuracy": 0.1, "mae": factor * mae}
            make_run(tmp_path / f"{label}/{seed}", label, seed, metrics=metrics, settings=TABULAR)
    alone = {"accuracy": 0.1, "mae": 1000.0}  # without a partner
    make_run(tmp_path / "T5 + NTL-WAS/3", "T5 + NTL-WAS", 3, metrics=alone, settings=TABULAR, job=1)
    text = text_of(tmp_path)
    assert "interpolate MAE | interpolate MAE vs T5 |" in text
    assert "| T5 | 3 | 20.0 ± 24.8 |  |" in text
    # -1, -2, -3: s = 1, t(0.975, 2) / sqrt(3) = 2.484
    assert "-2.00 ± 2.48 (lower on 3 of 3) |" in text


@pytest.mark.parametrize(
    ("metrics", "settings", "shown"),
    [
        ({"accuracy": 0.1, "mae": 5.0, **NUMBERS}, TABULAR, ["MAE", "invalid"]),
        ({"accuracy": 0.1, "mae": 5.0, "noise_mae": 2.0, **NUMBERS}, {}, ["MAE", "MAE vs T5", "invalid"]),
        ({"accuracy": 0.1, "mae": 5.0, **NUMBERS}, {}, ["accuracy", "log MAE", "log R²", "invalid"]),
        ({"exact_match": 0.25, "bleu": 12.3}, {}, ["exact match", "BLEU"]),
    ],
)
def test_columns_are_what_matters_of_what_was_measured(metrics, settings, shown, tmp_path):
    make_run(tmp_path, "T5", 0, metrics=metrics, settings=settings)
    headings = [cell.strip() for cell in text_of(tmp_path).splitlines()[2].strip("|").split("|")]
    assert headings == ["row", "seeds", *(f"interpolate {name}" for name in shown)]


def test_what_models_are_compared_with_has_rows_below_them(tmp_path):
    for label, mae in (("RT", 25.0), ("T5", 60.0)):
        for seed in (0, 1):
            metrics = {"accuracy": 0.1, "mae": mae + seed, "constant_mae": 130.0, "noise_mae": 1.5}
            make_run(tmp_path / f"{label}{seed}", label, seed, metrics=metrics)
    rows = [line for line in text_of(tmp_path).splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[:3] for row in rows] == [
        ["| row", "seeds", "interpolate MAE"],
        ["| RT", "2", "25.5 ± 6.4"],
        ["| T5", "2", "60.5 ± 6.4"],
        ["| constant", "2", "130 ± 0"],
        ["| without noise", "2", "1.50 ± 0.00"],
    ]
    assert "+104 ± 6 (lower on 0 of 2)" in rows[3]


def test_a_metric_that_one_seed_lacks_has_no_mean(tmp_path):
    make_run(tmp_path / "0", "T5", 0)
    make_run(tmp_path / "1", "T5", 1, metrics={"accuracy": 0.5, **NUMBERS, "log_r2": None})
    make_run(tmp_path / "2", "RT", 0, metrics={"accuracy": 0.5, "log_r2": 0.25})
    make_run(tmp_path / "3", "xVal", 0, metrics={"accuracy": 0.5, "log_r2": 0.25})
    make_run(tmp_path / "4", "xVal", 1, metrics={"accuracy": 0.5})
    text = text_of(tmp_path)
    assert "| T5 | 2 | 0.500 ± 0.000 | 0.500 ± 0.000 | n/a | 0 ± 0 |" in text
    assert "| RT | 1 | 0.500 | n/a | 0.250 | n/a |" in text
    assert "| xVal | 2 | 0.500 ± 0.000 | n/a | n/a | n/a |" in text


def test_the_report_names_test_sets_whose_questions_differ_between_runs_of_a_seed(tmp_path):
    make_run(tmp_path / "a", "T5", 0)
    make_run(tmp_path / "b", "RT", 1, fingerprints={"interpolate": "of others"})
    assert "Rows may not be comparable" not in text_of(tmp_path)
    make_run(tmp_path / "b", "RT", 0, fingerprints={"interpolate": "of others"})
    assert "interpolate. Rows may not be comparable" in text_of(tmp_path)


def test_each_reading_is_a_row_and_distributions_have_a_table_of_their_own(tmp_path):
    for seed in (0, 1):
        make_readings(tmp_path / f"ce/{seed}", "T5", seed, greedy=9.0 + seed, median=7.0, mean=8.0)
        make_readings(tmp_path / f"head/{seed}", "T5 regression head", seed, greedy=6.0)
    first, second = text_of(tmp_path).split("| row |")[1:3]
    rows = [line.split(" | ")[:4] for line in first.splitlines() if line.startswith("| T5")]
    assert rows == [
        ["| T5, greedy", "2", "9.50 ± 6.35", ""],
        ["| T5, median", "2", "7.00 ± 0.00", "-2.50 ± 6.35 (lower on 2 of 2)"],
        ["| T5, mean", "2", "8.00 ± 0.00", "-1.50 ± 6.35 (lower on 2 of 2)"],
        ["| T5 regression head", "2", "6.00 ± 0.00", "-3.50 ± 6.35 (lower on 2 of 2)"],
    ]
    assert second.splitlines()[0] == " seeds | test CRPS | test coverage | test width |"
    assert "| T5 | 2 | 2.00 ± 0.00 | 0.800 ± 0.000 | 4.50 ± 6.35 |" in second
    assert "regression head" not in second


@pytest.mark.usefixtures("no_figures")
def test_texts_of_a_foreign_run_are_shown_as_they_are(tmp_path):
    name = "T5 <img src=x onerror=alert(1)> | $a$ and $\\b$\n# x"
    make_run(tmp_path / "runs/a", name, 0, dataset="<b>d")
    (tmp_path / "runs/<b>/.hydra").mkdir(parents=True)
    assert report(tmp_path) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert "<" not in text
    assert "| T5 &lt;img src=x onerror=alert(1)&gt; \\| $a$ and $\\b$ # x |" in text
    assert "## &lt;b&gt;d" in text
