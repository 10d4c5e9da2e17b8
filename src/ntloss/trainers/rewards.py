"""Rewards for reinforcement learning, in TRL's `GRPOTrainer` and verl: how close a completion's number is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ntloss.numbers import parse_number
from ntloss.numbers.grammar import check_thousands
from ntloss.numbers.parsing import Which, as_float, check_which, find_answer
from ntloss.numbers.vocabulary import warn_once


def _log_error(x: float, true: float) -> float:
    return abs(math.copysign(math.log10(abs(x) + 1), x) - math.copysign(math.log10(abs(true) + 1), true))


def _absolute_error(x: float, true: float) -> float:
    return abs(x - true)


_ERRORS: dict[str, Callable[[float, float], float]] = {"log": _log_error, "absolute": _absolute_error}


def number_reward(
    column: str = "answer",
    *,
    error: str = "log",
    scale: float = 1.0,
    invalid: float = -1.0,
    which: Which = "last",
    thousands: str | None = None,
    after: str | None = None,
) -> Callable[..., list[float | None]]:
    r"""Make a reward function for a `GRPOTrainer`: how close a completion's number is to the true one.

    The reward is $\exp(-e / scale)$, from 1 for the true number down to 0.

    Args:
        column: the dataset's column with the true numbers, as numbers or as texts of one number.
        error: $e$ for the completion's number $\hat x$ and the true one $x$. "log" (default):
            $|s(\hat x) - s(x)|$ with $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$; "absolute":
            $|\hat x - x|$.
        scale: error at which the reward is $\exp(-1) \approx 0.37$. Default: 1, with "log" a factor of ten.
        invalid: reward of a completion without a number, or without a text. Default: -1.
        which: the number of the completion that counts, see `parse_number`: "last" (default), "first",
            "after" (a mark of the answer, such as `####`; more text may follow the answer), "whole", or a
            function.
        after: a regular expression of the mark before the answer, which makes `which` "after". Default:
            those of `ntloss.numbers.parsing.find_answer`.
        thousands: the separator of thousands, see `parse_numbers`. Default: each text decides.

    Returns:
        A function with the signature that `GRPOTrainer(reward_funcs=...)` expects. It takes completions as
        texts or as messages, of which the text of the last one counts, and returns one reward for each; None
        for a row whose true number is None, which the trainer leaves out.

    Warns:
        UserWarning: once, if no completion of a batch has a mark that `which="after"` looks for.

    Raises:
        ValueError: an unknown `error`, `which` or `thousands`, or a `scale` that is not above 0; when called,
            a true number that is neither finite nor a text of one number.
        KeyError: when called, a dataset without the column.

    Example:
        >>> from ntloss.trainers.rewards import number_reward
        >>> reward = number_reward("answer", error="absolute", scale=10.0)
        >>> reward(completions=["It is 42.", "No idea.", "7"], answer=["42", 42, None])
        [1.0, -1.0, None]
        >>> number_reward(which="after")(completions=["#### 42. Question: 3 + 4?"], answer=[42])
        [1.0]
    """
    which = "after" if after is not None else which
    check_which(which)
    check_thousands(thousands)
    if error not in _ERRORS:
        raise ValueError(f"error={error!r}: expected one of {', '.join(_ERRORS)}")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale!r}: expected a finite number above 0")
    error_of = _ERRORS[error]

    def has_answer(completion: Any) -> bool:
        return find_answer(_text_of(completion), after) is not None

    def reward_of(completion: Any, truth: Any) -> float | None:
        if truth is None:
            return None
        true: float | None = None
        with suppress(TypeError):  # such as a list
            is_text = isinstance(truth, str)
            true = parse_number(truth, "whole", thousands) if is_text else as_float(truth)
        if true is None or isinstance(truth, bool) or not math.isfinite(true):
            raise ValueError(f"{column}={truth!r}: expected a finite number, or a text of one")
        found = parse_number(_text_of(completion), which, thousands, after=after)
        return invalid if found is None else math.exp(-error_of(found, true) / scale)

    def number_reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        if len(completions) > 1 and which == "after" and not any(map(has_answer, completions)):
            warn_once(
                f"none of the {len(completions)} completions of a batch has a mark of an answer, such as "
                f"'####': each has the reward {invalid}. Ask for one in the prompt, or pass after=, a "
                "regular expression of your own mark, or which='last'"
            )
        return [reward_of(*each) for each in zip(completions, columns[column], strict=True)]

    return number_reward


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
        options: see `number_reward`: error, scale, invalid, which, thousands, after.

    Returns:
        The reward, from 0 to 1, or `invalid`.

    Raises:
        TypeError: an unknown option.
        ValueError: `ground_truth` is neither a finite number nor a text of one.

    Example:
        >>> compute_score("prices", "It is 42.", "52", error="absolute", scale=10.0)
        0.36787944117144233
    """
    if ground_truth is None:
        raise ValueError("ground_truth=None: expected a finite number, or a text of one")
    (found,) = number_reward("ground_truth", **options)([solution_str], ground_truth=[ground_truth])
    assert found is not None
    return found
