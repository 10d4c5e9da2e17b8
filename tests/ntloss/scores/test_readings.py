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
        (["2", " flaws, so a score of ", "8", "/", "10"], 8, None),
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
        (["Bewertung: ", "4", " von ", "10"], 4, None),
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
