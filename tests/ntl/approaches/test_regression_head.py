import pytest
import torch
from approach_cases import (
    ANSWERS,
    CE,
    GREEDY,
    QUESTIONS,
    assert_split_does_not_matter,
    assert_the_same,
    gradient,
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

from ntl.approaches import build_approach
from ntl.config import Weights
from ntl.errors import UserError


def regression(answers=ANSWERS, **settings):
    approach = make(head="regression", loss=CE, **settings)
    approach.fit(answers)
    return approach


def test_answers_are_standardized_by_the_training_answers():
    approach = regression(["1", "3"], log_scale=False)
    batch = approach.collate(rows_of(approach, ["a", "b"], ["1", "3"]))
    with torch.no_grad():
        approach.model.head.weight.zero_()
        approach.model.head.bias.fill_(0.5)
    assert approach.answer(approach.model, ["a"], GREEDY) == ["2.5"]
    share = approach.loss(approach.model, batch, approach.count(batch))
    assert share.loss.item() == approx((1.5**2 + 0.5**2) / 2)
    assert share.terms["number"] == share.loss


def test_the_seed_determines_encoder_and_decoder_regardless_of_the_head():
    language = make(seed=3).model.state_dict()
    for key, value in regression(seed=3).model.transformer.state_dict().items():
        assert_identical(value, language[key])
    assert not torch.equal(make(seed=4).model.shared.weight, language["shared.weight"])


def test_pretrained_weights_get_a_regression_head(tmp_path):
    pretrained = save_pretrained_t5(tmp_path, vocab_size=98)
    approach = build_approach(model_args(checkpoint=str(tmp_path), head="regression"), CE)
    body = approach.model.transformer.state_dict()
    for key, value in pretrained.state_dict().items():
        if key != "lm_head.weight":
            assert_identical(body[key], value)
    assert 0.5 < approach.model.head.weight.std() * 64**0.5 < 2


def test_an_answer_that_is_not_a_number_is_an_error_that_quotes_it():
    approach = make(head="regression", loss=CE)
    with pytest.raises(UserError, match="'3 apples' is not a single number"):
        approach.encode(["a"], ["3 apples"])
    with pytest.raises(UserError, match="'yes' is not a single number; a regression head expects"):
        approach.fit(["yes"])


def decoder(answers=ANSWERS, shape="llama-tiny", **settings):
    approach = make(shape, CE, family="decoder_only", head="regression", **settings)
    approach.fit(answers)
    return approach


@pytest.mark.parametrize("head_loss", ["squared", "absolute"])
def test_a_decoder_reads_the_last_token_of_a_prompt_padded_or_not(head_loss):
    approach = overfit(decoder(head_loss=head_loss), steps=10)
    assert_split_does_not_matter(approach, rows_of(approach))
    approach.model.float()
    # Cached states of the frozen layers are padded on the left, too.
    assert approach.collate(rows_of(approach))["attention_mask"][:, -1].all()
    together = [float(text) for text in approach.answer(approach.model, QUESTIONS, GREEDY)]
    alone = [float(approach.answer(approach.model, [question], GREEDY)[0]) for question in QUESTIONS]
    assert together == approx(alone)
    assert len({round(number, 3) for number in together}) == len(QUESTIONS)


def test_an_untrained_decoder_answers_with_the_mean():
    approach = decoder(["1", "5"], log_scale=False)
    assert approach.answer(approach.model, QUESTIONS[:2], GREEDY) == ["3", "3"]


@pytest.mark.parametrize(("head_loss", "error"), [("squared", 1.0), ("squared", 4.0), ("absolute", 2.0)])
def test_the_loss_of_a_decoders_head_is_of_standardized_numbers(head_loss, error):
    approach = decoder(["1", "5"], log_scale=False, head_loss=head_loss)
    answers = ["1", "5"] if error == 1 else ["7", "-1"]
    batch = approach.collate(rows_of(approach, ["a", "b"], answers))
    assert approach.loss(approach.model, batch, approach.count(batch)).loss.item() == approx(error)


def test_a_trained_decoder_is_the_same_after_saving_and_loading_also_for_transformers(tmp_path):
    approach = overfit(decoder(), steps=60)
    assert_the_same(
        approach, saved(approach, tmp_path, {"family": "decoder_only", "head": "regression"}, CE), GREEDY
    )
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.num_labels == 1
    assert_identical(loaded.state_dict(), approach.model.state_dict())


def test_a_pretrained_decoder_gets_a_head_and_keeps_its_other_weights(tmp_path):
    language = make("llama-tiny", family="decoder_only")
    save_pretrained(tmp_path, language)
    settings = model_args(family="pretrained", checkpoint=str(tmp_path), head="regression")
    approach = build_approach(settings, CE, Weights(trained_layers=1))
    for key, value in approach.model.model.state_dict().items():
        assert_identical(language.model.model.state_dict()[key], value)
    trained = {name for name, weight in approach.model.named_parameters() if weight.requires_grad}
    assert {"score.weight", "model.norm.weight"} <= trained
    assert not any("layers.0" in name or "embed" in name for name in trained)


def test_an_encoder_decoder_with_a_head_is_not_trained_in_part(tmp_path):
    with pytest.raises(UserError, match="need a decoder-only model under a regression head"):
        make(head="regression", loss=CE, lora=2)


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
