"""Train and evaluate one run of `ntl compare`: one objective with one seed."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import PrinterCallback, Seq2SeqTrainingArguments, TrainerCallback

from ntl.approaches import Approach, build_approach
from ntl.approaches.language_model import LanguageModel
from ntl.approaches.objective import LanguageObjective
from ntl.evaluation import batches_by_length
from ntl.metrics import read_answer, score
from ntl.settings import GenerationSettings, LossSettings, ModelSettings
from ntl.tasks import Example, TaskData
from ntl.trainer import ApproachTrainer

POOL = 16  # batches whose examples are sorted by length together, see plan_batches
REPORT_EVERY = 5  # steps between two progress reports
QUESTIONS = 250  # questions decoded at once: enough to keep a core busy, few enough for its cache
# Maps the configuration's terms to the library's criteria.
TERMS = {None: None, "wasserstein": "wasserstein", "squared_error": "expected_value"}


class ProgressCallback(TrainerCallback):
    """Reports progress, and measures points of the learning curve.

    Args:
        evaluate_at: Steps after which to measure a point.
        measure: Returns the metrics of a point.
        report: Called with the number of steps done.
    """

    def __init__(
        self,
        evaluate_at: Sequence[int],
        measure: Callable[[], dict[str, float | None]],
        report: Callable[[int], None],
    ):
        self.evaluate_at = set(evaluate_at)
        self.measure = measure
        self.report = report
        self.curve: list[dict[str, float | None]] = []

    def on_step_end(self, args, state, control, **kwargs):
        """Measure and report, if due after this update."""
        step = state.global_step
        if step in self.evaluate_at:
            self.curve.append({"step": step, **self.measure()})
        if step % REPORT_EVERY == 0 or step == args.max_steps:
            self.report(step)


def plan_batches(lengths: Sequence[int], steps: int, batch_size: int, seed: int) -> list[int]:
    """Choose the examples of every batch.

    Each epoch is a new permutation of the examples. Within a pool of batches, examples of similar length are
    batched together to save padding, and the batches are then shuffled. The result depends only on the
    arguments, so all objectives see the same batches.

    Args:
        lengths: Length of each training example.
        steps: Number of batches.
        batch_size: Number of examples in a batch.
        seed: Random seed of the permutations.

    Returns:
        `steps * batch_size` example indices, one batch after another.
    """
    rng = np.random.default_rng(seed)
    total = steps * batch_size
    epochs = math.ceil(total / len(lengths))
    order = np.concatenate([rng.permutation(len(lengths)) for _ in range(epochs)])[:total]
    lengths = np.asarray(lengths)
    pools = []
    for start in range(0, total, POOL * batch_size):
        pool = order[start : start + POOL * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")].reshape(-1, batch_size)
        pools.append(pool[rng.permutation(len(pool))].ravel())
    return np.concatenate(pools).tolist()


class EncodedExamples:
    """Examples that are encoded on first use and cached, so that a worker's runs share them.

    Args:
        examples: Examples to encode.
    """

    def __init__(self, examples: Sequence[Example]):
        self.examples = examples
        self._rows: dict[tuple[type, int], dict[str, Any]] = {}

    def rows(self, approach: Approach, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Get encoded examples.

        Args:
            approach: Approach that encodes the examples. Approaches of one class share the cache.
            indices: Indices of examples, in any order and possibly repeated.

        Returns:
            One row per index, for `Approach.collate`.
        """
        indices, kind = list(indices), type(approach)
        if missing := [i for i in sorted(set(indices)) if (kind, i) not in self._rows]:
            rows = encode(approach, [self.examples[i] for i in missing])
            self._rows |= {(kind, i): row for i, row in zip(missing, rows, strict=True)}
        return [self._rows[kind, i] for i in indices]


def encode(approach: Approach, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Encode examples as rows for `Approach.collate`."""
    columns = approach.encode([e.question for e in examples], [e.answer for e in examples])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def build(config: Mapping[str, Any], objective_name: str, seed: int) -> Approach:
    """Build the approach of one run: a T5 from scratch with digits as tokens.

    Args:
        config: The whole configuration.
        objective_name: A key of its `objective` section.
        seed: Random seed of the weights. The same seed gives the same encoder and decoder for either head.

    Returns:
        The approach.

    Raises:
        UserError: The tokenizer, the model or the loss cannot be used.
    """
    objective = config["objective"][objective_name]
    model = ModelSettings(
        head=objective["head"],
        tokenizer=config["tokenizer"],
        config={"model_type": "t5", **config["model"]},
        log_scale=False,
        seed=seed,
    )
    term = TERMS[objective["term"]] if objective["head"] == "language" else None
    return build_approach(model, LossSettings(term, weight=objective["weight"], reweigh=objective["reweigh"]))


def train_run(
    config: Mapping[str, Any],
    objective_name: str,
    seed: int,
    data: TaskData,
    train: EncodedExamples,
    report: Callable[[int], None] = lambda step: None,
) -> dict[str, Any]:
    """Train and evaluate one model.

    Args:
        config: The whole configuration.
        objective_name: A key of its `objective` section.
        seed: Random seed of the initial weights and of the order of the data.
        data: Data of the task.
        train: Encoded training examples of the task.
        report: Called with the number of steps done.

    Returns:
        `metrics` (test set -> metric -> value), `curve` (a list of points), `predictions` (test set ->
        `predicted` and `true`), `parameters` (the number of parameters) and `seconds`.

    Raises:
        UserError: The tokenizer, the model or the loss cannot be used.
    """
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    training = config["training"]
    approach = build(config, objective_name, seed)
    approach.fit(example.answer for example in data.train)
    # Two more tokens: the end token, and T5's leading space.
    generation = GenerationSettings(beams=1, max_new_tokens=data.longest_answer + 2, batch_size=QUESTIONS)
    validation = data.validation[: training["evaluation_size"]]
    validation_batch = approach.collate(encode(approach, validation))

    def measure() -> dict[str, float | None]:
        point = score(answer(approach, validation, generation), true_numbers(validation))
        losses = held_out_losses(approach, validation_batch) if isinstance(approach, LanguageModel) else {}
        return {"mae": point["mae"], "invalid": point["invalid"], **losses}

    steps = training["steps"]
    points = min(training["evaluations"], steps)
    evaluate_at = [round(steps * (i + 1) / points) for i in range(points)]
    progress = ProgressCallback(evaluate_at, measure, report)
    lengths = [len(example.question) for example in data.train]
    order = plan_batches(lengths, steps, training["batch_size"], seed)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = ApproachTrainer(
            approach=approach,
            args=training_arguments(training, seed, scratch),
            train_dataset=train.rows(approach, order),
            callbacks=[progress],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    metrics, predictions = {}, {}
    for name, examples in data.tests.items():
        predicted, true = answer(approach, examples, generation), true_numbers(examples)
        metrics[name] = score(predicted, true)
        predictions[name] = {"predicted": predicted, "true": true}
    return {
        "metrics": metrics,
        "curve": progress.curve,
        "predictions": predictions,
        "parameters": sum(p.numel() for p in approach.model.parameters()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def training_arguments(training: Mapping[str, Any], seed: int, output_dir: str) -> Seq2SeqTrainingArguments:
    """Make the trainer's arguments.

    Args:
        training: The `training` section of the configuration.
        seed: Random seed of the run.
        output_dir: A folder, which the trainer requires but does not write to.

    Returns:
        The arguments.
    """
    accumulation = training["gradient_accumulation_steps"]
    return Seq2SeqTrainingArguments(
        output_dir=output_dir,
        max_steps=training["steps"],
        per_device_train_batch_size=training["batch_size"] // accumulation,
        gradient_accumulation_steps=accumulation,
        learning_rate=training["learning_rate"],
        lr_scheduler_type=training["schedule"],
        warmup_steps=training["warmup"],
        weight_decay=training["weight_decay"],
        max_grad_norm=training["max_grad_norm"],
        seed=seed,
        # The dataset is already in the order of plan_batches.
        train_sampling_strategy="sequential",
        use_cpu=True,  # a run is sized for one core; the comparison runs several at once
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def true_numbers(examples: Sequence[Example]) -> list[float]:
    """Convert the answers to numbers.

    Args:
        examples: Examples whose answers are numbers.

    Returns:
        One number per example.
    """
    return [float(example.answer) for example in examples]


def answer(
    approach: Approach, examples: Sequence[Example], generation: GenerationSettings
) -> list[float | None]:
    """Answer questions with a model.

    Args:
        approach: Approach of the run.
        examples: Questions to answer.
        generation: Decoding settings.

    Returns:
        One number per example, or None if the decoded text is not a number.
    """
    numbers: list[float | None] = [None] * len(examples)
    for chosen in batches_by_length([len(e.question) for e in examples], generation.batch_size):
        texts = approach.answer(approach.model, [examples[i].question for i in chosen], generation)
        for i, text in zip(chosen, texts, strict=True):
            numbers[i] = read_answer(text)
    return numbers


@torch.no_grad()
def held_out_losses(approach: LanguageModel, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute cross-entropy and NTL-WAS on held-out examples, regardless of the training objective.

    Args:
        approach: A language model.
        batch: A batch from its `collate`.

    Returns:
        `cross_entropy` per label and `ntl` per number label.
    """
    objective = LanguageObjective(approach.vocabulary, LossSettings("wasserstein", reweigh=True))
    was_training = approach.model.training
    approach.model.eval()
    logits = approach.logits(approach.model, batch)
    approach.model.train(was_training)
    terms = objective.share(logits, batch["labels"], objective.count(batch["labels"])).terms
    return {"cross_entropy": terms["ce"].item(), "ntl": terms["ntl"].item()}
