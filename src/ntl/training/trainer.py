"""transformers' trainer for approaches, with losses normalised over the whole update."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.trainer import TRAINER_STATE_NAME

from ntl.approaches import Approach
from ntl.approaches.answer_format import FORMAT_KEYS
from ntl.errors import UserError
from ntl.training.callbacks import Bar, LogPrinter, ProgressReporter, RunRecorder
from ntl.training.run_folder import CHECKPOINT, Metrics, RunFolder


class ApproachTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for an approach.

    transformers normalises by the number of labels, which does not fit the number terms. Here the approach
    counts what it normalises by. The counts are summed over all micro-batches and ranks of an update, and
    each micro-batch computes its share of the loss.

    Args:
        args: Arguments of the trainer.
        approach: Approach to train. Its `collate` makes the batches.
        measure: Function that evaluates the (possibly wrapped) model. Its metrics are logged with the prefix
            `eval_`.
        folder: Folder of the run, whose record and learning curve are kept up to date.
        on_progress: Called with the share of the updates that are done. None shows progress to the user.
        **datasets: `train_dataset` and `eval_dataset`.
    """

    # A share is already divided by the counts of the whole update; the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        args: Seq2SeqTrainingArguments,
        approach: Approach,
        measure: Callable[[nn.Module], Metrics],
        folder: RunFolder,
        on_progress: Callable[[float], None] | None,
        **datasets: Any,
    ):
        super().__init__(
            args=args,
            model=approach.model,
            data_collator=approach.collate,
            processing_class=approach.tokenizer,  # saved with every checkpoint, which so can answer questions
            callbacks=[RunRecorder(folder)],
            **datasets,
        )
        self.approach = approach
        self.measure = measure
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        shown = LogPrinter() if args.disable_tqdm else Bar()
        self.add_callback(shown if on_progress is None else ProgressReporter(on_progress))
        self._terms: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        self._updates = 0  # since the terms were last logged

    def create_accelerator_and_postprocess(self):
        """Shard over CPU processes too, where accelerate would silently replicate the model."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp_plugin_args is not None and state.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            # Set it in both states, as accelerate does when it copies one to the other.
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def train_from(self, checkpoint: Path | None) -> None:
        """Train to the last step, and load the best model if the arguments ask for it.

        Args:
            checkpoint: Checkpoint to continue from. None trains from the start.

        Raises:
            UserError: The state of the optimizer cannot be loaded, or a checkpoint cannot be written.
        """
        if self.is_fsdp_enabled and self.accelerator.is_fsdp2:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        state = {} if checkpoint is None else _read_state(checkpoint)
        # A run that counts epochs takes the number of steps from the checkpoint.
        last = self.args.max_steps if self.args.max_steps > 0 else state.get("max_steps")
        if checkpoint is None or state["global_step"] < last:
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            return
        # The run was killed after its last step; transformers would train one step more.
        best = state["best_global_step"] if self.args.load_best_model_at_end else None
        self._load_from_checkpoint(
            str(checkpoint if best is None else checkpoint.with_name(f"{CHECKPOINT}{best}"))
        )

    def _load_optimizer_and_scheduler(self, checkpoint):
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (OSError, LookupError, ValueError) as error:
            # Its files are whole (see `check_checkpoint`), but another optimizer or launcher wrote them.
            raise _unusable(checkpoint, f"the optimizer's state does not fit ({_reason(error)})") from error

    def _save_checkpoint(self, model, trial):
        with _explain_write_errors(self.args.output_dir):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the full weights, which all processes gather if the model is sharded.

        Raises:
            UserError: The weights cannot be written.
        """
        folder = output_dir or self.args.output_dir
        with _explain_write_errors(folder):
            if self.is_fsdp_enabled and self.accelerator.is_fsdp2:
                self._save(folder, state_dict=_full_weights(self.model))
            else:
                super().save_model(output_dir, _internal_call)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Collect the micro-batches of one update, and count what their losses are divided by."""
        batches = list(islice(epoch_iterator, num_batches))
        if batches:
            self._updates += 1
            counts = torch.stack([self.approach.count(batch) for batch in batches]).sum(0)
            # Keep the counts as tensors, so that the host never synchronises with an accelerator.
            self.counts = self.accelerator.reduce(counts.to(device), reduction="sum")
        return batches, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Compute the micro-batch's share of the update's loss."""
        share = self.approach.loss(model, inputs, self.counts)
        for name, term in share.terms.items():
            self._terms[name] = self._terms[name].to(term.device) + term.double()
        # Data parallelism averages gradients over the ranks, but shares must be summed.
        return share.loss * self.accelerator.num_processes

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Evaluate the model, log the metrics, and notify the callbacks.

        Raises:
            UserError: The metric that selects the best model or drives the learning-rate schedule is unknown,
                or is not finite.
        """
        measured = self.measure(self.model_wrapped)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self.log(metrics)
        chosen = f"{metric_key_prefix}_{(self.args.metric_for_best_model or 'loss').removeprefix('eval_')}"
        if chosen not in metrics:
            raise UserError(
                f"training_args.metric_for_best_model={self.args.metric_for_best_model} is unknown; "
                f"expected one of: {', '.join(measured)}. Correct it."
            )
        if metrics[chosen] is None:
            raise UserError(
                f"{chosen} is not finite at step {self.state.global_step}: training has diverged, or "
                "metric_for_best_model is undefined for these answers. Lower training_args.learning_rate, or "
                "choose another metric; the last checkpoint is kept."
            )
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, start_time=None):
        """Add the terms of the loss to the logs."""
        if "loss" in logs and self._terms:
            for name in sorted(self._terms):
                total = self.accelerator.reduce(self._terms[name].to(self.args.device), reduction="sum")
                logs[name] = total.item() / self._updates
            self._terms.clear()
            self._updates = 0
        super().log(logs, start_time)


def shard(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Shard each layer of a model, and all remaining parameters as one group.

    accelerate would put the input and output embeddings into a group of their own. This fails for models such
    as T5, whose encoder and decoder share that table, because a parameter can belong to only one group.

    Args:
        model: Model with unsharded parameters.
        plugin: Sharding options. Its `auto_wrap_policy` is removed, so that accelerate does not shard again.
    """
    options = {
        "reshard_after_forward": plugin.reshard_after_forward,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    for module in reversed(list(model.modules())):
        if type(module).__name__ in (model._no_split_modules or ()):
            fully_shard(module, **options)
    fully_shard(model, **options)
    plugin.auto_wrap_policy = None


def _full_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Gather the weights of a sharded model; tied ones once.

    accelerate leaves tied weights sharded, and the writing process would wait for the others forever.
    """
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied -= {name for name, _ in model.named_parameters()}
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
        for name, tensor in weights.items()
    }


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Return the latest complete checkpoint of a run, or None. The folder need not exist."""
    complete: dict[int, Path] = {}
    for path in folder.glob(f"{CHECKPOINT}*"):
        with suppress(UserError):
            complete[_read_state(path)["global_step"]] = path  # transformers writes this file last
    return complete[max(complete)] if complete else None


def _read_state(checkpoint: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        state["global_step"] + 0  # raises unless it is a number
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unusable(checkpoint, f"{TRAINER_STATE_NAME} cannot be read ({_reason(error)})") from None
    return state


def check_checkpoint(checkpoint: Path, model: PreTrainedModel) -> None:
    """Check, before training continues from a checkpoint, that it is complete and belongs to the model.

    transformers silently starts with a new optimizer, schedule or random state if their files are missing.

    Args:
        checkpoint: Folder of the checkpoint.
        model: Model to train.

    Raises:
        UserError: A file is missing or cannot be read, or the checkpoint belongs to another model.
    """
    _read_state(checkpoint)
    optimizer = () if any(checkpoint.glob("global_step*")) else ("optimizer*",)  # DeepSpeed has its own files
    for pattern in (*optimizer, "scheduler.pt", "rng_state*.pth", "model*.safetensors"):
        if not any(checkpoint.glob(pattern)):
            raise _unusable(checkpoint, f"it lacks {pattern}")
    for file in checkpoint.iterdir():
        # `torch.save` writes zip files, whose directory stands at the end.
        if file.suffix in (".pt", ".pth", ".bin") and not is_zipfile(file):
            raise _unusable(checkpoint, f"{file.name} cannot be read")
    _check_model(checkpoint, model)


def _check_model(checkpoint: Path, model: PreTrainedModel) -> None:
    """Check that a checkpoint fits the model, by its configuration and the shapes of its weights."""
    try:
        trained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("ntl") or {}
        found = {}
        for file in checkpoint.glob("model*.safetensors"):
            with safe_open(file, "pt") as weights:
                found |= {key: list(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise _unusable(checkpoint, f"the model cannot be read ({_reason(error)})") from None
    trained = {"number_format": "plain", **trained}  # earlier versions did not say so
    wrong = f"training_args.resume_from_checkpoint={checkpoint} "
    advice = "expected a checkpoint of the same model. Choose the model that the checkpoint was trained with."
    compared = {"encoding", "head", "log_scale", "number_format", *FORMAT_KEYS}
    for key in sorted(compared & {*trained, *model.config.ntl}):
        if trained.get(key) != model.config.ntl.get(key):
            given = model.config.ntl.get(key)
            raise UserError(f"{wrong}was trained with {key}={trained.get(key)}, not {given}; {advice}")
    shapes = {key: list(weight.shape) for key, weight in model.state_dict().items()}
    for key in sorted(found):
        if shapes.get(key) != found[key]:
            raise UserError(f"{wrong}has {key} of shape {found[key]}, not {shapes.get(key)}; {advice}")


def _unusable(checkpoint: Path | str, reason: str) -> UserError:
    return UserError(
        f"{checkpoint} is not a complete checkpoint: {reason}; expected all files that training writes. "
        "Nothing was changed. Continue from another one with training_args.resume_from_checkpoint=<folder>, "
        "or train from the start with training_args.overwrite_output_dir=true instead."
    )


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


@contextmanager
def _explain_write_errors(folder: Path | str) -> Iterator[None]:
    """Convert the many kinds of errors that libraries raise for a full disk into a user-fixable one."""
    try:
        yield
    except (torch.OutOfMemoryError, dist.DistError):
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"{folder} cannot be written ({_reason(error)}); expected a disk with room for "
            "the model and its optimizer. Free some space, and continue from the last complete checkpoint "
            "with training_args.resume_from_checkpoint=true."
        ) from error
