"""scikit-learn's own checks of `NumberRegressor`, with a tiny model."""

from contextlib import chdir

import pytest
from regression_cases import make, save_tiny_model
from sklearn.utils.estimator_checks import parametrize_with_checks

FEW = "fewer than 20 rows are refused, because some are held out"


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory):
    with chdir(tmp_path_factory.mktemp("checks")):
        yield save_tiny_model("tiny", layers=1)


@parametrize_with_checks(
    [make("tiny", epochs=1, train="all", max_rows=60)],
    expected_failed_checks=lambda estimator: {
        "check_fit2d_1feature": FEW,
        "check_fit2d_1sample": FEW,
        "check_regressors_no_decision_function": FEW,
    },
)
@pytest.mark.filterwarnings("ignore")
def test_check(estimator, check):
    check(estimator)
