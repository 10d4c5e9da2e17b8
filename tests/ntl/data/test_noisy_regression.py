import math
import statistics

import pytest
from data_cases import task

from ntl.errors import UserError

NAME = "noisy_regression"
SMALL = ("train_size=300", "validation_size=20", "test_size=50")


def test_noisy_answers_scatter_around_the_weighted_sum_by_the_noise():
    more = ("test_size=4000", "noise=10.0", "largest_answer=100000")
    data = task(NAME, *SMALL, *more)
    example = data.tests["test"][0]
    integers = [int(x) for x in example.question.split()]
    assert example.expected == sum(w * x for w, x in zip([5, 3, 2], integers, strict=True))
    # E|N(0, 10)| = 10 * sqrt(2 / pi) = 7.98; its standard error here is 0.1.
    errors = [abs(int(e.answer) - e.expected) for e in data.tests["test"]]
    assert 7.48 < sum(errors) / len(errors) < 8.48


def test_on_a_log_scale_answers_scatter_around_the_product_by_factors():
    product = ("weights=[1,1]", "largest=199", "log_scale=true", "noise=0.4", "largest_answer=1000000")
    more = (*SMALL, "test_size=4000", *product)
    examples = task(NAME, *more).tests["test"]
    products = [math.prod(int(x) for x in e.question.split()) for e in examples]
    assert [e.expected for e in examples] == products
    # half of the answers are above their median, the product; the standard error is 0.8 %
    above = sum(int(e.answer) > product for e, product in zip(examples, products, strict=True))
    assert 0.46 < above / len(examples) < 0.54
    logs = [math.log(int(e.answer) / product) for e, product in zip(examples, products, strict=True)]
    assert 0.38 < statistics.stdev(logs) < 0.42


def test_noise_free_answers_are_rounded_like_the_answers():
    more = (*SMALL, "weights=[0.04,0.04,0.03]", "noise=0")
    examples = task(NAME, *more).tests["test"]
    assert {e.expected - int(e.answer) for e in examples} == {0.0}


def test_a_range_with_too_few_questions_is_an_error():
    with pytest.raises(UserError, match=r"dataset_args.largest=12"):
        task(NAME, "largest=12")
