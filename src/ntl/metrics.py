"""From answers to metrics, and from the metrics of several seeds to means with their uncertainty."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from ntloss import NumericMetrics
from ntloss.parsing import parse_number, parse_numbers

METRICS = ("mae", "rmse", "r2", "pearson", "accuracy", "invalid")


def read_answer(text: str) -> float | None:
    """Read a decoded text that should be one number and nothing else; None where it is not.

    Example:
        >>> read_answer(" -3.5 "), read_answer("4 2"), read_answer("")
        (-3.5, None, None)
    """
    return parse_number(text, "whole")


def score(predictions: Sequence[float | None], targets: Sequence[float]) -> dict[str, float | None]:
    """Compare predicted with true numbers, for `ntl compare`.

    Args:
        predictions: One per target; None where the model wrote no number.
        targets: The true numbers.

    Returns:
        `mae`, `rmse`, `r2`, `pearson` and `accuracy` over the valid predictions, as `ntloss.NumericMetrics`
        defines them (`accuracy_of_valid` there), None where they are not defined, and `invalid`, the count
        of the others.

    Raises:
        ValueError: The lengths differ.
    """
    names = ["accuracy_of_valid" if name == "accuracy" else name for name in METRICS]
    found = NumericMetrics(metrics=names).update(predictions, targets).compute()
    return dict(zip(METRICS, (defined(found[name]) for name in names), strict=True))


def number_scores(texts: Sequence[str], answers: Sequence[str]) -> dict[str, float | None]:
    """Compare the last numbers of texts, by the paper's protocol.

    Args:
        texts: What the model wrote.
        answers: What it should have written.

    Returns:
        All metrics of `ntloss.NumericMetrics`; None where one is not defined.
    """
    found = NumericMetrics().update(texts, answers).compute()
    return {name: defined(value) for name, value in found.items()}


def text_scores(texts: Sequence[str], answers: Sequence[str]) -> dict[str, float | None]:
    """Compare texts as texts.

    Args:
        texts: What the model wrote.
        answers: What it should have written.

    Returns:
        `exact_match` (share of equal texts, white space around them aside), `bleu` (of the corpus, 0 to 100,
        n-grams up to four tokens, or as long as the texts have: most answers here are one number), and
        `rouge1`, `rouge2`, `rougeL` (mean F-measure, 0 to 1; words of letters and digits).
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU

    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge-score tells of its tokenizer each time
    exact = sum(text.strip() == answer.strip() for text, answer in zip(texts, answers, strict=True))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    rouge = [scorer.score(answer, text) for text, answer in zip(texts, answers, strict=True)]
    return {
        "exact_match": exact / len(texts),
        "bleu": BLEU(effective_order=True).corpus_score(list(texts), [list(answers)]).score,
        **{name: sum(row[name].fmeasure for row in rouge) / len(rouge) for name in scorer.rouge_types},
    }


def final_answer(text: str, marker: str) -> float | None:
    """Read the number behind a marker.

    Args:
        text: A solution with its final answer behind the marker.
        marker: `####` in GSM8K.

    Returns:
        The first number behind the first marker; None where there is no marker, or no number behind it.

    Example:
        >>> final_answer("2 + 3 = 5 #### 1,005 apples", "####"), final_answer("so 5", "####")
        (1005.0, None)
    """
    numbers = parse_numbers(text.partition(marker)[2])
    return numbers[0] if numbers else None


def final_answer_accuracy(texts: Sequence[str], answers: Sequence[str], marker: str) -> float | None:
    """The share of texts whose final answer is right (`np.isclose`); one without marker or number is wrong.

    Args:
        texts: What the model wrote.
        answers: Solutions; those without a final answer do not count.
        marker: What stands before the final answer.

    Returns:
        The share, 0 to 1; None where no solution has a final answer.
    """
    predicted, true = ([final_answer(text, marker) for text in side] for side in (texts, answers))
    return defined(NumericMetrics(metrics=["accuracy"]).update(predicted, true).compute()["accuracy"])


def mean_and_error(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The mean over seeds and its standard error.

    Args:
        values: One per seed.

    Returns:
        The mean (None where a value is), and the sample standard deviation / sqrt(seeds) (None below two
        seeds).
    """
    if not values or any(value is None for value in values):
        return None, None
    array = np.array(values, dtype=np.float64)
    error = float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else None
    return float(array.mean()), error


def mean_and_interval(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """The mean over seeds and the half-width of its 95 % confidence interval (Student's t).

    Args:
        values: One per seed.

    Returns:
        The mean (None where a value is), and the half-width (None below two seeds).
    """
    from scipy.stats import t

    mean, error = mean_and_error(values)
    return mean, None if error is None else error * float(t.ppf(0.975, len(values) - 1))


def defined(value: float) -> float | None:
    """The value, or None where it is not finite: what JSON can hold."""
    return value if math.isfinite(value) else None
