"""A run's settings as dataclasses, translated from the published keys.

Modules outside `ntl.config` do not read these keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ntl.config.schema import LOSS_OF_MODEL, READINGS, LossSettings, greater_is_better
from ntl.config.shapes import get_shape
from ntl.errors import UserError

__all__ = ["GenerationSettings", "LossSettings", "ModelSettings", "RunSettings", "read_settings"]

# Maps number_encoding to (encoding, head); an encoding of None is taken from tokenizer_type.
NUMBER_ENCODINGS = {
    "none": (None, "language"),
    "none_regression_head": (None, "regression"),
    "rt": ("rt", "language"),
    "xval": ("xval", "language"),
}
NUMBER_TOKEN_LOSS_FUNCTIONS = {None: "squared", "mse": "squared", "mae": "absolute", "huber": "huber"}
# Keys of model_args that are settings of the same name.
COPIED_KEYS = (
    "family", "number_format", "number_width", "number_places", "separator", "chat_template", "head_loss",
)  # fmt: skip
# Keys of training_args that belong to the lab; the others belong to transformers.
OWN_KEYS = {
    "trial", "special_name", "output_dir", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint",
    "state_cache_gb", "head_learning_rate",
}  # fmt: skip
PARTIAL_KEYS = {"trained_layers", "train_head", "lora"}  # the lab's, too: which weights are trained
# Names in tables of encodings and criteria, and of the losses of `expected_value`.
NAMES = {
    "rt": "RT", "xval": "xVal", "t5": "T5", "wasserstein": "NTL-WAS", "crps": "CRPS",
    "gaussian_cross_entropy": "Gaussian smoothing", "smoothed_wasserstein": "smoothed NTL-WAS",
    "hl_gauss": "HL-Gauss", "dist2": "DIST2", "digit_entropy": "DEL", "smmd": "SMMD", "ntil": "NTIL",
    "number_level": "number-level NTL", "squared": "NTL-MSE", "absolute": "NTL-MAE", "huber": "NTL-Huber",
}  # fmt: skip


@dataclass(frozen=True)
class ModelSettings:
    """Which model to use, and how it reads and writes numbers; `schema.ModelArgs` has the other details.

    Args:
        encoding: `digits`, `auto`, `rt` or `xval`, see `ntl.encodings`.
        head: `language`, or `regression` to predict one number instead of text.
        checkpoint: Folder, `.gguf` file or hub name of pretrained weights. None trains from scratch.
        config: Configuration arguments of a model trained from scratch, including `model_type` (`t5`,
            `llama`, `mamba`, ...).
        log_scale: Whether numbers are embedded and predicted on a log scale.
    """

    family: str = "t5"
    encoding: str = "digits"
    head: str = "language"
    number_format: str = "plain"
    number_width: int | None = None
    number_places: int | None = None
    checkpoint: str | None = None
    tokenizer: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    log_scale: bool = True
    seed: int = 42
    trained_layers: int | None = None
    train_head: bool = False
    lora: int | None = None
    separator: str | None = None
    chat_template: bool = False
    head_loss: str = "squared"


@dataclass(frozen=True)
class GenerationSettings:
    """How answers are decoded, as `schema.Evaluation` says, `batch_size` questions at once.

    `quantile_readings` are those besides `greedy`, which need quantiles of the model's distribution.
    """

    beams: int = 4
    max_new_tokens: int = 64
    batch_size: int = 64
    quantile_readings: tuple[str, ...] = ()
    interval: float = 0.9


@dataclass(frozen=True)
class RunSettings:
    """Everything that one run needs to know.

    Args:
        config: The composed configuration, as recorded in `run.json`.
        name: Name of the model.
        objective: Name of the model with its loss in tables and figures.
        data: Settings of the dataset, with its `name`.
        samples, samples_during_training, evaluation_name: See `schema.Evaluation`.
        trainer: Arguments of transformers' `Seq2SeqTrainingArguments`.
        only_evaluate: Whether to evaluate a trained model without training.
        overwrite: Whether a run in the output folder is deleted.
        resume: Whether to continue the run in the output folder, from `checkpoint` or, if None, the latest.
        state_cache_gb, head_learning_rate: See `schema.TrainingArgs`.
    """

    config: Mapping[str, Any]
    name: str
    objective: str
    model: ModelSettings
    loss: LossSettings
    generation: GenerationSettings
    data: Mapping[str, Any]
    output_dir: Path
    samples: int | None = None
    samples_during_training: int | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)
    only_evaluate: bool = False
    overwrite: bool = False
    resume: bool = False
    checkpoint: Path | None = None
    state_cache_gb: float = 10.0
    head_learning_rate: float | None = None
    evaluation_name: str | None = None

    @property
    def dataset(self) -> str:
        """Name of the dataset."""
        return str(self.data["name"])

    @property
    def seed(self) -> int:
        """Random seed of the weights, of dropout and of the order of the data."""
        return self.model.seed


def read_settings(config: Mapping[str, Any], sweep: str = "") -> RunSettings:
    """Translate a composed configuration.

    Args:
        config: The sections of a run, from `compose.compose_config`, which has checked keys and values.
        sweep: Overrides that distinguish the runs of a sweep, appended to the output folder.

    Returns:
        The settings.
    """
    training, data, asked = config["training_args"], config["dataset_args"], config["evaluation"]
    partial = {} if training["do_only_eval"] else {key: training[key] for key in PARTIAL_KEYS}
    model = model_settings(config["model_args"], seed=training["seed"], **partial)
    loss = loss_settings(config["model_args"], config["loss"])
    generation = GenerationSettings(
        beams=asked["beams"],
        max_new_tokens=asked["max_new_tokens"],
        batch_size=training["per_device_eval_batch_size"],
        quantile_readings=tuple(name for name in READINGS[1:] if name in asked["read"]),
        interval=asked["interval"],
    )
    _check_combination(model, loss, generation.quantile_readings, bool(training.get("fsdp")))
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
        data={**data, "name": data["dataset_name"]},
        output_dir=_output_dir(config, loss, sweep),
        samples=asked["samples"],
        samples_during_training=asked["samples_during_training"],
        trainer={
            **{key: value for key, value in training.items() if key not in OWN_KEYS | PARTIAL_KEYS},
            "greater_is_better": greater_is_better(training),
        },
        only_evaluate=training["do_only_eval"],
        overwrite=training["overwrite_output_dir"],
        resume=bool(resume),
        checkpoint=Path(resume) if isinstance(resume, str) else None,
        state_cache_gb=training["state_cache_gb"],
        head_learning_rate=training["head_learning_rate"],
        evaluation_name=asked["name"],
    )


def _output_dir(config: Mapping[str, Any], loss: LossSettings, sweep: str) -> Path:
    """Return the output folder, from the configuration or by default."""
    training, model = config["training_args"], config["model_args"]
    if training["output_dir"] is not None:
        return Path(training["output_dir"], sweep.replace("/", "_")).expanduser()
    if training["do_only_eval"] and Path(str(model["model_name_or_path"])).is_dir():
        return Path(model["model_name_or_path"])
    written = "" if model["number_format"] == "plain" else model["number_format"]
    added = re.sub(r"[^\w.-]+", "-", loss_name(loss))  # folder names have no spaces
    name = "_".join(filter(None, (model["name"], written, added, training["special_name"])))
    trial = training["trial"] or ""
    return Path("outputs", config["dataset_args"]["dataset_name"], trial, name, sweep.replace("/", "_"))


def model_settings(model_args: Mapping[str, Any], **own: Any) -> ModelSettings:
    """Translate `model_args` into model settings. Their `config` is filled only for training from scratch."""
    encoding, head = NUMBER_ENCODINGS[model_args["number_encoding"]]
    checkpoint, changes = model_args["model_name_or_path"], model_args["config_overrides"] or {}
    if checkpoint is not None and changes:
        raise UserError(
            f"model_args.config_overrides is {changes}, but the shape of "
            f"model_args.model_name_or_path={checkpoint} is fixed; expected one of the two. Omit "
            "model_args.config_overrides, or pass model_args.model_name_or_path=null to train from scratch."
        )
    return ModelSettings(
        encoding=encoding or model_args["tokenizer_type"],
        head=head,
        checkpoint=checkpoint,
        tokenizer=model_args["tokenizer_name_or_path"],
        config={**get_shape(model_args["config_name"]), **changes} if checkpoint is None else {},
        log_scale=model_args["log_scale_embeddings"],
        **own,
        **{key: model_args[key] for key in COPIED_KEYS},
    )


def loss_settings(model_args: Mapping[str, Any], loss: Mapping[str, Any]) -> LossSettings:
    """Read the loss from the `loss` group or, if it is `from_model_args`, from the keys of `model_args`."""
    if loss["criterion"] == LOSS_OF_MODEL:
        return replace(_loss_from_model_args(model_args), normalize_by=loss["normalize_by"])
    for key in ("number_token_loss", "gaussian_label_smoother"):
        if model_args[key]:
            raise UserError(
                f"loss.criterion={loss['criterion']} is given together with model_args.{key}=true; expected "
                "one of the two. Pass for example "
                f"model_args={str(model_args['name']).removesuffix('_ntl')}, without {key}."
            )
    return LossSettings(**loss)


def _loss_from_model_args(model_args: Mapping[str, Any]) -> LossSettings:
    """Read the loss from the keys of `model_args`; a UserError says which of them contradict each other."""
    wasserstein = model_args["number_token_loss_with_wasserstein"]
    weight = model_args["number_token_loss_weight"]
    if not model_args["gaussian_label_smoother"]:
        if not model_args["number_token_loss"]:
            return LossSettings()
        if wasserstein:
            return LossSettings("wasserstein", weight=weight)
        options = {"loss": NUMBER_TOKEN_LOSS_FUNCTIONS[model_args["number_token_loss_function"]]}
        return LossSettings("expected_value", options, weight=weight)

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


def _check_combination(
    model: ModelSettings, loss: LossSettings, readings: Sequence[str], sharded: bool
) -> None:
    """Raise a UserError unless the settings of a run, each of them valid, fit together."""
    read = f"evaluation.read=[{','.join(readings)}]"
    if model.family == "pretrained" and model.checkpoint is None:
        raise UserError(
            "model_args=pretrained has no model; expected a folder, a .gguf file or a name on the hub. Pass "
            "model_args.model_name_or_path=<model>."
        )
    partial = [key for key in ("trained_layers", "lora") if getattr(model, key) is not None]
    if len(given := [*partial, *["fsdp"] * sharded]) > 1 and partial:
        # FSDP would shard trained and frozen weights together.
        raise UserError(
            f"training_args.{given[0]} is given together with training_args.{given[1]}; expected one of the "
            "two. Omit one."
        )
    if model.head == "language" and model.encoding in ("digits", "auto"):  # writes numbers as text
        if readings and sharded:
            raise UserError(
                f"{read} needs the whole model in each process; expected training without "
                "training_args.fsdp. Train with evaluation.read=[greedy], then pass training_args=eval."
            )
        return
    name = "a regression head" if model.head == "regression" else f"number_encoding={model.encoding}"
    text = "needs a language model that writes numbers as text, such as model_args=decoder_only"
    on_decoder = model.head == "regression" and model.family != "t5"
    if partial and not on_decoder:
        raise UserError(
            f"training_args.{partial[0]}={getattr(model, partial[0])} {text}, or "
            f"model_args=pretrained_regression_head; expected null with {name}. Omit it."
        )
    if model.family != "t5" and not on_decoder:
        raise UserError(
            f"model_args.family={model.family} does not support {name}; expected t5. Pass "
            "model_args.family=t5, or model_args.number_encoding=none."
        )
    if loss.criterion is not None and (model.head, model.encoding) != ("language", "rt"):
        raise UserError(
            f"loss.criterion={loss.criterion} needs a token for each digit or number, and {name} has none; "
            "expected no criterion. Pass loss=ce, or model_args.number_encoding=none."
        )
    if model.number_format != "plain":
        raise UserError(
            f"model_args.number_format={model.number_format} needs a model that writes numbers as text, and "
            f"{name} does not; expected number_encoding=none. Omit model_args.number_format."
        )
    if readings:
        raise UserError(
            f"{read} needs the distribution of a number that a model writes in digits, and {name} has none; "
            "expected a language model with number_encoding=none. Pass evaluation.read=[greedy]."
        )


def objective_name(model: ModelSettings, loss: LossSettings) -> str:
    """Return a run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `Llama`."""
    name = str(model.config.get("model_type", "decoder")).capitalize()
    if model.family == "pretrained":
        name = Path(str(model.checkpoint)).name.removesuffix(".gguf")
    name = NAMES.get(model.encoding) or NAMES.get(model.family, name)
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
        return NAMES.get(loss, criterion)
    if criterion == "weighted_sum":
        parts = [{"name": p} if isinstance(p, str) else p for p in options.get("criteria", ())]
        return " + ".join(_criterion_name(part["name"], part) for part in parts) or criterion
    return NAMES.get(criterion, criterion)
