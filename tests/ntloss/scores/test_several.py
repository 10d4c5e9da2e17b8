"""Several scores: samples, criteria, repeats and attempts; warnings; and that none of it needs torch."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tolerances import approx

import ntloss
from ntloss.scores import (
    ScoreReading,
    UnlikelyNumberWarning,
    average,
    best_of,
    compare,
    scores_from_logprobs,
    scores_from_response,
    scores_from_samples,
)

LOW, HIGH, NO_SCORE = (
    ScoreReading({1: 0.5, 2: 0.5}),
    ScoreReading({1: 0.25, 2: 0.75}),
    ScoreReading({1: 0.0, 2: 0.0}),
)
FOUR = ("4", {"4": 0.7, "5": 0.3})


def response_of(*tokens, finish="stop"):
    """Return a chat of tokens, some with the probabilities of the likeliest ones."""
    content = []
    for token, shares in ((each, {each: 1.0}) if isinstance(each, str) else each for each in tokens):
        top = [{"token": name, "logprob": math.log(share)} for name, share in shares.items()]
        content.append({"token": token, "logprob": math.log(shares[token]), "top_logprobs": top})
    return {"choices": [{"logprobs": {"content": content}, "finish_reason": finish}]}


def test_scores_and_the_names_of_ntloss_need_no_torch_until_they_are_used():
    code = """
import sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "numpy", "sklearn", "transformers"):
    sys.modules[name] = None  # importing it raises
import ntloss.scores
print(ntloss.scores.scores_from_logprobs({"4": -0.5, "5": -1.0}).mean)
assert {"make_number_aware", "read_number", "NumberRegressor"} <= set(dir(ntloss))
"""
    source = str(Path(ntloss.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True, timeout=60)
    assert float(done.stdout) == approx(
        (4 * math.exp(-0.5) + 5 * math.exp(-1)) / (math.exp(-0.5) + math.exp(-1))
    )


def test_the_end_of_an_answer_decides_whether_its_last_token_is_a_level():
    one = ("1", {"1": 0.7, "2": 0.2, "3": 0.1})
    ended = scores_from_response(response_of(one), range(1, 11))
    assert (ended.mean, ended.left_out) == (approx(1.4), approx(0.0, scale=1.0))
    with pytest.warns(UnlikelyNumberWarning, match="longer"):
        cut = scores_from_response(response_of(one, finish="length"), range(1, 11))
    assert (cut.probabilities[1], cut.left_out) == (0.0, approx(0.7))
    # The list shows that 10 is one token, and 85, so that 1 and 8 are levels.
    cut = scores_from_response(response_of(("10", {"10": 0.6, "1": 0.4}), finish="length"), range(1, 11))
    assert cut.mean == approx(6.4)
    given = ("85", {"85": 0.5, "80": 0.25, "90": 0.1, "8": 0.05, "REFUSAL": 0.05})
    found = scores_from_response(response_of(given), range(101))
    assert (round(found.mean, 2), found.none, found.left_out) == (79.89, approx(0.05), approx(0.05))
    zero = response_of(("0", {"0": 0.9, "1": 0.1}))
    assert scores_from_response(zero, [i / 10 for i in range(11)]).mean == approx(0.1)


def test_one_token_a_position_is_no_list_of_alternatives():
    tokens = [
        {"id": 1, "text": t, "logprob": math.log(p)} for t, p in (("4", 0.5), (" because", 0.1), (" 2", 0.2))
    ]
    with pytest.warns(UnlikelyNumberWarning):
        found = scores_from_logprobs(tokens)
    assert (found.probabilities[4], found.probabilities[2], found.left_out) == (approx(0.5), 0.0, approx(0.5))


def test_a_token_without_alternatives_has_its_own_probability():
    entry = {"token": "4", "logprob": math.log(0.7), "top_logprobs": []}
    with pytest.warns(UnlikelyNumberWarning, match=r"0\.3"):
        found = scores_from_response({"choices": [{"logprobs": {"content": [entry]}}]})
    assert (found.probabilities[4], found.left_out) == (approx(0.7), approx(0.3))
    # It counts beside alternatives that do not hold it.
    entry["top_logprobs"] = [{"token": "5", "logprob": math.log(0.3)}]
    assert scores_from_response({"choices": [{"logprobs": {"content": [entry]}}]}).mean == approx(4.3)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ({"error": {"message": "Rate limit"}}, "Rate limit"),
        ({"error": "model not found"}, "model not found"),
        ({"object": "error", "message": "too long"}, "too long"),
        ({"choices": [{"logprobs": {"content": [{"token": "token_id:15", "logprob": 0.0}]}}]}, "ids"),
        ({"choices": [{"delta": {"content": "4"}}]}, "stream"),
        ({"meta_info": {"output_token_logprobs": [[-0.1, 19, None]]}}, "return_text_in_logprobs"),
        ({"choices": [{"message": {"content": "4"}, "logprobs": None}]}, "logprobs=True"),
        ({}, "logprobs=True"),
    ],
)
def test_what_is_no_answer_says_what_it_is(response, said):
    with pytest.raises(ValueError, match=said):
        scores_from_response(response)


def test_places_that_disagree_are_no_score_and_a_warning_with_both():
    with pytest.warns(UnlikelyNumberWarning, match=r"2 and 4"):
        assert math.isnan(scores_from_response(response_of("Score: ", "2", "\n\nScore: ", FOUR)).mean)


def test_a_list_of_responses_and_of_criteria_is_read_one_by_one():
    answer = response_of('{"clarity" : ', FOUR, ', "depth": ', "2", "}")
    (table,) = scores_from_response([answer], after=['"clarity":', '"depth":'])
    assert {name: reading.mean for name, reading in table.items()} == approx(
        {'"clarity":': 4.3, '"depth":': 2.0}
    )
    assert average(table) == approx((3.15, 1.15, 2))
    assert average([table, table]) == approx((3.15, 0.0, 2))


def test_samples_are_counted():
    answers = ["Score: 4", '{"score": 5, "n": 1}', "<think>3</think>4", "I cannot say, 2 of 3."]
    with pytest.warns(UnlikelyNumberWarning, match="cannot"):
        found = scores_from_samples(answers)
    assert (found.probabilities[4], found.probabilities[5], found.none) == (0.5, 0.25, 0.25)
    assert found.mean == approx(13 / 3)
    for given, error in (([], ValueError), ([4], TypeError)):
        with pytest.raises(error, match="answers"):
            scores_from_samples(given)
    with pytest.raises(ValueError, match="after"):
        scores_from_samples(["4"], after=" ")


def test_means_have_a_standard_error_and_a_missing_score_makes_them_nan():
    assert average([LOW, HIGH]) == approx((1.625, 0.125, 2))
    assert math.isnan(average([LOW]).error)
    assert math.isnan(average([LOW, NO_SCORE]).mean)
    with pytest.raises(ValueError, match="scores"):
        average([])


def test_the_better_of_two_answers_and_the_best_of_several():
    # 2 beside 1 wins, and half of the ties.
    assert compare(HIGH, LOW) == approx(0.75 * 0.5 + (0.75 * 0.5 + 0.25 * 0.5) / 2)
    assert compare(HIGH, LOW) + compare(LOW, HIGH) == approx(1.0)
    assert math.isnan(compare(HIGH, NO_SCORE))
    words = ScoreReading({"no": 0.5, "yes": 0.5}, values={"no": 0, "yes": 1})
    assert compare(words, words) == approx(0.5)
    assert best_of([LOW, HIGH, NO_SCORE, HIGH]) == 1
    assert best_of({"a": [LOW, HIGH], "b": {"clarity": HIGH, "depth": HIGH}}) == "b"
    with pytest.raises(ValueError, match="answers"):
        best_of([NO_SCORE])


def test_a_response_may_hold_objects_in_place_of_mappings():
    shares = {4: 0.7, 5: 0.3}
    top = {i: SimpleNamespace(logprob=math.log(p), decoded_token=str(i)) for i, p in shares.items()}
    output = SimpleNamespace(text="4", token_ids=(4,), finish_reason="stop", logprobs=[top])
    (found,) = scores_from_response([SimpleNamespace(request_id="1", outputs=[output])], range(1, 6))
    assert found.mean == approx(4.3)
