import pytest
from approach_cases import ANSWERS, CE, gradient, make, rows_of

from ntl.errors import UserError


def regression(answers=ANSWERS, **settings):
    approach = make(head="regression", loss=CE, **settings)
    approach.fit(answers)
    return approach


def test_equal_training_answers_do_not_cause_a_division_by_zero():
    approach = regression(["7"] * 4)
    grads, loss, _ = gradient(approach, rows_of(approach, ["a"], ["7"]), 1)
    assert loss.isfinite()
    assert grads.isfinite().all()


def test_training_without_the_statistics_of_the_answers_is_an_error():
    approach = make(head="regression", loss=CE)
    batch = approach.collate(rows_of(approach))
    with pytest.raises(UserError, match="is untrained"):
        approach.loss(approach.model, batch, approach.count(batch))
