import numpy as np
import pytest

from ntl.data import DATASETS, format_number
from ntl.errors import UserError


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("gsm8k", {"validation_share": 1}),
        ("noisy_regression", {"train_size": 0}),
        ("noisy_regression", {"noise": -1.0}),
        ("tabular", {"significant_digits": 0}),
    ],
)
def test_a_setting_out_of_range_is_an_error_that_names_it(name, given):
    with pytest.raises(UserError, match=f"dataset_args.{next(iter(given))}="):
        DATASETS[name](**given)


def test_numbers_are_written_without_exponents_and_trailing_zeros():
    assert [format_number(x) for x in (0, -3, 100, -0.0)] == ["0", "-3", "100", "0"]
    assert format_number(np.float32(0.1)) == "0.1"
    assert format_number(-1e-7) == "-0.0000001"
    assert "e" not in format_number(1e30)
