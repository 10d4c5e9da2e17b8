"""List the keys that configuration files may omit, and reject keys that have no effect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ntl.config.names import format_setting
from ntl.config.paper_keys import LOSS_OF_MODEL
from ntl.config.settings import LossSettings
from ntl.errors import UserError

# Arguments of Seq2SeqTrainingArguments that the lab ignores.
UNUSED_ARGUMENTS = (
    "predict_with_generate", "remove_unused_columns", "dataloader_pin_memory", "prediction_loss_only",
    "include_for_metrics", "batch_eval_metrics", "eval_accumulation_steps", "eval_do_concat_batches",
    "eval_use_gather_object",
)  # fmt: skip
# Maps others that it ignores to the override that replaces them.
REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "loss=ce loss.label_smoothing=0.1",
    "generation_max_length": "evaluation.max_new_tokens=64",
    "generation_num_beams": "evaluation.beams=4",
    "generation_config": "evaluation.beams=4",
    "eval_strategy": "training_args.eval_steps=1000",
    "save_strategy": "training_args.save_steps=1000",
    "do_train": "training_args=train",
    "do_eval": "training_args=eval",
    "do_predict": "training_args=eval",
    "bf16_full_eval": "training_args.bf16=true",
    "fp16_full_eval": "training_args.bf16=true",
    "sortish_sampler": "training_args.train_sampling_strategy=group_by_length",
}
WITHOUT_WARMUP = ("reduce_lr_on_plateau", "constant", "greedy")


class Condition(NamedTuple):
    """A condition under which some keys of a section have an effect.

    `holds` is true of the value of the key `decided_by`. `remedy` completes "Pass ..." in the error.
    """

    section: str
    keys: Sequence[str]
    decided_by: str
    holds: Callable[[Any], bool]
    remedy: str


NUMBER_TOKEN_LOSS = (
    "number_token_loss_weight", "number_token_loss_with_wasserstein", "number_token_loss_function",
)  # fmt: skip
# Numbers of examples or digits of datasets.
SIZES = (
    "train_per_difficulty", "validation_per_difficulty", "train_per_module", "validation_per_module",
    "test_per_module", "digits", "train_size", "validation_size", "test_size",
)  # fmt: skip
GENERATOR = (*SIZES, "extrapolate_digits", "data_seed")
# The first condition that does not hold gives the reason.
CONDITIONS = (
    Condition("model_args", (*NUMBER_TOKEN_LOSS, "label_smoother_sigma"), "loss.criterion",
              lambda v: v == LOSS_OF_MODEL, "keys of the group loss, such as loss.weight=0.3"),
    Condition("model_args", NUMBER_TOKEN_LOSS, "model_args.number_token_loss", bool,
              "for example model_args=vanilla_t5_ntl or loss=ntl_was"),
    Condition("model_args", ("number_token_loss_function",), "model_args.number_token_loss_with_wasserstein",
              lambda v: not v, "model_args.number_token_loss_with_wasserstein=false"),
    Condition("model_args", ("label_smoother_sigma",), "model_args.gaussian_label_smoother", bool,
              "model_args.gaussian_label_smoother=true"),
    Condition("loss", ("weight", "options", "reweigh", "mode"), "loss.criterion",
              lambda v: v is not None, "for example loss=ntl_was"),
    Condition("model_args", ("tokenizer_type",), "model_args.number_encoding",
              lambda v: v not in ("rt", "xval"), "model_args.number_encoding=none"),
    Condition("model_args", ("log_scale_embeddings",), "model_args.number_encoding",
              lambda v: v != "none", "model_args=rt or model_args=xval"),
    Condition("model_args", ("number_width", "number_places"), "model_args.number_format",
              lambda v: v != "plain", "model_args.number_format=padded"),
    Condition("model_args", ("config_name",), "model_args.model_name_or_path",
              lambda v: v is None, "model_args.model_name_or_path=null to train from scratch"),
    Condition("dataset_args", GENERATOR, "dataset_args.data_dir",
              lambda v: v is None, "dataset_args.data_dir=null to generate questions"),
    Condition("dataset_args", ("data_seed",), "dataset_args.split_by",
              lambda v: v is None, "dataset_args.split_by=null to split at random"),
    Condition("evaluation", ("interval",), "evaluation.read",
              lambda v: v != ["greedy"], "evaluation.read=[greedy,median]"),
    Condition("training_args", ("num_train_epochs",), "training_args.max_steps",
              lambda v: v == -1, "training_args.max_steps=-1 to count epochs"),
    Condition("training_args", ("warmup_steps",), "training_args.lr_scheduler_type",
              lambda v: v not in WITHOUT_WARMUP, "for example training_args.lr_scheduler_type=cosine"),
)  # fmt: skip


def keys_without_file() -> dict[str, Collection[str]]:
    """Map sections to the keys that they may have although the chosen files omit them."""
    from transformers import Seq2SeqTrainingArguments

    return {
        "training_args": [field.name for field in fields(Seq2SeqTrainingArguments) if field.init],
        "loss": [field.name for field in fields(LossSettings)],
    }


def check_effect(given: Iterable[str], configs: Iterable[Mapping[str, Any]]) -> None:
    """Check that every given key has an effect.

    Args:
        given: Keys of the command line, such as `model_args.config_name`.
        configs: Configurations composed with these keys; a sweep has several. A key is rejected if it has no
            effect in any of them.

    Raises:
        UserError: A key has no effect. The message says why and what to do.
    """
    found = [_ineffective_keys(config) for config in configs]
    for key in given:
        # The effect of `loss.options.sigma` is that of `loss.options`.
        reasons = [keys.get(".".join(key.split(".")[:2])) for keys in found]
        if reasons and all(reasons):
            raise UserError(f"{key} has no effect: {reasons[0]}, or omit {key}.")


def _ineffective_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Map each key that has no effect in this configuration to the reason and the remedy."""
    reasons: dict[str, str] = {}
    for section, keys, decided_by, holds, remedy in CONDITIONS:
        decisive, _, name = decided_by.partition(".")
        value = config[decisive].get(name)
        if not holds(value):
            for key in keys:
                reasons.setdefault(
                    f"{section}.{key}", f"{decided_by} is {format_setting(value)}. Pass {remedy}"
                )
    for key in (*UNUSED_ARGUMENTS, *REPLACED_ARGUMENTS):
        instead = REPLACED_ARGUMENTS.get(key, "a key that --help lists")
        reasons[f"training_args.{key}"] = f"the lab does not use it. Pass {instead}"
    return reasons
