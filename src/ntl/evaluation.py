"""What a trained model answers, and how good that is: the paper's protocol, over all processes.

Beam search, questions of like length together; the last number of the decoded text; metrics of numbers, of
texts, and of the teacher-forced loss. Each rank answers its share, and every rank has all results.
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
from ntl.errors import UserError
from ntl.metrics import defined, final_answer_scores, number_scores, text_scores
from ntl.run_folder import Metrics, Prediction, RunFolder
from ntl.settings import GenerationSettings
from ntl.tasks import Example, TaskData, fingerprint
from ntloss.parsing import parse_number


@dataclass(frozen=True)
class EvaluationResult:
    """How well a model did on some examples.

    Args:
        metrics: Metric -> value; None where it is not defined. See docs/lab_report.md.
        predictions: One per example, in the examples' order.
    """

    metrics: Metrics
    predictions: list[Prediction]


class _Turn(NamedTuple):
    """One batch of a rank; where `counts` is false, it only keeps step with the other ranks."""

    indices: list[int]
    counts: bool


def evaluate(
    approach: Approach,
    examples: Sequence[Example],
    data: TaskData,
    generation: GenerationSettings,
    model: nn.Module | None = None,
) -> EvaluationResult:
    """Let a model answer questions, and compare the answers.

    All ranks must call it with the same examples. Each computes its share of them, in as many batches as any
    other (a sharded model needs all ranks in every forward), and returns the result of all.

    Args:
        approach: How to ask.
        examples: Questions and answers.
        data: Whose they are: whether answers are compared as numbers, and what marks a final answer.
        generation: How to decode.
        model: The wrapped model. Default: the approach's own.

    Returns:
        Metrics of texts and of the loss; of numbers where the task has some; of final answers where it marks
        them.

    Raises:
        UserError: No examples, or answers that the approach cannot take.
    """
    if not examples:
        raise UserError("there are no examples to evaluate; expected at least one.")
    examples = list(examples)  # read once: they may be memory-mapped
    model = approach.model if model is None else model
    rank, world = _rank_and_world()
    lengths = [len(example.question) for example in examples]
    turns = _turns(lengths, generation.batch_size, rank, world)
    with _evaluating(model):
        losses = _losses(approach, model, examples, turns)
        mine: dict[int, str] = {}
        ill_formed = 0
        for turn in turns:
            before = approach.ill_formed
            texts = approach.answer(model, [examples[i].question for i in turn.indices], generation)
            if turn.counts:
                mine |= zip(turn.indices, texts, strict=True)
                ill_formed += 0 if before is None else approach.ill_formed - before
    answered = {i: text for share in _gather(mine) for i, text in share.items()}
    result = _result(examples, [answered[i] for i in range(len(examples))], data, losses)
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
    """Evaluate every test set of a task, and write each one's results when it is done.

    Test sets that were evaluated before, with the same identity, questions and decoding, are not repeated.

    Args:
        approach: How to ask.
        data: The task.
        generation: How to decode.
        folder: Where rank 0 writes metrics and predictions.
        identity: What tells this model from others that were evaluated into this folder (its steps, its
            checkpoint), in JSON's types.
        model: The wrapped model. Default: the approach's own.
        on_test: Called with a test set, its metrics, and whether they were made now.

    Returns:
        Test set -> metrics, on every rank.

    Raises:
        UserError: See `evaluate`; the folder holds something that cannot be read.
    """
    rank, _ = _rank_and_world()
    identities = {
        test: {
            "model": dict(identity),
            "questions": fingerprint(examples),
            "decoding": {"beams": generation.beams, "max_new_tokens": generation.max_new_tokens},
        }
        for test, examples in data.tests.items()
    }
    # Only rank 0 looks: others may see the folder a moment later, and all must agree on what is to be done.
    known: dict[str, Metrics] = {}
    if rank == 0:
        known = {t: folder.metrics()[t] for t, same in identities.items() if folder.is_evaluated(t, same)}
    known = _gather(known)[0]
    results: dict[str, Metrics] = {}
    for test, examples in data.tests.items():
        if test not in known:
            result = evaluate(approach, examples, data, generation, model)
            results[test] = result.metrics
            if rank == 0:
                folder.write_results(test, result.metrics, result.predictions, identities[test])
        else:
            results[test] = known[test]
        on_test(test, results[test], test not in known)
    return results


def batches_by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Put examples of like length together, which saves padding.

    Args:
        lengths: Of the examples.
        batch_size: Examples in a batch.

    Returns:
        Indices of examples, each once; the longest batch first: what does not fit into memory fails at once.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _turns(lengths: Sequence[int], batch_size: int, rank: int, world: int) -> list[_Turn]:
    """This rank's batches: as many as every other rank's, and at any time about as long as theirs."""
    batches = batches_by_length(lengths, min(batch_size, math.ceil(len(lengths) / world)))
    filler = batches[-1][-1:]
    turns = [_Turn(batch, True) for batch in batches[rank::world]]
    rounds = math.ceil(len(batches) / world)
    return turns + [_Turn(filler, False)] * (rounds - len(turns))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        # Not `inference_mode`: sharded models keep tensors of their forwards for training.
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def _losses(
    approach: Approach, model: nn.Module, examples: Sequence[Example], turns: Sequence[_Turn]
) -> Metrics:
    """The teacher-forced loss and its terms, as if all examples of all ranks were one batch."""
    device = next(model.parameters()).device
    batches = []
    for turn in turns:
        chosen = [examples[i] for i in turn.indices]
        columns = approach.encode([e.question for e in chosen], [e.answer for e in chosen])
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        batches.append(approach.collate(rows))
    own = [approach.count(batch) for batch, turn in zip(batches, turns, strict=True) if turn.counts]
    none = torch.zeros_like(approach.count(batches[0]))  # a rank may have nothing but fillers
    counts = torch.stack(_gather(sum(own, none).cpu())).sum(0).to(device)
    sums: dict[str, float] = {}
    for batch, turn in zip(batches, turns, strict=True):
        share = approach.loss(model, {k: v.to(device) for k, v in batch.items()}, counts)
        if turn.counts:
            for name, value in {"loss": share.loss, **share.terms}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
    ranks = _gather(sums)
    totals = {
        name: sum(r.get(name, 0.0) for r in ranks) for name in dict.fromkeys(n for r in ranks for n in r)
    }
    if "ce" in totals:
        totals["perplexity"] = math.exp(totals["ce"]) if totals["ce"] < 700 else math.inf
    return {name: defined(value) for name, value in totals.items()}


def _result(
    examples: Sequence[Example], texts: Sequence[str], data: TaskData, losses: Metrics
) -> EvaluationResult:
    answers = [example.answer for example in examples]
    metrics: Metrics = {"count": len(examples), **losses}
    if data.number_metrics:
        metrics |= number_scores(texts, answers)
    metrics |= text_scores(texts, answers)
    if data.final_answer_marker is not None:
        metrics |= final_answer_scores(texts, answers, data.final_answer_marker)
    predictions = []
    for example, text in zip(examples, texts, strict=True):
        pair = [_number(side) if data.number_metrics else None for side in (text, example.answer)]
        predictions.append(Prediction(example.question, example.answer, text, *pair))
    return EvaluationResult(metrics, predictions)


def _number(text: str) -> float | None:
    """The last number of a text; beyond float64's range, its largest number: JSON has no infinity."""
    number = parse_number(text)
    return None if number is None else max(-sys.float_info.max, min(number, sys.float_info.max))


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _gather(item: Any) -> list[Any]:
    """Every rank's item, by rank, on every rank."""
    _, world = _rank_and_world()
    items: list[Any] = [item] * world
    if world > 1:
        dist.all_gather_object(items, item)
    return items
