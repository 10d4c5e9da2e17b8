"""Compute metrics of answers: of numbers, of texts, and of the distributions that numbers are read from.

Greedy decoding takes the most likely digit at each step. For errors that measure distance, the median and the
mean of the model's distribution are better. The same quantiles give an interval; its coverage shows how well
the model knows its own error.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ntl.data import PAPERS_CLIP, Example, format_number
from ntl.metrics import crps, interval_metrics, last_number, number_metrics, numbers_of
from ntl.metrics.numeric import exact_value
from ntl.metrics.registry import RIGHT, reading_metric
from ntl.own import load_own

ERRORS = ("mae", "log_mae")
OF_READINGS = ("median_mae", "mean_mae", "constant_mae", "interval_coverage", "interval_width")
SPACED = 20
"""Number of equally spaced quantiles.

Their average estimates the mean, and the coverage of the intervals between them is reported.
"""
Scores = dict[str, float | None]
SPACED_LEVELS = tuple((k + 0.5) / SPACED for k in range(SPACED))


class Distribution(NamedTuple):
    """What is read from the model's distribution for one question; NaN if the model writes no number.

    Args:
        spaced: The quantiles of `SPACED_LEVELS`, ascending.
        lower, median, upper: The median, between the ends of the interval.
        mean: The mean.
        mass: Probability that the model writes a number, as `NumberQuantiles.starts`.
    """

    spaced: Sequence[float]
    lower: float
    median: float
    upper: float
    mean: float
    mass: float


def number_scores(texts: Sequence[str], answers: Sequence[str], clip: float | None = PAPERS_CLIP) -> Scores:
    """Score the last number of each text, following the paper's protocol.

    Args:
        texts: What the model wrote.
        answers: The true answers.
        clip: See `TaskData.clip`.

    Returns:
        `exact_number` (see `exact_share`) and all metrics of `ntl.metrics.number_metrics`. Undefined
        metrics are None.
    """
    last = ([next(reversed(numbers_of(text)), None) for text in side] for side in (texts, answers))
    return {
        "exact_number": exact_share(*last),
        **_finite(number_metrics(texts, answers, clip)),
    }


def paper_scores(texts: Sequence[str], answers: Sequence[str]) -> Scores:
    """Score the last number of each text as the paper's code does.

    It clips predictions to ±10¹⁰, and leaves the true numbers as they are. So a model that is right in every
    digit is wrong by these metrics where the true number is larger.

    Returns:
        `paper_accuracy`, the share of texts whose number is close to the true one by `np.isclose`; and
        `paper_log_mae`, the mean error of sign(x)·log10(|x| + 1) over the texts with a number. None if no
        answer holds a number.

    Example:
        >>> scores = paper_scores(["100000000000", "no idea", "7"], ["100000000000", "5", "7"])
        >>> [round(score, 4) for score in scores.values()]
        [0.3333, 0.5]
    """
    pairs = [(last_number(text), last_number(answer)) for text, answer in zip(texts, answers, strict=True)]
    asked = [(math.nan if p is None else p, t) for p, t in pairs if t is not None]
    predicted, true = np.array(asked, dtype=float).reshape(-1, 2).T
    predicted = predicted.clip(-PAPERS_CLIP, PAPERS_CLIP)
    errors = np.abs(np.subtract(*(np.sign(x) * np.log10(np.abs(x) + 1) for x in (predicted, true))))
    valid = ~np.isnan(errors)
    return {
        "paper_accuracy": float(np.isclose(predicted, true).mean()) if asked else None,
        "paper_log_mae": finite_or_none(float(errors[valid].mean())) if valid.any() else None,
    }


def reference_scores(
    train: Sequence[str], examples: Sequence[Example], clip: float | None = PAPERS_CLIP
) -> Scores:
    """Score two references that a model's errors are compared with.

    Args:
        train: Training answers.
        examples: Examples of a test set, with the answers without their noise if these are known.
        clip: See `TaskData.clip`.

    Returns:
        `constant_mae` and `constant_log_mae`: the errors of always answering the median of the training
        answers, which a model must beat to have learned anything. `noise_mae` and `noise_log_mae`: the errors
        of answering without the noise, which no model can beat on average; only if every example has a
        noise-free answer.

    Example:
        >>> scores = reference_scores(["1", "2", "9"], [Example("a", "4", 3.0), Example("b", "1", 3.0)])
        >>> scores["constant_mae"], scores["noise_mae"]
        (1.5, 1.5)
    """
    known = [number for number in map(last_number, train) if number is not None]
    references = {"constant": [median(known)] * len(examples)} if known else {}
    expected = [example.expected for example in examples if example.expected is not None]
    if len(expected) == len(examples):
        references["noise"] = expected
    true = [last_number(example.answer) for example in examples]
    scores: Scores = {}
    for name, predicted in references.items():
        found = _finite(number_metrics(predicted, true, clip))
        scores |= {f"{name}_{metric}": found[metric] for metric in ERRORS}
    return scores


def exact_share(predicted: Sequence[str | None], true: Sequence[str | None]) -> float | None:
    """Return the share of numbers that equal the true ones exactly, in every digit.

    `1000001` differs from `1000000`, and `1e401` from `1e400`, but `1.50` equals `1.5`. Numbers are neither
    rounded to floats nor clipped.

    Args:
        predicted: Numbers from `ntl.metrics.numbers_of`. None means that there is none, which is wrong.
        true: The true numbers. Pairs whose true number is None are skipped.

    Returns:
        The share, from 0 to 1, or None if all pairs are skipped.

    Example:
        >>> exact_share(["1000001", "1.50", None, "3"], ["1000000", "1.5", "2", None])
        0.3333333333333333
    """
    equal = [
        p is not None and exact_value(p) == exact_value(t)
        for p, t in zip(predicted, true, strict=True)
        if t is not None
    ]
    return sum(equal) / len(equal) if equal else None


def text_scores(texts: Sequence[str], answers: Sequence[str]) -> Scores:
    """Score texts with text metrics.

    Returns:
        `exact_match` is the share of equal texts, ignoring surrounding white space. `bleu` is the corpus
        BLEU, from 0 to 100, with n-grams of up to four tokens; shorter texts limit n, because most answers
        here are one number. `rouge1`, `rouge2` and `rougeL` are mean F-measures, from 0 to 1, over words of
        letters and digits.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics.bleu import BLEU

    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge-score logs its tokenizer every time
    exact = sum(text.strip() == answer.strip() for text, answer in zip(texts, answers, strict=True))
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    rouge = [scorer.score(answer, text) for text, answer in zip(texts, answers, strict=True)]
    return {
        "exact_match": exact / len(texts),
        "bleu": BLEU(effective_order=True).corpus_score(list(texts), [list(answers)]).score,
        **{name: sum(row[name].fmeasure for row in rouge) / len(rouge) for name in scorer.rouge_types},
    }


def own_score(name: str, texts: Sequence[str], answers: Sequence[str]) -> float | None:
    """Score texts with a metric of the user's own, `module:function`; None if it is undefined."""
    value = load_own("evaluation.metrics", name)(list(texts), list(answers))
    return None if value is None else finite_or_none(float(value))


def final_answer(text: str, marker: str) -> str | None:
    """Find the first number after the first marker (`####` in GSM8K), or None if there is none.

    Example:
        >>> final_answer("2 + 3 = 5 #### 1,005 apples", "####"), final_answer("so 5", "####")
        ('1005', None)
    """
    return next(iter(numbers_of(text.partition(marker)[2])), None)


def final_answer_scores(texts: Sequence[str], answers: Sequence[str], marker: str) -> Scores:
    """Score the final answers of texts. A text without a marker or a number is wrong.

    Returns:
        `exact_final_answer` (see `exact_share`) and `final_answer_accuracy`, the share that is correct by
        `np.isclose`. Solutions without a final answer are skipped; both are None if no solution has one.
    """
    predicted, true = ([final_answer(text, marker) for text in side] for side in (texts, answers))
    return {
        "exact_final_answer": exact_share(predicted, true),
        "final_answer_accuracy": finite_or_none(number_metrics(predicted, true)["accuracy"]),
    }


def reading_scores(
    read: Sequence[Distribution],
    answers: Sequence[str],
    readings: Sequence[str],
    interval: float,
    clip: float | None = PAPERS_CLIP,
) -> Scores:
    """Score each reading and the distributions behind them. All answers must be single numbers.

    Args:
        read: The distribution of each question.
        answers: The true answers.
        readings: The readings besides `greedy`, of `median` and `mean`.
        interval: The share of the distribution between `lower` and `upper`.
        clip: See `TaskData.clip`.

    Returns:
        `crps`; `coverage_95`, `coverage_85`, ... of the central intervals between the spaced quantiles;
        `interval_coverage`, `interval_width` and `interval_score` of the intervals, see
        `ntl.metrics.interval_metrics`; the mean of `mass` as `number_mass`; and the metrics of
        `number_scores` for each reading, prefixed with its name (`median_mae`).
    """
    true = [math.nan if number is None else number for number in map(last_number, answers)]
    spaced = np.array([d.spaced for d in read], dtype=float).reshape(-1, SPACED)
    scores = {"crps": crps(spaced, true, SPACED_LEVELS)}
    for low in range(SPACED // 2):
        share = 1 - 2 * SPACED_LEVELS[low]
        scores[f"coverage_{100 * share:.0f}"] = interval_metrics(
            spaced[:, low], spaced[:, -1 - low], true, share
        )[0]
    ends = ([d.lower for d in read], [d.upper for d in read])
    names = ("interval_coverage", "interval_width", "interval_score")
    scores |= zip(names, interval_metrics(*ends, true, interval), strict=True)
    metrics = _finite({**scores, "number_mass": sum(d.mass for d in read) / len(read)})
    for reading in readings:
        numbers = [getattr(d, reading) for d in read]
        texts = [format_number(number) if math.isfinite(number) else "" for number in numbers]
        scored = number_scores(texts, answers, clip)
        metrics |= {reading_metric(reading, name): scored[name] for name in scored if name != "count"}
    return metrics


def rater_crps(read: Sequence[Distribution], ratings: Sequence[Sequence[float]]) -> float | None:
    """Average the CRPS of each distribution over the answers of several people.

    Args:
        read: The distribution of each question; one without a number is left out.
        ratings: Each person's answer to each question.

    Returns:
        The mean over the questions; None if no distribution has a number.
    """
    scores = [
        crps([distribution.spaced] * len(given), given, SPACED_LEVELS)
        for distribution, given in zip(read, ratings, strict=True)
    ]
    known = [score for score in scores if math.isfinite(score)]
    return sum(known) / len(known) if known else None


def interval_levels(interval: float) -> tuple[float, float]:
    """Return the levels of the quantiles that bound the central interval with this share of the mass."""
    return (1 - interval) / 2, (1 + interval) / 2


def _finite(scores: Mapping[str, float]) -> Scores:
    return {name: finite_or_none(value) for name, value in scores.items()}


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is not finite, because JSON cannot hold it."""
    return value if math.isfinite(value) else None


def describe_metrics(metrics: Mapping[str, float | None], *more: str) -> str:
    """Return the metrics that matter most, and those named in `more`, as one line.

    Example:
        >>> describe_metrics({"count": 300, "exact_number": 0.25, "mae": 4469.3, "median_mae": 3347.0})
        '300 questions, exact_number 0.25, mae 4469, median_mae 3347'
    """
    given = [name for name in metrics if metrics[name] is not None]
    right = [name for name in RIGHT if name in given][:1]
    # The task compares texts or numbers.
    errors = ["rougeL"] if right == ["exact_match"] else [*ERRORS, *OF_READINGS]
    shown = [name for name in (*more, *right, *errors) if name in given]
    return ", ".join([f"{metrics['count']} questions", *(f"{name} {metrics[name]:.4g}" for name in shown)])
