import pytest

from ntl.errors import UserError
from ntl.metrics import METRICS, find_metric, number_metrics
from ntl.scores import (
    SPACED,
    Distribution,
    final_answer_scores,
    reading_scores,
    text_scores,
)


@pytest.mark.parametrize(
    ("name", "higher", "heading"),
    [
        ("loss", False, "loss"),
        ("eval_accuracy", True, "accuracy"),
        ("eval_median_mae", False, "MAE of the median"),
        ("mean_pearson", True, "Pearson of the mean"),
        ("constant_log_mae", False, "log MAE of a constant answer"),
        ("latitude_mae", False, "MAE of latitude"),
        ("mean_temperature_mae", False, "MAE of mean_temperature"),
        ("coverage_95", None, "coverage of 95 % intervals"),
        ("interval_width", None, "width"),
    ],
)
def test_a_metric_is_found_by_its_name_and_by_what_it_is_of(name, higher, heading):
    found = find_metric(name)
    assert (found.name, found.higher_is_better) == (name.removeprefix("eval_"), higher)
    assert found.heading == heading


@pytest.mark.parametrize("name", ["maee", "coverage_", "median_maee", "_mae", "eval_runtime"])
def test_an_unknown_metric_is_an_error_that_names_it(name):
    with pytest.raises(UserError, match=name):
        find_metric(name)


def test_every_metric_that_is_computed_is_known():
    read = [Distribution([1.0] * SPACED, 1.0, 1.0, 1.0, 1.0, 1.0)]
    computed = {
        **number_metrics(["1"], ["1"]),
        **text_scores(["1"], ["1"]),
        **final_answer_scores(["1"], ["1"], "####"),
        **reading_scores(read, ["1"], ("median", "mean"), 0.9),
    }
    assert all(find_metric(name).name == name for name in computed)
    assert {"exact_number", "count", "ce", "perplexity", "rater_crps", "ill_formed"} <= {*METRICS}
