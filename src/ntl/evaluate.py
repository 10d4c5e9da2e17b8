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

from ntl.data import PAPERS_CLIP, Example, TaskData, evenly_spaced, single_number
from ntl.data.files import write_atomically
from ntl.errors import UserError
from ntl.layout import PREDICTIONS, RESULTS
from ntl.settings import Evaluation

if TYPE_CHECKING:
    from ntl.models import AnsweringModel
    from ntl.scores import Distribution

REFERENCE_ANSWERS = 10_000  # training answers whose median is the constant guess

Metrics = dict[str, float | None]
Answer = tuple[str, "Distribution | None"]
"""An answer's text and, if a reading needs it, the distribution of its number."""


class Prediction(NamedTuple):
    """One answered question: the model's `text` beside the correct `answer`.

    `predicted` and `true` are the last numbers of both; None without one, or if numbers are not compared. The
    ends of the model's interval, the median and the mean of its distribution are None if they were not read.
    """

    question: str
    answer: str
    text: str
    predicted: float | None
    true: float | None
    lower: float | None = None
    median: float | None = None
    upper: float | None = None
    mean: float | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields by name, without those that were not read."""
        optional = self._field_defaults
        return {k: v for k, v in self._asdict().items() if v is not None or k not in optional}


class Result(NamedTuple):
    """The metrics (None if undefined, see docs/lab_report.md) and one prediction per example."""

    metrics: Metrics
    predictions: list[Prediction]


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
    before = _ill_formed(built) or 0
    with evaluation_mode(built.model):
        for batch in batches[rank::world]:
            answers |= zip(
                batch, _answers(built, [examples[i].question for i in batch], evaluation), strict=True
            )
    shares = gather_object([(answers, (_ill_formed(built) or 0) - before)])
    answered = {i: one for share, _ in shares for i, one in share.items()}
    result = _result(examples, [answered[i] for i in range(len(examples))], data, evaluation)
    form = getattr(built, "answer_format", None)
    if form is not None:
        written = [form.write(example.answer) for example in examples]
        result.metrics["outside_format"] = written.count(None)
    if _ill_formed(built) is not None:
        result.metrics["ill_formed"] = sum(count for _, count in shares)
    return result


def reference_metrics(data: TaskData, examples: Sequence[Example]) -> Metrics:
    """Score what a model's errors are compared with: a constant answer and, if it is known, the noise."""
    from ntl.scores import reference_scores

    if not data.number_metrics:
        return {}
    train = [example.answer for example in evenly_spaced(data.train, REFERENCE_ANSWERS)]
    return reference_scores(train, examples, data.clip)


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
        json.dumps({"test": test, **prediction.row()}, ensure_ascii=False, allow_nan=False) + "\n"
        for test, result in results.items()
        for prediction in result.predictions
    )
    write_atomically(folder / PREDICTIONS, "".join(lines))
    content = {**description, "metrics": {test: result.metrics for test, result in results.items()}}
    write_atomically(folder / RESULTS, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_results(folder: Path) -> dict[str, Any] | None:
    """Read the `metrics.json` of an evaluation; None if it is not finished.

    Raises:
        UserError: The file is not what an evaluation wrote.
    """
    try:
        content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder / RESULTS} cannot be read ({error}). Delete it to evaluate again."
        ) from None
    return content if isinstance(content, dict) and "identity" in content else None


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group examples of similar length into batches of their indices, which saves padding.

    The longest batch comes first, so that running out of memory happens at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def check_readings(built: Any, data: TaskData, evaluation: Evaluation) -> None:
    """Check, before training, that the readings of quantiles fit the model and the data."""
    from ntl.scores import SPACED_LEVELS

    example: Example | None = None
    read = f"evaluation.read=[{','.join(evaluation.quantile_readings)}]"
    for example in chain(data.validation, *data.tests.values()):
        single_number(example.answer, read, "pass evaluation.read=[greedy]")
    if example is not None:
        built.quantiles([example.question], SPACED_LEVELS)


def _ill_formed(built: AnsweringModel) -> int | None:
    """Return how many malformed numbers were decoded so far; None if there cannot be any."""
    return getattr(getattr(built, "encoding", None), "ill_formed", None)


def _answers(built: Any, questions: Sequence[str], evaluation: Evaluation) -> list[Answer]:
    """Answer a batch of questions, and read the distributions of their numbers if a reading needs them."""
    from ntl.scores import SPACED, SPACED_LEVELS, Distribution, interval_levels

    given = (evaluation.beams, evaluation.max_new_tokens)
    if not evaluation.quantile_readings:
        return [(text, None) for text in built.answer(questions, *given)]
    levels = (*SPACED_LEVELS, *interval_levels(evaluation.interval), 0.5)
    texts, read = built.read(questions, *given, levels)
    # Sorted, because rounding may cross two quantiles.
    spaced = read.values[:, :SPACED].sort(-1).values
    mean = spaced.mean(-1)
    ends, median = read.values[:, SPACED:-1].sort(-1).values, read.values[:, -1]
    columns = (spaced, ends[:, 0], median, ends[:, 1], mean, read.starts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(text, Distribution(*row)) for text, row in zip(texts, rows, strict=True)]


def _result(
    examples: Sequence[Example], answered: Sequence[Answer], data: TaskData, evaluation: Evaluation
) -> Result:
    from ntl import scores

    texts, answers = [text for text, _ in answered], [example.answer for example in examples]
    metrics: Metrics = {"count": len(examples)}
    if data.number_metrics:
        metrics |= scores.number_scores(texts, answers, data.clip)
        metrics |= scores.paper_scores(texts, answers) if data.clip == PAPERS_CLIP else {}
    metrics |= scores.text_scores(texts, answers)
    if data.final_answer_marker is not None:
        metrics |= scores.final_answer_scores(texts, answers, data.final_answer_marker)
    for name in evaluation.metrics:
        metrics[name] = scores.own_score(name, texts, answers)
    if evaluation.quantile_readings:
        found = [read for _, read in answered if read is not None]
        metrics |= scores.reading_scores(
            found, answers, evaluation.quantile_readings, evaluation.interval, data.clip
        )
        if rated := [i for i, example in enumerate(examples) if example.ratings]:
            ratings = [examples[i].ratings for i in rated]
            metrics["rater_crps"] = scores.rater_crps([found[i] for i in rated], ratings)
    shown = ("lower", "median", "upper", *(["mean"] if "mean" in evaluation.quantile_readings else []))
    predictions = []
    for example, (text, read) in zip(examples, answered, strict=True):
        pair = [_number(side) if data.number_metrics else None for side in (text, example.answer)]
        numbers = {} if read is None else {name: scores.finite_or_none(getattr(read, name)) for name in shown}
        predictions.append(Prediction(example.question, example.answer, text, *pair, **numbers))
    return Result(metrics, predictions)


def _number(text: str) -> float | None:
    """Return the last number of a text, clipped to the range of float64 because JSON has no infinity."""
    from ntl.metrics import last_number  # slow: torch

    number = last_number(text)
    return None if number is None else max(-sys.float_info.max, min(number, sys.float_info.max))
