"""Evaluate a trained model by the paper's protocol, distributed over all processes.

Questions of similar length are decoded together with beam search. The last number of each decoded text is its
prediction. Other readings of the same model are the median and the mean of its distribution, see
`ntloss.reading.number_quantiles`. The metrics cover numbers, texts and the teacher-forced loss. Each rank
answers its share of the questions, and every rank receives all results.
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn

from ntl.approaches import Approach
from ntl.approaches.batches import encoded_rows, evaluation_mode
from ntl.config import Evaluation
from ntl.data import Example, TaskData, evenly_spaced, single_number
from ntl.errors import UserError
from ntl.protocol import last_number
from ntl.scores import (
    SPACED,
    SPACED_LEVELS,
    Distribution,
    final_answer_scores,
    finite_or_none,
    interval_levels,
    number_scores,
    rater_crps,
    reading_scores,
    reference_scores,
    target_scores,
    text_scores,
)
from ntl.training.run_folder import EvaluationFolder, Metrics, Prediction, RunRecord

REFERENCE_ANSWERS = 10_000  # training answers whose median is the constant guess

Prepare = Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any]]]
Answer = tuple[str, Distribution | None]
"""An answer's text and, if a reading needs it, the distribution of its number."""
T = TypeVar("T")


class EvaluationResult(NamedTuple):
    """The metrics (None if undefined, see docs/lab_report.md) and one prediction per example."""

    metrics: Metrics
    predictions: list[Prediction]


def evaluate(
    approach: Approach,
    examples: Sequence[Example],
    data: TaskData,
    evaluation: Evaluation,
    model: nn.Module | None = None,
    prepare: Prepare | None = None,
) -> EvaluationResult:
    """Answer questions with a model and score the answers.

    All ranks must call this function with the same examples. Each rank computes its share and returns the
    result for all. All ranks run the same number of batches, because a sharded model needs every rank in each
    forward pass.

    Args:
        approach: Approach that encodes the questions and decodes the answers.
        examples: Questions and answers.
        data: Task the examples belong to, which decides how answers are compared.
        evaluation: Decoding settings.
        model: The wrapped model. Default: the approach's own.
        prepare: Adds columns to encoded rows before their loss is computed, such as cached states.
    """
    if not examples:
        raise UserError("there are no examples to evaluate; expected at least one. Check the dataset.")
    examples = list(examples)  # may be memory-mapped: read them once
    model = approach.model if model is None else model
    rank, world = PartialState().process_index, PartialState().num_processes
    share = math.ceil(len(examples) / world)
    batches = batches_by_length([len(e.question) for e in examples], min(evaluation.batch_size, share))
    # A rank with fewer batches repeats the last one to keep in step; `_gather` counts it once.
    rounds = math.ceil(len(batches) / world)
    indices = [min(index, len(batches) - 1) for index in range(rank, rounds * world, world)]
    mine = {index: [examples[i] for i in batches[index]] for index in indices}
    answers: dict[int, list[Answer]] = {}
    ill_formed: dict[int, int] = {}
    with evaluation_mode(model):
        losses = _losses(approach, model, mine, prepare)
        for index, batch in mine.items():
            before = approach.ill_formed or 0
            answers[index] = _answers(approach, model, [e.question for e in batch], evaluation)
            ill_formed[index] = (approach.ill_formed or 0) - before
    found = _gather(answers)
    answered = {
        i: answer for n, batch in enumerate(batches) for i, answer in zip(batch, found[n], strict=True)
    }
    result = _result(examples, [answered[i] for i in range(len(examples))], data, losses, evaluation)
    if approach.number_format is not None:
        fits = approach.answer_format.fits
        result.metrics["outside_format"] = sum(not fits(example.answer) for example in examples)
    if approach.ill_formed is not None:
        result.metrics["ill_formed"] = sum(_gather(ill_formed).values())
    return result


def evaluate_tests(
    approach: Approach,
    data: TaskData,
    evaluation: Evaluation,
    folder: EvaluationFolder,
    record: RunRecord,
    model: nn.Module | None = None,
    prepare: Prepare | None = None,
    known: Mapping[str, EvaluationResult] = MappingProxyType({}),
) -> Iterator[tuple[str, Metrics]]:
    """Evaluate every test set of a task, replacing earlier results in the folder.

    Args:
        approach, data, evaluation, model, prepare: See `evaluate`.
        folder: Folder that rank 0 writes metrics and predictions to.
        record: What is evaluated.
        known: Results of test sets that the model has answered already.

    Yields:
        The name of each test set and its metrics, on every rank.
    """
    writes = PartialState().is_main_process
    if writes:
        folder.clear()
    for test, examples in data.tests.items():
        result = known.get(test) or evaluate(approach, examples, data, evaluation, model, prepare)
        metrics = result.metrics
        if data.number_metrics:
            train = [example.answer for example in evenly_spaced(data.train, REFERENCE_ANSWERS)]
            metrics |= reference_scores(train, examples, data.clip)
        if writes:
            folder.write_results(test, metrics, result.predictions)
        yield test, metrics
    if writes:
        folder.finish(replace(record, questions=data.fingerprints))


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group examples of similar length into batches of their indices, which saves padding.

    The longest batch comes first, so that running out of memory happens at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def check_readings(approach: Approach, data: TaskData, evaluation: Evaluation) -> None:
    """Check, before training, that the readings fit the model and the data."""
    if not evaluation.quantile_readings:
        return
    example: Example | None = None
    read = f"evaluation.read=[{','.join(evaluation.quantile_readings)}]"
    for example in chain(data.validation, *data.tests.values()):
        single_number(example.answer, read, "pass evaluation.read=[greedy]")
    if example is not None:
        approach.quantiles(approach.model, [example.question], SPACED_LEVELS)


def _losses(
    approach: Approach,
    model: nn.Module,
    batches: Mapping[int, Sequence[Example]],
    prepare: Prepare | None,
) -> Metrics:
    """Compute the loss and its terms, as if the batches of all ranks, by their indices, were one."""
    device = next(model.parameters()).device
    examples = [*chain.from_iterable(batches.values())]
    rows = encoded_rows(approach, [e.question for e in examples], [e.answer for e in examples])
    prepared = iter(rows if prepare is None else prepare(rows))
    encoded = {index: approach.collate([*islice(prepared, len(batch))]) for index, batch in batches.items()}
    shares = {}
    own = {index: approach.count(tensors).cpu() for index, tensors in encoded.items()}
    counts = torch.stack(list(_gather(own).values())).sum(0).to(device)
    for index, tensors in encoded.items():
        share = approach.loss(model, {k: v.to(device) for k, v in tensors.items()}, counts)
        shares[index] = {"loss": float(share.loss), **{name: float(x) for name, x in share.terms.items()}}
    found = _gather(shares).values()
    names = dict.fromkeys(chain.from_iterable(found))
    totals = {name: sum(terms.get(name, 0.0) for terms in found) for name in names}
    if "ce" in totals:
        totals["perplexity"] = math.exp(totals["ce"]) if totals["ce"] < 700 else math.inf
    return {name: finite_or_none(value) for name, value in totals.items()}


def _answers(
    approach: Approach, model: nn.Module, questions: Sequence[str], evaluation: Evaluation
) -> list[Answer]:
    """Answer a batch of questions, and read the distributions of their numbers if a reading needs them."""
    if not evaluation.quantile_readings:
        return [(text, None) for text in approach.answer(model, questions, evaluation)]
    levels = (*SPACED_LEVELS, *interval_levels(evaluation.interval), 0.5)
    texts, read = approach.read(model, questions, evaluation, levels)
    # Sorted, because rounding may cross two quantiles.
    spaced = read.values[:, :SPACED].sort(-1).values
    mean = spaced.mean(-1)
    ends, median = read.values[:, SPACED:-1].sort(-1).values, read.values[:, -1]
    columns = (spaced, ends[:, 0], median, ends[:, 1], mean, read.starts)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(text, Distribution(*row)) for text, row in zip(texts, rows, strict=True)]


def _result(
    examples: Sequence[Example],
    answered: Sequence[Answer],
    data: TaskData,
    losses: Metrics,
    evaluation: Evaluation,
) -> EvaluationResult:
    texts, answers = [text for text, _ in answered], [example.answer for example in examples]
    metrics: Metrics = {"count": len(examples), **losses}
    if data.number_metrics:
        metrics |= number_scores(texts, answers, data.clip)
    if data.targets:
        metrics |= target_scores(texts, answers, data.targets)
    metrics |= text_scores(texts, answers)
    if data.final_answer_marker is not None:
        metrics |= final_answer_scores(texts, answers, data.final_answer_marker)
    if evaluation.quantile_readings:
        found = [read for _, read in answered if read is not None]
        metrics |= reading_scores(found, answers, evaluation, data.clip)
        if all(example.ratings for example in examples):
            metrics["rater_crps"] = rater_crps(found, [example.ratings for example in examples])
    shown = ("lower", "median", "upper", *(["mean"] if "mean" in evaluation.quantile_readings else []))
    predictions = []
    for example, (text, read) in zip(examples, answered, strict=True):
        pair = [_number(side) if data.number_metrics else None for side in (text, example.answer)]
        numbers = {} if read is None else {name: finite_or_none(getattr(read, name)) for name in shown}
        predictions.append(Prediction(example.question, example.answer, text, *pair, **numbers))
    return EvaluationResult(metrics, predictions)


def _number(text: str) -> float | None:
    """Return the last number of a text, clipped to the range of float64 because JSON has no infinity."""
    number = last_number(text)
    return None if number is None else max(-sys.float_info.max, min(number, sys.float_info.max))


def _gather(mine: Mapping[int, T]) -> dict[int, T]:
    """Merge what all ranks have computed for their batches, by the batch's index, on every rank."""
    return {index: value for share in gather_object([mine]) for index, value in share.items()}
