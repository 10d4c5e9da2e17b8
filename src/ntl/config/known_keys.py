"""Check a configuration's keys: reject unknown ones, and given ones that have no effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from typing import Any

from omegaconf import OmegaConf

from ntl.config.compose import check_section, choices
from ntl.errors import UserError

LOSS_KEYS = ("criterion", "options", "weight", "reweigh", "mode", "label_smoothing")
SECTIONS = ("dataset_args", "model_args", "training_args", "loss", "evaluation")
PUBLISHED_WITH_PLUS = "number_token_loss_function"  # a key of model_args that is in no file
GENERATOR_KEYS = (
    "train_per_difficulty", "validation_per_difficulty", "train_per_module", "validation_per_module",
    "test_per_module", "digits", "extrapolate_digits", "train_size", "validation_size", "test_size",
    "data_seed",
)  # fmt: skip
# Maps arguments of Seq2SeqTrainingArguments that the lab ignores to the override that replaces them.
REPLACED_ARGUMENTS = {
    "label_smoothing_factor": "loss=ce loss.label_smoothing=0.1",
    "predict_with_generate": None,
    "generation_max_length": "evaluation.max_new_tokens=64",
    "generation_num_beams": "evaluation.beams=4",
    "generation_config": "evaluation.beams=4",
    "eval_strategy": "training_args.eval_steps=1000",
    "save_strategy": "training_args.save_steps=1000",
    "do_train": "training_args=train",
    "do_eval": "training_args=eval",
    "do_predict": "training_args=eval",
    "remove_unused_columns": None,
    "dataloader_pin_memory": None,
    "prediction_loss_only": None,
    "include_for_metrics": None,
    "batch_eval_metrics": None,
    "eval_accumulation_steps": None,
    "eval_do_concat_batches": None,
    "eval_use_gather_object": None,
    "bf16_full_eval": "training_args.bf16=true",
    "fp16_full_eval": "training_args.bf16=true",
    "sortish_sampler": "training_args.train_sampling_strategy=group_by_length",
}
WITHOUT_WARMUP = ("reduce_lr_on_plateau", "constant", "greedy")


def known_keys(config: Mapping[str, Any]) -> dict[str, Collection[str]]:
    """Return the keys that each section of a training run's configuration may have.

    Args:
        config: Configuration composed from `config/run_language_modeling.yaml`. The keys of `dataset_args`
            depend on the dataset's name.

    Returns:
        Maps each section to its keys. The section "" holds the names of the others.

    Raises:
        UserError: The dataset is unknown.
    """
    from transformers import Seq2SeqTrainingArguments

    dataset = config["dataset_args"]["dataset_name"]
    names = choices("dataset_args")
    if dataset not in names:
        raise UserError(
            f"dataset_args.dataset_name is {dataset!r}; expected one of: {', '.join(names)}. Pass for "
            f"example dataset_args={names[0]}."
        )
    arguments = [field.name for field in fields(Seq2SeqTrainingArguments) if field.init]
    return {
        "": SECTIONS,
        "dataset_args": _keys_of(f"dataset_args/{dataset}"),
        "model_args": [*_keys_of("model_args/vanilla_t5"), PUBLISHED_WITH_PLUS],
        "training_args": list(dict.fromkeys([*_keys_of("training_args/train"), *arguments])),
        "loss": LOSS_KEYS,
        "evaluation": list(_content("run_language_modeling")["evaluation"]),
    }


def check_keys(config: Mapping[str, Any]) -> None:
    """Check that every key of a training run's configuration is known and that none is missing.

    Args:
        config: Configuration composed from `config/run_language_modeling.yaml`.

    Raises:
        UserError: A key is unknown (the message suggests the closest one) or missing.
    """
    check_section("", config, SECTIONS, SECTIONS)
    for section in SECTIONS:
        if not isinstance(config[section], Mapping):
            raise UserError(f"{section} is {config[section]!r}; expected keys and values. Omit the override.")
    if "dataset_name" not in config["dataset_args"]:
        raise UserError("dataset_args.dataset_name is missing; expected a name. Pass dataset_args=gsm8k.")
    known = known_keys(config)
    inherits = config["loss"].get("criterion") == "from_model_args"
    needed = {
        **known,
        "model_args": _keys_of("model_args/vanilla_t5"),
        "training_args": _keys_of("training_args/train"),
        "loss": ("criterion",) if inherits else LOSS_KEYS,
    }
    for section in SECTIONS:
        check_section(section, config[section], known[section], needed[section])


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
    own_loss = loss["criterion"] != "from_model_args"
    encoding, schedule = model["number_encoding"], training["lr_scheduler_type"]
    checkpoint, data_dir = model["model_name_or_path"], config["dataset_args"].get("data_dir")
    term = ("model_args.number_token_loss_weight", "model_args.number_token_loss_with_wasserstein")
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
            set(config["evaluation"]["read"]) <= {"greedy"}, ("evaluation.interval",),
            "evaluation.read=[greedy] has no intervals. Pass evaluation.read=[greedy,median]",
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
    ineffective = {f"training_args.{key}": _replaced(instead) for key, instead in REPLACED_ARGUMENTS.items()}
    return ineffective | {key: why for applies, keys, why in rules if applies for key in keys}


def _replaced(instead: str | None) -> str:
    return f"the lab does not use it. Pass {instead or 'the keys that --help lists'}"


@cache
def _keys_of(file: str) -> tuple[str, ...]:
    """Return the keys of a configuration file, including those inherited from its defaults."""
    content = _content(file)
    bases = content.pop("defaults", [])
    inherited = [key for base in bases for key in _keys_of(f"{file.partition('/')[0]}/{base}")]
    return tuple(dict.fromkeys([*inherited, *content]))


def _content(file: str) -> dict[str, Any]:
    text = (resources.files("ntl.config") / f"{file}.yaml").read_text(encoding="utf-8")
    return OmegaConf.to_container(OmegaConf.create(text))
