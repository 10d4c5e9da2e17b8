"""Translate a composed configuration, with the published keys, into the lab's settings.

Modules outside `ntl.config` do not read these keys; the functions here return what they need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ntl.config.combination import check_combination
from ntl.config.names import loss_name, objective_name
from ntl.config.settings import (
    LOSS_OF_MODEL,
    READINGS,
    GenerationSettings,
    LossSettings,
    ModelSettings,
    RunSettings,
)
from ntl.config.shapes import get_shape
from ntl.errors import UserError

# Maps number_encoding to (encoding, head); an encoding of None is taken from tokenizer_type.
NUMBER_ENCODINGS = {
    "none": (None, "language"),
    "none_regression_head": (None, "regression"),
    "rt": ("rt", "language"),
    "xval": ("xval", "language"),
}
NUMBER_TOKEN_LOSS_FUNCTIONS = {"mse": "squared", "mae": "absolute", "huber": "huber"}
# Keys of training_args that belong to the lab; the others belong to transformers.
OWN_KEYS = (
    "trial", "special_name", "output_dir", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint",
)  # fmt: skip
FROZEN_KEYS = ("trained_layers", "state_cache_gb")  # the lab's, too
# Keys of `evaluation` that set the readings besides `greedy`.
READING_KEYS = {"read", "interval"}
# Keys, by their last part, that may change when a run is resumed, because they do not affect its result.
CHANGEABLE_KEYS = (
    *OWN_KEYS, "cache_dir", "disable_tqdm", "logging_steps", "per_device_eval_batch_size", "report_to",
    "save_total_limit", "state_cache_gb",
)  # fmt: skip
NORMALIZE_BY = "loss.normalize_by"
NORMALIZED_BY_NUMBERS = {NORMALIZE_BY: "numbers"}  # runs that were recorded before there was a choice
# Keys, by their last part, that do not separate the rows of a report.
NOT_COMPARED = (
    *CHANGEABLE_KEYS, "seed", "data_seed", "name", "data_dir", "run_name", "evaluated", "logging_dir",
    "logging_strategy", "eval_steps", "save_steps", "save_strategy", "use_cpu", "dataloader_num_workers",
    "dataloader_pin_memory", "samples_during_training",
)  # fmt: skip


def read_settings(config: Mapping[str, Any], sweep: str = "") -> RunSettings:
    """Translate a composed configuration.

    Args:
        config: The sections of a run, from `compose.compose_config`, which has checked keys and values.
        sweep: Overrides that distinguish the runs of a sweep, appended to the output folder.

    Returns:
        The settings.

    Raises:
        UserError: Two values contradict each other, the shape is unknown, or the model to evaluate or the
            checkpoint to continue from is missing.
    """
    training, data, asked = config["training_args"], config["dataset_args"], config["evaluation"]
    model = model_settings(config["model_args"], training["seed"])
    model = replace(model, trained_layers=training["trained_layers"])
    loss = loss_settings(config["model_args"], config["loss"])
    generation = GenerationSettings(
        beams=asked["beams"],
        max_new_tokens=asked["max_new_tokens"],
        batch_size=training["per_device_eval_batch_size"],
        quantile_readings=tuple(_readings(asked)[1:]),
        interval=asked["interval"],
    )
    check_combination(model, loss, generation.quantile_readings, bool(training.get("fsdp")))
    if training["do_only_eval"] and model.checkpoint is None:
        raise UserError(
            "training_args=eval evaluates a trained model, but model_args.model_name_or_path is null; "
            "expected the folder of a run or of one of its checkpoints. Pass "
            "model_args.model_name_or_path=<folder>."
        )
    resume = training["resume_from_checkpoint"]
    if isinstance(resume, str) and not Path(resume, "trainer_state.json").is_file():
        raise UserError(
            f"training_args.resume_from_checkpoint={resume} is not a folder with trainer_state.json; "
            "expected true, or the folder of a checkpoint. Correct it."
        )
    return RunSettings(
        config=config,
        name=str(config["model_args"]["name"]),
        objective=objective_name(model, loss),
        model=model,
        loss=loss,
        generation=generation,
        samples=asked["samples"],
        samples_during_training=asked["samples_during_training"],
        data={**data, "name": data["dataset_name"]},
        trainer={key: training[key] for key in training if key not in (*OWN_KEYS, *FROZEN_KEYS)},
        output_dir=_output_dir(config, loss, sweep),
        only_evaluate=training["do_only_eval"],
        overwrite=training["overwrite_output_dir"],
        resume=bool(resume),
        checkpoint=Path(resume) if isinstance(resume, str) else None,
        state_cache_gb=training["state_cache_gb"],
        evaluation_name=asked["name"],
    )


def _output_dir(config: Mapping[str, Any], loss: LossSettings, sweep: str) -> Path:
    """Return the output folder, from the configuration or by default."""
    training, model = config["training_args"], config["model_args"]
    if training["output_dir"] is not None:
        return Path(training["output_dir"], sweep.replace("/", "_")).expanduser()
    if training["do_only_eval"] and Path(str(model["model_name_or_path"])).is_dir():
        return Path(model["model_name_or_path"])
    parts = (config["dataset_args"]["dataset_name"], training["trial"])
    added = re.sub(r"[^\w.-]+", "-", loss_name(loss))  # folder names have no spaces
    written = "" if model["number_format"] == "plain" else model["number_format"]
    named = (model["name"], written, added, training["special_name"])
    name = "_".join(str(part) for part in named if part)
    return Path("outputs", *(str(part) for part in parts if part), name, sweep.replace("/", "_"))


def continued_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that a run and its continuation must share."""
    trained = {name: keys for name, keys in config.items() if name not in ("evaluation", "evaluated")}
    return {**NORMALIZED_BY_NUMBERS, **_flatten(trained, CHANGEABLE_KEYS)}


def evaluated_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by key, that an evaluation's results depend on, besides the model."""
    asked = {**config["dataset_args"], **effective_evaluation(config.get("evaluation", {}))}
    return _flatten(asked, ("cache_dir", "samples_during_training", "name"))


def only_adds_readings(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the evaluation of `other` differs from that of `config` only by additional readings."""
    before, now = evaluated_settings(config), evaluated_settings(other)
    differing = {key for key in {*before, *now} if before.get(key) != now.get(key)}
    kept = {*before.get("read", [])} <= {*now.get("read", [])}
    same_interval = before.get("interval") in (None, now.get("interval"))
    return differing <= READING_KEYS and kept and same_interval


def compared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that separate the rows of a report. Null counts as absent."""
    config = {**config, "evaluation": effective_evaluation(config.get("evaluation", {}))}
    given = {key: value for key, value in _flatten(config, NOT_COMPARED).items() if value is not None}
    return {**NORMALIZED_BY_NUMBERS, **given}


def _flatten(nested: Mapping[str, Any], without: Sequence[str], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings, joining keys with dots, without those whose last part is in `without`."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, without, f"{prefix}{key}.")
        elif key not in without:
            flat[f"{prefix}{key}"] = value
    return flat


def effective_evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an evaluation, without those that have no effect if numbers are only decoded."""
    read = _readings(evaluation)
    if read == ["greedy"]:
        return {key: evaluation[key] for key in evaluation if key not in READING_KEYS}
    return {**evaluation, "read": read}


def _readings(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the readings of an evaluation in the order of `READINGS`, which always include `greedy`."""
    return [name for name in READINGS if name == "greedy" or name in evaluation.get("read", ())]


def with_evaluation_of(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the dataset and evaluation settings of another one.

    `samples_during_training` is kept.
    """
    before = config.get("evaluation", {})
    kept = {key: before[key] for key in ("samples_during_training",) if key in before}
    return {**config, "dataset_args": other["dataset_args"], "evaluation": {**other["evaluation"], **kept}}


def model_settings(model_args: Mapping[str, Any], seed: int) -> ModelSettings:
    """Translate `model_args` into model settings. Their `config` is filled only for training from scratch.

    Raises:
        UserError: The shape is unknown, or two values contradict each other.
    """
    encoding, head = NUMBER_ENCODINGS[model_args["number_encoding"]]
    checkpoint = model_args["model_name_or_path"]
    shape: dict[str, Any] = {}
    if checkpoint is None:
        shape = {**get_shape(model_args["config_name"]), **(model_args["config_overrides"] or {})}
    elif model_args["config_overrides"]:
        raise UserError(
            f"model_args.config_overrides is {model_args['config_overrides']}, but the shape of "
            f"model_args.model_name_or_path={checkpoint} is fixed; expected one of the two. Omit "
            "config_overrides, or train from scratch with model_args.model_name_or_path=null."
        )
    return ModelSettings(
        family=model_args["family"],
        encoding=encoding or model_args["tokenizer_type"],
        head=head,
        number_format=model_args["number_format"],
        number_width=model_args["number_width"],
        number_places=model_args["number_places"],
        checkpoint=checkpoint,
        tokenizer=model_args["tokenizer_name_or_path"],
        config=shape,
        log_scale=model_args["log_scale_embeddings"],
        seed=seed,
    )


def loss_settings(model_args: Mapping[str, Any], loss: Mapping[str, Any]) -> LossSettings:
    """Read the loss from the `loss` group or, if it is `from_model_args`, from the keys of `model_args`.

    Raises:
        UserError: Two values contradict each other.
    """
    if loss["criterion"] == LOSS_OF_MODEL:
        return replace(_loss_from_model_args(model_args), normalize_by=loss["normalize_by"])
    for key in ("number_token_loss", "gaussian_label_smoother"):
        if model_args[key]:
            raise UserError(
                f"loss.criterion={loss['criterion']} is given together with model_args.{key}=true; expected "
                "one of the two. Pass for example "
                f"model_args={str(model_args['name']).removesuffix('_ntl')}, without {key}."
            )
    return LossSettings(**{**loss, "options": loss["options"] or {}})


def _loss_from_model_args(model_args: Mapping[str, Any]) -> LossSettings:
    """Read the loss from the keys of `model_args`; a UserError says which of them contradict each other."""
    wasserstein = model_args["number_token_loss_with_wasserstein"]
    weight = model_args["number_token_loss_weight"]
    expected_value = {"loss": NUMBER_TOKEN_LOSS_FUNCTIONS[model_args["number_token_loss_function"] or "mse"]}
    if not model_args["gaussian_label_smoother"]:
        if not model_args["number_token_loss"]:
            return LossSettings()
        if wasserstein:
            return LossSettings("wasserstein", weight=weight)
        return LossSettings("expected_value", expected_value, weight=weight)

    sigma = {"sigma": model_args["label_smoother_sigma"]}
    if not model_args["number_token_loss"]:
        return LossSettings("gaussian_cross_entropy", sigma, weight=1.0, mode="replace")
    if not wasserstein:
        raise UserError(
            "model_args.gaussian_label_smoother=true is given together with NTL-MSE; expected it alone "
            "(model_args=vanilla_t5) or with NTL-WAS. Pass "
            "model_args.number_token_loss_with_wasserstein=true."
        )
    parts = [{"name": "gaussian_cross_entropy", **sigma}, {"name": "smoothed_wasserstein", **sigma}]
    options = {"criteria": parts, "weights": [1.0, weight]}
    return LossSettings("weighted_sum", options, weight=1.0, mode="replace")
