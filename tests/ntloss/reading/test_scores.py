"""Scores of a judge, against all answers of a tiny model, and from lists of log-probabilities."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from reading_cases import make_model, next_token
from tolerances import approx

from ntloss.reading import UnlikelyNumberWarning, read_scores, scores_from_logprobs

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
WORDS = ["calm", "annoyed", "angry", "Score", ":", " ", "a", "?", *"0123456789", "not", "10"]


def tokenizer_of(words):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i + 2 for i, word in enumerate(words)}, "a"))
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


DIGITS = tokenizer_of(WORDS[:-1])  # 10 is written as 1, 0


def model_of(tokenizer, kind="llama"):
    return make_model(kind, 2 + len(tokenizer), seed=3).double()


def counting(model):
    calls = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return calls


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_levels_of_one_token_are_one_pass_and_exact(kind):
    model = model_of(DIGITS, kind)
    calls = counting(model)
    prompts = ["a a?", "a:a?"]  # of one length
    found = read_scores(model, DIGITS, prompts, levels=range(1, 6))
    assert calls == [2]
    for prompt, scores in zip(prompts, found, strict=True):
        logs = next_token(model, torch.tensor(DIGITS.encode(prompt)))([])
        shares = [math.exp(logs[DIGITS.convert_tokens_to_ids(str(level))]) for level in range(1, 6)]
        assert [*scores.probabilities.values()] == approx(shares)
        assert [*scores.probabilities] == [1, 2, 3, 4, 5]
        assert scores.none == approx(1 - sum(shares))
        total = sum(shares)
        assert scores.mean == approx(sum(x * p for x, p in enumerate(shares, 1)) / total)
        below = sum(p for x, p in enumerate(shares, 1) if x < scores.median)
        assert below < total / 2 <= below + shares[int(scores.median) - 1] + 1e-12


def test_a_level_that_begins_another_has_what_the_other_leaves():
    model = model_of(DIGITS)
    scores = read_scores(model, DIGITS, "How a?", levels=range(1, 11))
    behind = next_token(model, torch.tensor(DIGITS.encode("How a?")))
    one, zero = DIGITS.convert_tokens_to_ids(["1", "0"])
    first, ten = math.exp(behind([])[one]), math.exp(behind([])[one] + behind([one])[zero])
    assert scores.probabilities[10] == approx(ten)
    assert scores.probabilities[1] == approx(first - ten)
    assert sum(scores.probabilities.values()) + scores.none == approx(1.0)


def test_ten_may_be_a_token_of_its_own():
    tokenizer = tokenizer_of(WORDS)
    model = model_of(tokenizer)
    calls = counting(model)
    scores = read_scores(model, tokenizer, "How a?", levels=range(1, 11))
    assert calls == [1]
    logs = next_token(model, torch.tensor(tokenizer.encode("How a?")))([])
    assert scores.probabilities[10] == approx(math.exp(logs[tokenizer.convert_tokens_to_ids("10")]))


def test_words_have_values_and_may_share_their_beginning():
    model = model_of(DIGITS)
    levels = {"angry": 2, "notcalm": 1.5, "calm": 0, "notangry": 0.5}
    scores = read_scores(model, DIGITS, "How a?", levels)
    behind = next_token(model, torch.tensor(DIGITS.encode("How a?")))
    ids = {word: DIGITS.convert_tokens_to_ids(word) for word in ("angry", "calm", "not")}
    first, second = behind([]), behind([ids["not"]])
    expected = {
        "calm": math.exp(first[ids["calm"]]),
        "notangry": math.exp(first[ids["not"]] + second[ids["angry"]]),
        "notcalm": math.exp(first[ids["not"]] + second[ids["calm"]]),
        "angry": math.exp(first[ids["angry"]]),
    }
    assert [*scores.probabilities] == [*expected]  # by their values
    assert [*scores.probabilities.values()] == approx([*expected.values()])
    mean = sum(levels[word] * p for word, p in expected.items()) / sum(expected.values())
    assert scores.mean == approx(mean)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_reasons_stand_before_the_score(kind):
    model = model_of(DIGITS, kind)
    reasons = "not calm: annoyed. Score: "
    scores = read_scores(model, DIGITS, "How a?", range(3), prefill=reasons)
    if kind == "t5":
        behind = next_token(model, torch.tensor(DIGITS.encode("How a?")))
        logs = behind(DIGITS.encode(reasons))
    else:
        logs = next_token(model, torch.tensor(DIGITS.encode("How a?\n" + reasons)))([])
    expected = [math.exp(logs[DIGITS.convert_tokens_to_ids(str(level))]) for level in range(3)]
    assert [*scores.probabilities.values()] == approx(expected)


def test_levels_that_are_hardly_written_are_a_warning():
    model = model_of(DIGITS)
    with torch.no_grad():
        model.lm_head.weight[10:] = -5.0 * model.lm_head.weight[2]
    with pytest.warns(UnlikelyNumberWarning, match="hardly answers"):
        read_scores(model, DIGITS, "How a?")


@pytest.mark.parametrize("levels", [[1], [1, 1.0], [1, float("nan")], {"calm": 0}, {"calm": 0, " calm": 1}])
def test_levels_that_are_none_are_an_error(levels):
    for call in (
        lambda: read_scores(model_of(DIGITS), DIGITS, "a", levels),
        lambda: scores_from_logprobs({"1": -1.0}, levels),
    ):
        with pytest.raises(ValueError, match="levels"):
            call()


def logs(**shares):
    return [{"token": token.strip("_"), "logprob": math.log(share)} for token, share in shares.items()]


def test_log_probabilities_of_an_api_are_the_same_scores():
    model = model_of(DIGITS)
    scores = read_scores(model, DIGITS, "How a?", range(10))
    of_tokens = next_token(model, torch.tensor(DIGITS.encode("How a?")))([])
    listed = {DIGITS.convert_ids_to_tokens(i) or f"<{i}>": of_tokens[i] for i in range(len(of_tokens))}
    found = scores_from_logprobs(listed, range(10))
    assert [*found.probabilities.values()] == approx([*scores.probabilities.values()])
    assert (found.mean, found.median) == (approx(scores.mean), scores.median)
    assert found.none == approx(scores.none)
    assert found.left_out == approx(0.0, scale=1.0)


def test_a_list_says_how_much_it_leaves_out():
    found = scores_from_logprobs(logs(_4=0.5, _5=0.2, I=0.1), range(1, 6))
    assert (found.probabilities[4], found.probabilities[5], found.none) == approx((0.5, 0.2, 0.1))
    assert found.left_out == approx(0.2)


def test_one_text_twice_is_added_and_space_around_it_is_none():
    top = [SimpleNamespace(token=t, logprob=math.log(p)) for t, p in (("8", 0.5), (" 8", 0.2), ("3", 0.3))]
    found = scores_from_logprobs(top, range(1, 11))
    assert found.probabilities[8] == approx(0.7)
    assert found.median == 8


def test_a_token_that_begins_a_level_is_followed_where_it_was_written():
    first, second = logs(_1=0.6, _2=0.4), logs(_0=0.75, end=0.25)
    content = [{"token": "1", "top_logprobs": first}, {"token": "0", "top_logprobs": second}]
    found = scores_from_logprobs(content, range(1, 11))
    assert [found.probabilities[level] for level in (1, 2, 10)] == approx([0.15, 0.4, 0.45])
    assert found.left_out == approx(0.0, scale=1.0)
    # Of a word, one position does not tell which it begins.
    found = scores_from_logprobs(logs(an=0.5, calm=0.5), {"calm": 0, "annoyed": 1, "angry": 2})
    assert (found.probabilities["calm"], found.left_out) == approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("given", "error"),
    [([], ValueError), ([{"token": "1"}], TypeError), ({"1": 0.0, "2": 0.0}, ValueError), (["1"], TypeError)],
)
def test_lists_of_another_form_are_errors(given, error):
    with pytest.raises(error, match="top_logprobs"):
        scores_from_logprobs(given)
