"""Answer questions with a trained model by the paper's protocol, and score the answers.

Questions of similar length are decoded together with beam search. The last number of each decoded text is
its prediction. Other readings of the same model are the median and the mean of its distribution, see
`ntloss.reading.number_quantiles`. Each process answers its share of the questions, and all receive all
results.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ntl.data import PAPERS_CLIP, Example, TaskData, single_number
from ntl.data.files import write_atomically
from ntl.layout import PREDICTIONS, RESULTS
from ntl.own import load_own
from ntl.settings import Evaluation

if TYPE_CHECKING:
    from ntl.models import AnsweringModel

LARGEST = sys.float_info.max  # JSON has no infinity

Metrics = dict[str, float | None]
Answer = tuple[str, tuple[Any, ...]]
"""An answer's text and the fields of its `Distributions`, none if no reading needs them."""


class Result(NamedTuple):
    """The metrics (None if undefined, see docs/lab_report.md) and the answer to each example.

    A prediction has the `question`, the correct `answer` and the model's `text`; the last numbers of both,
    `predicted` and `true`, None if numbers are not compared; and, if they were read, the ends of the model's
    interval, `lower` and `upper`, and the `median` and `mean` of its distribution. A number that the model
    does not write is None.
    """

    metrics: Metrics
    predictions: list[dict[str, Any]]


def score_answers(
    built: AnsweringModel,
    examples: Sequence[Example],
    data: TaskData,
    evaluation: Evaluation,
) -> Result:
    """Answer questions with a model and score the answers.

    All processes must call this function with the same examples, of which each answers its share.

    Args:
        built: The model, which encodes the questions and decodes the answers.
        examples: Questions and answers.
        data: Task the examples belong to, which decides how answers are compared.
        evaluation: Decoding settings.
    """
    from accelerate import PartialState
    from accelerate.utils import gather_object

    from ntl.models.source import evaluation_mode

    examples = list(examples)  # may be memory-mapped: read them once
    rank, world = PartialState().process_index, PartialState().num_processes
    share = math.ceil(len(examples) / world)
    batches = batches_by_length([len(e.question) for e in examples], min(evaluation.batch_size, share))
    answers: dict[int, Answer] = {}
    encoding = getattr(built, "encoding", None)  # counts malformed numbers, if there can be any
    before = getattr(encoding, "ill_formed", 0)
    with evaluation_mode(built.model):
        for batch in batches[rank::world]:
            answers |= zip(
                batch, _answers(built, [examples[i].question for i in batch], evaluation), strict=True
            )
    shares = gather_object([(answers, getattr(encoding, "ill_formed", 0) - before)])
    answered = {i: one for share, _ in shares for i, one in share.items()}
    result = _result(examples, [answered[i] for i in range(len(examples))], data, evaluation)
    if built.answer_format is not None:
        written = [built.answer_format.write(example.answer) for example in examples]
        result.metrics["outside_format"] = written.count(None)
    if hasattr(encoding, "ill_formed"):
        result.metrics["ill_formed"] = sum(count for _, count in shares)
    return result


def write_results(folder: Path, description: Mapping[str, Any], results: Mapping[str, Result]) -> None:
    """Write the predictions of all test sets and, last, `metrics.json`, in place of earlier ones.

    Args:
        folder: Folder of the evaluation.
        description: What was evaluated: entries of `metrics.json` besides `metrics`.
        results: Maps each test set to its metrics, finite or None, and predictions in the test set's order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULTS).unlink(missing_ok=True)
    lines = (
        json.dumps({"test": test, **prediction}, ensure_ascii=False, allow_nan=False) + "\n"
        for test, result in results.items()
        for prediction in result.predictions
    )
    write_atomically(folder / PREDICTIONS, "".join(lines))
    content = {**description, "metrics": {test: result.metrics for test, result in results.items()}}
    write_atomically(folder / RESULTS, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_results(folder: Path) -> dict[str, Any] | None:
    """Read the `metrics.json` of an evaluation; None if it is not finished, or not what one wrote."""
    try:
        content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "identity" in content else None


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group examples of similar length into batches of their indices, which saves padding.

    The longest batch comes first, so that running out of memory happens at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def check_readings(built: Any, data: TaskData, evaluation: Evaluation) -> None:
    """Check, before training, that the readings of quantiles fit the model and the data."""
    from ntl.metrics.quantiles import SPACED_LEVELS

    read = f"evaluation.read=[{','.join(evaluation.quantile_readings)}]"
    for example in chain(*data.parts.values()):
        single_number(example.answer, read, "pass evaluation.read=[greedy]")
    built.quantiles([data.validation[0].question], SPACED_LEVELS)


def _answers(built: Any, questions: Sequence[str], evaluation: Evaluation) -> list[Answer]:
    """Answer a batch of questions, and read the distributions of their numbers if a reading needs them."""
    from ntl.metrics.quantiles import SPACED, SPACED_LEVELS

    given = (evaluation.beams, evaluation.max_new_tokens)
    if not evaluation.quantile_readings:
        return [(text, ()) for text in built.answer(questions, *given)]
    ends = ((1 - evaluation.interval) / 2, (1 + evaluation.interval) / 2)
    texts, read = built.read(questions, *given, (*SPACED_LEVELS, *ends, 0.5))
    # Sorted, because rounding may cross two quantiles.
    spaced = read.values[:, :SPACED].sort(-1).values
    lower, upper = read.values[:, SPACED:-1].sort(-1).values.unbind(-1)
    columns = (spaced, lower, read.values[:, -1], upper, spaced.mean(-1), read.starts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [*zip(texts, rows, strict=True)]


def _result(
    examples: Sequence[Example], answered: Sequence[Answer], data: TaskData, evaluation: Evaluation
) -> Result:
    from ntl.metrics import answers as scores
    from ntl.metrics.quantiles import Distributions, rater_crps, reading_scores
    from ntl.metrics.registry import finite_or_none

    texts, answers = [text for text, _ in answered], [example.answer for example in examples]
    metrics: dict[str, float] = {"count": len(examples)}
    columns = dict.fromkeys(("predicted", "true"), np.full(len(examples), math.nan))
    if data.number_metrics:
        metrics |= scores.number_scores(texts, answers, data.clip)
        metrics |= scores.paper_scores(texts, answers) if data.clip == PAPERS_CLIP else {}
        sides = (scores.last_numbers(side).clip(-LARGEST, LARGEST) for side in (texts, answers))
        columns = dict(zip(columns, sides, strict=True))
    metrics |= scores.text_scores(texts, answers)
    if data.final_answer_marker is not None:
        metrics |= scores.final_answer_scores(texts, answers, data.final_answer_marker)
    for name in evaluation.metrics:
        value = load_own("evaluation.metrics", name)(texts, answers)
        metrics[name] = math.nan if value is None else float(value)
    readings = evaluation.quantile_readings
    if readings:
        read = Distributions(*map(np.array, zip(*(fields for _, fields in answered), strict=True)))
        metrics |= reading_scores(read, answers, readings, evaluation.interval, data.clip)
        if rated := [i for i, example in enumerate(examples) if example.ratings]:
            metrics["rater_crps"] = rater_crps(read.spaced[rated], [examples[i].ratings for i in rated])
        shown = ("lower", "median", "upper", *(["mean"] if "mean" in readings else []))
        columns |= {name: getattr(read, name) for name in shown}
    numbers = zip(*(column.tolist() for column in columns.values()), strict=True)
    predictions = [
        {"question": each.question, "answer": each.answer, "text": text}
        | finite_or_none(dict(zip(columns, row, strict=True)))
        for each, text, row in zip(examples, texts, numbers, strict=True)
    ]
    return Result(finite_or_none(metrics), predictions)
