"""Rewards for reinforcement learning: how near the number of a completion is to the true one."""

import importlib
import itertools
import math
import sys
from decimal import Decimal

import integration_cases as cases
import numpy as np
import pytest
import tiny_tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tolerances import approx
from transformers import PrinterCallback

from ntloss.integrations.rewards import compute_score, number_reward
from ntloss.numbers.parsing import parse_number

ERRORS = ("log", "absolute", "relative")


def rewards(completions, answers, *names, **options):
    return number_reward(*names, **options)(prompts=[], completions=completions, answer=answers)


def test_the_reward_is_the_exponential_of_the_negative_error():
    answers = [10] * 4
    texts = ["It is 10.", "It is 12.", "It is 0.", "It is -10."]
    assert rewards(texts, answers, error="absolute", scale=5.0) == approx(
        [math.exp(-x / 5) for x in (0, 2, 10, 20)]
    )
    assert rewards(texts, answers, error="relative") == approx([math.exp(-x) for x in (0, 2 / 11, 2, 2)])
    eleven = math.log10(11)
    logarithms = [0, math.log10(13) - eleven, eleven, 2 * eleven]
    assert rewards(texts, answers, scale=0.5) == approx([math.exp(-2 * x) for x in logarithms])


def test_the_reward_needs_no_trl(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "ntloss.integrations.rewards", raising=False)
    module = importlib.import_module("ntloss.integrations.rewards")
    assert module.number_reward()(["It is 4."], answer=[4]) == [1.0]


def test_a_completion_without_a_number_gets_its_own_reward():
    texts = ["No idea.", "", [], [{"role": "assistant", "content": None}]]
    assert rewards(texts, [1] * 4) == [-1.0] * 4
    assert rewards(texts, [1] * 4, invalid=-3.0) == [-3.0] * 4
    assert rewards(["5"], [5], which=lambda text: math.nan) == [-1.0]


@pytest.mark.parametrize(
    "answer",
    [
        1234,
        1234.0,
        np.int64(1234),
        np.float32(1234),
        "1234",
        "1,234",
        " 1234. ",
        "so 2 + 1232 = 1,234",
        Decimal(1234),
    ],
    ids=repr,
)
def test_answers_are_numbers_or_texts(answer):
    assert rewards(["It is 1,234."], [answer]) == [1.0]


@pytest.mark.parametrize("answer", [None, "", "unknown", math.nan, -math.inf, np.float32("inf")], ids=str)
def test_a_row_without_a_finite_answer_has_no_reward(answer):
    assert rewards(["It is 1.", "no number"], [answer] * 2) == [None, None]


def test_another_number_has_reward_zero_if_one_is_too_large_for_float64():
    assert rewards(["9" * 400], [5]) == [0.0]
    assert rewards(["9" * 400], [5], which=lambda text: int(text)) == [0.0]
    assert rewards(["9" * 400], [5], which=lambda text: -int(text)) == [0.0]
    assert rewards(["5", "8" * 400, "-" + "9" * 400], ["9" * 400] * 3) == [0.0] * 3


@pytest.mark.parametrize("answer", ["9" * 400, f"so it is {'9' * 400}", 10**400 - 1])
def test_a_number_too_large_for_float64_has_reward_one_if_all_digits_are_right(answer):
    assert rewards([f"It is {'9' * 400}."], [answer]) == [1.0]


def test_the_last_message_of_a_conversation_counts():
    says = [{"role": "assistant", "content": "It is 3."}]
    parts = [{"type": "image"}, {"type": "text", "text": "It is"}, {"type": "text", "text": "3."}]
    in_parts = [*says, {"role": "user", "content": "Sure? Or 4?"}, {"role": "assistant", "content": parts}]
    assert rewards([says, in_parts], [3, 3]) == [1.0, 1.0]


def test_which_number_counts_can_be_chosen():
    assert rewards(["3 or 4"], ["3"], which="first") == [1.0]
    assert rewards(["3 or 4"], ["3"], which="whole") == [-1.0]
    marked = lambda text: parse_number(text.split("#")[-1], "first") if "#" in text else None  # noqa: E731
    assert rewards(["#3 or 4"] * 2, ["3", "9 #3"], which=marked) == [1.0, 1.0]


@given(
    st.sampled_from(ERRORS),
    st.floats(allow_nan=False) | st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(1e-300, 1e300),
)
def test_rewards_lie_between_zero_and_one(error, predicted, answer, scale):
    text = "1e999" if predicted == math.inf else "-1e999" if predicted == -math.inf else repr(predicted)
    (reward,) = rewards([text], [answer], error=error, scale=scale)
    assert reward is not None
    assert 0 <= reward <= 1
    if abs(predicted) == math.inf:
        assert reward == 0
    if predicted == answer:
        assert reward == 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_nearer_number_gets_a_larger_reward(error):
    found = rewards([str(x) for x in (7, 8, 20, 300)], [7] * 4, error=error, scale=3.0)
    assert all(nearer > farther for nearer, farther in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"error": "squared"}, "error='squared': expected 'log', 'absolute' or 'relative'"),
        ({"scale": 0.0}, "scale"),
        ({"invalid": math.nan}, "invalid=nan: expected a finite reward"),
        ({"which": "second"}, "which='second': expected"),
    ],
)
def test_unknown_options_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        number_reward(**options)


def test_a_missing_column_and_an_unreadable_answer_are_errors():
    with pytest.raises(
        ValueError, match=r"no column 'truth' with the true numbers, only answer, prompts: pass"
    ):
        rewards(["1"], [1], "truth")
    with pytest.raises(TypeError, match=r"a true number is \[1\]: expected a number, a text or None"):
        rewards(["1"], [[1]])
    for answers in ([1], [1, 2, 3], "12"):
        with pytest.raises(ValueError, match=r"column 'answer': given .* for 2 completions, expected one"):
            rewards(["1", "2"], answers)
    for completion in (5, [5], {"content": "5"}, [{"role": "assistant"}], [{"content": ["5"]}]):
        with pytest.raises(TypeError, match=r"a completion is .*: expected a text, or messages such as"):
            rewards([completion], [5])


def grpo(folder, reward, **options):
    trl = pytest.importorskip("trl", "1.15", reason="needs TRL 1.15, which needs Python 3.11")
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    tokenizer = tiny_tokenizers.llama_like()
    tokenizer.pad_token = tokenizer.eos_token = "<unk>"
    own = {"num_generations": 4, "max_completion_length": 12, "bf16": False, "gradient_checkpointing": False}
    trainer = trl.GRPOTrainer(
        cases.llama(vocab_size=300),
        reward,
        trl.GRPOConfig(str(folder), **cases.PLAIN_STEPS | own | {"per_device_train_batch_size": 8} | options),
        train_dataset=datasets.Dataset.from_list(
            [{"prompt": f"{i} plus {i} is", "answer": None if i % 4 == 3 else str(2 * i)} for i in range(8)]
        ),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_grpo_trainer_logs_and_learns_from_the_rewards(tmp_path):
    reward, returned = number_reward("answer"), []

    def recorded(**columns):
        returned.append(reward(**columns))
        return returned[-1]

    recorded.__name__ = reward.__name__
    trainer = grpo(tmp_path, recorded)
    before = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == len(returned) == cases.STEPS
    assert any(None in values for values in returned)
    assert any(value is not None and value > 0 for values in returned for value in values)
    for entry, values in zip(logged, returned, strict=True):
        scored = [value for value in values if value is not None]
        mean = sum(scored) / len(scored)
        assert entry["reward"] == entry["rewards/number_reward/mean"] == approx(mean)
    assert any(not weight.equal(before[name]) for name, weight in trainer.model.state_dict().items())


@pytest.mark.parametrize("true", ["52", 52, "#### 52"])
def test_verls_signature_gives_the_same_reward(true):
    options = {"error": "absolute", "scale": 10.0}
    passed = {"data_source": "prices", "extra_info": {"num_turns": 2}, "reward_router_address": "x"}
    found = compute_score(solution_str="It is 42.", ground_truth=true, **passed, **options)
    assert [found] == number_reward(**options)(["It is 42."], answer=[52])
    with pytest.raises(ValueError, match="ground_truth='no number': expected a finite number"):
        compute_score("prices", "4", "no number")
    with pytest.raises(TypeError, match="unknown"):
        compute_score("prices", "4", "4", unknown=1)
