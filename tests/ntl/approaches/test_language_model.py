import dataclasses

import pytest
import torch
import torch.nn.functional as F
from approach_cases import (
    ANSWERS,
    NTL,
    QUESTIONS,
    assert_split_does_not_matter,
    gradient,
    make,
    model_args,
    rows_of,
    save_pretrained_t5,
    saved,
)
from tolerances import HALF_PRECISION, assert_close

from ntl.approaches import IGNORE, build_approach
from ntl.approaches.shapes import get_shape
from ntl.config import LossSettings
from ntl.errors import UserError
from ntloss import NTLoss
from ntloss.criteria import CRITERIA
from tests.ntl.conftest import shared

ENCODINGS = ("digits", "rt")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "loss",
    [
        LossSettings(),
        NTL,
        dataclasses.replace(NTL, normalize_by="items"),
        LossSettings("gaussian_smoothing", weight=1.0, mode="replace"),
    ],
    ids=["ce", "ntl", "ntl by items", "gaussian"],
)
def test_the_update_does_not_depend_on_the_split_into_micro_batches(encoding, loss):
    approach = make(encoding=encoding, loss=loss)
    assert_split_does_not_matter(approach, rows_of(approach))


def test_the_loss_is_mean_cross_entropy_plus_weighted_mean_number_loss():
    approach = make()
    batch = approach.collate(rows_of(approach))
    logits = approach.logits(approach.model, batch)
    ce = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE)
    ntl = NTLoss(approach.vocabulary, reweigh=False)(logits, batch["labels"])
    counts = approach.count(batch)
    share = approach.loss(approach.model, batch, counts)
    assert_close(share.loss, ce + 0.3 * ntl)
    assert_close(share.terms, {"ce": ce.detach(), "ntl": ntl.detach()})
    # "2 15 1.5 -15 0 9801": 12 digits, a sign and a point, and 6 end tokens.
    assert counts.tolist() == [20, 12, 12]


def test_normalize_by_items_divides_the_number_term_by_all_labels():
    of_numbers, of_items = (
        make(loss=dataclasses.replace(NTL, normalize_by=count)) for count in ("numbers", "items")
    )
    batch = of_items.collate(rows_of(of_items))
    counts = of_items.count(batch)
    expected = of_numbers.loss(of_numbers.model, batch, counts).terms
    share = of_items.loss(of_items.model, batch, counts)
    assert_close(share.terms, {"ce": expected["ce"], "ntl": expected["ntl"] * 12 / 20})
    assert_close(share.loss.detach(), share.terms["ce"] + 0.3 * share.terms["ntl"])


def test_cross_entropy_alone_reports_the_number_term_and_does_not_minimise_it():
    approach = make(loss=LossSettings())
    batch = approach.collate(rows_of(approach))
    share = approach.loss(approach.model, batch, approach.count(batch))
    assert share.loss == share.terms["ce"]
    assert share.terms["ntl"] > 0


@pytest.mark.parametrize(
    "loss",
    [LossSettings("gaussian_smoothing", weight=1.0, mode="replace"), LossSettings(label_smoothing=0.2)],
    ids=["gaussian", "smoothed"],
)
def test_evaluation_reports_plain_cross_entropy_for_every_loss(loss):
    plain, approach = make(loss=LossSettings()), make(loss=loss)
    batch = approach.collate(rows_of(approach))
    counts = approach.count(batch)
    with torch.no_grad():
        expected = plain.loss(plain.model, batch, counts)
        found = approach.loss(approach.model, batch, counts)
    assert found.loss != expected.loss
    for name in ("ce", "ce_numbers", "ce_text"):
        assert_close(found.terms[name], expected.terms[name])


def test_evaluation_reports_the_cross_entropy_of_number_tokens_and_of_text():
    approach = make()
    batch = approach.collate(rows_of(approach, ["a", "b"], ["yes 12", "no 7"]))
    with torch.no_grad():
        logits, labels = approach.logits(approach.model, batch).flatten(0, 1), batch["labels"].flatten()
        found = approach.loss(approach.model, batch, approach.count(batch)).terms
    each = torch.nn.functional.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="none")
    is_number = torch.tensor([label in approach.vocabulary.token_ids for label in labels.tolist()])
    assert is_number.sum() == 3
    assert_close(found["ce_numbers"].float(), each[is_number].mean())
    assert_close(found["ce_text"].float(), each[~is_number & (labels != IGNORE)].mean())


def test_cross_entropy_of_number_tokens_is_undefined_without_them():
    approach = make()
    batch = approach.collate(rows_of(approach, ["a"], ["yes"]))
    with torch.no_grad():
        found = approach.loss(approach.model, batch, approach.count(batch)).terms
    assert found["ce_numbers"].isnan()
    assert found["ce_text"] == found["ce"]


def test_logits_computed_without_labels_equal_those_with_labels():
    approach = make()
    batch = approach.collate(rows_of(approach))
    assert_close(approach.logits(approach.model, batch), approach.model(**batch).logits)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_every_criterion_of_the_library_can_be_minimised(criterion):
    approach = make(loss=LossSettings(criterion, {"sigma": 1.0} if criterion == "hl_gauss" else {}))
    grads, loss, terms = gradient(approach, rows_of(approach), 6)
    assert grads.isfinite().all()
    assert terms["ntl"] > 0
    assert loss > terms["ce"]


def test_under_bfloat16_autocast_the_loss_is_in_float32():
    approach = make(encoding="rt")
    batch = approach.collate(rows_of(approach))
    counts = approach.count(batch)
    exact = approach.loss(approach.model, batch, counts).loss
    with torch.autocast("cpu", torch.bfloat16):
        share = approach.loss(approach.model, batch, counts)
    assert share.loss.dtype == torch.float32
    assert_close(share.loss, exact, HALF_PRECISION)


def test_the_regression_transformer_adds_its_encodings_in_encoder_and_decoder():
    approach = make(encoding="rt")
    model, first = approach.model, approach.encoding.first_id
    tokens = torch.tensor([0, first - 1, first + 7, first + 319])
    for stack in (model.encoder, model.decoder):
        added = stack.embed_tokens(tokens) - model.shared(tokens)
        assert not added[:2].any()
        assert_close(added[2:], stack.embed_tokens.make_encodings()[[8, 320]])
    assert not any("encodings" in key for key in model.state_dict())


def test_the_number_loss_ignores_the_places_of_the_regression_transformers_tokens():
    approach = make(encoding="rt")
    assert approach.vocabulary.distinct_values == tuple(float(d) for d in range(10))
    assert len(approach.vocabulary.token_ids) == 320


def test_every_number_token_of_an_unchanged_tokenizer_counts_as_a_number():
    approach = make(encoding="auto", tokenizer=str(shared("tokenizers/t5")))
    labels = approach.collate(rows_of(approach, ["q"], ["In 2019 it was 42"]))
    assert approach.count(labels)[1] == 2
    assert 2019.0 in approach.vocabulary.distinct_values


def test_pretrained_embeddings_are_enlarged_for_the_tokens_of_the_encoding(tmp_path):
    pretrained = save_pretrained_t5(tmp_path, vocab_size=101)
    approach = build_approach(model_args(checkpoint=str(tmp_path), encoding="rt"), NTL)
    assert_close(approach.model.shared.weight[:98], pretrained.shared.weight[:98])
    assert approach.model.shared.weight is approach.model.decoder.embed_tokens.weight
    assert approach.model.get_output_embeddings().weight is approach.model.shared.weight
    assert len(approach.model.shared.weight) == 98 + 320
    assert approach.model.encoder.embed_tokens.encodings.any()
    gradient(approach, rows_of(approach), 6)


def test_a_checkpoint_of_another_approach_is_rejected_before_its_weights_are_read(tmp_path):
    approach = make()
    approach.tokenizer.save_pretrained(tmp_path)
    approach.model.config.save_pretrained(tmp_path)  # without weights, which must not be read
    for settings, complaint in (
        ({"encoding": "rt"}, "encoding=digits; expected rt"),
        ({"head": "regression"}, "head=language; expected regression"),
        ({"encoding": "xval"}, "encoding=digits; expected xval"),
        ({"family": "decoder_only"}, "Unrecognized configuration class .*T5Config"),
    ):
        with pytest.raises(UserError, match=complaint):
            build_approach(model_args(checkpoint=str(tmp_path), **settings), LossSettings())


def test_a_checkpoint_with_another_tokenizer_or_without_weights_is_rejected(tmp_path):
    approach = make()
    approach.model.save_pretrained(tmp_path)
    settings = model_args(checkpoint=str(tmp_path), tokenizer=str(shared("tokenizers/t5")))
    with pytest.raises(UserError, match="tokens, the tokenizer 32100; expected both from the same run"):
        build_approach(settings, LossSettings())
    (tmp_path / "model.safetensors").unlink()
    approach.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded"):
        build_approach(model_args(checkpoint=str(tmp_path)), LossSettings())


@pytest.mark.parametrize(
    ("settings", "loss", "complaint"),
    [
        ({"config": {"model_type": "llama"}}, {}, "a llama cannot be built with model_args.family=t5"),
        (
            {"config": {"model_type": "t5", "d_modell": 8}},
            {},
            "config_overrides.d_modell is unknown. Did you mean model_args.config_overrides.d_model",
        ),
        ({"config": {"model_type": "t5", "feed_forward_proj": "wavy"}}, {}, "wavy"),
        ({"checkpoint": "/nowhere"}, {}, "model_name_or_path=/nowhere is neither a folder"),
        ({}, {"criterion": "euclid"}, "euclid"),
        ({}, {"criterion": "ntl_was", "options": {"p": 2}}, "no option p"),
        ({}, {"criterion": "ntl_was", "weight": -1}, "weight=-1"),
    ],
)
def test_invalid_settings_are_errors(settings, loss, complaint):
    settings = {"config": get_shape("t5-tiny"), **settings}
    with pytest.raises(UserError, match=complaint):
        build_approach(model_args(**settings), LossSettings(**loss))


@pytest.mark.parametrize("encoding", ["digits", "auto", "rt", "xval"])
def test_a_model_with_t5s_tokenizer_is_the_same_after_saving_and_loading(encoding, tmp_path):
    loss = LossSettings()
    approach = make(encoding=encoding, loss=loss, tokenizer=str(shared("tokenizers/t5")))
    approach.fit(ANSWERS)
    other = saved(approach, tmp_path, {"encoding": encoding}, loss)
    assert other.encode(QUESTIONS, ANSWERS) == approach.encode(QUESTIONS, ANSWERS)
    assert other.model.config.ntl == approach.model.config.ntl
