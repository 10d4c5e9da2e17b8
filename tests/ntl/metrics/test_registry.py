import pytest

from ntl.errors import UserError
from ntl.metrics.registry import find_metric


@pytest.mark.parametrize(
    ("name", "higher", "heading"),
    [
        ("eval_accuracy", True, "accuracy"),
        ("eval_median_mae", False, "MAE of the median"),
        ("constant_log_mae", False, "log MAE of a constant answer"),
        ("mean_temperature_mae", False, "MAE of mean_temperature"),
        ("coverage_95", None, "coverage of 95 % intervals"),
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
