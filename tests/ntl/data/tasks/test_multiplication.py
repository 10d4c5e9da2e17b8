import re

import pytest

from ntl.errors import UserError

SIZES = {"validation_size": 50, "test_size": 50}
SMALL_PRODUCTS = {"digits": 2, "extrapolate_digits": 3, "validation_size": 400, "test_size": 400}


def test_the_extrapolation_test_of_multiplication_has_a_longer_factor(load):
    data = load("multiplication", data_dir=None, digits=3, extrapolate_digits=4, train_size=300, **SIZES)
    for part, longest in ((data.train, 3), (data.tests["interpolate"], 3), (data.tests["extrapolate"], 4)):
        digits = [max(map(len, re.findall(r"\d+", example.question))) for example in part]
        assert max(digits) == longest
        assert part is not data.tests["extrapolate"] or min(digits) == longest
    for example in data.train:
        a, b = map(int, re.findall(r"\d+", example.question))
        assert example.answer == str(a * b)


def test_products_of_single_digits_are_not_all_held_out(load):
    data = load("multiplication", data_dir=None, **{**SMALL_PRODUCTS, "train_size": 5000})
    single = {example.question for example in data.train if re.search(r"is \d times \d\?", example.question)}
    assert len(single) > 50


def test_holding_out_more_products_than_exist_is_an_error(load):
    with pytest.raises(UserError, match="digits=1 leaves 11 products to hold out; expected at least 2000"):
        load("multiplication", data_dir=None, digits=1, extrapolate_digits=2)
    with pytest.raises(UserError, match="extrapolate_digits is 4; expected more than digits=4"):
        load("multiplication", data_dir=None, digits=4, extrapolate_digits=4)
