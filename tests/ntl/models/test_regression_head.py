import pytest
import torch
from model_cases import (
    ANSWERS,
    GREEDY,
    QUESTIONS,
    assert_the_same,
    gradient,
    loss_of,
    make,
    model_args,
    overfit,
    rows_of,
    save_pretrained,
    save_pretrained_t5,
    saved,
)
from tolerances import approx, assert_identical
from transformers import AutoModelForSequenceClassification

from ntl.errors import UserError
from ntl.models import build
from ntl.settings import Weights


def regression(answers=ANSWERS, **settings):
    built = make(head="regression", **settings)
    built.fit(answers)
    return built


def test_answers_are_standardized_by_the_training_answers():
    built = regression(["1", "3"], log_scale=False)
    with torch.no_grad():
        built.model.head.weight.zero_()
        built.model.head.bias.fill_(0.5)
    assert built.answer(["a"], *GREEDY) == ["2.5"]
    loss = loss_of(built, rows_of(built, ["a", "b"], ["1", "3"]))
    assert loss.item() == approx((1.5**2 + 0.5**2) / 2)


def test_pretrained_weights_get_a_regression_head(tmp_path):
    pretrained = save_pretrained_t5(tmp_path, vocab_size=98)
    built = build(model_args(checkpoint=str(tmp_path), head="regression"))
    body = built.model.transformer.state_dict()
    for key, value in pretrained.state_dict().items():
        if key != "lm_head.weight":
            assert_identical(body[key], value)
    assert 0.5 < built.model.head.weight.std() * 64**0.5 < 2


def test_an_answer_that_is_not_a_number_is_an_error_that_quotes_it():
    built = make(head="regression")
    with pytest.raises(UserError, match="'3 apples' is not a single number"):
        built.encode(["a"], ["3 apples"])
    with pytest.raises(UserError, match="'yes' is not a single number; a regression head expects"):
        built.fit(["yes"])


def decoder(answers=ANSWERS, shape="llama-tiny", **settings):
    built = make(shape, family="decoder_only", head="regression", **settings)
    built.fit(answers)
    return built


@pytest.mark.parametrize("head_loss", ["squared", "absolute"])
def test_a_decoder_reads_the_last_token_of_a_prompt_padded_or_not(head_loss):
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


def test_a_trained_decoder_is_the_same_after_saving_and_loading_also_for_transformers(tmp_path):
    built = overfit(decoder(), steps=60)
    assert_the_same(built, saved(built, tmp_path, {"family": "decoder_only", "head": "regression"}), GREEDY)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.num_labels == 1
    assert_identical(loaded.state_dict(), built.model.state_dict())


def test_a_pretrained_decoder_gets_a_head_and_keeps_its_other_weights(tmp_path):
    language = make("llama-tiny", family="decoder_only")
    save_pretrained(tmp_path, language)
    settings = model_args(family="pretrained", checkpoint=str(tmp_path), head="regression")
    built = build(settings, Weights(trained_layers=1))
    for key, value in built.model.model.state_dict().items():
        assert_identical(language.model.model.state_dict()[key], value)
    trained = {name for name, weight in built.model.named_parameters() if weight.requires_grad}
    assert {"score.weight", "model.norm.weight"} <= trained
    assert not any("layers.0" in name or "embed" in name for name in trained)


def test_an_encoder_decoder_with_a_head_is_not_trained_in_part(tmp_path):
    with pytest.raises(UserError, match="need a decoder-only model under a regression head"):
        make(head="regression", lora=2)


def test_equal_training_answers_do_not_cause_a_division_by_zero():
    built = regression(["7"] * 4)
    grads, loss = gradient(built, rows_of(built, ["a"], ["7"]))
    assert loss.isfinite()
    assert grads.isfinite().all()


def test_training_without_the_statistics_of_the_answers_is_an_error():
    built = make(head="regression")
    with pytest.raises(UserError, match="is untrained"):
        loss_of(built, rows_of(built))
