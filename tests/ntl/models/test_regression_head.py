import pytest
import torch
from model_cases import ANSWERS, GREEDY, QUESTIONS, gradient, loss_of, make, overfit, rows_of
from tolerances import approx

from ntl.errors import UserError


def regression(answers=ANSWERS, shape="t5-tiny", **settings):
    built = make(shape, head="regression", **settings)
    built.fit(answers)
    return built


def decoder(answers=ANSWERS, **settings):
    return regression(answers, "llama-tiny", family="decoder_only", **settings)


def test_answers_are_standardized_by_the_training_answers():
    built = regression(["1", "3"], log_scale=False)
    with torch.no_grad():
        built.model.head.weight.zero_()
        built.model.head.bias.fill_(0.5)
    assert built.answer(["a"], *GREEDY) == ["2.5"]
    loss = loss_of(built, rows_of(built, ["a", "b"], ["1", "3"]))
    assert loss.item() == approx((1.5**2 + 0.5**2) / 2)


def test_an_answer_that_is_not_a_number_is_an_error_that_quotes_it():
    built = make(head="regression")
    for use in (lambda answers: built.encode(["a"], answers), built.fit):
        with pytest.raises(UserError, match="3 apples"):
            use(["3 apples"])


@pytest.mark.parametrize("head_loss", ["squared", "absolute"])
def test_a_decoder_reads_the_last_token_of_a_prompt_padded_or_not(head_loss):
    # Only a trained head tells prompts apart: an untrained one answers with the mean.
    built = overfit(decoder(head_loss=head_loss), steps=10)
    # The states of the frozen layers are padded on the left, too.
    assert built.collate(rows_of(built))["attention_mask"][:, -1].all()
    together = [float(text) for text in built.answer(QUESTIONS, *GREEDY)]
    alone = [float(built.answer([question], *GREEDY)[0]) for question in QUESTIONS]
    assert together == approx(alone)
    assert len({round(number, 3) for number in together}) == len(QUESTIONS)


@pytest.mark.parametrize(("head_loss", "error"), [("squared", 1.0), ("squared", 4.0), ("absolute", 2.0)])
def test_the_loss_of_a_decoders_head_is_of_standardized_numbers(head_loss, error):
    built = decoder(["1", "5"], log_scale=False, head_loss=head_loss)
    answers = ["1", "5"] if error == 1 else ["7", "-1"]
    assert loss_of(built, rows_of(built, ["a", "b"], answers)).item() == approx(error)


def test_equal_training_answers_do_not_cause_a_division_by_zero():
    built = regression(["7"] * 4)
    grads, loss = gradient(built, rows_of(built, ["a"], ["7"]))
    assert loss.isfinite()
    assert grads.isfinite().all()


def test_training_without_the_statistics_of_the_answers_is_an_error():
    built = make(head="regression")
    with pytest.raises(UserError, match="untrained"):
        loss_of(built, rows_of(built))
