"""transformers' trainer for approaches, with losses normalized over the whole update."""

import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import (
    PreTrainedModel,
    PrinterCallback,
    ProgressCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from ntl.approaches import Approach
from ntl.errors import UserError
from ntl.scores import describe_metrics
from ntl.training.run_folder import CHECKPOINT, STATE, RunFolder
from ntloss import HLGauss, NTLCrossEntropyLoss

RECORD_EVERY = 2.0  # seconds between two updates of run.json
log = logging.getLogger(__name__)


class ApproachTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` for an approach.

    transformers normalizes by the number of labels. Here the approach counts what it normalizes by, over all
    micro-batches and ranks of an update, and each micro-batch computes its share of the loss.

    Args:
        measure: Function that evaluates the (possibly wrapped) model; its result has `metrics`.
        folder: Folder of the run, whose record and learning curve are kept up to date.
        head_rate: Learning rate of the approach's head. None: that of all weights.
    """

    # A share is already divided by the counts of the whole update; the trainer must not divide again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        args: Seq2SeqTrainingArguments,
        approach: Approach,
        measure: Callable[[nn.Module], Any],
        folder: RunFolder,
        head_rate: float | None = None,
        **datasets: Any,
    ):
        super().__init__(
            args=args,
            model=approach.model,
            data_collator=approach.collate,
            processing_class=approach.tokenizer,  # saved, so that each checkpoint can answer questions
            **datasets,
        )
        self.approach, self.measure, self.folder, self.head_rate = approach, measure, folder, head_rate
        self.remove_callback(PrinterCallback if args.disable_tqdm else ProgressCallback)
        if not args.disable_tqdm:
            self.add_callback(Bar())
        if args.should_save:
            self.add_callback(RecordProgress(self.record_progress))
        criterion = approach.objective.criterion if hasattr(approach, "objective") else None
        self.annealed = criterion if isinstance(criterion, HLGauss) and criterion.schedule else None
        self.last_measured: tuple[int, Any] | None = None  # the step, and what was found
        if self.annealed is not None:
            self.add_callback(AnnealCallback(approach.objective))
        self._seconds_before = self._started = 0.0
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
        """Train from a checkpoint or the start to the last step; save the last model or, if asked, the best.

        Without steps, the model is saved as it is. What LoRA has learned is merged into the saved model.
        """
        if self.is_fsdp_enabled and self.accelerator.is_fsdp2:
            shard(self.model, self.accelerator.state.fsdp_plugin)
        state = {} if checkpoint is None else json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        # A run that counts epochs takes the number of steps from the checkpoint.
        last = self.args.max_steps if self.args.max_steps > 0 else state.get("max_steps")
        if self.args.max_steps and (checkpoint is None or state["global_step"] < last):
            self._started = time.monotonic()
            if self.args.should_save:
                self._seconds_before = self.folder.record().train_seconds
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            self.record_progress()
        elif checkpoint is not None:  # killed after its last step; transformers would train one step more
            best = state["best_global_step"] if self.args.load_best_model_at_end else None
            chosen = checkpoint if best is None else checkpoint.with_name(f"{CHECKPOINT}{best}")
            self._load_from_checkpoint(str(chosen))
        if self.approach.lora is not None:
            self.approach.lora.merge()
            self.approach.lora = None
        self.save_model()

    def create_optimizer(self, model=None):
        """Give the head its own learning rate."""
        optimizer = super().create_optimizer(model)
        if self.head_rate is not None:
            own = {id(weight) for weight in self.approach.head.parameters()}
            for group in [*optimizer.param_groups]:
                parts = [[w for w in group["params"] if (id(w) in own) == is_own] for is_own in (False, True)]
                group["params"] = parts[0]
                optimizer.add_param_group({**group, "params": parts[1], "lr": self.head_rate})
        return optimizer

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        self.record_progress()

    def record_progress(self):
        """Record the steps and the seconds, from which a resumed run continues to count."""
        if self.args.should_save:
            seconds = round(self._seconds_before + time.monotonic() - self._started, 1)
            steps = {"steps": self.state.global_step, "max_steps": self.state.max_steps}
            self.folder.update(**steps, train_seconds=seconds)

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict if self.approach.lora is None else self.approach.lora.weights())

    def save_model(self, output_dir=None, _internal_call=False):
        """Save the full weights, which all processes gather if the model is sharded."""
        if self.is_fsdp_enabled and self.accelerator.is_fsdp2:
            self._save(output_dir or self.args.output_dir, state_dict=_full_weights(self.model))
        else:
            super().save_model(output_dir, _internal_call)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Collect the micro-batches of one update, and count what their losses are divided by."""
        batches = list(islice(epoch_iterator, num_batches))
        if batches:
            self._updates += 1
            counts = torch.stack([self.approach.count(batch) for batch in batches]).sum(0)
            # Keep the counts as tensors, so that the host never synchronizes with an accelerator.
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
        """Evaluate the model, log the metrics, add them to the learning curve, and notify the callbacks."""
        result = self.measure(self.model_wrapped)
        self.last_measured, measured = (self.state.global_step, result), result.metrics
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self.log(metrics)
        if self.args.should_save:
            self.folder.add_to_curve({"step": self.state.global_step, **metrics})
        best = self.args.metric_for_best_model
        if best is not None and metrics.get(f"{metric_key_prefix}_{best.removeprefix('eval_')}") is None:
            raise UserError(
                f"training_args.metric_for_best_model={best} is unknown, or not finite at step "
                f"{self.state.global_step} because training has diverged; known are: {', '.join(measured)}. "
                "Correct it, or lower training_args.learning_rate."
            )
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, start_time=None):
        """Add the terms of the loss to the logs, and print one line with what matters most."""
        if "loss" in logs and self._terms:
            for name in sorted(self._terms):
                total = self.accelerator.reduce(self._terms[name].to(self.args.device), reduction="sum")
                logs[name] = total.item() / self._updates
            if self.annealed is not None:
                logs["sigma"] = self.annealed.sigma.item()
            self._terms.clear()
            self._updates = 0
        super().log(logs, start_time)
        if self.is_world_process_zero() and "train_runtime" not in logs:
            if measured := {key[5:]: value for key, value in logs.items() if key.startswith("eval_")}:
                text = f"validation: {describe_metrics(measured, 'loss')}"
            else:
                keys = ("loss", "sigma", "learning_rate")
                text = ", ".join(f"{key} {logs[key]:.4g}" for key in keys if key in logs)
            log.info(f"step {self.state.global_step}: {text}")


class Bar(ProgressCallback):
    """transformers' bar, which shows the loss. The trainer prints the logs above it."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Show the loss beside the bar."""
        if self.training_bar is not None and "loss" in (logs or {}):
            self.training_bar.set_postfix_str(f"loss {logs['loss']:.4g}")


class AnnealCallback(TrainerCallback):
    """Calls a loss's `anneal` before each optimizer step, with the share of the steps that are done."""

    def __init__(self, loss: NTLCrossEntropyLoss):
        self.loss = loss

    def on_step_begin(self, args, state, control, **kwargs):
        """Anneal before the micro-batches of a step; a resumed run continues at its step."""
        self.loss.anneal(state.global_step / state.max_steps)

    def on_train_end(self, args, state, control, **kwargs):
        """Anneal to the last value."""
        self.loss.anneal(1.0)


class RecordProgress(TrainerCallback):
    """Keeps the number of steps in `run.json` up to date, which a sweep reads."""

    def __init__(self, record: Callable[[], None]):
        self.record, self._next = record, 0.0

    def on_step_end(self, args, state, control, **kwargs):
        """Record the steps, every few seconds."""
        if time.monotonic() > self._next:
            self.record()
            self._next = time.monotonic() + RECORD_EVERY


def shard(model: PreTrainedModel, plugin: FullyShardedDataParallelPlugin) -> None:
    """Shard each layer of a model, and all remaining parameters as one group, and keep accelerate from it.

    That would put the embeddings into a group of their own, which fails for T5, whose stacks share them.
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
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
