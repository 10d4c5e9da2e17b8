"""Keys without effect, which one value cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ntl.config.schema import LOSS_OF_MODEL, format_setting
from ntl.errors import UserError

# Arguments of transformers that never have an effect, and what replaces them.
REPLACED = {
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
UNUSED = (
    "predict_with_generate", "remove_unused_columns", "dataloader_pin_memory", "prediction_loss_only",
    "include_for_metrics", "batch_eval_metrics", "eval_accumulation_steps", "eval_do_concat_batches",
    "eval_use_gather_object",
)  # fmt: skip
WITHOUT_WARMUP = ("reduce_lr_on_plateau", "constant", "greedy")
WITHOUT_FILES = ("noisy_regression", "tabular")


class Condition(NamedTuple):
    """A condition under which keys of a section, separated by spaces, have an effect.

    `holds` is true of the value of the key `decided_by`. `remedy` completes "Pass ..." in the error.
    """

    section: str
    keys: str
    decided_by: str
    holds: Callable[[Any], bool]
    remedy: str


NUMBER_TOKEN_LOSS = "number_token_loss_weight number_token_loss_with_wasserstein number_token_loss_function"
GENERATOR = (
    "train_per_difficulty validation_per_difficulty digits extrapolate_digits train_size validation_size "
    "test_size data_seed"
)
# The first condition that does not hold gives the reason.
CONDITIONS = (
    Condition("model_args", f"{NUMBER_TOKEN_LOSS} label_smoother_sigma", "loss.criterion",
              lambda v: v == LOSS_OF_MODEL, "keys of the group loss, such as loss.weight=0.3"),
    Condition("model_args", NUMBER_TOKEN_LOSS, "model_args.number_token_loss", bool,
              "for example model_args=vanilla_t5_ntl or loss=ntl_was"),
    Condition("model_args", "number_token_loss_function", "model_args.number_token_loss_with_wasserstein",
              lambda v: not v, "model_args.number_token_loss_with_wasserstein=false"),
    Condition("model_args", "label_smoother_sigma", "model_args.gaussian_label_smoother", bool,
              "model_args.gaussian_label_smoother=true"),
    Condition("loss", "weight options reweigh mode label_smoothing", "loss.criterion",
              lambda v: v != LOSS_OF_MODEL, "a choice of the group loss too, such as loss=ntl_was"),
    Condition("loss", "weight options reweigh mode", "loss.criterion",
              lambda v: v is not None, "for example loss=ntl_was"),
    Condition("model_args", "tokenizer_type", "model_args.number_encoding",
              lambda v: v not in ("rt", "xval"), "model_args.number_encoding=none"),
    Condition("model_args", "separator chat_template", "model_args.family",
              lambda v: v != "t5", "a decoder-only model, such as model_args=pretrained"),
    Condition("model_args", "head_loss", "model_args.number_encoding",
              lambda v: v == "none_regression_head", "model_args.number_encoding=none_regression_head"),
    Condition("training_args", "head_learning_rate", "model_args.number_encoding",
              lambda v: v == "none_regression_head", "model_args.number_encoding=none_regression_head"),
    Condition("training_args", "train_head state_cache_gb", "training_args.trained_layers",
              lambda v: v is not None, "training_args.trained_layers=2"),
    Condition("model_args", "log_scale_embeddings", "model_args.number_encoding",
              lambda v: v != "none", "model_args=rt or model_args=xval"),
    Condition("model_args", "number_width number_places", "model_args.number_format",
              lambda v: v != "plain", "model_args.number_format=padded"),
    Condition("model_args", "config_name", "model_args.model_name_or_path",
              lambda v: v is None, "model_args.model_name_or_path=null to train from scratch"),
    Condition("dataset_args", "data_dir", "dataset_args.dataset_name",
              lambda v: v not in WITHOUT_FILES, "a dataset that has files, such as dataset_args=gsm8k"),
    Condition("dataset_args", "mode", "dataset_args.dataset_name",
              lambda v: v == "mathematics_dataset", "dataset_args=mathematics_dataset, which has modules"),
    Condition("dataset_args", GENERATOR, "dataset_args.data_dir",
              lambda v: v is None, "dataset_args.data_dir=null to generate questions"),
    Condition("dataset_args", "data_seed", "dataset_args.split_by",
              lambda v: v is None, "dataset_args.split_by=null to split at random"),
    Condition("evaluation", "interval", "evaluation.read",
              lambda v: v != ["greedy"], "evaluation.read=[greedy,median]"),
    Condition("training_args", "num_train_epochs", "training_args.max_steps",
              lambda v: v == -1, "training_args.max_steps=-1 to count epochs"),
    Condition("training_args", "warmup_steps", "training_args.lr_scheduler_type",
              lambda v: v not in WITHOUT_WARMUP, "for example training_args.lr_scheduler_type=cosine"),
)  # fmt: skip


def check_effect(overrides: Iterable[str], configs: Sequence[Mapping[str, Any]]) -> None:
    """Raise a UserError if a given key has no effect in any of the configurations.

    Args:
        overrides: Overrides of the command line, such as `model_args.config_name=t5-tiny`.
        configs: Configurations composed with them; a sweep has several.
    """
    for key in (override.partition("=")[0].lstrip("+") for override in overrides):
        # The effect of `loss.options.sigma` is that of `loss.options`.
        reasons = [_no_effect(".".join(key.split(".")[:2]), config) for config in configs]
        if reasons and all(reasons):
            raise UserError(f"{key} has no effect: {reasons[0]}, or omit {key}.")


def _no_effect(key: str, config: Mapping[str, Any]) -> str | None:
    """Return why a key has no effect in a configuration and what to do, or None if it has one."""
    section, _, name = key.partition(".")
    if key == "dataset_args.dataset_name":
        return "the lab does not use it. Pass dataset_args=NAME to choose another dataset"
    if section == "training_args" and name in (*REPLACED, *UNUSED):
        return f"the lab does not use it. Pass {REPLACED.get(name, 'a key that --help lists')}"
    for condition in CONDITIONS:
        if condition.section == section and name in condition.keys.split():
            decisive, _, decided_by = condition.decided_by.partition(".")
            value = config[decisive].get(decided_by)
            if not condition.holds(value):
                return f"{condition.decided_by} is {format_setting(value)}. Pass {condition.remedy}"
    return None
