"""From answers to metrics, and from the metrics of several seeds to means with their uncertainty."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import numpy as np

from ntloss import NumericMetrics
from ntloss.parsing import number_texts, parse_number

METRICS = ("exact", "mae", "rmse", "r2", "pearson", "accuracy", "invalid")


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
        `exact`, the share of all predictions that equal their target (as float64; an invalid one does not),
        `mae`, `rmse`, `r2`, `pearson` and `accuracy` (`np.isclose`) over the valid predictions, as
        `ntloss.NumericMetrics` defines them (`accuracy_of_valid` there), None where they are not defined, and
        `invalid`, the count of the others.

    Raises:
        ValueError: The lengths differ.
    """
    names_there = {"exact": "exact_match", "accuracy": "accuracy_of_valid"}
    names = [names_there.get(name, name) for name in METRICS]
    found = NumericMetrics(metrics=names).update(predictions, targets).compute()
    return dict(zip(METRICS, (defined(found[name]) for name in names), strict=True))


def number_scores(texts: Sequence[str], answers: Sequence[str]) -> dict[str, float | None]:
    """Compare the last numbers of texts, by the paper's protocol.

    Args:
        texts: What the model wrote.
        answers: What it should have written.

    Returns:
        `exact_number` (see `exact_share`), and all metrics of `ntloss.NumericMetrics`; None where one is not
        defined.
    """
    exact = exact_share(*([_at(number_texts(text), -1) for text in side] for side in (texts, answers)))
    found = NumericMetrics().update(texts, answers).compute()
    return {"exact_number": exact, **{name: defined(value) for name, value in found.items()}}


def exact_share(predicted: Sequence[str | None], true: Sequence[str | None]) -> float | None:
    """The share of numbers that are exactly the true ones, with every digit that is written.

    `1000001` is not `1000000`, and `1e401` is not `1e400`; `1.50` is `1.5`. Nothing is rounded to a float and
    nothing is clipped.

    Args:
        predicted: Numbers from `ntloss.parsing.number_texts`; None for none, which is wrong.
        true: The same; pairs with None do not count.

    Returns:
        The share, 0 to 1; None where no pair counts.

    Example:
        >>> exact_share(["1000001", "1.50", None, "3"], ["1000000", "1.5", "2", None])
        0.3333333333333333
    """
    pairs = [(p, t) for p, t in zip(predicted, true, strict=True) if t is not None]
    equal = sum(p is not None and _exactly(p) == _exactly(t) for p, t in pairs)
    return equal / len(pairs) if pairs else None


def _exactly(number: str) -> Decimal | str:
    try:
        return Decimal(number)
    except InvalidOperation:  # an exponent of more than eighteen digits: equal to what is written alike
        return number


def _at(numbers: Sequence[str], place: int) -> str | None:
    return numbers[place] if numbers else None


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


def final_answer(text: str, marker: str) -> str | None:
    """Find the number behind a marker.

    Args:
        text: A solution with its final answer behind the marker.
        marker: `####` in GSM8K.

    Returns:
        The first number behind the first marker, see `ntloss.parsing.number_texts`; None where there is no
        marker, or no number behind it.

    Example:
        >>> final_answer("2 + 3 = 5 #### 1,005 apples", "####"), final_answer("so 5", "####")
        ('1005', None)
    """
    return _at(number_texts(text.partition(marker)[2]), 0)


def final_answer_scores(texts: Sequence[str], answers: Sequence[str], marker: str) -> dict[str, float | None]:
    """Compare the final answers of texts; one without marker or number is wrong.

    Args:
        texts: What the model wrote.
        answers: Solutions; those without a final answer do not count.
        marker: What stands before the final answer.

    Returns:
        `exact_final_answer` (see `exact_share`) and `final_answer_accuracy` (share that is right by
        `np.isclose`); None where no solution has a final answer.
    """
    predicted, true = ([final_answer(text, marker) for text in side] for side in (texts, answers))
    numbers = [[None if number is None else float(number) for number in side] for side in (predicted, true)]
    close = NumericMetrics(metrics=["accuracy"]).update(*numbers).compute()["accuracy"]
    return {"exact_final_answer": exact_share(predicted, true), "final_answer_accuracy": defined(close)}


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
