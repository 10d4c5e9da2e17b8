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


def test_the_median_is_the_lowest_level_that_reaches_half():
    for shares in ({"_2": 0.5, "_4": 0.5}, {"_1": 0.1, "_2": 0.4, "_4": 0.5}):
        assert scores_from_logprobs(logs(**shares), range(1, 6)).median == 2


def position(written, **shares):
    return {"token": written, "top_logprobs": logs(**shares)}


def listed(*positions):
    """Return positions of texts such as `4 .6 5 .4`, the written token first; `_` is a space."""
    found = []
    for text in positions:
        tokens, shares = [name.replace("_", " ") for name in text.split(" ")[::2]], text.split(" ")[1::2]
        found.append(position(tokens[0], **dict(zip(tokens, map(float, shares), strict=True))))
    return found


TEN, FIVE, HALVES, SIGNED = range(1, 11), range(1, 6), [0, 0.5, 1], [-1, 0, 1]
NO, GRADES, GOOD = {"yes": 1, "no": 0}, {"A": 4, "B+": 3.3, "B": 3}, {"good": 2, "good enough": 1}
SEVEN, LOG = {7: 0.5}, math.log(0.5)
OF_GEMINI = SimpleNamespace(token="7", log_probability=LOG)
LISTED = SimpleNamespace(candidates=[OF_GEMINI])
OF_TGI = [{"text": "7", "logprob": np.float32(LOG)}, {"text": "8", "logprob": None}]


@pytest.mark.parametrize(
    ("given", "levels", "shares", "none", "left_out"),
    [
        (logs(_4=0.5, _5=0.2, I=0.1), FIVE, {4: 0.5, 5: 0.2}, 0.1, 0.2),
        (logs(**{"8": 0.5, " 8": 0.2, "3": 0.3}), TEN, {8: 0.7, 3: 0.3}, 0, 0),
        # A token that begins a longer level was not written, or what follows it is not known.
        (listed("9 .6 1 .3 8 .1", "} 1"), TEN, {9: 0.6, 8: 0.1}, 0, 0.3),
        (listed("7 .5 1 .4", "} 1"), TEN, {7: 0.5}, 0, 0.5),
        (logs(_1=0.6, _9=0.4), TEN, {9: 0.4}, 0, 0.6),
        (listed("85 .7 1 .3"), range(101), {85: 0.7}, 0, 0.3),
        (logs(an=0.5, calm=0.5), {"calm": 0, "annoyed": 1, "angry": 2}, {"calm": 0.5}, 0, 0.5),
        # It is followed where it was written.
        (listed("1 .6 2 .4", "0 .75 end .25"), TEN, {1: 0.15, 2: 0.4, 10: 0.45}, 0, 0),
        # Another number was written.
        (listed("1 .9 2 .1", "0 1"), FIVE, {2: 0.1}, 0.9, 0),
        (listed("4 .8 2 .2", ". 1", "5 .75 end .25"), FIVE, {2: 0.2, 4: 0.2}, 0.6, 0),
        (listed("4 1", ". 1"), FIVE, {4: 1.0}, 0, 0),
        # Zeros after the point change nothing.
        (listed("4 .6 5 .4", ". 1", "0 .5 7 .5"), FIVE, {4: 0.3, 5: 0.4}, 0.3, 0),
        (listed(". .5 1 .5", "50 .5 5 .25 4 .25"), HALVES, {0.5: 0.375, 1: 0.5}, 0.125, 0),
        # White space ends a level, whatever follows it.
        (listed("1 .6 9 .4", "0 .5 \n .5"), TEN, {1: 0.3, 9: 0.4, 10: 0.3}, 0, 0),
        (listed("1 1", "\n 1", "2 1"), TEN, {1: 1.0}, 0, 0),
        (listed("0 .5 1 .5", ".5 .5 _ .5"), HALVES, {0: 0.25, 0.5: 0.25, 1: 0.5}, 0, 0),
        # Typography's minus; beside negative levels, positive ones may have a sign.
        (logs(**{"\u22121": 0.5, "1": 0.5}), SIGNED, {-1: 0.5, 1: 0.5}, 0, 0),
        (logs(**{"+1": 0.5, "-1": 0.25, "+": 0.25}), SIGNED, {-1: 0.25, 1: 0.5}, 0, 0.25),
        # A word goes on with letters, and with those of a longer level; not in languages without spaces.
        (listed("no .6 yes .4", "thing .75 . .25"), NO, {"yes": 0.4, "no": 0.15}, 0.45, 0),
        (listed("B .5 A .5", "+ .5 \n .5"), GRADES, {"A": 0.5, "B+": 0.25, "B": 0.25}, 0, 0),
        (listed("good 1", "_ 1", "so .5 enough .5"), GOOD, {"good": 0.5, "good enough": 0.5}, 0, 0),
        (listed("是 .8 否 .2", "的 1"), {"是": 1, "否": 0}, {"是": 0.8, "否": 0.2}, 0, 0),
        # Tokenizers' marks.
        (logs(Ġ8=0.75, Ġ7=0.25), TEN, {8: 0.75, 7: 0.25}, 0, 0),
        (logs(**{"▁8": 0.5}), TEN, {8: 0.5}, 0, 0.5),
        # The forms of SGLang, vLLM offline, Gemini, TGI, and of completions.
        ([[LOG, 22, " 7"], [math.log(0.25), 23, " 8"]], TEN, SEVEN, 0, 0.5),
        ([[[LOG, 22, "7"]], [[0.0, 1, "\n"]]], TEN, SEVEN, 0, 0.5),
        ([[" 7", LOG]], TEN, SEVEN, 0, 0.5),  # as JSON writes pairs
        ([{" 7": LOG}, {"\n": 0.0}], TEN, SEVEN, 0, 0.5),
        ({5: SimpleNamespace(logprob=LOG, decoded_token=" 7")}, TEN, SEVEN, 0, 0.5),
        (SimpleNamespace(top_candidates=[LISTED], chosen_candidates=[OF_GEMINI]), TEN, SEVEN, 0, 0.5),
        ([LISTED], TEN, SEVEN, 0, 0.5),
        ([{"id": 3, "text": "7", "logprob": LOG}], TEN, SEVEN, 0, 0.5),
        ({"text": "7", "top_tokens": OF_TGI}, TEN, SEVEN, 0, 0.5),
    ],
)  # fmt: skip
def test_what_a_list_says_and_does_not_say(given, levels, shares, none, left_out):
    found = scores_from_logprobs(given, levels)
    assert found.probabilities == approx({level: shares.get(level, 0.0) for level in levels})
    assert (found.none, found.left_out) == (approx(none, scale=1.0), approx(left_out, scale=1.0))


def test_a_list_without_levels_is_a_warning_that_names_the_likeliest_token():
    for top in (logs(**{'"': 0.95}), logs(Yes=0.6, yes=0.1, No=0.2)):
        with pytest.warns(UnlikelyNumberWarning, match=top[0]["token"]):
            scores_from_logprobs(top, {"yes": 1, "no": 0})


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


@pytest.mark.parametrize(
    ("given", "error"),
    [([], ValueError), (None, TypeError), ([{"token": "1"}], TypeError), ({"1": 0.0, "2": 0.0}, ValueError)],
)
def test_lists_of_another_form_are_errors(given, error):
    with pytest.raises(error, match="top_logprobs"):
        scores_from_logprobs(given)
