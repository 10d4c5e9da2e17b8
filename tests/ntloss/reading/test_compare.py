"""`compare_answers`: the errors of several models on the same prompts, against what is computed by hand."""

import math

import pytest
import tiny_tokenizers as tiny
import torch
import torch.nn.functional as F
from reading_cases import make_model
from tolerances import approx

from ntloss.numbers import NumberFormat
from ntloss.reading import Question, compare_answers, from_function, read_number

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
PROMPTS, TRUTHS = ["a\n", "the a\n", "a a a\n"], [12, 7, 55]
TWO_DIGITS = NumberFormat(digits=2)


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.byte_level()


@pytest.fixture(scope="module", params=["llama", "t5"])
def models(request, tokenizer):
    return {f"seed {seed}": make_model(request.param, len(tokenizer), seed) for seed in range(2)}


@torch.no_grad()
def logits_after(model, tokenizer, prompt, answer):
    """`[answer, vocab]`, the logits of each token of an answer."""
    before, ids = (tokenizer.encode(text, return_tensors="pt") for text in (prompt, answer))
    if model.config.is_encoder_decoder:
        return ids[0], model(input_ids=before, labels=ids).logits[0]
    logits = model(input_ids=torch.cat([before, ids], -1)).logits[0]
    return ids[0], logits[before.shape[1] - 1 : -1]


@pytest.mark.parametrize("prefill", ["", "is"])
def test_errors_are_those_of_the_readings_and_of_the_true_answers(models, tokenizer, prefill):
    questions = [Question(each, prefill=prefill) for each in PROMPTS]
    found = compare_answers(models, tokenizer, questions, TRUTHS, format=TWO_DIGITS)
    truths = torch.tensor(TRUTHS, dtype=torch.float64)
    begun = len(tokenizer.encode(prefill))
    for name, model in models.items():
        read = read_number(model, tokenizer, questions, format=TWO_DIGITS)
        errors = found.models[name]
        medians = torch.tensor([each.median for each in read], dtype=torch.float64)
        assert errors.median == approx((medians - truths).abs().mean().item())
        inside = [each.low <= truth <= each.high for each, truth in zip(read, TRUTHS, strict=True)]
        assert errors.coverage == approx(sum(inside) / 3)
        losses = []
        for prompt, truth in zip(PROMPTS, TRUTHS, strict=True):
            ids, logits = logits_after(model, tokenizer, prompt, f"{prefill}{truth:02d}")
            losses.append(F.cross_entropy(logits[begun:], ids[begun:], reduction="sum"))
        assert errors.cross_entropy == approx(torch.stack(losses).mean().item(), 1e-4)


def test_saved_models_answer_as_those_in_memory(models, tokenizer, tmp_path):
    model = models["seed 0"]
    model.save_pretrained(tmp_path)
    found = compare_answers({"saved": tmp_path, "in memory": model}, tokenizer, PROMPTS, TRUTHS)
    assert found.changes["in memory"].share == approx(0)
    assert found.models["saved"].cross_entropy == approx(found.models["in memory"].cross_entropy)


def test_settings_of_generate_do_not_change_greedy_answers(tokenizer):
    model = make_model("llama", len(tokenizer))
    prompts, truths = ["1 2 3 4 a\n", "5 6 7\n", "0 0 8\n", "9 9 9 1\n"], [3, 4, 8, 9]
    before = compare_answers({"a": model}, tokenizer, prompts, truths).models["a"]
    assert before.answered > 0
    settings = model.generation_config
    settings.repetition_penalty, settings.no_repeat_ngram_size = 50.0, 1
    after = compare_answers({"a": model}, tokenizer, prompts, truths).models["a"]
    assert (after.greedy, after.answered) == (before.greedy, before.answered)
    assert model.generation_config is settings


def test_answers_without_a_number_are_left_out_of_the_greedy_error(models, tokenizer):
    model = models["seed 0"]
    digits = [tokenizer.convert_tokens_to_ids(digit) for digit in "0123456789"]
    head = model.get_output_embeddings()
    with torch.no_grad():
        kept = head.weight.clone()
        head.weight[digits] = 0
    found = compare_answers({"a": model}, tokenizer, PROMPTS, TRUTHS, max_new_tokens=2)
    with torch.no_grad():
        head.weight.copy_(kept)
    errors = found.models["a"]
    assert 0 <= errors.answered <= 1
    assert math.isnan(errors.greedy) == (errors.answered == 0)
    assert "greedy" in str(found)


def test_a_text_is_a_truth_that_is_read_and_scored_as_it_is_written(models, tokenizer):
    written = compare_answers(models, tokenizer, PROMPTS[:2], ["$12", "7"])
    plain = compare_answers(models, tokenizer, PROMPTS[:2], [12, 7])
    assert written.models["seed 0"].median == approx(plain.models["seed 0"].median)
    assert written.models["seed 0"].cross_entropy > plain.models["seed 0"].cross_entropy


@pytest.mark.parametrize(
    ("prompts", "truths"),
    [
        (["a"], [1]),
        (["a", "a"], [1]),
        ("aa", [1, 2]),
        *((["a", "a"], [1, wrong]) for wrong in (None, "1/2", math.inf)),
    ],
)
def test_truths_are_one_number_for_each_prompt(tokenizer, prompts, truths):
    with pytest.raises(ValueError, match="truths"):
        compare_answers({"a": make_model("llama", len(tokenizer))}, tokenizer, prompts, truths)


def test_models_have_names_and_are_no_servers(tokenizer):
    with pytest.raises(TypeError, match="names"):
        compare_answers([make_model("llama", len(tokenizer))], tokenizer, PROMPTS, TRUTHS)
    with pytest.raises(TypeError, match="served"):
        compare_answers({"served": from_function(None)}, tokenizer, PROMPTS, TRUTHS)


def test_the_change_is_that_of_the_medians_errors_and_lies_in_its_interval(models, tokenizer):
    found = compare_answers(models, tokenizer, PROMPTS, TRUTHS, format=TWO_DIGITS)
    first, second = found.models.values()
    change = found.changes["seed 1"]
    assert change.share == approx(second.median / first.median - 1)
    assert change.low <= change.share <= change.high
    same = compare_answers(dict.fromkeys("ab", models["seed 0"]), tokenizer, PROMPTS, TRUTHS)
    assert same.changes["b"] == (0, 0, 0)
