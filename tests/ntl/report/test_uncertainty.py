from report_cases import make_readings
from tolerances import approx

from ntl.report.groups import load_datasets
from ntl.report.style import styles
from ntl.report.uncertainty import draw_calibration, draw_intervals


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
