"""One run: one objective, one seed, trained with transformers' `Seq2SeqTrainer` and evaluated."""

from __future__ import annotations

import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from ntl.evaluation import answer
from ntl.metrics import score
from ntl.models import build_model
from ntl.objectives import (
    IGNORE,
    LanguageObjective,
    build_objective,
    language_logits,
    number_term,
)
from ntl.tasks import Example, TaskData
from ntloss import NumberTokensLeftOut, NumberVocabulary

POOL = 16  # batches that are drawn together and sorted by length; see plan_batches
REPORT_EVERY = 5  # steps between two reports of progress


class ComparisonTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that minimises one of the lab's objectives.

    Args:
        *args: Of `Seq2SeqTrainer`.
        objective: Called with model, micro-batch and the counts of the whole accumulated batch.
        **kwargs: Of `Seq2SeqTrainer`.
    """

    # The objective divides by the whole accumulated batch; the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, objective: nn.Module, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.objective = objective

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Collect the micro-batches of one update, and count their labels."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.counts = self.objective.count(batches) if batches else None
        return batches, items

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Compute the objective; the trainer's own count of labels knows nothing of numbers."""
        return self.objective(model, inputs, self.counts)


class ProgressCallback(TrainerCallback):
    """Reports the steps done, and measures the learning curve at some of them.

    Args:
        evaluate_at: Steps after which to measure.
        measure: Measures; what it returns becomes a point of the curve.
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
        """Called by the trainer after each update."""
        step = state.global_step
        if step in self.evaluate_at:
            self.curve.append({"step": step, **self.measure()})
        if step % REPORT_EVERY == 0 or step == args.max_steps:
            self.report(step)


def plan_batches(lengths: Sequence[int], steps: int, batch_size: int, seed: int) -> list[int]:
    """Choose the examples of every batch.

    Each epoch is a new permutation. Within a pool of batches, examples of like length go together, which
    saves padding, and the batches are then shuffled. It depends on the arguments alone: all objectives see
    the same.

    Args:
        lengths: Of the training examples.
        steps: The number of batches.
        batch_size: Examples in a batch.
        seed: Of the permutations.

    Returns:
        `steps * batch_size` indices of examples, batch after batch.
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
    """Examples as token ids, tokenized when they are first asked for and kept: a worker's runs share them.

    Args:
        tokenizer: The comparison's.
        examples: Texts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]):
        self.tokenizer = tokenizer
        self.examples = examples
        self._rows: dict[int, dict[str, Any]] = {}

    def rows(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Get some of the examples.

        Args:
            indices: Which, in any order, with repetition.

        Returns:
            One dict per index: `input_ids`, `labels` (ids), `value` (the answer as a number).
        """
        indices = list(indices)
        if missing := sorted(set(indices) - self._rows.keys()):
            chosen = [self.examples[i] for i in missing]
            questions = self._encode([e.question for e in chosen])
            answers = self._encode([e.answer for e in chosen])
            for i, example, question, labels in zip(missing, chosen, questions, answers, strict=True):
                self._rows[i] = {"input_ids": question, "labels": labels, "value": float(example.answer)}
        return [self._rows[i] for i in indices]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, return_attention_mask=False)["input_ids"]


def collate(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Pad tokenized examples into one batch.

    Args:
        rows: From `EncodedExamples.rows`.

    Returns:
        `input_ids` and `attention_mask` `[batch, seq]`, `labels` `[batch, answer]` padded with
        -100,
        `values` `[batch]`.
    """
    questions = [torch.tensor(row["input_ids"]) for row in rows]
    labels = [torch.tensor(row["labels"]) for row in rows]
    return {
        "input_ids": pad_sequence(questions, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(q) for q in questions], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE),
        "values": torch.tensor([row["value"] for row in rows], dtype=torch.float64),
    }


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
        seed: Of the initial weights and of the order of the data.
        data: Of the task.
        train: Its training examples, with the comparison's tokenizer.
        report: Called with the number of steps done.

    Returns:
        `metrics` (test set -> metric -> value), `curve` (a list of points), `predictions` (test set ->
        `predicted` and `true`), `parameters` (of the model), `seconds`.
    """
    transformers.logging.set_verbosity_error()
    started = time.perf_counter()
    training = config["training"]
    tokenizer = train.tokenizer
    with warnings.catch_warnings():
        # Tokens such as `▁4` and `42` are left out because this tokenizer never writes them.
        warnings.simplefilter("ignore", NumberTokensLeftOut)
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, space_prefixed=False)
    objective = build_objective(config["objective"][objective_name], vocabulary)
    is_language = isinstance(objective, LanguageObjective)
    targets = None if is_language else true_numbers(data.train)
    model = build_model(config["model"], tokenizer, seed, targets)

    max_new_tokens = data.longest_answer + 2  # its end token, and T5's space in front
    validation = data.validation[: training["evaluation_size"]]
    validation_batch = collate(EncodedExamples(tokenizer, validation).rows(range(len(validation))))

    def measure() -> dict[str, float | None]:
        point = score(answer(model, tokenizer, validation, max_new_tokens), true_numbers(validation))
        losses = held_out_losses(model, validation_batch, vocabulary) if is_language else {}
        return {"mae": point["mae"], "invalid": point["invalid"], **losses}

    steps = training["steps"]
    points = min(training["evaluations"], steps)
    evaluate_at = [round(steps * (i + 1) / points) for i in range(points)]
    progress = ProgressCallback(evaluate_at, measure, report)
    lengths = [len(example.question) for example in data.train]
    order = plan_batches(lengths, steps, training["batch_size"], seed)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = ComparisonTrainer(
            model=model,
            args=training_arguments(training, seed, scratch),
            train_dataset=train.rows(order),
            data_collator=collate,
            callbacks=[progress],
            objective=objective,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    metrics, predictions = {}, {}
    for name, examples in data.tests.items():
        predicted, true = answer(model, tokenizer, examples, max_new_tokens), true_numbers(examples)
        metrics[name] = score(predicted, true)
        predictions[name] = {"predicted": predicted, "true": true}
    return {
        "metrics": metrics,
        "curve": progress.curve,
        "predictions": predictions,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def training_arguments(training: Mapping[str, Any], seed: int, output_dir: str) -> Seq2SeqTrainingArguments:
    """The trainer's arguments.

    Args:
        training: The `training` section of the configuration.
        seed: Of the run.
        output_dir: The trainer wants one; nothing is written there.

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
    """The answers as numbers.

    Args:
        examples: With numbers as answers.

    Returns:
        One per example.
    """
    return [float(example.answer) for example in examples]


@torch.inference_mode()
def held_out_losses(
    model: nn.Module, batch: Mapping[str, Tensor], vocabulary: NumberVocabulary
) -> dict[str, float]:
    """Cross-entropy and NTL-WAS on held-out examples, whatever the model was trained with.

    Args:
        model: A T5 with a language model head.
        batch: From `collate`.
        vocabulary: The digits of the tokenizer.

    Returns:
        `cross_entropy` per label and `ntl` per number label.
    """
    was_training = model.training
    model.eval()
    logits, labels = language_logits(model, batch), batch["labels"]
    model.train(was_training)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
    return {
        "cross_entropy": loss.item(),
        "ntl": number_term(vocabulary, "wasserstein")(logits, labels).item(),
    }
