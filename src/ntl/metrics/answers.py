"""Metrics of answers, by the paper's protocol, on which all published results of the lab rest.

The number of an answer is the last one of the decoded text. Only commas separate thousands, and a number
counts although it is a part of something else: the answer `1/2` is 2, where `ntloss.numbers.parse_number`
says None.
"""

import logging
import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from statistics import median

import numpy as np
from scipy.stats import rankdata

from ntl.data import PAPERS_CLIP, Example, TaskData, evenly_spaced, format_number
from ntloss.numbers import number_texts

REFERENCE_ANSWERS = 10_000  # training answers whose median is the constant guess
NONE = "nan"  # the number of a text without one


def last_number(text: str) -> str:
    """Return the last number of a text, as `float` and `Decimal` accept it; `nan` if there is none.

    Example:
        >>> last_number("12 - 1,000 = -988"), last_number("1/2"), last_number("none")
        ('-988', '2', 'nan')
    """
    return next(reversed(number_texts(text, thousands=",")), NONE)


def last_numbers(texts: Sequence[str]) -> np.ndarray:
    """Return the last number of each text as float64, `[texts]`; NaN if there is none."""
    return np.array([float(last_number(text)) for text in texts]) + 0.0  # one zero


def number_scores(
    texts: Sequence[str], answers: Sequence[str], clip: float | None = PAPERS_CLIP
) -> dict[str, float]:
    r"""Compute metrics of the last number of each text.

    A text without a number is *invalid*. An infinite number (`1e400`, or a thousand digits) is clipped like
    any other large one, and is invalid only without `clip`. A pair whose answer has no number is *skipped*.
    With the valid numbers $\hat x$ and the true ones $x$, clipped to $\pm$ `clip`, $e = \hat x - x$ and
    $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$:

    ===================== =======================================================================
    `exact_number`        share of the pairs that are not skipped whose numbers are equal in every digit:
                          `1000001` differs from `1000000`, and `1e401` from `1e400`, but `1.50` equals `1.5`
    `count`               number of pairs
    `skipped`             pairs whose answer has no number
    `invalid`             invalid texts among the other pairs
    `invalid_rate`        `invalid` / (`count` - `skipped`), 0 to 1
    `exact_match`         share of *all* pairs with equal texts, ignoring surrounding white space
    `accuracy`            share of the pairs that are not skipped with
                          $|\hat x - x| \le 10^{-8} + 10^{-5} |x|$ (`np.isclose`), before clipping; numbers
                          too large for float64 are all the same; an invalid text is wrong
    `accuracy_of_valid`   the same share among valid texts
    `mae`, `medae`        mean and median of $|e|$, in the numbers' unit
    `rmse`                $\sqrt{\mathrm{mean}(e^2)}$, in the numbers' unit
    `r2`                  $1 - \sum e^2 / \sum (x - \bar x)^2$; NaN if all true numbers are the same
    `log_mae`, ...        `mae`, `rmse` and `r2` of $s(\hat x)$ and $s(x)$, as reported in the paper
    `pearson`             linear correlation; NaN if either side is constant
    `spearman`            rank correlation, with mean ranks for ties; NaN if either side is constant
    ===================== =======================================================================

    All but the first seven are over valid texts. Report them together with `invalid_rate`: a model that
    answers only easy questions has a small error.

    Args:
        texts: What the model wrote.
        answers: The true answers, as many.
        clip: Largest absolute value of what errors are computed of, or None for no limit. Default: 1e10, as
            in the paper.

    Returns:
        Name to value, in the order of the table; NaN if there is nothing to average over.

    Source: "Regress, Don't Guess", ICML 2025 (last number of a text, `np.isclose`, clipping, log scale, count
    of invalid predictions).

    Example:
        >>> found = number_scores(["so it is 12.", "40", "no idea"], ["12", "42", "7"])
        >>> found["mae"], found["invalid"]
        (1.0, 1)
    """
    p, t = last_numbers(texts), last_numbers(answers)
    equal = [_exact(text) == _exact(answer) for text, answer in zip(texts, answers, strict=True)]
    close = np.isclose(p, t)
    limit = math.inf if clip is None else clip
    clipped = [x.clip(-limit, limit) for x in (p, t)]
    answered, asked = (np.isfinite(x) for x in clipped)
    valid = asked & answered
    counts = {
        "exact_number": mean_of(np.array(equal)[~np.isnan(t)]),
        "count": len(texts),
        "skipped": int((~asked).sum()),
        "invalid": int((asked & ~valid).sum()),
        "invalid_rate": mean_of(~valid[asked]),
        "exact_match": exact_match(texts, answers),
        "accuracy": mean_of((close & valid)[asked]),
        "accuracy_of_valid": mean_of(close[valid]),
    }
    p, t = (x[valid] for x in clipped)
    logs = _errors(_log(p), _log(t))
    return {
        **counts,
        **_errors(p, t),
        **{f"log_{name}": logs[name] for name in ("mae", "rmse", "r2")},
        "pearson": _correlation(p, t),
        "spearman": _correlation(rankdata(p), rankdata(t)),
    }


def paper_scores(texts: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    """Score the last number of each text as the paper's code does.

    It clips predictions to ±10¹⁰, and leaves the true numbers as they are. So a model that is right in every
    digit is wrong by these metrics where the true number is larger.

    Returns:
        `paper_accuracy`, the share of texts whose number is close to the true one by `np.isclose`; and
        `paper_log_mae`, the mean error of sign(x)·log10(|x| + 1) over the texts with a number. NaN if no
        answer holds a number.

    Example:
        >>> scores = paper_scores(["100000000000", "no idea", "7"], ["100000000000", "5", "7"])
        >>> [round(score, 4) for score in scores.values()]
        [0.3333, 0.5]
    """
    p, t = last_numbers(texts).clip(-PAPERS_CLIP, PAPERS_CLIP), last_numbers(answers)
    errors = np.abs(_log(p) - _log(t))
    return {
        "paper_accuracy": mean_of(np.isclose(p, t)[~np.isnan(t)]),
        "paper_log_mae": mean_of(errors[~np.isnan(errors)]),
    }


def reference_scores(data: TaskData, examples: Sequence[Example]) -> dict[str, float]:
    """Score two references that a model's errors are compared with; none if answers are no numbers.

    Args:
        data: The task, with the training answers.
        examples: Examples of a test set, with the answers without their noise if these are known.

    Returns:
        `constant_mae` and `constant_log_mae`: the errors of always answering the median of the training
        answers, which a model must beat to have learned anything. `noise_mae` and `noise_log_mae`: the errors
        of answering without the noise, which no model can beat on average; only if every example has a
        noise-free answer.

    Example:
        >>> examples = [Example("a", "4", 3.0), Example("b", "1", 3.0)]
        >>> scores = reference_scores(TaskData([Example("", text) for text in "129"], [], {}), examples)
        >>> scores["constant_mae"], scores["noise_mae"]
        (1.5, 1.5)
    """
    if not data.number_metrics:
        return {}
    train = last_numbers([each.answer for each in evenly_spaced(data.train, REFERENCE_ANSWERS)])
    known = train[~np.isnan(train)].tolist()
    references = {"constant": [median(known)] * len(examples)} if known else {}
    expected = [example.expected for example in examples if example.expected is not None]
    if len(expected) == len(examples):
        references["noise"] = expected
    answers = [example.answer for example in examples]
    scores: dict[str, float] = {}
    for name, predicted in references.items():
        found = number_scores([*map(format_number, predicted)], answers, data.clip)
        scores |= {f"{name}_{metric}": found[metric] for metric in ("mae", "log_mae")}
    return scores


def text_scores(texts: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
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
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    rouge = [scorer.score(answer, text) for text, answer in zip(texts, answers, strict=True)]
    return {
        "exact_match": exact_match(texts, answers),
        "bleu": BLEU(effective_order=True).corpus_score(list(texts), [list(answers)]).score,
        **{name: sum(row[name].fmeasure for row in rouge) / len(rouge) for name in scorer.rouge_types},
    }


def exact_match(texts: Sequence[str], answers: Sequence[str]) -> float:
    """Return the share of equal texts, ignoring surrounding white space."""
    return mean_of(
        np.array([text.strip() == answer.strip() for text, answer in zip(texts, answers, strict=True)])
    )


def final_answer_scores(texts: Sequence[str], answers: Sequence[str], marker: str) -> dict[str, float]:
    """Score the final answers of texts: the first number after the first marker (`####` in GSM8K).

    A text without a marker or a number after it is wrong.

    Returns:
        `exact_final_answer` and `final_answer_accuracy`: `exact_number` and `accuracy` of the final answers,
        see `number_scores`. Solutions without a final answer are skipped; both are NaN if no solution has
        one.

    Example:
        >>> final_answer_scores(["2 + 3 = 5 #### 1,005 apples", "so 5"], ["#### 1005", "#### 5"], "####")
        {'exact_final_answer': 0.5, 'final_answer_accuracy': 0.5}
    """
    said, right = (
        [next(iter(number_texts(text.partition(marker)[2], thousands=",")), "") for text in side]
        for side in (texts, answers)
    )
    found = number_scores(said, right)
    return {"exact_final_answer": found["exact_number"], "final_answer_accuracy": found["accuracy"]}


def _exact(text: str) -> Decimal | str:
    """Return the last number of a text with all its digits; NaN, which equals nothing, if there is none."""
    number = last_number(text)
    try:
        return Decimal(number)
    except InvalidOperation:  # an exponent of more than eighteen digits: compare the text instead
        return number


def mean_of(values: np.ndarray) -> float:
    """Return the mean of values, NaN without any."""
    return float(values.mean()) if len(values) else math.nan


def _log(numbers: np.ndarray) -> np.ndarray:
    """Return sign(x)·log10(|x| + 1)."""
    return np.sign(numbers) * np.log10(np.abs(numbers) + 1)


def _errors(predicted: np.ndarray, true: np.ndarray) -> dict[str, float]:
    if not len(true):
        return dict.fromkeys(("mae", "medae", "rmse", "r2"), math.nan)
    error = np.abs(predicted - true)
    squared, spread = np.square(error).sum(), np.square(true - true.mean()).sum()
    return {
        "mae": float(error.mean()),
        "medae": float(np.median(error)),
        "rmse": math.sqrt(squared / len(error)),
        "r2": float(1 - squared / spread) if len({*true}) > 1 else math.nan,
    }


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one, other)[0, 1]) if min(len({*one}), len({*other})) > 1 else math.nan
