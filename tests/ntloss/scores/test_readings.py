"""Scores from lists of log-probabilities, and from responses."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from tolerances import approx

from ntloss.scores import UnlikelyNumberWarning, scores_from_logprobs, scores_from_response

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.scores.UnlikelyNumberWarning")


def logs(**shares):
    return [{"token": token.strip("_"), "logprob": math.log(share)} for token, share in shares.items()]


def test_levels_may_be_texts_of_numbers():
    found = scores_from_logprobs(logs(_1=0.75, _2=0.25), ["1", "2"])
    assert (found.probabilities["1"], found.mean) == approx((0.75, 1.25))
    for levels in (["good", "bad"], 5):
        with pytest.raises(TypeError, match="levels"):
            scores_from_logprobs(logs(_1=1.0), levels)


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
        ([position("85", _85=0.7, _1=0.3)], range(101), {85: 0.7}, 0, 0.3),
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
        ([[math.log(0.5), 22, " 7"], [math.log(0.25), 23, " 8"]], range(1, 11), {7: 0.5}, 0, 0.5),
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


def response_of(tokens):
    return {"choices": [{"logprobs": {"content": [position(token, **{token: 1.0}) for token in tokens]}}]}


@pytest.mark.parametrize(
    ("tokens", "score"),
    [
        (['{"score": ', '"7', '"', ', "n": ', "3", "}"], 7),  # what stands before the score in its token
        (["Score:", "**1", "0", "**"], 10),
        (["Score:", "Ġ6"], 6),
        (["评分\uff1a", "4", "\uff0c有", "2", "处错误"], 4),  # signs of full width are one character each
    ],
)
def test_the_score_of_a_response_is_read_at_its_token(tokens, score):
    assert scores_from_response(response_of(tokens), range(1, 11)).mean == approx(score)


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
