"""Data that are drawn from a seeded generator."""

import math
import re
import statistics

import pytest
from data_cases import task

from ntl.errors import UserError

SMALL = {
    # so many that training expressions repeat
    "arithmetic": (
        "data_dir=null",
        "train_per_difficulty=2000",
        "validation_per_difficulty=17",
        "test_size=50",
    ),
    "noisy_regression": ("train_size=300", "validation_size=20", "test_size=50"),
}


def expression(question):
    return re.search(r"[-(\d].*[\d)]", question).group()


@pytest.mark.parametrize("name", SMALL)
def test_generated_data_is_seeded_and_its_splits_are_disjoint(name):
    data = task(name, *SMALL[name])
    assert data == task(name, *SMALL[name])
    assert data != task(name, *SMALL[name], "data_seed=1")
    parts = [{expression(e.question) for e in part} for part in (data.train, *data.parts.values())]
    for i, mine in enumerate(parts):
        assert not any(mine & theirs for theirs in parts[i + 1 :])


def test_generated_answers_equal_pythons_evaluation_of_the_expression():
    data = task("arithmetic", *SMALL["arithmetic"])
    for example in (*data.train, *data.tests["interpolate"], *data.tests["extrapolate"]):
        assert eval(expression(example.question)) == int(example.answer), example


def noisy(*settings):
    return task("noisy_regression", *SMALL["noisy_regression"], *settings).tests["test"]


def test_noisy_answers_scatter_around_the_weighted_sum_by_the_noise():
    examples = noisy("test_size=4000", "noise=10.0", "largest_answer=100000")
    integers = [int(x) for x in examples[0].question.split()]
    assert examples[0].expected == sum(w * x for w, x in zip([5, 3, 2], integers, strict=True))
    # E|N(0, 10)| = 10 * sqrt(2 / pi) = 7.98; its standard error here is 0.1.
    errors = [abs(int(e.answer) - e.expected) for e in examples]
    assert 7.48 < sum(errors) / len(errors) < 8.48


def test_on_a_log_scale_answers_scatter_around_the_product_by_factors():
    examples = noisy(
        "test_size=4000",
        "weights=[1,1]",
        "largest=199",
        "log_scale=true",
        "noise=0.4",
        "largest_answer=1000000",
    )
    products = [math.prod(int(x) for x in e.question.split()) for e in examples]
    assert [e.expected for e in examples] == products
    # half of the answers are above their median, the product; the standard error is 0.8 %
    above = sum(int(e.answer) > product for e, product in zip(examples, products, strict=True))
    assert 0.46 < above / len(examples) < 0.54
    logs = [math.log(int(e.answer) / product) for e, product in zip(examples, products, strict=True)]
    assert 0.38 < statistics.stdev(logs) < 0.42


def test_noise_free_answers_are_rounded_like_the_answers():
    assert {e.expected - int(e.answer) for e in noisy("weights=[0.04,0.04,0.03]", "noise=0")} == {0.0}


def test_a_range_with_too_few_questions_is_an_error():
    with pytest.raises(UserError, match=r"dataset_args.largest=12"):
        noisy("largest=12", "test_size=1000")
