import pytest
from report_cases import add_curve, make_readings, make_run
from tolerances import approx

from ntl.report.figures import draw_curves, draw_errors, draw_figures
from ntl.report.runs import read_runs


@pytest.mark.parametrize(("rows", "seeds"), [(1, 1), (9, 6)])
def test_both_figures_are_drawn_for_few_and_for_many_rows(rows, seeds, tmp_path):
    for i in range(rows):
        for seed in range(seeds):
            metrics = {"accuracy": 0.1 * (i + 1), "mae": 4.0 + seed, "constant_mae": 9.0, "noise_mae": 2.0}
            what = {"dataset": "arith/x", "test": "validation", "metrics": metrics}
            run = make_run(tmp_path / f"runs/{i}-{seed}", f"T5 $\\b$ {{y}} ${i}", seed, **what)
            # The seeds were evaluated at different steps.
            add_curve(run, {"step": 10, "eval_mae": 9.0}, {"step": 20 + seed, "eval_ce": 0.5})
    (tmp_path / "out").mkdir()
    names = draw_figures(read_runs([tmp_path / "runs"])[0], tmp_path / "out")
    kinds = ("errors", "learning_curves")
    assert names == [f"arith%2Fx_{kind}{ending}" for kind in kinds for ending in (".svg", ".pdf")]
    assert all((tmp_path / "out" / name).stat().st_size for name in names)
    text = (tmp_path / "out" / names[0]).read_text("utf-8")
    assert text.rstrip().endswith("</svg>")
    assert "T5 $\\b$ {y} $0" in text  # dollars in a name are no mathematics


def test_errors_have_dots_for_each_reading_and_for_a_constant(tmp_path):
    for seed in (0, 1):
        make_readings(tmp_path / f"ce{seed}", "T5", seed, greedy=5.0 + seed, median=4.0)
    (ax,) = draw_errors(read_runs([tmp_path])[0]).axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["T5, greedy", "T5, median"]
    assert [dots.get_offsets().tolist() for dots in ax.collections] == [
        [[5, 0], [6, 0]],
        [[4, 1], [4, 1]],
    ]


def test_a_mean_with_its_interval_needs_five_seeds(tmp_path):
    for seed in range(5):
        assert not (seed and draw_errors(read_runs([tmp_path])[0]).axes[0].containers)
        make_run(tmp_path / str(seed), "T5", seed, 0.1 + seed / 10)
    (bar,) = draw_errors(read_runs([tmp_path])[0]).axes[0].containers
    assert bar.lines[0].get_xdata()[0] == approx(0.3)


def test_curves_are_medians_at_the_steps_that_all_seeds_share(tmp_path):
    for seed, (accuracy, last) in enumerate(((0.1, 20), (0.5, 21), (0.2, 20))):
        points = [{"step": step, "eval_accuracy": accuracy} for step in (10, last)]
        add_curve(make_run(tmp_path / str(seed), "T5", seed), *points)
    (ax,) = draw_curves(read_runs([tmp_path])[0]).axes
    assert ax.lines[0].get_xydata().tolist() == [[10, 0.2]]
