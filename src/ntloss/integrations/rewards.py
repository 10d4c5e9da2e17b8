"""Rewards for reinforcement learning, in TRL's `GRPOTrainer` and verl: how close a completion's number is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ntloss.criteria.criterion import check_choice, check_positive
from ntloss.numbers.parsing import Which, as_float, exact_number, parse_number


def number_reward(
    column: str = "answer",
    *,
    error: str = "log",
    scale: float = 1.0,
    which: Which = "last",
    invalid: float = -1.0,
) -> Callable[..., list[float | None]]:
    r"""Make a reward function for a `GRPOTrainer`: how close the number of a completion is to the true one.

    The reward is $\exp(-e / scale)$, from 1 for the true number down to 0.

    Args:
        column: the dataset's column with the true numbers, as numbers or as texts.
        error: $e$ for the completion's number $\hat x$ and the true one $x$. "log" (default):
            $|s(\hat x) - s(x)|$ with $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$; "absolute":
            $|\hat x - x|$; "relative": $2 |\hat x - x| / (|\hat x| + |x|)$, from 0 to 2.
        scale: error at which the reward is $\exp(-1) \approx 0.37$, above 0. Default: 1, with "log" a factor
            of ten.
        which: which number of a completion counts; see `ntloss.numbers.parse_number`. It also applies to true
            texts that are not a single number. Default: "last".
        invalid: reward of a completion without a number. Default: -1.

    If one of the two numbers is too large for float64, the reward is 1 if all of their digits are equal, and
    else 0.

    Returns:
        A function with the signature that `GRPOTrainer(reward_funcs=...)` expects. It takes completions as
        texts or as messages, of which the last one counts, and returns one reward for each; None for a row
        whose column holds no finite number, which the trainer leaves out.

    Raises:
        TypeError: when called, a true number that is neither a number nor a text nor None.
        ValueError: an unknown `error` or `which`, a `scale` that is not above 0, or an `invalid` that is not
            finite; when called, a dataset without the column.

    Example:
        >>> from ntloss.integrations.rewards import number_reward
        >>> reward = number_reward("answer", error="absolute", scale=10.0)
        >>> reward(completions=["It is 42.", "No idea.", "7"], answer=["42", 42, None])
        [1.0, -1.0, None]
    """
    check_choice("error", error, tuple(_ERRORS))
    check_positive("scale", scale)
    if not math.isfinite(invalid):
        raise ValueError(f"invalid={invalid!r}: expected a finite reward")
    if not callable(which):
        parse_number("", which)  # raises for an unknown name

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        answers = _column(columns, column, completions)
        return [
            _reward(_text_of(completion), *_true_number(answer, which))
            for completion, answer in zip(completions, answers, strict=True)
        ]

    def _reward(text: str, given: Any, true: float) -> float | None:
        if math.isnan(true):
            return None
        predicted = as_float(parse_number(text, which))
        if math.isnan(predicted):
            return invalid
        if math.isinf(predicted) or math.isinf(true):
            return float(exact_number(text, which) == given)
        return math.exp(-_ERRORS[error](predicted, true) / scale)

    reward.__name__ = "number_reward"  # in the trainer's logs
    return reward


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **options: Any
) -> float:
    """Reward one completion, with the signature of verl's `reward.custom_reward_function`.

    In verl's configuration: `path: pkg://ntloss.integrations.rewards`, `name: compute_score`, and options
    under `reward_kwargs`.

    Args:
        data_source, extra_info: not used.
        solution_str: the completion.
        ground_truth: the true number, or a text with it.
        options: see `number_reward`: error, scale, which, invalid.

    Returns:
        The reward, from 0 to 1, or `invalid`.

    Raises:
        TypeError: an unknown option.
        ValueError: an invalid option, or no finite number in `ground_truth`.

    Example:
        >>> compute_score("prices", "It is 42.", "52", error="absolute", scale=10.0)
        0.36787944117144233
    """
    for passed_by_verl in ("reward_router_address", "reward_model_tokenizer"):
        options.pop(passed_by_verl, None)
    (found,) = number_reward("ground_truth", **options)(
        completions=[solution_str], ground_truth=[ground_truth]
    )
    if found is None:
        raise ValueError(f"ground_truth={ground_truth!r}: expected a finite number, or a text with one")
    return found


def _column(columns: Mapping[str, Any], column: str, completions: Sequence[Any]) -> Sequence[Any]:
    if column not in columns:
        raise ValueError(
            f"the dataset has no column {column!r} with the true numbers, only {', '.join(sorted(columns))}: "
            "pass column=, and leave remove_unused_columns=False"
        )
    answers: Sequence[Any] = columns[column]
    if isinstance(answers, str) or len(answers) != len(completions):
        raise ValueError(
            f"column {column!r}: given {answers!r} for {len(completions)} completions, expected one true "
            "number for each"
        )
    return answers


def _log_scaled(x: float) -> float:
    return math.copysign(math.log10(abs(x) + 1), x)


def _relative_error(x: float, true: float) -> float:
    largest = max(abs(x), abs(true))
    if largest == 0:
        return 0.0
    x, true = x / largest, true / largest  # so that sums of large numbers do not overflow
    return 2 * abs(x - true) / (abs(x) + abs(true))


# Of the completion's number and the true one, both finite.
_ERRORS: dict[str, Callable[[float, float], float]] = {
    "log": lambda x, true: abs(_log_scaled(x) - _log_scaled(true)),
    "absolute": lambda x, true: abs(x - true),
    "relative": _relative_error,
}


def _true_number(given: Any, which: Which) -> tuple[Any, float]:
    """Return the number of a dataset's row, exactly and as a float; NaN without a finite one."""
    number = exact_number(given, "whole")
    if number is None:
        number = exact_number(given, which)
    try:
        true = as_float(float(number) if isinstance(number, str) else number)
    except TypeError as unreadable:
        raise TypeError(f"a true number is {given!r}: expected a number, a text or None") from unreadable
    return number, math.nan if number in (math.inf, -math.inf) else true


def _text_of(completion: Any) -> str:
    """The text of a completion; of a conversation, that of its last message."""
    try:
        content = completion if isinstance(completion, str) or not completion else completion[-1]["content"]
        if isinstance(content, str):
            return content
        return " ".join(part.get("text") or "" for part in content or ())  # images have none
    except (AttributeError, KeyError, TypeError) as unreadable:
        raise TypeError(
            f"a completion is {completion!r}: expected a text, or messages such as "
            "[{'role': 'assistant', 'content': 'It is 4.'}]"
        ) from unreadable
