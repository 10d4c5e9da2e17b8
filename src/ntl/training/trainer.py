"""transformers' trainer for approaches, with losses normalised over the whole update."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, Seq2SeqTrainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ntl.approaches import Approach
from ntl.approaches.answer_format import FORMAT_KEYS
from ntl.errors import UserError

Measure = Callable[[nn.Module], Mapping[str, float | None]]


class ApproachTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for an approach.

    transformers normalises by the number of labels, which does not fit the number terms. Here the approach
    counts what it normalises by. The counts are summed over all micro-batches and ranks of an update, and
    each micro-batch computes its share of the loss.

    Args:
        *args: Arguments of `Seq2SeqTrainer`.
        approach: Approach to train. Its `collate` makes the batches.
        measure: Function that evaluates the (possibly wrapped) model. Its metrics are logged with the prefix
            `eval_`.
        **kwargs: Keyword arguments of `Seq2SeqTrainer`.
    """

    # A share is already divided by the counts of the whole update; the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, approach: Approach, measure: Measure | None = None, **kwargs: Any):
        # Saves the tokenizer with every checkpoint, so that a checkpoint alone can answer questions.
        super().__init__(
            *args,
            model=approach.model,
            data_collator=approach.collate,
            processing_class=approach.tokenizer,
            **kwargs,
        )
        self.approach = approach
        self.measure = measure
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

    def show_progress(self, callbacks: Sequence[TrainerCallback]) -> None:
        """Show progress with these callbacks instead of transformers' own, which print every metric."""
        for theirs in (ProgressCallback, PrinterCallback):
            self.remove_callback(theirs)
        for callback in callbacks:
            self.add_callback(callback)

    def train_from(self, checkpoint: Path | None) -> None:
        """Train to the last step, and load the best model if the arguments ask for it.

        Args:
            checkpoint: Checkpoint to continue from. None trains from the start.

        Raises:
            UserError: The checkpoint is incomplete or cannot be read, or a checkpoint cannot be written.
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
            str(checkpoint if best is None else checkpoint.with_name(f"{PREFIX_CHECKPOINT_DIR}-{best}"))
        )

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        with _explain_read_errors(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None and not self.is_deepspeed_enabled:  # DeepSpeed writes other files
            _check_files_exist(checkpoint, "*optimizer*", "scheduler.pt")
        with _explain_read_errors(checkpoint, "the state of the optimizer or of the schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None:
            _check_files_exist(checkpoint, "rng_state*.pth")
        with _explain_read_errors(checkpoint, "the random state"):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self):
        with _explain_read_errors(self.state.best_model_checkpoint, "the weights of the best model"):
            super()._load_best_model()

    def _save_checkpoint(self, model, trial):
        with _explain_write_errors(self.args.output_dir):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the full weights, which all processes gather if the model is sharded.

        Raises:
            UserError: The weights cannot be written.
        """
        with _explain_write_errors(output_dir or self.args.output_dir):
            self._save_full_weights(output_dir, _internal_call)

    def _save_full_weights(self, output_dir, _internal_call):
        if not (self.is_fsdp_enabled and self.accelerator.is_fsdp2):
            super().save_model(output_dir, _internal_call)
            return
        # accelerate leaves tied weights sharded, and the writing process would wait for the others forever.
        tied = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        tied -= {name for name, _ in self.model.named_parameters()}
        whole = {}
        for name, tensor in self.model.state_dict().items():
            if name not in tied:
                whole[name] = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
        self._save(output_dir or self.args.output_dir, state_dict=whole)

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
        model = self.model_wrapped if self.is_in_train else self._wrap_for_evaluation()
        was_training = model.training
        model.eval()
        measured = self.measure(model)
        model.train(was_training)
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

    def _wrap_for_evaluation(self) -> nn.Module:
        return self.model_wrapped if self.model_wrapped is not self.model else self.model.to(self.args.device)


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


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Find the checkpoint to resume from.

    Args:
        folder: Folder of the run; it need not exist.

    Returns:
        The latest complete checkpoint, or None.
    """
    whole = {path: step for path, step in _steps_of_checkpoints(folder).items() if step is not None}
    return max(whole, key=whole.__getitem__, default=None)


def delete_incomplete_checkpoints(folder: Path) -> None:
    """Delete checkpoints whose writing was interrupted."""
    if is_main_process():
        for path, step in _steps_of_checkpoints(folder).items():
            if step is None:
                shutil.rmtree(path, ignore_errors=True)


def _steps_of_checkpoints(folder: Path) -> dict[Path, int | None]:
    """Map each checkpoint of a run to its number of steps, or to None if it is incomplete."""
    found: dict[Path, int | None] = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        try:
            found[path] = _read_state(path)["global_step"]  # transformers writes this file last
        except UserError:
            found[path] = None
    return found


def _read_state(checkpoint: Path) -> dict[str, Any]:
    with _explain_read_errors(checkpoint, TRAINER_STATE_NAME):
        state: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        state["global_step"] + 0  # raises unless it is a number
        return state


def _check_files_exist(checkpoint: Path | str, *patterns: str) -> None:
    """Check that a checkpoint has all of its files: transformers silently reinitialises missing ones."""
    for pattern in patterns:
        if not any(Path(checkpoint).glob(pattern)):
            raise _unusable_checkpoint(checkpoint, f"it lacks {pattern.strip('*')}")


@contextmanager
def _explain_read_errors(checkpoint: Path | str | None, part: str) -> Iterator[None]:
    """Convert the many kinds of errors that libraries raise here into one that names the unreadable part."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise _unusable_checkpoint(
            checkpoint, f"{part} cannot be read ({type(error).__name__}: {reason})"
        ) from error


def _unusable_checkpoint(checkpoint: Path | str | None, reason: str) -> UserError:
    return UserError(
        f"{checkpoint} is not a complete checkpoint: {reason}; expected all files that training writes. "
        "Nothing was changed. Continue from another one with training_args.resume_from_checkpoint=<folder>, "
        "or train from the start with training_args.overwrite_output_dir=true instead."
    )


@contextmanager
def _explain_write_errors(folder: Path | str) -> Iterator[None]:
    """Convert the many kinds of errors that libraries raise for a full disk into a user-fixable one."""
    try:
        yield
    except (torch.OutOfMemoryError, dist.DistError):
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{folder} cannot be written ({type(error).__name__}: {reason}); expected a disk with room for "
            "the model and its optimizer. Free some space, and continue from the last complete checkpoint "
            "with training_args.resume_from_checkpoint=true."
        ) from error


def check_checkpoint(model: PreTrainedModel, checkpoint: Path) -> None:
    """Check that a checkpoint fits the model, by its configuration and the shapes of its weights.

    Args:
        model: Model to train.
        checkpoint: Folder of the checkpoint.

    Raises:
        UserError: The checkpoint cannot be read, or belongs to another model.
    """
    name = f"training_args.resume_from_checkpoint={checkpoint}"
    advice = "expected a checkpoint of the same model. Choose the model that the checkpoint was trained with."
    try:
        trained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("ntl") or {}
        trained = {"number_format": "plain", **trained}  # earlier versions did not say so
        found = {}
        for file in checkpoint.glob("model*.safetensors"):
            with safe_open(file, "pt") as weights:
                found |= {key: list(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{name} cannot be read ({error}); {advice}") from None
    compared = {"encoding", "head", "log_scale", "number_format", *FORMAT_KEYS}
    for key in sorted(compared & {*trained, *model.config.ntl}):
        if trained.get(key) != model.config.ntl.get(key):
            given = model.config.ntl.get(key)
            raise UserError(f"{name} was trained with {key}={trained.get(key)}, not {given}; {advice}")
    shapes = {key: list(weight.shape) for key, weight in model.state_dict().items()}
    if wrong := sorted(key for key in found if shapes.get(key) != found[key]):
        key = wrong[0]
        raise UserError(f"{name} has {key} of shape {found[key]}, not {shapes.get(key)}; {advice}")


def is_main_process() -> bool:
    """Return whether this process is the one that writes."""
    return not dist.is_initialized() or dist.get_rank() == 0
