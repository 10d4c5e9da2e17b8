import math

import pytest
from report_cases import make_readings, make_run
from tolerances import approx

from ntl.report.figures import SEEDS_NOTE, DatasetFigures, digit_counts, draw_dataset, error_by_digits
from ntl.report.groups import Dataset, load_datasets
from ntl.training.run_folder import Prediction


def predict(predicted, true, times=1):
    return [Prediction("q", str(true), str(predicted), predicted, true)] * times


def test_digits_are_compared_by_their_place():
    counts = digit_counts([*predict(12.0, 1234.0), *predict(-1239.9, 1234.5), *predict(None, 4.0)], 0)
    assert (counts[4, 2], counts[4, 9], counts[4, 10], counts.sum()) == (1, 1, 1, 3)
    hundreds = digit_counts([*predict(12.0, 1234.0), *predict(999.0, 9.0)], 2)
    assert (hundreds[2, 10], hundreds.sum()) == (1, 1)


def test_errors_are_grouped_by_the_true_numbers_digits():
    found = error_by_digits(
        [
            *predict(99.0, 9.0, 10),  # log10(100) - log10(10)
            *predict(-999.0, 999.0, 10),  # a wrong sign
            *predict(0.5, -0.5, 10),
            *predict(None, 12345.0, 10),
            *predict(1.0, 20.0, 9),  # too few for a bin
            *predict(1e300, 1e200, 10),  # both clipped
        ]
    )
    assert found == approx({0: 2 * math.log10(1.5), 1: 1.0, 3: 6.0, 10: 0.0})


def test_digit_confusion_shows_places_with_digits_and_few_models(tmp_path):
    for i in range(6):
        what = {"metrics": {"accuracy": 0.1 * i}, "predictions": predict(4.0, 4.0, 12)}
        make_run(tmp_path / f"runs/{i}", f"T5 + {i}", 0, test="test", **what)
    (dataset,), _ = load_datasets([tmp_path / "runs"])
    figure = DatasetFigures(dataset).digit_confusion("test")
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert len(titles) == 4
    assert all(title.endswith("units") for title in titles)
    assert "the first 4 of 6 rows" in " ".join(figure.get_suptitle().split())
    assert len(figure.axes[0].get_xticks()) == 10  # no column for answers without a digit


def test_xval_is_not_in_a_panel_of_cross_entropies(tmp_path):
    for name in ("T5", "xVal"):
        folder = make_run(tmp_path / name, name, 0, metrics={"exact_match": 0.5})
        folder.curve_path.unlink()
        folder.add_to_curve({"step": 1, "eval_ce": 1.0, "eval_accuracy": 0.5})
    (dataset,), _ = load_datasets([tmp_path])
    figure = DatasetFigures(dataset).learning_curves()
    accuracy, entropy = figure.axes
    assert [line.get_label() for line in accuracy.lines] == ["T5", "xVal"]
    assert [line.get_label() for line in entropy.lines] == ["T5"]


@pytest.mark.parametrize(("objectives", "seeds"), [(1, 1), (6, 2)])
def test_all_figures_are_drawn_for_few_and_for_many_objectives(tmp_path, objectives, seeds):
    for i in range(objectives):
        for seed in range(seeds):
            answers = predict(4.0 + seed, 4.0, 12) + predict(None, 30.0, 12)
            metrics = {"accuracy": 0.1 * (i + 1), "log_mae": None, "mae": 4.0, "noise_mae": 2.0}
            what = {"dataset": "arith/x", "test": "test", "metrics": metrics, "predictions": answers}
            folder = make_run(tmp_path / f"runs/{i}-{seed}", f"T5 + {i}", seed, **what)
            folder.curve_path.unlink()
            # The second seed was evaluated at other steps, and one objective has no cross-entropy.
            cross_entropy = None if i == 0 else 1.0
            folder.add_to_curve({"step": 10, "eval_accuracy": 0.5, "eval_mae": 9.0, "eval_ce": cross_entropy})
            folder.add_to_curve({"step": 20 + seed, "eval_accuracy": 0.6, "eval_ce": 0.5})
    (dataset,), _ = load_datasets([tmp_path / "runs"])
    (tmp_path / "out").mkdir()
    names = draw_dataset(dataset, tmp_path / "out")
    kinds = ("errors", "learning_curves", "error_by_magnitude", "digit_confusion_test")
    assert names == [f"arith%2Fx_{kind}{ending}" for kind in kinds for ending in (".svg", ".pdf")]
    assert all((tmp_path / "out" / name).stat().st_size for name in names)
    for name in names[::2]:
        assert (tmp_path / "out" / name).read_text("utf-8").rstrip().endswith("</svg>")


def test_titles_name_the_first_seed_that_was_evaluated_on_the_test_set(tmp_path):
    for seed in (0, 1):
        answers = predict(4.0, 4.0, 12)
        what = {"dataset": "noisy_regression", "test": "validation", "predictions": answers}
        folder = make_run(tmp_path / f"{seed}", "T5", seed, **what, metrics={"accuracy": 0.5})
    metrics = {"accuracy": 0.5, "mae": 4.0, "noise_mae": 2.0}
    read = [p._replace(lower=1.0, median=4.0, upper=9.0) for p in predict(5.0, 4.0, 12)]
    folder.evaluation("test").write_results("test", metrics, read)
    (dataset,), _ = load_datasets([tmp_path])
    figures = DatasetFigures(dataset).draw()
    assert figures["intervals_test"].axes[0].get_title() == "T5 (seed 1)"


def test_a_table_has_dots_for_each_reading_and_for_a_constant_and_no_figure_of_zeros(tmp_path):
    metrics = {"accuracy": 0.0, "exact_number": 0.0, "mae": 5.0, "median_mae": 4.0, "constant_mae": 6.0}
    make_run(tmp_path, "SmolLM2", 0, 0.0, dataset="tabular", test="test", metrics=metrics)
    (dataset,), _ = load_datasets([tmp_path])
    figures = DatasetFigures(dataset).draw()
    assert [*figures] == ["errors", "error_by_magnitude"]
    (errors,) = figures["errors"].axes
    assert [text.get_text() for text in errors.get_yticklabels()] == [
        "SmolLM2, greedy",
        "SmolLM2, median",
        "constant",
    ]
    assert [dots.get_offsets()[0].tolist() for dots in errors.collections] == [[5, 0], [4, 1], [6, 2]]


def test_captions_are_broken_into_lines_that_fit_the_figure(tmp_path):
    make_run(tmp_path, "T5", 0)
    (dataset,), _ = load_datasets([tmp_path])
    figure = DatasetFigures(dataset).draw()["accuracy"]
    figure.draw_without_rendering()
    box = figure._supxlabel.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert " ".join(figure._supxlabel.get_text().split()) == SEEDS_NOTE


def test_runs_without_learning_curves_have_no_learning_curve_figure(tmp_path):
    folder = make_run(tmp_path / "run", "T5", 0, dataset="rjokes", metrics={"exact_match": 0.5})
    folder.curve_path.unlink()
    (dataset,), _ = load_datasets([tmp_path])
    assert draw_dataset(dataset, tmp_path) == ["rjokes_accuracy.svg", "rjokes_accuracy.pdf"]


def test_dollars_in_a_name_are_no_mathematics(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"runs/{seed}", "T5 $\\b$ {y} $5", seed, metrics={"accuracy": 0.5, "mae": 4.0})
    (dataset,), _ = load_datasets([tmp_path / "runs"])
    (name, *_) = draw_dataset(dataset, tmp_path)
    assert "T5 $\\b$ {y} $5" in (tmp_path / name).read_text("utf-8")


def test_figures_of_uncertainty_show_the_runs_that_were_read(tmp_path):
    for seed in (0, 1):
        make_readings(tmp_path / f"ce/{seed}", "T5", seed, greedy=9.0, median=7.0)
        make_readings(tmp_path / f"head/{seed}", "T5 regression head", seed, greedy=6.0)
    ((dataset,), _) = load_datasets([tmp_path])
    figures = DatasetFigures(dataset).draw()
    (ax,) = figures["calibration"].axes
    assert [line.get_label() for line in ax.lines] == ["calibrated", "T5"]
    assert list(ax.lines[1].get_xdata()) == list(ax.lines[1].get_ydata()) == approx([0.05, 0.55, 0.95])
    (ax,) = figures["intervals_test"].axes
    assert ax.get_title() == "T5 (seed 0)"
    covered, missed = (len(bars.get_segments()) for bars in ax.collections[:2])
    assert (covered, missed) == (20, 0)
    others = [group for group in dataset.groups if group.label != "T5"]
    assert not {"calibration", "intervals_test"} & {*DatasetFigures(Dataset("noisy", others)).draw()}
