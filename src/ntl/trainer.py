"""transformers' Trainer, as the lab needs it: its evaluations also answer questions.

`XvalTrainer` adds what xVal needs. Adapters are saved merged.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    EvalPrediction,
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from ntl.data import Example
from ntl.errors import UserError, unknown_key
from ntl.evaluate import Result
from ntl.layout import LEARNED_ROWS
from ntl.losses import LabelNoise, count_numbers
from ntl.metrics.registry import OF_DISTRIBUTION, OF_READING, describe_metrics, find_metric, split_metric
from ntl.models import IGNORE, PACKED, AnsweringModel
from ntl.settings import HEAD, Config
from ntloss import NTLCrossEntropyLoss
from ntloss.trainers import PREPARED, NumberAware
from ntloss.writing import UpperLayers

log = logging.getLogger(__name__)
AT_ONCE = 200_000  # examples that are encoded before the first step
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}
NOT_OF_TRANSFORMERS = ("trial", "special_name", "do_only_eval", "overwrite_output_dir", "packed")


class EncodedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """Examples as token ids, encoded at once or, if there are very many, when they are used.

    Args:
        examples: The examples.
        built: The model, which encodes them.
        noise: Draws their answers anew in each epoch. Default: they stay as they are.

    Attributes:
        packed: Whether a batch of them is one row, see `LanguageModel.pack`. Default: it is not.
        number_weight: Factor of the number term at all labels, None for 1; see `LabTrainer.of_numbers`.
    """

    packed = False
    number_weight: float | None = None

    def __init__(self, examples: Sequence[Example], built: AnsweringModel, noise: LabelNoise | None = None):
        self.examples, self._built, self.noise = examples, built, noise
        self._rows: list[dict[str, Any]] | None = None
        if len(examples) <= AT_ONCE and noise is None:
            self.examples = list(examples)  # which may be memory-mapped
            self._rows = self.__getitems__(range(len(examples)))

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows, which a data loader asks for at once."""
        if self._rows is None:
            examples = [self.examples[i] for i in indices]
            answers = [e.answer for e in examples]
            if self.noise is not None:
                answers = [self.noise.draw(answer, i) for answer, i in zip(answers, indices, strict=True)]
            columns = self._built.encode([e.question for e in examples], answers)
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        else:
            rows = [self._rows[i] for i in indices]
        if self.packed:
            rows = [{**row, PACKED: True} for row in rows]
        if self.number_weight is None:
            return rows
        return [{**row, "number_weights": [self.number_weight] * len(row["labels"])} for row in rows]

    def keep_states(self, frozen: UpperLayers) -> None:
        """Add what the frozen layers return to each row, unless it changes or takes too much memory."""
        if not frozen.can_be_kept or self._rows is None:
            return
        if not frozen.keep_states(self._rows, self._built.collate):
            log.info("the output of the frozen layers takes more than 4 GB: it is computed at each step")


class LabTrainer(Trainer):
    """A Trainer of a model that `ntl.models.build` made.

    Args:
        args: transformers' arguments.
        built: The model.
        score: Function that answers examples with the model, and scores the answers.
        train_dataset: The training examples.
        eval_dataset: The examples of evaluations during training.

    Attributes:
        started: When training began, less the time of earlier processes, in seconds of `time.perf_counter`.
        result: Metrics and predictions of the last evaluation.
        learned: Hashes of the rows that it is trained on, which are saved with the model, see
            `ntl.identity.learned_rows`.
        of_numbers: The handle of a trainer whose number term is the paper's mean over numbers; None if it is
            divided by the labels. The loss divides by labels, so each number has the weight labels/numbers,
            of an update or of an evaluation.
        evaluated_by: The handle of a number-aware trainer with the loss of its evaluations; None if they have
            the loss that is minimized.
    """

    model: PreTrainedModel

    def __init__(
        self,
        args: TrainingArguments,
        built: AnsweringModel,
        score: Callable[[Sequence[Example]], Result],
        train_dataset: EncodedRows | None = None,
        eval_dataset: EncodedRows | None = None,
    ):
        self.built, self.score = built, score
        self._number_ids = torch.tensor(built.number_ids)
        # The cross-entropy of models that write is also reported for numbers and for text.
        of_tokens: dict[str, Any] = {"preprocess_logits_for_metrics": self._sums, "compute_metrics": _means}
        super().__init__(
            model=built.model,
            args=args,
            data_collator=built.collate,
            processing_class=built.tokenizer,  # saved, so that each checkpoint can answer questions
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            compute_loss_func=getattr(built, "loss", None),
            **(of_tokens if built.number_ids else {}),
        )
        args.prediction_loss_only = not built.number_ids
        if train_dataset is not None and train_dataset.noise is not None:
            self.add_callback(NewLabels(train_dataset.noise))
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        if not args.disable_tqdm:
            self.add_callback(Bar())
        self.started = time.perf_counter()
        self.result = Result({}, [])
        self.learned = np.empty(0, np.uint64)
        self.of_numbers: NumberAware | None = None
        self.evaluated_by: tuple[NumberAware, NTLCrossEntropyLoss] | None = None

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Weigh the numbers of an update for the paper's mean."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        handle = self.of_numbers
        if handle is not None and handle.loss.criterion is not None and batches:
            weight = self._number_weight(handle, batches)
            for batch in batches:
                record = handle.record_of(batch)
                weights = torch.full_like(record.labels, weight, dtype=torch.float64)
                batch[PREPARED] = record._replace(number_weights=weights).pack()
        return batches, items

    def get_eval_dataloader(self, eval_dataset=None):
        """Ask all questions, also with `dataloader_drop_last`, and weigh numbers for the paper's mean."""
        rows: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        handle = self.of_numbers
        if handle is not None and handle.loss.criterion is not None and rows.number_weight is None:
            size = self.args.per_device_eval_batch_size
            parts = [range(start, min(start + size, len(rows))) for start in range(0, len(rows), size)]
            batches = [self.built.collate(rows.__getitems__([*part])) for part in parts]
            rows.number_weight = self._number_weight(handle, batches)
        before, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.args.dataloader_drop_last = before

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Evaluate by the loss and the answers.

        A metric that is undefined, as an error is where no answer holds a number, counts as its worst value
        for the choice of the best checkpoint.
        """
        if self.evaluated_by is None:
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        else:
            handle, evaluated = self.evaluated_by
            before, handle.loss = handle.loss, evaluated
            try:
                metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            finally:
                handle.loss = before
        best = (self.args.metric_for_best_model or "loss").removeprefix("eval_")
        if best in self.result.metrics:
            metrics.setdefault(f"eval_{best}", -math.inf if self.args.greater_is_better else math.inf)
        return metrics

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        """Add the metrics of answers to those of the loss."""
        output = super().evaluation_loop(
            dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )
        self.result = self.score(dataloader.dataset.examples)
        known = {name: value for name, value in self.result.metrics.items() if value is not None}
        assert output.metrics is not None  # at least the loss
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in known.items()})
        return output

    def log(self, logs, start_time=None):
        """Print one line with what matters most, and keep the seconds of training so far."""
        if self.is_in_train or "train_runtime" in logs:  # not those of the answers after it
            logs = {**logs, "seconds": time.perf_counter() - self.started}
        super().log(logs, start_time)
        if not self.is_world_process_zero() or "train_runtime" in logs:
            return
        if not math.isfinite(logs.get("eval_loss", 0.0)):
            raise UserError(
                f"training has diverged: the loss is {logs['eval_loss']} at step {self.state.global_step}. "
                "Lower training_args.learning_rate."
            )
        if "eval_loss" in logs:
            found = {key[5:]: value for key, value in logs.items() if key.startswith("eval_")}
            text = f"validation: {describe_metrics(found, 'loss')}"
        else:
            text = ", ".join(f"{key} {logs[key]:.4g}" for key in ("loss", "learning_rate") if key in logs)
        if text:
            log.info(f"step {self.state.global_step}: {text}")

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict if self.built.lora is None else self.built.lora.weights())
        if self.args.should_save:  # with several processes, one writes the folder
            np.save(Path(output_dir or str(self.args.output_dir), LEARNED_ROWS), self.learned)

    def _number_weight(self, handle: NumberAware, batches: Iterable[Any]) -> float:
        """Return the weight of numbers whose mean over batches is the paper's: labels / numbers."""
        counts = [count_numbers(handle.loss, handle.record_of(batch)) for batch in batches]
        labels, numbers = self._total(counts).double()
        return float(labels / numbers.clamp(min=1))

    def _total(self, counts: Sequence[Tensor]) -> Tensor:
        """Add the counts of batches, of all processes unless each divides by its own."""
        total = torch.stack([*counts]).sum(0).to(self.args.device)
        if self.args.average_tokens_across_devices:
            total = self.accelerator.reduce(total, reduction="sum")
        return total

    def _sums(self, outputs: Any, labels: Tensor) -> Tensor:
        """Sum the cross-entropy of each row, and count its labels: of numbers, then of text, `[rows, 4]`."""
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        if not self.model.config.is_encoder_decoder:
            logits, labels = logits[:, -labels.shape[1] : -1], labels[:, 1:]
        losses = F.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORE, reduction="none"
        ).view_as(labels)
        is_number = torch.isin(labels, self._number_ids.to(labels.device))
        is_text = (labels != IGNORE) & ~is_number
        columns = [(x * part).sum(-1) for part in (is_number, is_text) for x in (losses, part.float())]
        return torch.stack(columns, -1).double()


class XvalTrainer(LabTrainer):
    """The trainer of xVal, whose loss is computed by its model."""

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Count the number tokens of an update, by which its model divides."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            counts = [torch.isin(batch["labels"].cpu(), self._number_ids).sum() for batch in batches]
            numbers = self._total(counts)
            for batch in batches:
                batch["numbers_in_batch"] = numbers
        return batches, items

    def _sums(self, outputs: Any, labels: Tensor) -> Tensor:
        """Add a fifth column with the sum of the squared errors of a row's numbers."""
        return torch.cat([super()._sums(outputs, labels), outputs[1].sum(-1, keepdim=True).double()], -1)


def _means(prediction: EvalPrediction) -> dict[str, float]:
    """Compute the plain cross-entropy of all labels, of number tokens and of the others; xVal's loss, too.

    The Trainer would report the mean of xVal's losses of batches, which depends on the batch size.
    """
    sums: Any = prediction.predictions  # what `_sums` returned, of all rows
    numbers, count, text, others, *errors = sums.sum(0).tolist()
    found = {
        "ce": (numbers + text, count + others),
        "ce_numbers": (numbers, count),
        "ce_text": (text, others),
    }
    means = {name: total / items for name, (total, items) in found.items() if items}
    if errors:
        means["loss"] = (means["ce"] + errors[0] / max(count, 1)) / 2
    if "ce" in means and means["ce"] < 700:
        means["perplexity"] = math.exp(means["ce"])
    return {name: value for name, value in means.items() if math.isfinite(value)}


class NewLabels(TrainerCallback):
    """Tells the noise in labels which epoch begins.

    Args:
        noise: The noise of the training examples.
    """

    def __init__(self, noise: LabelNoise):
        self.noise = noise

    def on_epoch_begin(self, args, state, control, **kwargs):
        """Draw the labels of this epoch."""
        self.noise.epoch, self.noise.epochs = int(state.epoch), state.num_train_epochs


class Bar(ProgressCallback):
    """transformers' bar, which shows the loss. The trainer prints the logs above it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Show the loss beside the bar."""
        if self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix_str(f"loss {logs['loss']:.4g}")


def trainer_arguments(config: Config, folder: Path) -> Any:
    """Make transformers' arguments of a run. Under `torchrun`, this initializes the process group."""
    settings, readings = config.training_args, config.evaluation.quantile_readings
    given = {key: value for key, value in vars(settings).items() if key not in NOT_OF_TRANSFORMERS}
    known = [*Seq2SeqTrainingArguments.__dataclass_fields__]
    if unknown := [key for key in given if key not in known]:
        raise unknown_key("training_args.", unknown[0], known)
    hints = get_type_hints(Seq2SeqTrainingArguments)
    for key, value in given.items():  # whose types transformers does not check: any text would be true
        kinds = {hints[key], *get_args(hints[key])}
        expected = [name for kind, name in EXPECTED.items() if kind in kinds]
        if expected and isinstance(value, (str, float)) and type(value) not in kinds:
            raise UserError(f"training_args.{key}={value!r}; expected {expected[0]}.")
    best = given["metric_for_best_model"]
    if best not in (None, "loss"):  # whose direction transformers knows
        metric = find_metric(best)
        of_median = metric.name in OF_DISTRIBUTION and not readings
        reading = "median" if of_median else split_metric(metric.name)[0]
        is_read = reading in readings and config.model_args.number_encoding != HEAD
        if reading in OF_READING and not is_read and not settings.do_only_eval:
            raise UserError(
                f"training_args.metric_for_best_model={best} needs evaluation.read=[{reading}] of a language "
                "model. Pass that."
            )
        if given["greater_is_better"] is None:
            given["greater_is_better"] = metric.higher_is_better
        if given["greater_is_better"] is None:
            raise UserError(
                f"training_args.metric_for_best_model={best}: whether larger values are better is not known. "
                "Pass training_args.greater_is_better=true or false."
            )
    if given["lr_scheduler_type"] == "reduce_lr_on_plateau":
        mode = "max" if given["greater_is_better"] else "min"
        published = {"factor": 0.5, "patience": 5}
        given["lr_scheduler_kwargs"] = {"mode": mode, **(given["lr_scheduler_kwargs"] or published)}
    given |= {
        "output_dir": str(folder),
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "report_to": [] if given["report_to"] in (None, "none") else given["report_to"],
        "disable_tqdm": not sys.stderr.isatty() if given["disable_tqdm"] is None else given["disable_tqdm"],
        "label_smoothing_factor": 0.0,  # the lab's loss smooths
    }
    given.setdefault("dataloader_pin_memory", torch.cuda.is_available() and not given.get("use_cpu"))
    try:
        return Seq2SeqTrainingArguments(**given)
    except Exception as error:  # transformers raises many types, whose messages have several lines
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"training_args cannot be used: {reason}") from None
