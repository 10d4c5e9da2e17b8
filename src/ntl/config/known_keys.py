"""Know a configuration's keys: those that no file has, and those that have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from ntl.config.paper_keys import LOSS_OF_MODEL
from ntl.config.settings import LossSettings
from ntl.errors import UserError

GENERATOR_KEYS = (
    "train_per_difficulty", "validation_per_difficulty", "train_per_module", "validation_per_module",
    "test_per_module", "digits", "extrapolate_digits", "train_size", "validation_size", "test_size",
    "data_seed",
)  # fmt: skip
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
        reasons = [
            next((why for name, why in keys.items() if key == name or key.startswith(f"{name}.")), None)
            for keys in found
        ]
        if reasons and all(reasons):
            raise UserError(f"{key} has no effect: {reasons[0]}, or omit {key}.")


def _ineffective_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Map each key that has no effect in this configuration to the reason and the remedy."""
    model, loss, training = config["model_args"], config["loss"], config["training_args"]
    own_loss = loss["criterion"] != LOSS_OF_MODEL
    encoding, schedule = model["number_encoding"], training["lr_scheduler_type"]
    checkpoint, data_dir = model["model_name_or_path"], config["dataset_args"].get("data_dir")
    function = ("model_args.number_token_loss_function",)
    term = ("model_args.number_token_loss_weight", "model_args.number_token_loss_with_wasserstein", *function)
    sigma = ("model_args.label_smoother_sigma",)
    of_criterion = tuple(f"loss.{key}" for key in ("weight", "options", "reweigh", "mode"))
    rules: list[tuple[bool, Iterable[str], str]] = [
        (
            own_loss, (*term, *sigma),
            "the loss is set by the group loss. Pass its keys, such as loss.weight=0.3",
        ),
        (
            not own_loss and not model["number_token_loss"], term,
            f"model_args={model['name']} has no number token loss. Pass for example "
            "model_args=vanilla_t5_ntl or loss=ntl_was",
        ),
        (
            model["number_token_loss_with_wasserstein"], function,
            "NTL-WAS has no such function. Pass model_args.number_token_loss_with_wasserstein=false",
        ),
        (
            not own_loss and not model["gaussian_label_smoother"], sigma,
            "model_args.gaussian_label_smoother is false. Pass model_args.gaussian_label_smoother=true",
        ),
        (loss["criterion"] is None, of_criterion, "loss=ce has no criterion. Pass for example loss=ntl_was"),
        (
            encoding in ("rt", "xval"), ("model_args.tokenizer_type",),
            f"number_encoding={encoding} uses its own tokens. Pass model_args.number_encoding=none",
        ),
        (
            encoding == "none", ("model_args.log_scale_embeddings",),
            "numbers are written as digits. Pass model_args=rt or model_args=xval",
        ),
        (
            model["number_format"] == "plain", ("model_args.number_width", "model_args.number_places"),
            "number_format=plain has no fixed width. Pass model_args.number_format=padded",
        ),
        (
            checkpoint is not None, ("model_args.config_name",),
            f"the shape is set by model_args.model_name_or_path={checkpoint}. Pass "
            "model_args.model_name_or_path=null to train from scratch",
        ),
        (
            data_dir is not None, [f"dataset_args.{key}" for key in GENERATOR_KEYS],
            f"questions are read from dataset_args.data_dir={data_dir}. Pass dataset_args.data_dir=null to "
            "generate them",
        ),
        (
            training["max_steps"] != -1, ("training_args.num_train_epochs",),
            f"training ends after training_args.max_steps={training['max_steps']}. Pass "
            "training_args.max_steps=-1 to count epochs",
        ),
        (
            schedule in WITHOUT_WARMUP, ("training_args.warmup_steps",),
            f"lr_scheduler_type={schedule} has no warm-up. Pass for example "
            "training_args.lr_scheduler_type=cosine",
        ),
    ]  # fmt: skip
    ineffective = {key: why for applies, keys, why in rules if applies for key in keys}
    for key in (*UNUSED_ARGUMENTS, *REPLACED_ARGUMENTS):
        instead = REPLACED_ARGUMENTS.get(key, "the keys that --help lists")
        ineffective[f"training_args.{key}"] = f"the lab does not use it. Pass {instead}"
    return ineffective
