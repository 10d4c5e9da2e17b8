"""Rewards for reinforcement learning: how near the number of a completion is to the true one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx

from ntloss.trainers.rewards import compute_score, number_reward

ERRORS = ("log", "absolute")


def rewards(completions, answers, *names, **options):
    return number_reward(*names, **options)(prompts=[], completions=completions, answer=answers)


def test_the_reward_is_the_exponential_of_the_negative_error():
    answers = [10] * 4
    texts = ["It is 10.", "It is 12.", "It is 0.", "It is -10."]
    assert rewards(texts, answers, error="absolute", scale=5.0) == approx(
        [math.exp(-x / 5) for x in (0, 2, 10, 20)]
    )
    eleven = math.log10(11)
    logarithms = [0, math.log10(13) - eleven, eleven, 2 * eleven]
    assert rewards(texts, answers, scale=0.5) == approx([math.exp(-2 * x) for x in logarithms])


def test_a_completion_without_a_number_gets_its_own_reward():
    assert rewards(["No idea.", ""], [1] * 2) == [-1.0] * 2
    assert rewards(["No idea."], [1], invalid=-3.0) == [-3.0]


@pytest.mark.parametrize("answer", [1234, 1234.0, np.int64(1234), "1234", "1,234", " 1234 "], ids=repr)
def test_answers_are_numbers_or_texts_of_one(answer):
    assert rewards(["It is 1,234."], [answer]) == [1.0]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "unknown",
        "so 2 + 2 = 4",
        "1/2",
        math.nan,
        -math.inf,
        "9" * 400,
        10**400,
        True,
        [42],
        [[42]],
        {"x": "42"},
    ],
    ids=str,
)
def test_a_truth_that_is_not_one_number_is_an_error_that_names_the_column(answer):
    with pytest.raises(ValueError, match="label="):
        number_reward("label")(completions=["It is 2."], label=[answer])
    with pytest.raises(ValueError, match="ground_truth="):
        compute_score("prices", "2", answer)


def test_a_row_without_an_answer_has_no_reward():
    assert rewards(["It is 1.", "no number"], [None] * 2) == [None, None]


def test_the_last_message_of_a_conversation_counts():
    says = [{"role": "assistant", "content": "It is 3."}]
    more = [*says, {"role": "user", "content": "Sure? Or 4?"}, {"role": "assistant", "content": "It is 3."}]
    assert rewards([says, more], [3, 3]) == [1.0, 1.0]


@pytest.mark.parametrize(
    "completion",
    [
        "#### 42\n\nQuestion: what is 3 + 4?",
        "<answer>42</answer> I am 100% sure.",
        "\\boxed{42}. This took 3 steps.",
        "<think>Answer: 5? No.</think> The answer is **42**, as 6 * 7.",
    ],
)
def test_the_number_after_the_mark_of_the_answer_may_count(completion):
    assert rewards([completion], [42], which="after") == [1.0]
    assert rewards([completion], [42]) != [1.0]
    assert rewards(["It is 42."], [42], which="after") == [-1.0]


def test_a_batch_without_a_mark_of_an_answer_is_a_warning():
    with pytest.warns(UserWarning, match="after="):
        assert rewards(["It is 42.", "7"], [42, 7], which="after") == [-1.0, -1.0]


def test_which_number_counts_and_what_separates_thousands_are_options():
    assert rewards(["5, then 7"], [5], which="first") == [1.0]
    assert rewards(["7"], [5], which=lambda text: 5.0) == [1.0]
    assert rewards(["It is (1,234)"], [1234], thousands=",") == rewards(["1234"], ["1,234"]) == [1.0]
    assert compute_score("prices", "#### 5/7", 5, which="first", thousands="") == -1
    assert rewards(["The total is 5. The answer is 7."], [5], after="total is") == [1.0]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ([{"role": "assistant", "content": None, "tool_calls": []}], -1.0),
        ([{"role": "assistant"}], -1.0),
        ([{"role": "assistant", "content": [{"type": "text", "text": "It is "}, {"text": "3."}]}], 1.0),
        ([{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": "3"}]}], 1.0),
        ([{"role": "assistant", "content": []}], -1.0),
        ([], -1.0),
        (None, -1.0),
    ],
)  # fmt: skip
def test_a_message_may_have_no_text_or_several_parts(completion, reward):
    assert rewards([completion], [3]) == [reward]


@given(
    st.sampled_from(ERRORS),
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(1e-300, 1e300),
)
def test_rewards_lie_between_zero_and_one(error, predicted, answer, scale):
    (reward,) = rewards([repr(predicted)], [answer], error=error, scale=scale)
    assert reward is not None
    assert 0 <= reward <= 1
    if predicted == answer:
        assert reward == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_nearer_number_gets_a_larger_reward(error):
    found = rewards([str(x) for x in (7, 8, 20, 300, "9" * 400)], [7] * 5, error=error, scale=3.0)
    assert all(nearer > farther for nearer, farther in itertools.pairwise(found))


def test_what_makes_no_reward_is_an_error():
    wrong = [{"error": "squared"}, {"which": "middle"}, {"thousands": ";"}]
    wrong += [{"scale": scale} for scale in (0, -1.0, math.nan, math.inf)]
    for options in wrong:
        with pytest.raises(ValueError, match=next(iter(options))):
            number_reward(**options)
    with pytest.raises(KeyError, match="truth"):
        rewards(["1"], [1], "truth")
    with pytest.raises(TypeError, match="completions"):
        rewards([3], [3])


@pytest.mark.parametrize("true", ["52", 52])
def test_verls_signature_gives_the_same_reward(true):
    options = {"error": "absolute", "scale": 10.0}
    passed = {"data_source": "prices", "extra_info": {"num_turns": 2}, "reward_router_address": "x"}
    found = compute_score(solution_str="It is 42.", ground_truth=true, **passed, **options)
    assert [found] == number_reward(**options)(["It is 42."], answer=[52])
    with pytest.raises(TypeError, match="unknown"):
        compute_score("prices", "4", "4", unknown=1)


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("The answer is 42.\nConfidence: 100", 1.0),
        ("The answer is 42.\nConfidence: 0", 0.0),
        ("The answer is 7.\nConfidence: 100", -1.0),
        ("The answer is 7. I am 0 sure.", 0.0),
        ("The answer is 42, confidence 50", 0.75),
        ("First 7, then 42. Confidence: 100", 1.0),  # the last number before the confidence
        ("42", -2.0),
        ("No idea.", -2.0),
        ("The answer is 42. Confidence: 120", -2.0),
    ],
)
def test_a_stated_confidence_is_rewarded_as_in_rlcr(completion, reward):
    found = number_reward(error="brier", invalid=-2.0)(completions=[completion], answer=[42])
    assert found == [approx(reward)]
