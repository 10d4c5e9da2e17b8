"""Rewards for reinforcement learning, in TRL's `GRPOTrainer` and verl: how close a completion's number is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from ntloss.numbers import parse_number
from ntloss.numbers.grammar import check_thousands, find_numbers
from ntloss.numbers.parsing import Which, check_which, find_answer
from ntloss.numbers.vocabulary import warn_once

_ERRORS: dict[str, Callable[[float, float], float]] = {
    "log": lambda x, true: abs(_signed_log(x) - _signed_log(true)),
    "absolute": lambda x, true: abs(x - true),
}
_BRIER = "brier"


def number_reward(
    column: str = "answer",
    *,
    error: Literal["log", "absolute", "brier"] = "log",
    scale: float | None = None,
    invalid: float = -1.0,
    which: Which = "last",
    thousands: Literal[",", ".", " ", "'", ""] | None = None,
    after: str | None = None,
) -> Callable[..., list[float | None]]:
    """Make a reward function for TRL's `GRPOTrainer`: how close a completion's number is to the true one.

        GRPOTrainer(model, number_reward("answer"), train_dataset=dataset)

    The reward is exp(-e / scale), from 1 for the true number down to 0; e is |s(x) - s(true)| with
    s(x) = sign(x) log10(|x| + 1) for "log", and |x - true| for "absolute". For "brier", the completion ends
    with how sure it is, a number p of 0 to 100 per cent, and the reward is c - (p - c)^2 with c = 1 for the
    true number before it and c = 0 for others: from 1 down to -1, sure and wrong. A row whose true number is
    None has no reward.

    Args:
        column: the dataset's column with the true numbers, as numbers or as texts of one number.
        error: see above.
        scale: error at which the reward is exp(-1), about 0.37. Default: 1, with "log" a factor of ten; with
            "brier", the number that means sure, 100.
        invalid: reward of a completion without a number, or without a text. Default: -1.
        which: the number of the completion that counts, see `parse_number`: "last" (default), "first",
            "after" (a mark of the answer, such as `####`; more text may follow the answer), "whole", or a
            function.
        thousands: the separator of thousands, see `parse_numbers`. Default: each text decides.
        after: a regular expression of the mark before the answer, which makes `which` "after". Default:
            those of `ntloss.numbers.parsing.find_answer`.

    Returns:
        A function for `GRPOTrainer(reward_funcs=...)`. It takes completions as texts or as messages, of which
        the text of the last one counts.

    Warns:
        UserWarning: once, if no completion of a batch has a mark that `which="after"` looks for.

    Raises:
        ValueError: an unknown `error`, `which` or `thousands`, or a `scale` that is not above 0; when called,
            a true number that is neither finite nor a text of one number.
        KeyError: when called, a dataset without the column.

    Source: "brier" is the reward of RLCR, "Beyond Binary Rewards: Training LMs to Reason About Their
    Uncertainty", 2025.

    Example:
        >>> from ntloss.trainers.rewards import number_reward
        >>> reward = number_reward("answer", error="absolute", scale=10.0)
        >>> reward(completions=["It is 42.", "No idea.", "7"], answer=["42", 42, None])
        [1.0, -1.0, None]
        >>> number_reward(which="after")(completions=["#### 42. Question: 3 + 4?"], answer=[42])
        [1.0]
        >>> number_reward(error="brier")(completions=["It is 42. Confidence: 80"] * 2, answer=[42, 7])
        [0.96, -0.6400000000000001]
    """
    which = "after" if after is not None else which
    check_which(which)
    check_thousands(thousands)
    if error not in (*_ERRORS, _BRIER):
        raise ValueError(f"error={error!r}: expected one of {', '.join((*_ERRORS, _BRIER))}")
    size = (100.0 if error == _BRIER else 1.0) if scale is None else scale
    if not 0 < size < math.inf:
        raise ValueError(f"scale={scale!r}: expected a finite number above 0")

    def answer_of(text: str) -> float | None:
        return parse_number(text, which, thousands, after=after)

    def brier(text: str, true: float) -> float:
        numbers = find_numbers(text, thousands)
        if len(numbers) < 2:
            return invalid
        start = numbers[-1].start
        answer, sure = answer_of(text[:start]), parse_number(text[start:], "first", thousands)
        if answer is None or sure is None or not 0 <= sure <= size:
            return invalid
        right = float(math.isclose(answer, true, rel_tol=1e-9))
        return right - (sure / size - right) ** 2

    def reward_of(completion: Any, truth: Any) -> float | None:
        if truth is None:
            return None
        true, text = _true_number(truth, column, thousands), _text_of(completion)
        if error == _BRIER:
            return brier(text, true)
        found = answer_of(text)
        return invalid if found is None else math.exp(-_ERRORS[error](found, true) / size)

    def number_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        texts = map(_text_of, completions)
        if (
            which == "after"
            and len(completions) > 1
            and all(find_answer(text, after) is None for text in texts)
        ):
            warn_once(
                f"none of the {len(completions)} completions of a batch has a mark of an answer, such as "
                f"'####': each has the reward {invalid}. Ask for one in the prompt, or pass after=, a "
                "regular expression of your own mark, or which='last'"
            )
        return [reward_of(*each) for each in zip(completions, columns[column], strict=True)]

    return number_reward


def _signed_log(x: float) -> float:
    return math.copysign(math.log10(abs(x) + 1), x)


def _true_number(truth: Any, column: str, thousands: str | None) -> float:
    """Return a true number of a column; raise a ValueError for anything else, such as a list or True."""
    number = None
    if isinstance(truth, str):
        number = parse_number(truth, "whole", thousands)
    elif not isinstance(truth, bool) and hasattr(truth, "__float__") and getattr(truth, "ndim", 0) == 0:
        with suppress(OverflowError):
            number = float(truth)  # of Python, NumPy and torch
    if number is None or not math.isfinite(number):
        raise ValueError(f"{column}={truth!r}: expected a finite number, or a text of one")
    return number


def _text_of(completion: Any) -> str:
    """Return the text of a completion, or that of its last message; empty for a call of a tool."""
    if completion is None or isinstance(completion, str):
        return completion or ""
    if isinstance(completion, Mapping):  # a message, or a part of one
        return _text_of(completion.get("content", completion.get("text")))
    if not isinstance(completion, Sequence):
        raise TypeError(f"completions: expected texts or lists of messages, given {completion!r:.100}")
    is_parts = all(isinstance(part, str) or "role" not in part for part in completion)
    return "".join(map(_text_of, completion)) if is_parts else _text_of(completion[-1])


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    *,
    reward_router_address: Any = None,
    reward_model_tokenizer: Any = None,
    **options: Any,
) -> float:
    """Reward one completion, with the signature of verl's `reward.custom_reward_function`.

    In verl's configuration: `path: pkg://ntloss.trainers.rewards`, `name: compute_score`, and options under
    `reward_kwargs`.

    Args:
        data_source, extra_info, reward_router_address, reward_model_tokenizer: passed by verl, not used.
        solution_str: the completion.
        ground_truth: the true number, or a text of one.
        options: see `number_reward`, without `column`.

    Returns, Raises: see `number_reward`; also a ValueError for a `ground_truth` of None.

    Example:
        >>> compute_score("prices", "It is 42.", "52", error="absolute", scale=10.0)
        0.36787944117144233
    """
    (found,) = number_reward("ground_truth", **options)([solution_str], ground_truth=[ground_truth])
    if found is None:
        raise ValueError("ground_truth=None: expected a finite number, or a text of one")
    return found
