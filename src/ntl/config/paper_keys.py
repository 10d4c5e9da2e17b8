"""Check the published configuration keys and translate them into the lab's settings.

No module behind this one reads these keys; what they need from a configuration, they get from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from ntl.config.compose import check_number, check_value, flatten, is_whole_number
from ntl.config.known_keys import LOSS_KEYS, check_keys
from ntl.config.names import loss_name, objective_name
from ntl.config.settings import (
    FAMILIES,
    READINGS,
    GenerationSettings,
    LossSettings,
    ModelSettings,
    RunSettings,
)
from ntl.errors import UserError
from ntloss import criterion_names

# Maps number_encoding to (encoding, head); an encoding of None is taken from tokenizer_type.
NUMBER_ENCODINGS = {
    "none": (None, "language"),
    "none_regression_head": (None, "regression"),
    "rt": ("rt", "language"),
    "xval": ("xval", "language"),
}
TOKENIZER_TYPES = ("digits", "auto")
NUMBER_TOKEN_LOSS_FUNCTIONS = {"mse": "squared", "mae": "absolute", "huber": "huber"}
BOOLEANS = (
    "number_token_loss",
    "number_token_loss_with_wasserstein",
    "gaussian_label_smoother",
    "log_scale_embeddings",
)
# Keys of training_args that belong to the lab; the others belong to transformers.
OWN_KEYS = (
    "trial", "special_name", "output_dir", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint",
)  # fmt: skip
# Keys that may change when a run is resumed, because they do not affect its result.
CHANGEABLE_KEYS = {
    "training_args": (
        *OWN_KEYS, "disable_tqdm", "logging_steps", "report_to", "save_total_limit",
        "per_device_eval_batch_size",
    ),
    "dataset_args": ("cache_dir",),
}  # fmt: skip
# Keys, by their last part, that do not separate the rows of a report.
NOT_COMPARED = (
    *OWN_KEYS, "seed", "data_seed", "name", "data_dir", "run_name", "cache_dir", "evaluated", "logging_dir",
    "logging_steps", "logging_strategy", "eval_steps", "save_steps", "save_strategy", "save_total_limit",
    "report_to", "use_cpu", "per_device_eval_batch_size", "dataloader_num_workers",
    "dataloader_pin_memory", "samples_during_training", "disable_tqdm",
)  # fmt: skip


def read_settings(config: Mapping[str, Any], sweep: str = "") -> RunSettings:
    """Check a composed configuration and translate it.

    Args:
        config: Configuration composed from `config/run_language_modeling.yaml`.
        sweep: Overrides that distinguish the runs of a sweep, appended to the output folder.

    Returns:
        The settings.

    Raises:
        UserError: A key or a value is invalid.
    """
    check_keys(config)
    training, data, asked = config["training_args"], config["dataset_args"], config["evaluation"]
    check_training_args(training)
    model = model_settings(config["model_args"], training["seed"])
    loss = loss_settings(config["model_args"], config["loss"])
    generation = generation_settings(asked, training["per_device_eval_batch_size"])
    _check_readings(generation, model, training)
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
        trainer={key: value for key, value in training.items() if key not in OWN_KEYS},
        output_dir=_output_dir(config, loss, sweep),
        only_evaluate=training["do_only_eval"],
        overwrite=training["overwrite_output_dir"],
        resume=bool(resume),
        checkpoint=Path(resume) if isinstance(resume, str) else None,
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
    name = "_".join(str(part) for part in (model["name"], added, training["special_name"]) if part)
    return Path("outputs", *(str(part) for part in parts if part), name, sweep.replace("/", "_"))


def continued_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that a run and its continuation must share."""
    return flatten(
        {
            name: {k: v for k, v in section.items() if k not in CHANGEABLE_KEYS.get(name, ())}
            for name, section in config.items()
            if isinstance(section, Mapping) and name != "evaluation"
        }
    )


def evaluated_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by key, that an evaluation's results depend on, besides the model."""
    flat = flatten({**config["dataset_args"], **effective_evaluation(config.get("evaluation", {}))})
    return {key: value for key, value in flat.items() if key not in ("cache_dir", "samples_during_training")}


def only_adds_readings(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the evaluation of `other` has the results of `config` and more readings beside them."""
    before, now = evaluated_settings(config), evaluated_settings(other)
    differing = {key for key in {*before, *now} if before.get(key) != now.get(key)}
    kept = {*before.get("read", ["greedy"])} <= {"greedy", *now.get("read", [])}
    same_interval = before.get("interval") in (None, now.get("interval"))
    return differing <= {"read", "interval"} and kept and same_interval


def compared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that separate the rows of a report. Null counts as absent."""
    config = {**config, "evaluation": effective_evaluation(config.get("evaluation", {}))}
    return {
        key: value
        for key, value in flatten(config).items()
        if value is not None and key.rpartition(".")[2] not in NOT_COMPARED
    }


def effective_evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an evaluation without those that have no effect if numbers are only decoded."""
    only_greedy = set(evaluation.get("read", ["greedy"])) <= {"greedy"}
    return {key: evaluation[key] for key in evaluation if not only_greedy or key not in ("read", "interval")}


def with_evaluation_of(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the data and the evaluation of another one."""
    return {**config, **{key: other[key] for key in ("dataset_args", "evaluation")}}


def with_decoding_of(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the evaluation, but not the data, of another one."""
    return {**config, "evaluation": other["evaluation"]}


def initial_model(config: Mapping[str, Any]) -> str | None:
    """Return the checkpoint that a recorded run started from, or None if it was trained from scratch."""
    return config["model_args"]["model_name_or_path"]


def model_settings(model_args: Mapping[str, Any], seed: int) -> ModelSettings:
    """Translate the published keys of `model_args` into model settings.

    Args:
        model_args: The composed section.
        seed: Random seed of the initial weights.

    Returns:
        The settings. Their `config` is filled only for training from scratch.

    Raises:
        UserError: A value is unknown.
    """
    from ntl.approaches import check_number_format
    from ntl.approaches.shapes import get_shape

    _check_choice(model_args, "number_encoding", tuple(NUMBER_ENCODINGS))
    _check_choice(model_args, "tokenizer_type", TOKENIZER_TYPES)
    _check_choice(model_args, "family", FAMILIES)
    for key in BOOLEANS:
        check_value(
            isinstance(model_args[key], bool), f"model_args.{key}", model_args[key], "true or false", "true"
        )
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
    for key, least in (("number_width", 1), ("number_places", 0)):
        _check_optional_count(
            model_args, f"model_args.{key}", least, "as many as the training answers need", 4
        )
    settings = ModelSettings(
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
    check_number_format(settings)
    return settings


def loss_settings(model_args: Mapping[str, Any], loss: Mapping[str, Any]) -> LossSettings:
    """Read the loss from the `loss` group or, if it is `from_model_args`, from the keys of `model_args`.

    Args:
        model_args: The composed section.
        loss: The composed section.

    Returns:
        The settings.

    Raises:
        UserError: A value is unknown, or two values contradict each other.
    """
    if loss["criterion"] == "from_model_args":
        if others := sorted(set(loss) - {"criterion"}):
            raise UserError(
                f"loss.{others[0]} is given, but model_args sets the loss; expected a choice of the group "
                "loss too. Pass for example loss=ntl_was."
            )
        return _loss_from_model_args(model_args)
    for key in ("number_token_loss", "gaussian_label_smoother", "number_token_loss_function"):
        if model_args.get(key):
            raise UserError(
                f"loss.criterion={loss['criterion']} is given together with model_args.{key}="
                f"{str(model_args[key]).lower()}; expected one of the two. Pass for example "
                f"model_args={str(model_args['name']).removesuffix('_ntl')}, without {key}."
            )
    names = criterion_names()
    criterion = loss["criterion"]
    check_value(
        criterion is None or criterion in names, "loss.criterion", criterion,
        f"null or one of: {', '.join(names)}", "wasserstein",
    )  # fmt: skip
    check_value(
        isinstance(loss["options"], (dict, type(None))),
        "loss.options",
        loss["options"],
        "keys and values",
        "{sigma: 1.0}",
    )
    check_value(loss["mode"] in ("add", "replace"), "loss.mode", loss["mode"], "add or replace", "add")
    check_value(isinstance(loss["reweigh"], bool), "loss.reweigh", loss["reweigh"], "true or false", "true")
    check_number(loss, "loss.weight", least=0, example=0.3)
    check_number(loss, "loss.label_smoothing", least=0, below=1, example=0.1)
    return LossSettings(**{**{key: loss[key] for key in LOSS_KEYS}, "options": loss["options"] or {}})


def _loss_from_model_args(model_args: Mapping[str, Any]) -> LossSettings:
    function = model_args.get("number_token_loss_function")  # published with +, so no file has it
    wasserstein = model_args["number_token_loss_with_wasserstein"]
    check_value(
        function in (None, *NUMBER_TOKEN_LOSS_FUNCTIONS), "model_args.number_token_loss_function", function,
        f"one of: {', '.join(NUMBER_TOKEN_LOSS_FUNCTIONS)}", "mae",
    )  # fmt: skip
    if wasserstein and function is not None:
        raise UserError(
            f"model_args.number_token_loss_function={function} is given together with "
            "model_args.number_token_loss_with_wasserstein=true; expected one of the two, because NTL-WAS "
            "has no such function. Omit one of them."
        )
    if function is not None and not model_args["number_token_loss"]:
        raise UserError(
            f"model_args.number_token_loss_function={function} is given, but model_args.number_token_loss is "
            "false; expected a model with a number token loss. Pass for example model_args=vanilla_t5_ntl."
        )
    check_number(model_args, "model_args.number_token_loss_weight", least=0, example=0.3)
    weight = model_args["number_token_loss_weight"]
    expected_value = {"loss": NUMBER_TOKEN_LOSS_FUNCTIONS[function or "mse"]}
    if not model_args["gaussian_label_smoother"]:
        if not model_args["number_token_loss"]:
            return LossSettings()
        if wasserstein:
            return LossSettings("wasserstein", weight=weight)
        return LossSettings("expected_value", expected_value, weight=weight)

    check_number(model_args, "model_args.label_smoother_sigma", above=0, example=1.0)
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


def generation_settings(evaluation: Mapping[str, Any], batch_size: int) -> GenerationSettings:
    """Read how answers are decoded.

    Args:
        evaluation: The composed section.
        batch_size: Number of questions decoded at once.

    Returns:
        The settings.

    Raises:
        UserError: A value is out of range.
    """
    for key in ("beams", "max_new_tokens"):
        check_value(
            is_whole_number(evaluation[key], 1),
            f"evaluation.{key}",
            evaluation[key],
            "a whole number of at least 1",
            4,
        )
    for key in ("samples", "samples_during_training"):
        _check_optional_count(evaluation, f"evaluation.{key}", 1, "all", 100)
    read = evaluation["read"]
    check_value(
        isinstance(read, list) and bool(read) and set(map(str, read)) <= {*READINGS}, "evaluation.read", read,
        f"a list of one or more of: {', '.join(READINGS)}", "[greedy,median]",
    )  # fmt: skip
    check_number(evaluation, "evaluation.interval", above=0, below=1, example=0.9)
    return GenerationSettings(
        beams=evaluation["beams"],
        max_new_tokens=evaluation["max_new_tokens"],
        batch_size=batch_size,
        read=tuple(reading for reading in READINGS if reading == "greedy" or reading in read),
        interval=evaluation["interval"],
    )


def _check_readings(
    generation: GenerationSettings, model: ModelSettings, training: Mapping[str, Any]
) -> None:
    """Check that the model has quantiles if a reading needs them."""
    if not generation.quantile_readings:
        return
    from ntl.approaches import no_quantiles

    if model.head != "language":
        raise no_quantiles("a regression head")
    if model.encoding not in ("digits", "auto"):
        raise no_quantiles(f"number_encoding={model.encoding}")
    if training.get("fsdp"):
        raise UserError(
            "evaluation.read=[median] or [mean] needs the whole model in each process; expected training "
            "without training_args.fsdp. Train with evaluation.read=[greedy], then pass training_args=eval."
        )


def check_training_args(training: Mapping[str, Any]) -> None:
    """Check the keys that transformers does not check early enough.

    Args:
        training: The composed section.

    Raises:
        UserError: A value has the wrong type or is out of range.
    """
    for key in ("do_only_eval", "overwrite_output_dir", "use_cpu"):
        check_value(
            isinstance(training[key], bool), f"training_args.{key}", training[key], "true or false", "true"
        )
    sizes = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
    for key in sizes:
        check_value(
            is_whole_number(training[key], 1), f"training_args.{key}", training[key],
            "a whole number of at least 1", 8,
        )  # fmt: skip
    for key, example in (("learning_rate", 1e-4), ("weight_decay", 0.01), ("max_grad_norm", 1.0)):
        check_number(training, f"training_args.{key}", least=0, example=example)
    for key in ("warmup_steps", "logging_steps", "save_steps", "eval_steps"):
        if key != "eval_steps" or training[key] is not None:  # null means logging_steps
            check_number(training, f"training_args.{key}", least=0, example=100)
    if "num_train_epochs" in training:  # with -1, transformers finishes without training
        check_number(training, "training_args.num_train_epochs", above=0, example=3)
    schedule = training["lr_scheduler_kwargs"]
    check_value(
        isinstance(schedule, dict | None), "training_args.lr_scheduler_kwargs", schedule,
        "null or keys and values", "{factor: 0.5}",
    )  # fmt: skip
    resume = training["resume_from_checkpoint"]
    check_value(
        isinstance(resume, bool | str | None), "training_args.resume_from_checkpoint", resume,
        "true, null or a checkpoint's folder", "true",
    )  # fmt: skip
    _check_types(training)
    steps, seed = training["max_steps"], training["seed"]
    check_value(
        is_whole_number(steps, 1) or steps == -1, "training_args.max_steps", steps,
        "a whole number of at least 1, or -1 with +training_args.num_train_epochs", 1000,
    )  # fmt: skip
    check_value(
        is_whole_number(seed, 0) and seed < 2**32,
        "training_args.seed",
        seed,
        "a whole number from 0 to 2^32 - 1",
        1,
    )


def _check_types(training: Mapping[str, Any]) -> None:
    """Check the types of arguments that transformers declares as numbers or booleans but does not check."""
    from transformers import Seq2SeqTrainingArguments

    words = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    examples = {int: 8, float: 0.1, bool: "true"}
    for key, hint in get_type_hints(Seq2SeqTrainingArguments).items():
        kinds = get_args(hint) or (hint,)
        if key not in training or not {*kinds} <= {*words}:
            continue
        value = training[key]
        fits = any(type(value) is kind or (kind is float and type(value) is int) for kind in kinds)
        expected = " or ".join(words[kind] for kind in kinds)
        check_value(fits, f"training_args.{key}", value, expected, examples[kinds[0]])


def _check_optional_count(section: Mapping[str, Any], key: str, least: int, null: str, example: int) -> None:
    """Check that a key is a whole number of at least `least`, or null, which stands for `null`."""
    value = section[key.rpartition(".")[2]]
    expected = f"null ({null}) or a whole number of at least {least}"
    check_value(value is None or is_whole_number(value, least), key, value, expected, example)


def _check_choice(model_args: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> None:
    value = model_args[key]
    check_value(value in choices, f"model_args.{key}", value, f"one of: {', '.join(choices)}", choices[0])
