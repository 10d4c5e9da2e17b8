"""Evaluate a trained model by the paper's protocol, distributed over all processes.

Questions of similar length are decoded together with beam search. The last number of each decoded text is its
prediction. Other readings of the same model are the median and the mean of its distribution. The metrics
cover numbers, texts and the teacher-forced loss. Each rank answers its share of the questions, and every rank
receives all results.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ntl.approaches import Approach
from ntl.config.settings import GenerationSettings
from ntl.data import Example, TaskData, fingerprint
from ntl.errors import UserError
from ntl.readings import Distribution, read_distributions, reading_scores
from ntl.scores import final_answer_scores, finite_or_none, number_scores, reference_scores, text_scores
from ntl.training.run_folder import Metrics, Prediction, RunFolder
from ntloss.parsing import parse_number

REFERENCE_ANSWERS = 10_000  # training answers whose median is the constant guess


@dataclass(frozen=True)
class EvaluationResult:
    """How well a model did on some examples.

    Args:
        metrics: Maps each metric to its value, None if it is undefined. See docs/lab_report.md.
        predictions: One per example, in the examples' order.
    """

    metrics: Metrics
    predictions: list[Prediction]


class _Answer(NamedTuple):
    """One question's text and, if a reading needs it, the distribution of its number."""

    text: str
    distribution: Distribution | None


class _RankBatch(NamedTuple):
    """One batch of a rank; a filler that keeps the ranks in step if `is_scored` is false."""

    indices: list[int]
    is_scored: bool


def evaluate(
    approach: Approach,
    examples: Sequence[Example],
    data: TaskData,
    generation: GenerationSettings,
    model: nn.Module | None = None,
) -> EvaluationResult:
    """Answer questions with a model and score the answers.

    All ranks must call this function with the same examples. Each rank computes its share and returns the
    result for all. All ranks run the same number of batches, because a sharded model needs every rank in each
    forward pass.

    Args:
        approach: Approach that encodes the questions and decodes the answers.
        examples: Questions and answers.
        data: Task the examples belong to. It says whether answers are compared as numbers and what marks a
            final answer.
        generation: Decoding settings.
        model: The wrapped model. Default: the approach's own.

    Returns:
        Predictions with metrics of the texts and the loss, plus metrics of numbers, of other readings and of
        final answers if the task and the settings have them.

    Raises:
        UserError: There are no examples, or the approach cannot encode an answer.
    """
    if not examples:
        raise UserError("there are no examples to evaluate; expected at least one. Check the dataset.")
    examples = list(examples)  # may be memory-mapped: read them once
    model = approach.model if model is None else model
    rank, world = _rank_and_world()
    lengths = [len(example.question) for example in examples]
    batches = _rank_batches(lengths, generation.batch_size, rank, world)
    with _evaluation_mode(model):
        losses = _losses(approach, model, examples, batches)
        mine: dict[int, _Answer] = {}
        ill_formed = 0
        for batch in batches:
            before = approach.ill_formed
            questions = [examples[i].question for i in batch.indices]
            answers = _answers(approach, model, questions, generation)
            if batch.is_scored:
                mine |= zip(batch.indices, answers, strict=True)
                ill_formed += 0 if before is None else approach.ill_formed - before
    answered = {i: answer for share in _gather(mine) for i, answer in share.items()}
    result = _result(examples, [answered[i] for i in range(len(examples))], data, losses, generation)
    if approach.number_format is not None:
        fits = approach.number_format.fits
        result.metrics["outside_format"] = sum(not fits(example.answer) for example in examples)
    if approach.ill_formed is not None:
        result.metrics["ill_formed"] = sum(_gather(ill_formed))
    return result


def evaluate_tests(
    approach: Approach,
    data: TaskData,
    generation: GenerationSettings,
    folder: RunFolder,
    identity: Mapping[str, Any],
    model: nn.Module | None = None,
    on_test: Callable[[str, Metrics, bool], None] = lambda test, metrics, is_new: None,
) -> dict[str, Metrics]:
    """Evaluate every test set of a task, and write the results of each as soon as it is done.

    Test sets that were already evaluated with the same identity, questions and decoding are skipped.

    Args:
        approach: Approach that encodes the questions and decodes the answers.
        data: The task.
        generation: Decoding settings.
        folder: Folder that rank 0 writes metrics and predictions to.
        identity: JSON values that distinguish this model from others evaluated into this folder, such as its
            steps and its checkpoint.
        model: The wrapped model. Default: the approach's own.
        on_test: Called with the name of each test set, its metrics, and whether they were computed by this
            call.

    Returns:
        Maps each test set to its metrics, on every rank.

    Raises:
        UserError: `evaluate` fails, or the folder holds a file that cannot be read.
    """
    rank, _ = _rank_and_world()
    identities = {
        test: {
            "model": dict(identity),
            "questions": fingerprint(examples),
            "decoding": _decoding(generation),
        }
        for test, examples in data.tests.items()
    }
    # Only rank 0 reads the folder: others may see it a moment later, and all ranks must do the same work.
    known: dict[str, Metrics] = {}
    if rank == 0:
        known = {t: folder.metrics()[t] for t, same in identities.items() if folder.is_evaluated(t, same)}
    known = _gather(known)[0]
    results: dict[str, Metrics] = {}
    for test, examples in data.tests.items():
        if test not in known:
            result = evaluate(approach, examples, data, generation, model)
            results[test] = {**result.metrics, **_references(data, examples)}
            if rank == 0:
                folder.write_results(test, results[test], result.predictions, identities[test])
        else:
            results[test] = known[test]
        on_test(test, results[test], test not in known)
    return results


def evenly_spaced(examples: Sequence[Example], count: int | None) -> Sequence[Example]:
    """Choose evenly spaced examples, because files hold one module after another.

    Args:
        examples: Examples of a split.
        count: Number of examples to choose. None, or more than there are, chooses all.

    Returns:
        The chosen examples, in their original order.
    """
    if count is None or count >= len(examples):
        return examples
    return [examples[i * len(examples) // count] for i in range(count)]


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group examples of similar length into batches, which saves padding.

    Args:
        lengths: Length of each example.
        batch_size: Number of examples in a batch.

    Returns:
        Batches of example indices, each index once. The longest batch comes first, so that running out of
        memory happens at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _rank_batches(lengths: Sequence[int], batch_size: int, rank: int, world: int) -> list[_RankBatch]:
    """Return this rank's batches: as many as on every other rank, and of similar length."""
    batches = batches_by_length(lengths, min(batch_size, math.ceil(len(lengths) / world)))
    filler = batches[-1][-1:]
    own = [_RankBatch(batch, True) for batch in batches[rank::world]]
    rounds = math.ceil(len(batches) / world)
    return own + [_RankBatch(filler, False)] * (rounds - len(own))


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        # Not `inference_mode`: sharded models keep tensors of a forward pass for training.
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _losses(
    approach: Approach, model: nn.Module, examples: Sequence[Example], rank_batches: Sequence[_RankBatch]
) -> Metrics:
    """Compute the teacher-forced loss and its terms, as if all examples of all ranks were one batch."""
    device = next(model.parameters()).device
    batches = []
    for rank_batch in rank_batches:
        chosen = [examples[i] for i in rank_batch.indices]
        columns = approach.encode([e.question for e in chosen], [e.answer for e in chosen])
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        batches.append(approach.collate(rows))
    is_scored = [rank_batch.is_scored for rank_batch in rank_batches]
    own = [approach.count(batch) for batch, scored in zip(batches, is_scored, strict=True) if scored]
    none = torch.zeros_like(approach.count(batches[0]))  # a rank may have only fillers
    counts = torch.stack(_gather(sum(own, none).cpu())).sum(0).to(device)
    sums: dict[str, float] = {}
    for batch, scored in zip(batches, is_scored, strict=True):
        share = approach.loss(model, {k: v.to(device) for k, v in batch.items()}, counts)
        if scored:
            for name, value in {"loss": share.loss, **share.terms}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
    ranks = _gather(sums)
    totals = {
        name: sum(r.get(name, 0.0) for r in ranks) for name in dict.fromkeys(n for r in ranks for n in r)
    }
    if "ce" in totals:
        totals["perplexity"] = math.exp(totals["ce"]) if totals["ce"] < 700 else math.inf
    return {name: finite_or_none(value) for name, value in totals.items()}


def _answers(
    approach: Approach, model: nn.Module, questions: Sequence[str], generation: GenerationSettings
) -> list[_Answer]:
    """Answer a batch of questions, and read the quantiles of their numbers if a reading needs them."""
    texts = approach.answer(model, questions, generation)
    if not generation.quantile_readings:
        return [_Answer(text, None) for text in texts]
    read = read_distributions(approach, model, questions, generation)
    return [_Answer(*pair) for pair in zip(texts, read, strict=True)]


def _result(
    examples: Sequence[Example],
    answered: Sequence[_Answer],
    data: TaskData,
    losses: Metrics,
    generation: GenerationSettings,
) -> EvaluationResult:
    texts, answers = [answer.text for answer in answered], [example.answer for example in examples]
    metrics: Metrics = {"count": len(examples), **losses}
    if data.number_metrics:
        metrics |= number_scores(texts, answers)
    metrics |= text_scores(texts, answers)
    if data.final_answer_marker is not None:
        metrics |= final_answer_scores(texts, answers, data.final_answer_marker)
    if generation.quantile_readings:
        read = [answer.distribution for answer in answered if answer.distribution is not None]
        metrics |= reading_scores(read, answers, generation)
    predictions = []
    for example, answer in zip(examples, answered, strict=True):
        pair = [_number(side) if data.number_metrics else None for side in (answer.text, example.answer)]
        shown = {} if answer.distribution is None else answer.distribution.fields(generation)
        predictions.append(Prediction(example.question, example.answer, answer.text, *pair, **shown))
    return EvaluationResult(metrics, predictions)


def _decoding(generation: GenerationSettings) -> dict[str, Any]:
    """Return the settings that an evaluation's results depend on."""
    used = {"beams": generation.beams, "max_new_tokens": generation.max_new_tokens}
    if not generation.quantile_readings:
        return used
    return {**used, "read": list(generation.read), "interval": generation.interval}


def _references(data: TaskData, examples: Sequence[Example]) -> Metrics:
    if not data.number_metrics:
        return {}
    train = [example.answer for example in evenly_spaced(data.train, REFERENCE_ANSWERS)]
    answers, expected = [e.answer for e in examples], [e.expected for e in examples]
    return reference_scores(train, answers, expected)


def _number(text: str) -> float | None:
    """Return the last number of a text, clipped to the range of float64 because JSON has no infinity."""
    number = parse_number(text)
    return None if number is None else max(-sys.float_info.max, min(number, sys.float_info.max))


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _gather(item: Any) -> list[Any]:
    """Gather one item from each rank, in rank order, on every rank."""
    _, world = _rank_and_world()
    items: list[Any] = [item] * world
    if world > 1:
        dist.all_gather_object(items, item)
    return items
