"""Scores of a judge, against all answers of a tiny model."""

import itertools
import math
import re

import pytest
import torch
from reading_cases import make_model, next_token, tokenizer_of
from tolerances import approx

from ntloss.reading import Question, UnlikelyNumberWarning, read_scores

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
WORDS = ["calm", "annoyed", "angry", "Score", ":", " ", "a", "?", *"0123456789", "not", "10"]


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
def test_levels_are_exact_and_another_number_is_none(kind):
    tokenizer = tokenizer_of([*WORDS[:-1], "."])
    model = model_of(tokenizer, kind)
    prompts = ["a a?", "a:a?"]  # of one length
    found = read_scores(model, tokenizer, prompts, levels=range(1, 6))
    for prompt, scores in zip(prompts, found, strict=True):
        behind = next_token(model, torch.tensor(tokenizer.encode(prompt)))
        shares = [*probabilities_of(range(1, 6), behind, tokenizer).values()]
        # Mamba's states are float32.
        assert [*scores.probabilities.values()] == approx(shares, scale=0.01)
        assert [*scores.probabilities] == [1, 2, 3, 4, 5]
        assert scores.none == approx(1 - sum(shares))
        total = sum(shares)
        assert scores.mean == approx(sum(x * p for x, p in enumerate(shares, 1)) / total)
        below = sum(p for x, p in enumerate(shares, 1) if x < scores.median)
        assert below < total / 2 <= below + shares[int(scores.median) - 1] + 1e-12


def probabilities_of(levels, behind, tokenizer):
    """Try all digits and points, after which anything else ends a number; 4.0 is 4, whatever follows."""
    found = dict.fromkeys(levels, 0.0)
    names = [word for word in tokenizer.get_vocab() if not word.strip("0123456789.")]

    def follow(text, ids, share):
        value = float(text) if re.fullmatch(r"(0|[1-9]\d*)(\.\d*)?|\.0*[1-9]\d*", text) else None
        level = next((level for level in levels if level == value), None)
        if level is not None and re.fullmatch(r"\d*\.\d*0", text):
            found[level] += share
            return
        if text not in ("", ".") and level is None and not any(str(each).startswith(text) for each in levels):
            return
        logs = behind(ids)
        rest = share
        for name in (name for name in names if re.fullmatch(r"\d*\.?\d*", text + name)):
            token = tokenizer.convert_tokens_to_ids(name)
            of_name = share * math.exp(logs[token])
            rest -= of_name
            follow(text + name, [*ids, token], of_name)
        if level is not None:
            found[level] += rest

    follow("", [], 1.0)
    return found


@pytest.mark.parametrize(
    ("words", "levels", "calls"),
    [
        (WORDS[:-1], range(1, 11), 3),  # 10 is written as 1, 0
        ([*WORDS, "."], range(1, 11), 3),  # a level, a digit after it, and one after its point
        ([*WORDS[:-1], "."], [0, 0.5, 1], 4),
    ],
)
def test_a_level_that_begins_another_has_what_no_digit_follows(words, levels, calls):
    tokenizer = tokenizer_of(words)
    model = model_of(tokenizer)
    called = counting(model)
    scores = read_scores(model, tokenizer, "How a?", levels)
    assert len(called) == calls
    behind = next_token(model, torch.tensor(tokenizer.encode("How a?")))
    expected = probabilities_of(levels, behind, tokenizer)
    assert scores.probabilities == approx(expected, scale=1e-3)
    assert sum(scores.probabilities.values()) + scores.none == approx(1.0)


@pytest.mark.parametrize(
    ("answer", "level"),
    [("10", None), ("4.5", None), ("2024", None), ("1.5", None), ("4.0", 4), ("2,5", 2.5), ("2,4", None)],
)
def test_another_number_is_no_level_and_a_zero_after_the_point_changes_none(answer, level):
    tokenizer = tokenizer_of([*WORDS[:-1], ".", ",", "end"])
    model = model_of(tokenizer)
    write_always(model, tokenizer.encode("How a?")[-1:] + tokenizer.convert_tokens_to_ids([*answer, "end"]))
    scores = read_scores(model, tokenizer, "How a?", levels=[1, 2, 2.5, 3, 4, 5])
    assert (scores.none if level is None else scores.probabilities[level]) == approx(1.0)


def write_always(model, chain):
    """Let a model write each token of a chain after the one before it, whatever stands further before."""
    with torch.no_grad():
        size = model.config.hidden_size
        states = torch.randn(len(model.lm_head.weight), size, generator=torch.Generator().manual_seed(5))
        states = states / states.norm(dim=-1, keepdim=True)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(states)
        model.lm_head.weight.zero_()
        for before, after in itertools.pairwise(chain):
            model.lm_head.weight[after] += 100 * states[before]


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


def test_reasons_stand_before_the_score():
    model = model_of(DIGITS, "t5")
    reasons = "not calm: annoyed. Score: "
    scores = read_scores(
        model, DIGITS, Question("How a?", prefill=reasons), {"calm": 0, "annoyed": 1, "angry": 2}
    )
    logs = next_token(model, torch.tensor(DIGITS.encode("How a?")))(DIGITS.encode(reasons))
    expected = [math.exp(logs[DIGITS.convert_tokens_to_ids(word)]) for word in WORDS[:3]]
    assert [*scores.probabilities.values()] == approx(expected)


def test_a_level_is_read_after_a_bracket_that_the_tokenizer_would_join_with_its_sign():
    tokenizer = tokenizer_of([*WORDS[:-1], "-", "(", "(-"])
    model = model_of(tokenizer)
    scores = read_scores(model, tokenizer, Question("a", prefill="a("), [-1, 1])
    behind = next_token(model, torch.tensor(tokenizer.encode("a\na(")))
    minus, one, *digits = tokenizer.convert_tokens_to_ids(["-", "1", *"0123456789"])
    further = sum(math.exp(behind([minus, one])[digit]) for digit in digits)
    written = math.exp(behind([])[minus] + behind([minus])[one])
    assert scores.probabilities[-1] == approx(written * (1 - further))


def test_levels_that_are_hardly_written_are_a_warning():
    model = model_of(DIGITS)
    with torch.no_grad():
        model.lm_head.weight[10:] = -5.0 * model.lm_head.weight[2]
    with pytest.warns(UnlikelyNumberWarning, match="level"):
        read_scores(model, DIGITS, "How a?")


@pytest.mark.parametrize(
    "levels",
    [[1], [1, 1.0], [1, float("nan")], {"calm": 0}, {"calm": 0, " calm": 1}, {"1": 1, "☃": 2}],  # no token
)
def test_levels_that_are_none_are_an_error(levels):
    tokenizer = tokenizer_of(WORDS[:-1])
    tokenizer.unk_token = "a"
    with pytest.raises(ValueError, match="levels"):
        read_scores(model_of(tokenizer), tokenizer, "b", levels)
