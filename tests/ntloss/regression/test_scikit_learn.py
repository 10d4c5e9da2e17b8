"""scikit-learn's own checks of `NumberRegressor`, with a tiny model."""

from contextlib import chdir

import pytest
from regression_cases import make, save_tiny_model
from sklearn.utils.estimator_checks import parametrize_with_checks

ON_FEW_ROWS = (
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_regressors_no_decision_function",
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
)


@pytest.fixture(scope="module", autouse=True)
def tiny(tmp_path_factory):
    with chdir(tmp_path_factory.mktemp("checks")):
        yield save_tiny_model("tiny", layers=1)


@parametrize_with_checks(
    [make("tiny", epochs=1, train="all", max_rows=60)],
    expected_failed_checks=lambda estimator: {
        **dict.fromkeys(ON_FEW_ROWS, "fewer than 20 rows are refused, because some are held out"),
        "check_sample_weight_equivalence_on_dense_data": "which rows are held out depends on their number",
    },
)
@pytest.mark.filterwarnings("ignore")
def test_check(estimator, check):
    check(estimator)
