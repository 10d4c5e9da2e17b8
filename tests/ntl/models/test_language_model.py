import pytest
import torch
import torch.nn.functional as F
from model_cases import (
    ANSWERS,
    GPT2,
    GREEDY,
    QUESTIONS,
    logits_of,
    loss_of,
    make,
    overfit,
    rows_of,
)
from tolerances import DISTRIBUTION, ONE_COMPUTATION, SAMPLED_TEXTS, TWO_PATHS, assert_close

from ntl.encodings.digits import character_tokenizer
from ntl.encodings.regression_transformer import numerical_encodings
from ntloss import NTLoss

TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CHAT = TURNS + "{% if add_generation_prompt %}[bot]{% endif %}"
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


def test_lora_changes_nothing_until_it_is_trained_and_its_merging_is_exact():
    def logits(built):
        with torch.no_grad():
            return logits_of(built, rows_of(built), built.model.eval())[0]

    plain, adapted = (make("t5-tiny", lora=rank) for rank in (None, 2))
    assert_close(logits(adapted), logits(plain), ONE_COMPUTATION)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    trained = logits(adapted)
    assert (trained - logits(plain)).abs().max() > 0.01
    adapted.lora.merge()
    assert_close(logits(adapted), trained, TWO_PATHS)
    assert {*adapted.model.state_dict()} == {*plain.model.state_dict()}


def test_the_regression_transformer_adds_its_encodings_in_encoder_and_decoder():
    built = make(encoding="rt")
    model, first = built.model, built.encoding.first_id
    tokens = torch.tensor([0, first - 1, first + 7, first + 319])
    for stack in (model.encoder, model.decoder):
        added = stack.embed_tokens(tokens) - model.shared.weight[tokens]
        assert not added[:2].any()
        assert_close(added[2:], numerical_encodings(model.config.d_model, log_scale=True)[[7, 319]])
    assert not any("encodings" in key for key in model.state_dict())


def written(question, **settings):
    built = make("llama-tiny", family="decoder_only", **settings)
    (row,) = rows_of(built, [question], ["42"])
    assert row["input_ids"][-len(row["labels"]) :] == row["labels"]
    assert built.encoding.decode([row["labels"]]) == ["42"]
    return built.encoding.decode([row["input_ids"]])[0]


def test_a_question_that_ends_in_white_space_has_no_separator_by_default():
    assert written("Price: ") == "Price: 42"
    built = make("llama-tiny", family="decoder_only")
    ids = built.prompts(["Price:", "Price: "])
    assert ids[0][-1] == built.tokenizer.eos_token_id  # the shipped tokenizer has no line break
    assert ids[1] == built.encoding.encode(["Price: "], special_tokens=False)[0]


@pytest.mark.parametrize("separator", [" ", "", " is "])
def test_a_separator_stands_between_question_and_answer(separator):
    assert written("Price ", separator=separator) == f"Price {separator}42"


def test_a_chat_ends_with_the_beginning_of_the_answer(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path)
    chat = {"tokenizer": str(tmp_path), "chat_template": True}
    assert written("How many?", **chat) == "[user]How many?[bot]42"
    assert written("How many? ", **chat, separator="There are ") == "[user]How many? [bot]There are 42"
