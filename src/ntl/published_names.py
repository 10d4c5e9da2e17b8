"""Check the published configuration keys and translate them into the lab's settings.

No other module knows these keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args, get_type_hints

from ntl.configuration import check_number, check_value, is_whole_number
from ntl.errors import UserError
from ntl.settings import FAMILIES, GenerationSettings, LossSettings, ModelSettings
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
LOSS_KEYS = ("criterion", "options", "weight", "reweigh", "mode", "label_smoothing")

_ENCODING_NAMES = {"rt": "RT", "xval": "xVal"}
_CRITERION_NAMES = {
    "wasserstein": "NTL-WAS",
    "crps": "CRPS",
    "gaussian_cross_entropy": "Gaussian smoothing",
    "smoothed_wasserstein": "smoothed NTL-WAS",
    "dist2": "DIST2",
    "digit_entropy": "DEL",
    "smmd": "SMMD",
    "ntil": "NTIL",
    "number_level": "number-level NTL",
}
_LOSS_NAMES = {"squared": "NTL-MSE", "absolute": "NTL-MAE", "huber": "NTL-Huber"}


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
        value = model_args[key]
        check_value(
            value is None or is_whole_number(value, least), f"model_args.{key}", value,
            f"null (as many as the training answers need) or a whole number of at least {least}", 4,
        )  # fmt: skip
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
    for key, least in (("samples", 1), ("samples_during_training", 1)):
        value = evaluation[key]
        check_value(
            value is None or is_whole_number(value, least), f"evaluation.{key}", value,
            f"null (all) or a whole number of at least {least}", 100,
        )  # fmt: skip
    return GenerationSettings(evaluation["beams"], evaluation["max_new_tokens"], batch_size)


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


def objective_name(model: ModelSettings, loss: LossSettings) -> str:
    """Return a run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `Llama`."""
    name = {"t5": "T5"}.get(model.family) or str(model.config.get("model_type", "decoder")).capitalize()
    name = _ENCODING_NAMES.get(model.encoding, name)
    if model.head == "regression":
        return f"{name} regression head"
    return " + ".join(filter(None, (name, loss_name(loss))))


def loss_name(loss: LossSettings) -> str:
    """Return the criterion's name in tables, such as `NTL-WAS` or `SMMD`; "" without a criterion."""
    return _criterion_name(loss.criterion, loss.options) if loss.criterion is not None else ""


def _criterion_name(criterion: str, options: Mapping[str, Any]) -> str:
    if criterion == "expected_value":
        loss = options.get("loss", "squared")
        if options.get("over") == "vocabulary":
            return "RAFT" if loss == "squared" else f"RAFT ({loss})"
        return _LOSS_NAMES.get(loss, criterion)
    if criterion == "weighted_sum":
        parts = [{"name": p} if isinstance(p, str) else p for p in options.get("criteria", ())]
        return " + ".join(_criterion_name(part["name"], part) for part in parts) or criterion
    return _CRITERION_NAMES.get(criterion, criterion)


def _check_choice(model_args: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> None:
    value = model_args[key]
    check_value(value in choices, f"model_args.{key}", value, f"one of: {', '.join(choices)}", choices[0])
