import pytest
import torch
import torch.nn.functional as F
from model_cases import (
    ANSWERS,
    GPT2,
    GREEDY,
    QUESTIONS,
    loss_of,
    make,
    model_args,
    overfit,
    rows_of,
)
from tolerances import DISTRIBUTION, SAMPLED_TEXTS, assert_close

from ntl.errors import UserError
from ntl.models import build
from ntloss import NTLoss

SHAPES = ("llama-tiny", "mamba-tiny", "gpt2")


def causal(shape="llama-tiny", **settings):
    return make(GPT2 if shape == "gpt2" else shape, family="decoder_only", **settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_padding_does_not_change_answers(shape):
    built = overfit(causal(shape), steps=10)
    short = (2, 4)
    questions = ["1", "123 + 456 - 7", "12"]
    together = built.answer(questions, *short)
    assert together == [built.answer([q], *short)[0] for q in questions]


@pytest.mark.parametrize("number_format", ["plain", "padded"])
@pytest.mark.parametrize("shape", SHAPES)
def test_one_run_of_the_prompts_reads_what_two_runs_do(shape, number_format):
    built = causal(shape, number_format=number_format)
    built.fit(ANSWERS)
    overfit(built, steps=10)
    questions, levels = ["1", "123 + 456 - 7", "", "12"], (0.05, 0.5, 0.95)
    for beams in (1, 2):
        generation = (beams, 4)
        answers, read = built.read(questions, *generation, levels)
        assert answers == built.answer(questions, *generation)
        apart = built.quantiles(questions, levels)
        # The values themselves may turn on one rounding: number_quantiles has tests of them.
        assert read.values.shape == apart.values.shape
        is_sampled = number_format == "plain"
        assert_close(read.starts, apart.starts, SAMPLED_TEXTS if is_sampled else DISTRIBUTION[torch.float32])


@pytest.mark.parametrize(("shape", "share"), [("llama-tiny", 0.9), ("gpt2", 0.9), ("mamba-tiny", 1.0)])
def test_prompts_are_run_once_where_attention_is_all_that_a_cache_holds(shape, share):
    built, seen = causal(shape, number_format="padded"), []
    built.fit(ANSWERS)
    built.model.register_forward_pre_hook(
        lambda model, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    asked = (["1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 = "] * 2, *GREEDY)
    built.read(*asked, (0.5,))
    together = sum(seen)
    seen.clear()
    built.answer(*asked)
    built.quantiles(asked[0], (0.5,))
    assert together <= share * sum(seen)


@pytest.mark.parametrize(("number_format", "ends"), [("plain", True), ("padded", False)])
def test_the_end_is_learned_only_where_answers_have_no_fixed_width(number_format, ends):
    built = causal(number_format=number_format)
    built.fit(ANSWERS)
    end = built.tokenizer.eos_token_id
    assert {labels[-1] == end for labels in built.encode(QUESTIONS, ANSWERS)["labels"]} == {ends}
    assert all(built.answer(QUESTIONS, *GREEDY)) or ends


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_answer_contributes_to_the_loss(shape):
    built = causal(shape)
    rows = rows_of(built)
    logits, labels = [], []
    for row in rows:  # one at a time, without padding, from the logits of the whole row
        ids = torch.tensor([row["input_ids"]])
        start = len(row["input_ids"]) - len(row["labels"])
        logits.append(built.model(input_ids=ids).logits[0, start - 1 : -1])
        labels.append(ids[0, start:])
    logits, labels = torch.cat(logits), torch.cat(labels)
    ntl = NTLoss(built.vocabulary, reweigh=False)(logits, labels)
    numbers = torch.isin(labels, torch.tensor(built.vocabulary.token_ids)).float().mean()
    assert_close(loss_of(built, rows), F.cross_entropy(logits, labels) + 0.3 * numbers * ntl)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"config": {"model_type": "t5"}}, "a t5 cannot be built with model_args.family=decoder_only"),
        (
            {"config": {"model_type": "llama", "hidden_siz": 8}},
            "hidden_siz is unknown. Did you mean .*hidden_size",
        ),
        ({"config": {"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}}, "hidden_size"),
    ],
)
def test_invalid_settings_are_errors(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        build(model_args(family="decoder_only", **settings))


def test_a_row_that_is_too_long_for_the_model_is_an_error():
    config = {**GPT2, "n_positions": 16}
    built = build(model_args(family="decoder_only", config=config))
    with pytest.raises(UserError, match="take 22 tokens; this model takes at most 16"):
        built.encode(["1" * 18], ["42"])
