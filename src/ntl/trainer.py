"""transformers' trainer, minimising what an approach minimises, with sums divided over the whole update."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
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
from transformers import PreTrainedModel, Seq2SeqTrainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ntl.approaches import Approach
from ntl.errors import UserError
from ntl.run_folder import RunFolder

Measure = Callable[[nn.Module], Mapping[str, float | None]]


class ApproachTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for an approach.

    transformers counts labels, which knows nothing of numbers, and divides by what the model claims to have
    done. Here the approach counts, the counts of all micro-batches and ranks of an update are added up, and
    each micro-batch computes its share.

    Args:
        *args: Of `Seq2SeqTrainer`.
        approach: What is trained; its `collate` makes the batches.
        measure: What an evaluation is: called with the (wrapped) model; its result is logged with `eval_` in
            front.
        **kwargs: Of `Seq2SeqTrainer`.
    """

    # A share is divided by the whole update already; the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(self, *args: Any, approach: Approach, measure: Measure | None = None, **kwargs: Any):
        # The tokenizer is saved with every checkpoint: one alone is enough to answer with.
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
        self._updates = 0  # since terms were logged

    def create_accelerator_and_postprocess(self):
        """Shard over processes without accelerators, too: accelerate would copy the model without a word."""
        super().create_accelerator_and_postprocess()
        state = self.accelerator.state
        if self.args.fsdp_plugin_args is not None and state.distributed_type == DistributedType.MULTI_CPU:
            state.fsdp_plugin = FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args)
            # Both states have it, and accelerate copies it from the one to the other, as here.
            state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
            self.is_fsdp_enabled = True

    def train_from(self, checkpoint: Path | None) -> None:
        """Train to the last step, and take the best model where one is asked for.

        Args:
            checkpoint: To continue from; None for the start.
        """
        if self.is_fsdp_enabled and self.accelerator.is_fsdp2:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        state = {} if checkpoint is None else _read_state(checkpoint)
        # Of the checkpoint where this run counts epochs.
        last = self.args.max_steps if self.args.max_steps > 0 else state.get("max_steps")
        if checkpoint is None or state["global_step"] < last:
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            return
        # The run was killed after its last step; transformers would train another one.
        best = state["best_global_step"] if self.args.load_best_model_at_end else None
        self._load_from_checkpoint(
            str(checkpoint if best is None else checkpoint.with_name(f"{PREFIX_CHECKPOINT_DIR}-{best}"))
        )

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        with _reading(resume_from_checkpoint, "the weights"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is not None and not self.is_deepspeed_enabled:  # which has files of its own
            _require_files(checkpoint, "*optimizer*", "scheduler.pt")
        with _reading(checkpoint, "the state of the optimizer or of the schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None:
            _require_files(checkpoint, "rng_state*.pth")
        with _reading(checkpoint, "the random state"):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self):
        with _reading(self.state.best_model_checkpoint, "the weights of the best model"):
            super()._load_best_model()

    def _save_checkpoint(self, model, trial):
        with _writing(self.args.output_dir):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir=None, _internal_call=False):
        """Save whole weights; of a sharded model every process gathers each of them, the tied ones once.

        Raises:
            UserError: They cannot be written.
        """
        with _writing(output_dir or self.args.output_dir):
            self._save_whole(output_dir, _internal_call)

    def _save_whole(self, output_dir, _internal_call):
        if not (self.is_fsdp_enabled and self.accelerator.is_fsdp2):
            super().save_model(output_dir, _internal_call)
            return
        # accelerate leaves tied names sharded: the process that writes would wait for the others for ever.
        tied = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        tied -= {name for name, _ in self.model.named_parameters()}
        whole = {}
        for name, tensor in self.model.state_dict().items():
            if name not in tied:
                whole[name] = (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
        self._save(output_dir or self.args.output_dir, state_dict=whole)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Collect the micro-batches of one update, and count what their sums are divided by."""
        batches = list(islice(epoch_iterator, num_batches))
        if batches:
            self._updates += 1
            counts = torch.stack([self.approach.count(batch) for batch in batches]).sum(0)
            # Tensors, wherever the batches are: no synchronisation with an accelerator.
            self.counts = self.accelerator.reduce(counts.to(device), reduction="sum")
        return batches, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Compute the micro-batch's share of the update's loss."""
        share = self.approach.loss(model, inputs, self.counts)
        for name, term in share.terms.items():
            self._terms[name] = self._terms[name].to(term.device) + term.double()
        # Data parallelism averages gradients over the ranks; shares add up.
        return share.loss * self.accelerator.num_processes

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        """Measure, log, and tell the callbacks.

        Raises:
            UserError: The metric that the schedule or the choice of the best model goes by is not measured,
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
                f"training_args.metric_for_best_model={self.args.metric_for_best_model} is not measured; "
                f"expected one of: {', '.join(measured)}. Correct it."
            )
        if metrics[chosen] is None:
            raise UserError(
                f"{chosen} is no finite number at step {self.state.global_step}: the training has diverged, "
                "or metric_for_best_model names what is not defined here. Lower "
                "training_args.learning_rate, or name another metric; the last checkpoint is kept."
            )
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, start_time=None):
        """Add the terms of the loss to what is logged."""
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
    """Shard a model by its layers, and what is outside of them as a whole; accelerate then leaves it alone.

    accelerate would make one group of input and output embeddings, but T5 and its kin have the same table in
    encoder and decoder, too, and a table can be in one group alone.

    Args:
        model: With its parameters whole.
        plugin: Its precision, and when parameters are given back; it is told that nothing is left to wrap.
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


class RunRecorder(TrainerCallback):
    """Keeps `run.json` and the learning curve of a run's folder up to date.

    Args:
        folder: Of the run.
        is_writer: Whether this process writes; one of them does.
    """

    def __init__(self, folder: RunFolder, is_writer: bool):
        self.folder = folder
        self.is_writer = is_writer
        self.seconds_before = folder.record().train_seconds if is_writer else 0.0
        self.started = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):
        """Start the clock."""
        self.started = time.monotonic()

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        """Add a point to the learning curve."""
        if self.is_writer and metrics:
            self.folder.add_to_curve({"step": state.global_step, **metrics})

    def on_save(self, args, state, control, **kwargs):
        """Write down how far the run is: a run that is resumed counts on from here."""
        self.write(state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        """Write down that all steps are done."""
        self.write(state.global_step)

    def write(self, steps: int) -> None:
        """Write the record."""
        if self.is_writer:
            seconds = round(self.seconds_before + time.monotonic() - self.started, 1)
            self.folder.write_record(replace(self.folder.record(), steps=steps, train_seconds=seconds))


def last_complete_checkpoint(folder: Path) -> Path | None:
    """Find the checkpoint to resume from.

    Args:
        folder: Of the run; it need not exist.

    Returns:
        The latest complete one, or None.
    """
    whole = {path: step for path, step in _steps_of_checkpoints(folder).items() if step is not None}
    return max(whole, key=whole.__getitem__, default=None)


def delete_incomplete_checkpoints(folder: Path) -> None:
    """Delete the checkpoints that were being written when the run was killed."""
    if is_main_process():
        for path, step in _steps_of_checkpoints(folder).items():
            if step is None:
                shutil.rmtree(path, ignore_errors=True)


def _steps_of_checkpoints(folder: Path) -> dict[Path, int | None]:
    """Every checkpoint of a run -> its steps; None where it is not whole."""
    found: dict[Path, int | None] = {}
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        try:
            found[path] = _read_state(path)["global_step"]  # transformers writes this file last
        except UserError:
            found[path] = None
    return found


def _read_state(checkpoint: Path) -> dict[str, Any]:
    with _reading(checkpoint, TRAINER_STATE_NAME):
        state: dict[str, Any] = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        state["global_step"] + 0  # a number
        return state


def _require_files(checkpoint: Path | str, *patterns: str) -> None:
    """Check that a checkpoint has all of its parts: transformers starts a missing one anew in silence."""
    for pattern in patterns:
        if not any(Path(checkpoint).glob(pattern)):
            raise _unusable(checkpoint, f"it lacks {pattern.strip('*')}")


@contextmanager
def _reading(checkpoint: Path | str | None, part: str) -> Iterator[None]:
    """Say which part of a checkpoint cannot be read; libraries raise many kinds of errors here."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise _unusable(checkpoint, f"{part} cannot be read ({type(error).__name__}: {reason})") from error


def _unusable(checkpoint: Path | str | None, reason: str) -> UserError:
    return UserError(
        f"{checkpoint} is not a complete checkpoint: {reason}; expected all files that training writes. It "
        "was left as it is. Continue from another one with training_args.resume_from_checkpoint=<folder>, or "
        "train from the start with training_args.overwrite_output_dir=true instead."
    )


@contextmanager
def _writing(folder: Path | str) -> Iterator[None]:
    """Say that something cannot be saved; the libraries that write raise many kinds for a full disk."""
    try:
        yield
    except (torch.OutOfMemoryError, dist.DistError):
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(
            f"{folder} cannot be written ({type(error).__name__}: {reason}); expected a disk with room for "
            "the model and its optimizer. Free some, and continue from the last complete checkpoint with "
            "training_args.resume_from_checkpoint=true."
        ) from error


def check_checkpoint(model: PreTrainedModel, checkpoint: Path) -> None:
    """Check that training can continue from a checkpoint, by its configuration and the shapes of its weights.

    Args:
        model: What is trained.
        checkpoint: The folder.

    Raises:
        UserError: It is that of another model.
    """
    name = f"training_args.resume_from_checkpoint={checkpoint}"
    advice = "expected a checkpoint of the model that is trained. Choose the model that it was trained as."
    try:
        trained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("ntl") or {}
        found = {}
        for file in checkpoint.glob("model*.safetensors"):
            with safe_open(file, "pt") as weights:
                found |= {key: list(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{name} cannot be read ({error}); {advice}") from None
    for key in sorted({"encoding", "head", "log_scale"} & {*trained, *model.config.ntl}):
        if trained.get(key) != model.config.ntl.get(key):
            given = model.config.ntl.get(key)
            raise UserError(f"{name} was trained with {key}={trained.get(key)}; given is {given}; {advice}")
    shapes = {key: list(weight.shape) for key, weight in model.state_dict().items()}
    if wrong := sorted(key for key in found if shapes.get(key) != found[key]):
        key = wrong[0]
        raise UserError(f"{name} has {key} of shape {found[key]}; the model's is {shapes.get(key)}; {advice}")


def is_main_process() -> bool:
    """Whether this process is the one that writes."""
    return not dist.is_initialized() or dist.get_rank() == 0
