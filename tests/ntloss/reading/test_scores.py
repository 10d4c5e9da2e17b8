"""Scores of a judge, against all answers of a tiny model, and from lists of log-probabilities."""

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reading_cases import make_model, next_token
from tolerances import approx

from ntloss.reading import UnlikelyNumberWarning, read_scores, scores_from_logprobs, scores_from_response

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
def test_levels_are_exact_and_another_number_is_none(kind):
    tokenizer = tokenizer_of([*WORDS[:-1], "."])
    model = model_of(tokenizer, kind)
    prompts = ["a a?", "a:a?"]  # of one length
    found = read_scores(model, tokenizer, prompts, levels=range(1, 6))
    for prompt, scores in zip(prompts, found, strict=True):
        behind = next_token(model, torch.tensor(tokenizer.encode(prompt)))
        shares = [probability_of(str(level), behind, tokenizer) for level in range(1, 6)]
        # Mamba's states are float32.
        assert [*scores.probabilities.values()] == approx(shares, scale=0.01)
        assert [*scores.probabilities] == [1, 2, 3, 4, 5]
        assert scores.none == approx(1 - sum(shares))
        total = sum(shares)
        assert scores.mean == approx(sum(x * p for x, p in enumerate(shares, 1)) / total)
        below = sum(p for x, p in enumerate(shares, 1) if x < scores.median)
        assert below < total / 2 <= below + shares[int(scores.median) - 1] + 1e-12


def probability_of(level, behind, tokenizer):
    """That a model writes a level token by token, and then neither a digit nor a point and a digit but 0."""
    words = tokenizer.get_vocab()
    digits = [i for word, i in words.items() if word.isdigit()]
    ids = tokenizer.encode(level)
    share = math.exp(sum(behind(ids[:n])[ids[n]] for n in range(len(ids))))
    other = sum(math.exp(behind(ids)[i]) for i in digits)
    if "." in words:
        decimals = [i for i in digits if i != words["0"]]
        other += sum(math.exp(behind(ids)[words["."]] + behind([*ids, words["."]])[i]) for i in decimals)
    return share * (1 - other)


@pytest.mark.parametrize(
    ("words", "levels", "calls"),
    [
        (WORDS[:-1], range(1, 11), 3),  # 10 is written as 1, 0
        ([*WORDS, "."], range(1, 11), 3),  # a level, a digit after it, and one after its point
        ([*WORDS[:-1], "."], [0, 0.5, 1], 5),
    ],
)
def test_a_level_that_begins_another_has_what_no_digit_follows(words, levels, calls):
    tokenizer = tokenizer_of(words)
    model = model_of(tokenizer)
    called = counting(model)
    scores = read_scores(model, tokenizer, "How a?", levels)
    assert len(called) == calls
    behind = next_token(model, torch.tensor(tokenizer.encode("How a?")))
    expected = {level: probability_of(str(level), behind, tokenizer) for level in levels}
    assert scores.probabilities == approx(expected, scale=1e-3)
    assert sum(scores.probabilities.values()) + scores.none == approx(1.0)


@pytest.mark.parametrize("answer", ["10", "4.5", "2024", "1.5"])
def test_a_model_that_writes_another_number_writes_no_level(answer):
    tokenizer = tokenizer_of([*WORDS[:-1], ".", "end"])
    ids = [*tokenizer.convert_tokens_to_ids([*answer]), tokenizer.convert_tokens_to_ids("end")]
    model = model_of(tokenizer)
    write_always(model, tokenizer.encode("How a?")[-1:] + ids)
    scores = read_scores(model, tokenizer, "How a?", levels=range(1, 6))
    assert scores.none == approx(1.0)


def test_a_level_may_be_written_with_a_zero_after_its_point():
    tokenizer = tokenizer_of([*WORDS[:-1], ".", "end"])
    model = model_of(tokenizer)
    write_always(
        model, tokenizer.encode("How a?")[-1:] + tokenizer.convert_tokens_to_ids(["4", ".", "0", "end"])
    )
    assert read_scores(model, tokenizer, "How a?", levels=range(1, 6)).probabilities[4] == approx(1.0)


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


def test_levels_may_be_texts_of_numbers():
    found = scores_from_logprobs(logs(_1=0.75, _2=0.25), ["1", "2"])
    assert (found.probabilities["1"], found.mean) == approx((0.75, 1.25))
    for levels in (["good", "bad"], 5):
        with pytest.raises(TypeError, match="levels"):
            scores_from_logprobs(logs(_1=1.0), levels)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_reasons_stand_before_the_score(kind):
    model = model_of(DIGITS, kind)
    reasons = "not calm: annoyed. Score: "
    scores = read_scores(model, DIGITS, "How a?", {"calm": 0, "annoyed": 1, "angry": 2}, prefill=reasons)
    if kind == "t5":
        behind = next_token(model, torch.tensor(DIGITS.encode("How a?")))
        logs = behind(DIGITS.encode(reasons))
    else:
        logs = next_token(model, torch.tensor(DIGITS.encode("How a?\n" + reasons)))([])
    expected = [math.exp(logs[DIGITS.convert_tokens_to_ids(word)]) for word in WORDS[:3]]
    assert [*scores.probabilities.values()] == approx(expected)


def test_levels_that_are_hardly_written_are_a_warning():
    model = model_of(DIGITS)
    with torch.no_grad():
        model.lm_head.weight[10:] = -5.0 * model.lm_head.weight[2]
    with pytest.warns(UnlikelyNumberWarning, match="hardly answers"):
        read_scores(model, DIGITS, "How a?")


def test_a_level_that_further_digits_follow_is_a_warning_about_the_end():
    model = model_of(DIGITS)
    model.lm_head = torch.nn.Linear(model.lm_head.in_features, model.lm_head.out_features).double()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.zero_()[DIGITS.convert_tokens_to_ids("4")] = 20.0
    with pytest.warns(UnlikelyNumberWarning, match="end token"):
        assert read_scores(model, DIGITS, "How a?").none == approx(1.0)


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
    words = {"calm": 0, "Score": 1, "not": 2}
    scores = read_scores(model, DIGITS, "How a?", words)
    of_tokens = next_token(model, torch.tensor(DIGITS.encode("How a?")))([])
    listed = {DIGITS.convert_ids_to_tokens(i) or f"<{i}>": of_tokens[i] for i in range(len(of_tokens))}
    found = scores_from_logprobs(listed, words)
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


def test_the_median_is_the_lowest_level_that_reaches_half():
    for shares in ({"_2": 0.5, "_4": 0.5}, {"_1": 0.1, "_2": 0.4, "_4": 0.5}):
        assert scores_from_logprobs(logs(**shares), range(1, 6)).median == 2


def test_a_token_that_begins_a_level_is_followed_where_it_was_written():
    first, second = logs(_1=0.6, _2=0.4), logs(_0=0.75, end=0.25)
    content = [{"token": "1", "top_logprobs": first}, {"token": "0", "top_logprobs": second}]
    found = scores_from_logprobs(content, range(1, 11))
    assert [found.probabilities[level] for level in (1, 2, 10)] == approx([0.15, 0.4, 0.45])
    assert found.left_out == approx(0.0, scale=1.0)
    # Of a word, one position does not tell which it begins.
    found = scores_from_logprobs(logs(an=0.5, calm=0.5), {"calm": 0, "annoyed": 1, "angry": 2})
    assert (found.probabilities["calm"], found.left_out) == approx((0.5, 0.5))


def position(written, **shares):
    return {"token": written, "top_logprobs": logs(**shares)}


@pytest.mark.parametrize(
    ("given", "levels", "shares", "none", "left_out"),
    [
        # A token that begins a longer level was not written, or what follows it is not known.
        (
            [position("9", _9=0.6, _1=0.3, _8=0.1), position("}", end=1.0)],
            range(1, 11),
            {9: 0.6, 8: 0.1},
            0,
            0.3,
        ),
        ([position("7", _7=0.5, _1=0.4), position("}")], range(1, 11), {7: 0.5}, 0, 0.5),
        (logs(_1=0.6, _9=0.4), range(1, 11), {9: 0.4}, 0, 0.6),
        ([position("85", _85=0.7, _9=0.3)], range(101), {85: 0.7}, 0, 0.3),
        # Another number was written.
        ([position("1", _1=0.9, _2=0.1), position("0", _0=1.0)], range(1, 6), {2: 0.1}, 0.9, 0),
        (
            [position("4", _4=0.8, _2=0.2), position(".", **{".": 1.0}), position("5", _5=0.75, end=0.25)],
            range(1, 6),
            {2: 0.2, 4: 0.2},
            0.6,
            0,
        ),
        ([position("4", _4=1.0), position(".", **{".": 1.0})], range(1, 6), {4: 1.0}, 0, 0),
        # Zeros after the point change nothing.
        (
            [position("4", _4=0.6, _5=0.4), position(".", **{".": 1.0}), position("0", _0=0.5, _7=0.5)],
            range(1, 6),
            {4: 0.3, 5: 0.4},
            0.3,
            0,
        ),
        (
            [position(".", **{".": 0.5, "1": 0.5}), position("50", _50=0.5, _5=0.25, _4=0.25)],
            [0, 0.5, 1],
            {0.5: 0.375, 1: 0.5},
            0.125,
            0,
        ),
        # White space ends a level, whatever follows it.
        (
            [position("1", _1=0.6, _9=0.4), position("0", **{"0": 0.5, "\n": 0.5})],
            range(1, 11),
            {1: 0.3, 9: 0.4, 10: 0.3},
            0,
            0,
        ),
        (
            [position("1", _1=1.0), position("\n", **{"\n": 1.0}), position("2", _2=1.0)],
            range(1, 11),
            {1: 1.0},
            0,
            0,
        ),
        (
            [position("0", _0=0.5, _1=0.5), position(".5", **{".5": 0.5, " ": 0.5})],
            [0, 0.5, 1],
            {0: 0.25, 0.5: 0.25, 1: 0.5},
            0,
            0,
        ),
        (logs(**{"\u22121": 0.5, "1": 0.5}), [-1, 0, 1], {-1: 0.5, 1: 0.5}, 0, 0),
        # Beside negative levels, positive ones may have a sign.
        (logs(**{"+1": 0.5, "-1": 0.25, "+": 0.25}), [-1, 0, 1], {-1: 0.25, 1: 0.5}, 0, 0.25),
        # A word goes on with letters, and with those of a longer level.
        (
            [position("no", no=0.6, yes=0.4), position("thing", thing=0.75, **{".": 0.25})],
            {"yes": 1, "no": 0},
            {"yes": 0.4, "no": 0.15},
            0.45,
            0,
        ),
        (
            [position("B", A=0.5, B=0.5), position("+", **{"+": 0.5, "\n": 0.5})],
            {"A": 4, "B+": 3.3, "B": 3},
            {"A": 0.5, "B+": 0.25, "B": 0.25},
            0,
            0,
        ),
        (
            [position("good", good=1.0), position(" ", **{" ": 1.0}), position("so", so=0.5, enough=0.5)],
            {"good": 2, "good enough": 1},
            {"good": 0.5, "good enough": 0.5},
            0,
            0,
        ),
        # Tokenizers' marks.
        (logs(Ġ8=0.75, Ġ7=0.25), range(1, 11), {8: 0.75, 7: 0.25}, 0, 0),
        (logs(**{"▁8": 0.5}), range(1, 11), {8: 0.5}, 0, 0.5),
        # The forms of vLLM offline, SGLang, Gemini, TGI, and of completions.
        ([[math.log(0.5), 22, " 7"], [math.log(0.25), 23, " 8"]], range(1, 11), {7: 0.5, 8: 0.25}, 0, 0.25),
        ([[[math.log(0.5), 22, "7"]], [[0.0, 1, "\n"]]], range(1, 11), {7: 0.5}, 0, 0.5),
        ([[" 7", math.log(0.5)]], range(1, 11), {7: 0.5}, 0, 0.5),  # as JSON writes pairs
        ([{" 7": math.log(0.5)}, {"\n": 0.0}], range(1, 11), {7: 0.5}, 0, 0.5),
        ({5: SimpleNamespace(logprob=math.log(0.5), decoded_token=" 7")}, range(1, 11), {7: 0.5}, 0, 0.5),
        (
            SimpleNamespace(
                top_candidates=[
                    SimpleNamespace(candidates=[SimpleNamespace(token="7", log_probability=math.log(0.5))])
                ],
                chosen_candidates=[SimpleNamespace(token="7", log_probability=math.log(0.5))],
            ),
            range(1, 11),
            {7: 0.5},
            0,
            0.5,
        ),
        ([{"id": 3, "text": "7", "logprob": math.log(0.5)}], range(1, 11), {7: 0.5}, 0, 0.5),
        (
            {
                "text": "7",
                "top_tokens": [{"text": "7", "logprob": np.float32(0.0)}, {"text": "8", "logprob": None}],
            },
            range(1, 11),
            {7: 1.0},
            0,
            0,
        ),
    ],
)
def test_what_a_list_says_and_does_not_say(given, levels, shares, none, left_out):
    found = scores_from_logprobs(given, levels)
    assert found.probabilities == approx({level: shares.get(level, 0.0) for level in levels})
    assert (found.none, found.left_out) == (approx(none, scale=1.0), approx(left_out, scale=1.0))


@pytest.mark.parametrize(
    ("top", "levels", "named"),
    [
        (logs(**{'"': 0.95}), range(1, 11), '"'),
        (logs(Yes=0.6, yes=0.1, No=0.2, NO=0.05), {"yes": 1, "no": 0}, "Yes"),
    ],
)
def test_a_list_without_levels_or_with_levels_in_other_letters_is_a_warning(top, levels, named):
    with pytest.warns(UnlikelyNumberWarning, match=named):
        scores_from_logprobs(top, levels)


@pytest.mark.parametrize(
    ("answer", "score", "after"),
    [
        (["I would rate this ", "7", "."], 7, None),
        (['{"', "score", '":', " 7", ', "n": ', "3", "}"], 7, None),
        (['{"n":', "7", ', "faults":', " 3", "}"], 7, '"n":'),
        (["Score: ", "8", "/", "10"], 8, None),
        (["7", " out of ", "10"], 7, None),
        (["On a scale from ", "1", " to ", "10", ", I give ", "9"], 9, None),
        (["I found ", "3", " faults. Rating: **", "4", "** of ", "10"], 4, None),
        (['"7', '"'], 7, None),
        (["Score: ", "1", "0"], 10, None),
        (["Score:", "Ġ6"], 6, None),
        (["Score (", "1", "-", "10", "): ", "7", ". Confidence: ", "3"], 7, None),
        (["A score of ", "4", ". It has ", "2", " flaws."], 4, None),
        (["2", " flaws, so a score of ", "4", "/", "5"], 4, None),
        (["**Score** - ", "4", ". There are ", "2", " typos"], 4, None),
        (["8", " points of ", "10"], 8, None),
        (["<think>", "Score: ", "3", "?</think>", "7"], 7, None),  # as servers without a parser write it
        (["Score: ", "3", "?[/THINK]", "A score of ", "7"], 7, "of "),
        (["<think>", "3", "?</think><think>", "4", "?</think>", "7"], 7, None),
        (["<|channel|>analysis<|message|>", "3", "?<|channel|>final<|message|>", "7"], 7, None),
        (["<score>", "7", "</score><reasoning>good</reasoning>"], 7, None),  # a reason after the score
        (['{"score": ', "7", ', "why": "no </think>"}'], 7, None),
        # Words that hold a name of a score, lists of points, and the end of a scale are none.
        (["Score: ", "4", ". It demonstrates ", "3", " strengths and generated ", "2", " errors."], 4, None),
        (["Rating: ", "4", "\nStrengths: accurate\n", "1", ". good\nKey points:\n", "2", ". clear"], 4, None),
        (["Score: ", "4", ". It misses point ", "3", "."], 4, None),
        (['{"score": ', "4", ', "max_score": ', "5", "}"], 4, None),
        (["Score: ", "4", " (max score ", "5", ")"], 4, None),
        (["Bewertung: ", "4", " von ", "5"], 4, None),
        (["我给", "4", "分\uff0c满分", "5", "分"], 4, None),
        (["I rate this ", "4", " on a ", "5", "-point scale."], 4, None),
        (["Rate ", "1", " - ", "10", ": ", "4"], 4, None),
        # Markup between the name and the score.
        (["<score>", "4", "</score><confidence>", "5", "</confidence>"], 4, None),
        (["The final score is \\boxed{", "4", "}. It has ", "2", " errors"], 4, None),
        (["Score: `", "4", "`. ", "2", " errors"], 4, None),
        (["| Score | ", "4", " |\n| Errors | ", "2", " |"], 4, None),
        (["overallRating → ", "4", ", ", "2", " errors"], 4, None),
        (["<score>", "4", "</score>\n", "1", ". Clear\n", "2", ". Short"], 4, None),
        (["<score>", "4", "</score> ", "2", " typos"], 4, None),
        (["<why>short</why>", "4"], 4, "</why>"),
        # Colons of full width, and words in their place.
        (["评分\uff1a", "4", "\n理由\uff1a有", "2", "处错误"], 4, None),
        (["**评分**\uff1a", "4", "\uff0c有", "2", "处错误"], 4, None),
        (["评分\uff1d", "4", "\uff0c有", "2", "处错误"], 4, None),
        (["得分为", "4", "\uff0c因为有", "2", "处错误"], 4, None),
        (["得分是", "4", "\uff0c因为有", "2", "处错误"], 4, None),
        (["スコア\uff1a", "8", "点\uff08", "10", "点満点\uff09"], 8, None),
        (["점수: ", "8", "점 (", "10", "점 만점)"], 8, None),
        # The ends of a scale, before or after the score.
        (['{"score": ', "4", ', "min_score": ', "1", ', "max_score": ', "5", "}"], 4, None),
        (['{"score": ', "4", ', "score_min": ', "1", "}"], 4, None),
        (['{"score": ', "4", ', "score_range": [', "1", ", ", "5", "]}"], 4, None),
        (["Score [", "1", "-", "5", "]: ", "4", "\n", "2", " typos"], 4, None),
        (["Score from ", "1", " to ", "5", ": ", "4", "\n", "2", " typos"], 4, None),
        (["Score on a scale of ", "1", " to ", "5", ": ", "4", "\n", "2", " typos"], 4, None),
        (["Score on a ", "5", "-point scale: ", "4", "\n", "2", " typos"], 4, None),
        (["Score out of ", "10", ": ", "8", "\n", "2", " typos"], 8, None),
        (["On a ", "10", "-point scale: ", "8"], 8, None),
        # A dash before or after a score.
        (["Clarity: ", "3", "\nOverall - ", "4"], 4, None),
        (["Overall: ", "4", " - ", "2", " errors"], 4, None),
        (['{"score": ', "4", ".", "0", "}"], 4, None),
    ],
)
def test_the_score_of_a_response_is_found(answer, score, after):
    content = [position(token, **{token: 0.9}) for token in answer]
    choice = SimpleNamespace(logprobs=SimpleNamespace(content=content))
    for response in ({"choices": [{"logprobs": {"content": content}}]}, SimpleNamespace(choices=[choice])):
        found = scores_from_response(response, range(1, 11), after=after)
        assert found.mean == approx(score)


def test_thoughts_that_have_not_ended_hold_no_score():
    content = [position(token, **{token: 1.0}) for token in ("<think>", "Score: ", "3", "?")]
    with pytest.warns(UnlikelyNumberWarning):
        assert math.isnan(scores_from_response({"choices": [{"logprobs": {"content": content}}]}).mean)


def test_a_sign_before_the_score_is_a_part_of_it_where_levels_are_negative():
    content = [
        position("Score: ", **{"Score: ": 1.0}),
        position("+", **{"+": 0.6, "-": 0.3, "0": 0.1}),
        position("1", _1=0.5, _2=0.5),
    ]
    found = scores_from_response({"choices": [{"logprobs": {"content": content}}]}, range(-2, 3))
    assert found.probabilities == approx({-2: 0.0, -1: 0.0, 0: 0.1, 1: 0.3, 2: 0.3})
    assert found.left_out == approx(0.3)


def test_answers_of_completions_and_of_responses_are_read():
    top = {" 4": math.log(0.75), " 5": math.log(0.25)}
    of_completions = {"tokens": ["Score:", " 4"], "top_logprobs": [None, top]}
    entries = [{"token": token, "logprob": value} for token, value in top.items()]
    message = {"type": "message", "content": [{"logprobs": [{"token": " 4", "top_logprobs": entries}]}]}
    for response in (
        {"choices": [{"text": "Score: 4", "logprobs": of_completions}]},
        {"output": [{"type": "reasoning", "content": None}, message]},
    ):
        assert scores_from_response(response).mean == approx(4.25)


def test_words_of_languages_without_spaces_are_levels_before_other_words():
    content = [position("是", 是=0.8, 否=0.2), position("的", 的=1.0)]
    assert scores_from_logprobs(content, {"是": 1, "否": 0}).mean == approx(0.8)


def test_the_longest_level_of_a_response_is_found():
    content = [position("very", very=0.6, good=0.4), position(" good", **{" good": 0.75, " bad": 0.25})]
    levels = {"very good": 3, "good": 2, "very bad": 0}
    found = scores_from_response({"choices": [{"logprobs": {"content": content}}]}, levels)
    assert found.probabilities == approx({"very good": 0.45, "good": 0.4, "very bad": 0.15})


@pytest.mark.parametrize("answer", ["7,5", "7.5", "7-8"])
def test_another_number_in_a_response_is_no_level(answer):
    content = [position(token, **{token: 1.0}) for token in answer]
    with pytest.warns(UnlikelyNumberWarning):
        found = scores_from_response({"choices": [{"logprobs": {"content": content}}]}, range(1, 11))
    assert (math.isnan(found.mean), found.none) == (True, 1.0)


def test_a_response_without_a_score_is_a_warning_and_without_log_probabilities_an_error():
    with pytest.warns(UnlikelyNumberWarning, match="25"):
        found = scores_from_response({"logprobs": {"content": [position("25", _25=1.0)]}})
    assert (math.isnan(found.mean), found.none) == (True, 1.0)
    with pytest.raises(ValueError, match="top_logprobs"):
        scores_from_response({"choices": [{"logprobs": None}]})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], ValueError),
        (None, TypeError),
        ([{"token": "1"}], TypeError),
        ({"1": 0.0, "2": 0.0}, ValueError),
        (["1"], TypeError),
        ({19: 0.0}, TypeError),
    ],
)
def test_lists_of_another_form_are_errors(given, error):
    with pytest.raises(error, match="top_logprobs"):
        scores_from_logprobs(given)
