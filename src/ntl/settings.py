"""The settings of a run: the groups with their keys, how they are read, and which fit each other.

Datasets declare theirs beside their data, see `ntl.data`. Hydra refuses unknown keys, wrong types and wrong
choices, `Settings` values out of their range, and `check` what cannot work, or what nothing reads, although
each value is valid. The files in `conf/` set other defaults.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from ntl.data import DATASETS, Data
from ntl.data.task import Changes, Settings, setting
from ntl.errors import UserError, unknown_key
from ntl.own import is_own
from ntl.terminal import explain_choices

Family = StrEnum("Family", "t5 decoder_only pretrained")
TokenizerType = StrEnum("TokenizerType", "digits auto")
AnswerWidth = StrEnum("AnswerWidth", "plain padded")
AnswerScale = StrEnum("AnswerScale", "plain log")
HeadLoss = StrEnum("HeadLoss", "squared absolute")
LossFunction = StrEnum("LossFunction", "mse mae huber")
Mode = StrEnum("Mode", "add replace")
NormalizeBy = StrEnum("NormalizeBy", "numbers items")
Reading = StrEnum("Reading", "greedy median mean")
Number = int | float  # a whole number stays as it was given

HEAD = "none_regression_head"  # value of model_args.number_encoding: one number instead of text
AUTO = "auto"  # value of loss.options.sigma and loss.label_noise: the training answers choose the width
OF_MODEL = "from_model_args"  # value of loss.criterion that leaves the loss to model_args
# Keys of `model_args` by which the paper's commands choose a loss, see `choose_loss`.
PUBLISHED = (
    "number_token_loss", "number_token_loss_weight", "number_token_loss_with_wasserstein",
    "number_token_loss_function", "gaussian_label_smoother", "label_smoother_sigma",
)  # fmt: skip
OF_FUNCTION = {None: "ntl_mse", "mse": "ntl_mse", "mae": "ntl_mae", "huber": "ntl_huber"}
# The paper's Gaussian smoothing together with its smoothed Wasserstein loss.
SMOOTHED = "ntl.losses:gaussian_and_wasserstein"
# Further arguments of transformers that change nothing of a run.
INCIDENTAL = (
    "training_args.use_cpu", "training_args.dataloader_num_workers", "training_args.dataloader_pin_memory",
    "training_args.run_name", "training_args.logging_dir", "training_args.logging_strategy",
)  # fmt: skip


@dataclass
class ModelArgs(Settings):
    """Which model to use, and how it reads and writes numbers: by default T5 with digits as tokens."""

    group = "model_args."

    name: str = setting(
        "vanilla_t5", "a name for the model, which is part of the name of the output folder", "nothing"
    )
    family: Family = setting(
        Family.t5, "the kind of model; pretrained: what the model's own configuration says"
    )
    number_encoding: str = setting(
        "none",
        "how numbers are encoded, if not as text: rt, xval, none_regression_head, or module:function, an "
        "encoding of your own in a file of the folder of the command",
    )
    tokenizer_type: TokenizerType = setting(
        TokenizerType.digits, "digits: each digit is a token; auto: the tokenizer is left as it is"
    )
    number_format: AnswerWidth = setting(
        AnswerWidth.plain,
        "padded: answers have one length, with leading zeros, signs and decimals, and are decoded as such; a "
        "regression head writes no text, and ignores this",
    )
    number_digits: int | None = setting(
        None,
        "padded: how precisely answers are written; 3 keeps three significant digits of their standard "
        "deviation; null: all digits",
        least=1,
    )
    number_scale: AnswerScale = setting(
        AnswerScale.plain, "padded; log: the answers' logarithms to base 10 are written"
    )
    model_name_or_path: str | None = setting(
        "google-t5/t5-small", "a folder or a name on the hub; null: trained from scratch, with config_name"
    )
    tokenizer_name_or_path: str | None = setting(
        None, "null: the model's; from scratch, the small one that ships with the lab"
    )
    config_name: str = setting(
        "t5-small",
        "the shape of a model from scratch: one that ships with the lab, or a folder with config.json",
    )
    config_overrides: dict[str, Any] | None = setting(
        {}, "changes of this shape, such as {dropout_rate: 0.0}"
    )
    separator: str | None = setting(
        None,
        "text between question and answer of a decoder-only model; null: a line break, unless the question "
        "ends in white space; with chat_template, the beginning of the assistant's turn, and null is nothing",
    )
    chat_template: bool = setting(False, "of instruct models: the question is the user's turn")
    head_loss: HeadLoss = setting(
        HeadLoss.squared, "error that a regression head minimizes, on standardized numbers"
    )
    log_scale_embeddings: bool = setting(
        True, "embeddings of rt and xval, and predictions of xval and a regression head, use logarithms"
    )
    number_token_loss: bool = setting(False, "published key: add a number token loss")
    number_token_loss_weight: float = setting(0.3, "published key: λ")
    number_token_loss_with_wasserstein: bool = setting(
        False, "published key: true is NTL-WAS; false is what number_token_loss_function names"
    )
    number_token_loss_function: LossFunction | None = setting(None, "published key; null: mse")
    gaussian_label_smoother: bool = setting(False, "published key: smooth the targets of digits")
    label_smoother_sigma: float = setting(1.0, "published key: standard deviation of these targets")

    @property
    def encoding(self) -> str:
        """How texts become tokens: `digits`, `auto`, or `number_encoding`, see `ntl.encodings`."""
        plain = self.number_encoding in ("none", HEAD)
        return str(self.tokenizer_type) if plain else self.number_encoding


@dataclass
class Weights(Settings):
    """Which weights are trained, by default all of them, and how."""

    group = "weights."

    trained_layers: int | None = setting(
        None,
        "number of layers that are trained, from the top (of the decoder), with the norm behind them; "
        "null: all",
    )
    lora: dict[str, Any] | None = setting(
        {}, "arguments of peft's LoraConfig, such as {r: 8, lora_alpha: 16}; merged into the saved model"
    )


@dataclass
class TrainingArgs(Settings):
    """Training as published: any argument of transformers' Seq2SeqTrainingArguments, and a few of the lab."""

    group, is_open = "training_args.", True

    trial: str | None = setting(None, "a folder that groups runs", "nothing")
    special_name: str | None = setting(None, "suffix of the output folder's name", "nothing")
    do_only_eval: bool = setting(False, "evaluate model_args.model_name_or_path and train nothing", "nothing")
    overwrite_output_dir: bool = setting(
        False,
        "replace the run in output_dir; the same command then starts again instead of continuing",
        "nothing",
    )
    output_dir: str | None = setting(
        None,
        "folder of the run; null: outputs/<dataset>/<trial>/<model>_<number_format>_<loss>_<special_name>; "
        "of a sweep, the folder of its runs, and null is outputs/<dataset>/<trial>/sweep",
        "nothing",
    )
    seed: int = setting(42, "random seed of the weights, of dropout and of the order of the data", least=0)
    max_steps: int = setting(
        2_500_000, "0: the model as it is, which is only evaluated; -1: num_train_epochs counts", least=-1
    )
    per_device_train_batch_size: int = setting(32, "rows of a batch in training", least=1)
    per_device_eval_batch_size: int = setting(64, "rows of a batch in evaluations", "nothing", least=1)
    learning_rate: float = setting(1.0e-4, "the largest learning rate", least=0)
    weight_decay: float = setting(0.01, "weight decay of AdamW")
    lr_scheduler_type: str = setting(
        "reduce_lr_on_plateau", "or cosine with warmup_steps, linear, constant, ..."
    )
    packed: bool = setting(
        False,
        "of decoder-only language models: the rows of a training batch stand one behind another, not padded",
    )
    lr_scheduler_kwargs: dict[str, Any] | None = setting(
        {}, "{}: {factor: 0.5, patience: 5} for reduce_lr_on_plateau, as published; otherwise none"
    )
    logging_steps: Number = setting(2000, "steps between two lines of the loss", "nothing")
    eval_strategy: str = setting("steps", "when validation examples are evaluated: steps, epoch, no")
    eval_steps: Number | None = setting(25000, "steps between two evaluations")
    save_strategy: str = setting("steps", "when a checkpoint is written: steps, epoch, no")
    save_steps: Number = setting(25000, "steps between two checkpoints")
    save_total_limit: int | None = setting(2, "checkpoints that are kept; null: all", "nothing")
    load_best_model_at_end: bool = setting(
        True, "keep the best checkpoint's weights, by metric_for_best_model"
    )
    metric_for_best_model: str | None = setting("loss", "a metric of the validation examples")
    greater_is_better: bool | None = setting(None, "null: as the metric needs")
    report_to: Any = setting("none", "wandb, tensorboard", "nothing")
    disable_tqdm: bool | None = setting(None, "null: progress bars only in a terminal", "nothing")


@dataclass
class LossSettings(Settings):
    """Which loss to minimize in addition to cross-entropy, or in place of it at number tokens."""

    group = "loss."

    criterion: str | None = setting(
        None,
        "a name of ntloss.criteria.CRITERIA, as in loss=ce loss.criterion=smmd, or a function of your own, "
        "as in loss.criterion=my_module:my_function; null: cross-entropy alone",
    )
    options: dict[str, Any] = setting({}, "arguments of the criterion, such as {sigma: 1.0}")
    weight: float = setting(0.3, "λ, by which the criterion is multiplied", least=0)
    mode: Mode = setting(Mode.add, "replace: the criterion replaces cross-entropy at number tokens")
    normalize_by: NormalizeBy | None = setting(
        None,
        "what the criterion is divided by: number tokens, as in the paper, or items, which are all labels, "
        "as cross-entropy is; null: numbers, and items with mode=replace",
    )
    label_smoothing: float = setting(
        0.0, "of cross-entropy; training_args.label_smoothing_factor sets it, too"
    )
    label_noise: Any = setting(
        None,
        "standard deviation of normal noise in the training answers, in their unit, or [first, last] of one "
        "that falls from epoch to epoch; auto: as wide as the targets of HL-Gauss for these answers",
    )


@dataclass
class Evaluation(Settings):
    """How answers are decoded and scored."""

    group = "evaluation."

    name: str = setting(
        "test",
        "folder of the results, in that of the run; evaluating again with other settings replaces them",
        "nothing",
    )
    beams: int = setting(4, "number of beams of the beam search; xVal has one", "answers", least=1)
    max_new_tokens: int = setting(
        64, "most new tokens of an answer; by default those of the dataset", "answers", least=1
    )
    batch_size: int = setting(
        64, "questions at once; by default training_args.per_device_eval_batch_size", "nothing", least=1
    )
    samples: int | None = setting(None, "examples of each test set; null: all", "answers", least=1)
    samples_during_training: int | None = setting(
        500,
        "validation examples at each evaluation, by which checkpoints and rates are chosen; null: all",
        least=1,
    )
    read: list[Reading] = setting(
        [Reading.greedy],
        "how a number is read from the model's distribution; greedy is always included, and all that a "
        "regression head has",
        "answers",
    )
    metrics: list[str] = setting(
        [],
        "metrics of your own, [module:function]; the module is a file in the folder of the command, see "
        "docs/lab.md",
        "answers",
    )
    interval: float = setting(
        0.9, "share of the distribution between the lower and the upper quantile", "answers", is_share=True
    )

    @property
    def quantile_readings(self) -> tuple[str, ...]:
        """The readings besides `greedy`, which need quantiles of the model's distribution."""
        return tuple(str(name) for name in Reading if name in self.read and name != "greedy")


ENCODINGS = ("none", HEAD, "rt", "xval")  # besides the user's own
LONGEST = 180  # characters of a run's folder before the digest
MAX_JOBS = 4  # runs at a time by default; one of a small model takes about 0.7 GiB
MODELS = {"rt": "RT", "xval": "xVal", "t5": "T5"}  # names in tables, by encoding or family
# Keys that say how a sweep is reported.
OF_REPORTS = ("contrasts", "margin", "announce", "names")
SECTIONS: dict[str, type[Settings]] = {
    "model_args": ModelArgs, "weights": Weights, "training_args": TrainingArgs, "loss": LossSettings,
    "evaluation": Evaluation,
}  # fmt: skip
TOP = ("dataset_args", *SECTIONS, *OF_REPORTS)
"""What a configuration has at its top, besides Hydra's keys and those that a study gives to its own."""
CHANGES: dict[str, Changes] = {
    f"{kind.group}{each.name}": each.metadata.get("changes", "model")
    for kind in (*DATASETS.values(), *SECTIONS.values())
    for each in fields(kind)
}
CHANGES |= dict.fromkeys((*OF_REPORTS, *INCIDENTAL), "nothing")
"""What each key of the configuration changes, see `ntl.settings.setting`; other keys change the model."""


@dataclass
class Config:
    """Everything that one run needs to know.

    Args:
        dataset_args, model_args, weights, training_args, loss, evaluation: The groups.
        label: The run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `SmolLM2`.
        name: The name by which a contrast refers to the run: its loss, such as `ntl_was`, or `head`.
        sweep: When the sweep, or the run alone, was started, in seconds since 1970.
        job: Number of the run in its sweep, see `ntl.commands.Job`.
    """

    dataset_args: Data
    model_args: ModelArgs
    weights: Weights
    training_args: TrainingArgs
    loss: LossSettings
    evaluation: Evaluation
    label: str = ""
    name: str = ""
    sweep: float = field(default_factory=time.time)
    job: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the settings of all groups as plain values."""
        groups = {group: vars(getattr(self, group)) for group in ("dataset_args", *SECTIONS)}
        found: dict[str, Any] = json.loads(json.dumps(groups, default=str))
        return found


def read_config(composed: DictConfig, choice: str | None = None) -> Config:
    """Make the settings of a configuration.

    Args:
        composed: What Hydra composed.
        choice: Hydra's choice of the group `loss`, if known.
    """
    sections: Any = {group: OmegaConf.to_object(composed[group]) for group in ("dataset_args", *SECTIONS)}
    for section in sections.values():
        known = [each.name for each in fields(section)]
        if not section.is_open and (more := [key for key in vars(section) if key not in known]):
            raise unknown_key(section.group, more[0], known)
    config = Config(**sections)
    name = config.dataset_args.dataset_name
    if DATASETS.get(name) is not type(config.dataset_args):
        raise UserError(f"dataset_args.dataset_name={name} chooses no dataset. Pass dataset_args=NAME.")
    if smoothing := getattr(config.training_args, "label_smoothing_factor", 0.0):
        config.loss.label_smoothing = smoothing  # transformers' name
    check(config)
    config.loss = choose_loss(config.loss, config.model_args)
    said = {key: getattr(ModelArgs, key) for key in PUBLISHED}  # which the group `loss` says now
    config.model_args = replace(config.model_args, **said)
    config.label, config.name = name_model(config.model_args, config.loss, choice)
    return config


def name_model(args: ModelArgs, loss: LossSettings, choice: str | None) -> tuple[str, str]:
    """Return the label and the name of a run, see `Config`."""
    from ntloss.criteria import CRITERIA, fact  # slow: torch

    title = loss.criterion or ""
    if loss.criterion == SMOOTHED:
        title = "Gaussian smoothing + smoothed NTL-WAS"
    elif loss.criterion in CRITERIA:
        title = str(fact(CRITERIA[loss.criterion], "title"))
    model = re.split(r"[-_]", args.config_name)[0].capitalize()
    if args.family == "pretrained" or args.model_name_or_path is not None:
        model = Path(str(args.model_name_or_path)).name
    model = MODELS.get(args.encoding) or MODELS.get(args.family, model)
    model = f"{model}, own encoding" if is_own(args.encoding) else model
    chosen = None if choice in ("ce", OF_MODEL) else choice
    name = chosen or loss.criterion or "ce"
    if args.number_encoding == HEAD:
        model, title, name = f"{model} regression head", "", "head"
    if loss.label_noise is not None:
        title, name = f"{title} + label noise".removeprefix(" + "), f"{name}_label_noise"
    return " + ".join(filter(None, (model, title))), name


def compose_config(overrides: Sequence[str], primary: str | Path = "train") -> Config:
    """Compose a configuration as a command does, for programs that do not run it.

    Args:
        overrides: Overrides of Hydra, such as `dataset_args=arithmetic`.
        primary: The name of a command, `train` or `compare`, or the file of a study.
    """
    folder, name, more = find_primary(primary)
    with initialize_config_dir(folder, version_base="1.3"):
        return read_config(compose(name, [*overrides, *more]))


def find_primary(primary: str | Path) -> tuple[str, str, list[str]]:
    """Return the folder and the name of the primary file of a command or a study, and overrides it needs."""
    if isinstance(primary, str):
        return str(files("ntl.conf")), primary, []
    # A study's own files come before those of the lab.
    return str(primary.parent.resolve()), primary.stem, ["hydra.searchpath=[pkg://ntl.conf]"]


def check(config: Config) -> None:
    """Raise a UserError for a setting that another one forbids, or because of which nothing reads it."""
    args, training, loss = config.model_args, config.training_args, config.loss
    has_model = args.model_name_or_path is not None
    is_t5 = args.family == "t5"
    is_head = args.number_encoding == HEAD
    is_padded = args.number_format == "padded"
    is_was = args.number_token_loss_with_wasserstein
    by_model = loss.criterion == OF_MODEL
    own = is_own(args.number_encoding)
    writes = not is_head and args.encoding in ("digits", "auto")
    in_digits = writes or own or args.encoding == "rt"
    in_part = writes or own or (is_head and not is_t5)  # of the weights that are trained
    replaces = loss.mode == "replace" or (by_model and args.gaussian_label_smoother)
    head_loss = "absolute" if args.family == "pretrained" else "squared"  # the default, see `conf/model_args`
    model = "model_args.model_name_or_path=MODEL, a folder or a name on the hub"
    same = "the same training_args.output_dir, from whose latest checkpoint the same command continues"
    name = "a regression head" if is_head else f"number_encoding={args.encoding}"
    digits = f"a language model that writes numbers in digits, which {name} does not"
    encodings = f"to be {', '.join(ENCODINGS)} or module:function"
    padded, decoder = "model_args.number_format=padded", "a model_args.family that is not t5"
    head = "a regression head, such as model_args=pretrained_regression_head"
    by_keys, by_name = "loss=from_model_args", "a loss that is chosen by loss=NAME"
    term = f"model_args.number_token_loss=true with {by_keys}"
    function = f"{term} without model_args.number_token_loss_with_wasserstein=true"
    smoother = f"model_args.gaussian_label_smoother=true with {by_keys}"
    is_name = re.fullmatch(r"(?!checkpoint-)[\w+-][\w.+-]*", config.evaluation.name) is not None
    added = "loss.mode=add, because what replaces a part of cross-entropy is divided by all labels"
    # Keys whose value is not the default, what they need, and whether that is so.
    needs: list[tuple[str, str, bool]] = [
        ("training_args.output_dir", "a folder", training.output_dir != ""),
        ("evaluation.name", "letters, digits, dots and hyphens, and no checkpoint- before them", is_name),
        ("training_args.do_only_eval", model, has_model),
        ("training_args.num_train_epochs", "training_args.max_steps=-1", training.max_steps == -1),
        ("training_args.fsdp", "a program without the lab, see examples/fsdp.py", False),
        ("training_args.resume_from_checkpoint", same, False),
        ("model_args.number_encoding", encodings, own or args.number_encoding in ENCODINGS),
        ("model_args.family", model, has_model or args.family != "pretrained"),
        ("model_args.config_overrides", "model_args.model_name_or_path=null", not has_model),
        ("model_args.number_format", digits, writes or is_head),
        ("model_args.number_digits number_scale", padded, is_padded),
        ("model_args.separator chat_template", decoder, not is_t5),
        ("model_args.head_loss", head, is_head),
        ("model_args.number_token_loss gaussian_label_smoother", by_keys, by_model),
        ("model_args.number_token_loss gaussian_label_smoother", digits, in_digits),
        ("model_args.number_token_loss_weight", term, args.number_token_loss),
        ("model_args.number_token_loss_with_wasserstein", term, args.number_token_loss),
        ("model_args.number_token_loss_function", function, args.number_token_loss and not is_was),
        ("model_args.gaussian_label_smoother", "NTL-WAS or no NTL", is_was or not args.number_token_loss),
        ("model_args.label_smoother_sigma", smoother, args.gaussian_label_smoother),
        ("weights.trained_layers", "weights.lora={}", not config.weights.lora),
        ("weights.trained_layers lora", digits, in_part),
        ("loss.criterion", digits, in_digits or by_model),
        ("loss.options weight", by_name, not by_model),
        ("loss.mode", by_name, loss.criterion not in (None, OF_MODEL)),
        ("loss.normalize_by", added, loss.normalize_by == "items" or not replaces),
        ("loss.label_smoothing", "a language model", not is_head),
        ("evaluation.read", digits, writes or is_head or not config.evaluation.quantile_readings),
    ]
    for keys, needed, is_met in needs:
        group, _, names = keys.partition(".")
        for key in names.split():
            value = getattr(getattr(config, group), key, None)
            default = head_loss if key == "head_loss" else getattr(SECTIONS[group](), key, None)
            if value not in (None, {}, default) and not is_met:
                said = f"{group}.{key}={value}"
                raise UserError(f"{said} needs {needed}. Pass that, or omit {said}.")


def read_trained(model: str | Path) -> dict[str, Any] | None:
    """Return how a model of the lab was trained, which its configuration holds: see `ntl.run.prepare`."""
    try:
        config = json.loads(Path(model, "config.json").expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found: dict[str, Any] | None = config.get("ntl", {}).get("trained")
    return found


def choose_folder(kind: str, _root_: DictConfig) -> str:
    """Return the folder of a `run` or a `sweep`: the resolver `ntl.folder` of Hydra's folders."""
    training, model = _root_.training_args, _root_.model_args
    if kind == "run" and training.do_only_eval:
        own = str(model.model_name_or_path)
        default = Path(own) if read_trained(own) else Path("outputs/evaluations", Path(own).name)
        return str(Path(training.output_dir or default, _root_.evaluation.name).expanduser())
    name = "sweep"
    if kind == "run":  # in a sweep, settings that depend on the choice of the loss are not known yet
        written = None if model.number_format == "plain" else str(model.number_format)
        loss = choose_loss(*map(OmegaConf.to_object, (_root_.loss, model)))  # type: ignore[arg-type]
        choice = _root_.hydra.runtime.choices.loss
        named = loss.criterion or ("" if choice == OF_MODEL else choice)
        noise = None if loss.label_noise is None else "label_noise"
        parts = (model.name, written, re.sub(r"[^\w.-]+", "-", named), noise, training.special_name)
        name = "_".join(filter(None, parts))
    default = Path("outputs", _root_.dataset_args.dataset_name, training.trial or "", name)
    return str(Path(training.output_dir or default).expanduser())


def name_run(given: str, seed: int) -> str:
    """Write Hydra's `override_dirname` as the name of a folder, which a shell takes as it is.

    What has characters besides letters, digits, `_`, `.`, `+` and `-` is cleaned, and ends in a digest. So
    does what is long, which is cut, with the seed behind the digest.

    Example:
        >>> name_run("loss-ntl_was_loss.weight-0.3_training_args.seed-0", 0)
        'loss-ntl_was_loss.weight-0.3_seed-0'
        >>> name_run("loss.options-{sigma:4.0}_training_args.seed-0", 0)
        'loss.options--sigma-4.0-_seed-0-af8c25'
    """
    # training_args.data_seed is another key than dataset_args.data_seed.
    short = re.sub(r"(^|_)(?:dataset_args\.|(?:model|training)_args\.(?!data_seed))", r"\1", given)
    clean = re.sub(r"[^\w.+-]+", "-", short, flags=re.ASCII)
    if clean != short or len(clean) > LONGEST:
        ending = f"_seed-{seed}" if len(clean) > LONGEST else ""
        clean = f"{clean[:LONGEST]}-{sha256(given.encode()).hexdigest()[:6]}{ending}"
    return clean or "run"


def check_keys(given: Iterable[str], text: str) -> None:
    """Raise a UserError for a key at the top of a configuration that nothing reads.

    A study may have keys of its own, such as `rate` for `${rate.${hydra:runtime.choices.loss}}`.

    Args:
        given: The keys.
        text: The configuration as YAML, with its interpolations.
    """
    for key in given:
        is_read = re.search(rf"\$\{{(?:[^}}]*[^\w.}}])?\.*{re.escape(key)}\b", text)
        if key not in ("defaults", "hydra", *TOP) and not is_read:
            raise unknown_key("", key, TOP)


def default_jobs(_root_: DictConfig) -> int:
    """Return the default number of runs at a time, one on a GPU: the resolver `ntl.jobs`."""
    import joblib  # slow
    import torch

    if torch.accelerator.is_available() and not _root_.training_args.get("use_cpu"):
        return 1
    return min(joblib.cpu_count(), MAX_JOBS)


def _open_mappings(node: DictConfig) -> DictConfig:
    """Let keys be added to the mappings of a group, such as `loss.options`, without Hydra's `+`."""
    for value in node.values():
        if OmegaConf.is_dict(value):
            OmegaConf.set_struct(value, False)
    return node


def _criteria() -> dict[str, bool]:
    """Map the functions of `ntloss.criteria.CRITERIA` to whether each replaces cross-entropy.

    Both are read from the source, because importing the functions imports torch, for which `ntl train --help`
    would wait.
    """
    found = {}
    for module in ("tokens", "whole_numbers"):
        source = files("ntloss").joinpath("criteria", f"{module}.py").read_text("utf-8")
        for node in ast.parse(source).body:
            for decorator in getattr(node, "decorator_list", ()):
                if isinstance(node, ast.FunctionDef) and ast.unparse(decorator).startswith("facts("):
                    found[node.name] = any(keyword.arg == "replaces" for keyword in decorator.keywords)
    return found


def register() -> None:
    """Tell Hydra the settings, and omegaconf the resolvers of `conf/`."""
    store = ConfigStore.instance()
    groups: dict[tuple[str, str], type] = {("dataset_args", name): kind for name, kind in DATASETS.items()}
    groups |= {
        ("model_args", "vanilla_t5"): ModelArgs,
        ("weights", "all"): Weights,
        ("loss", "ce"): LossSettings,
        ("evaluation", "default"): Evaluation,
    }
    for (group, name), kind in groups.items():
        store.store(name, _open_mappings(OmegaConf.structured(kind)), group)
    for name, replaces in _criteria().items():
        if not files("ntl.conf").joinpath("loss", f"{name}.yaml").is_file():
            loss = LossSettings(name, weight=1.0, mode=Mode.replace) if replaces else LossSettings(name)
            store.store(name, _open_mappings(OmegaConf.structured(loss)), "loss")
    # Open, because all arguments of transformers can be given.
    training = _open_mappings(OmegaConf.structured(TrainingArgs, flags={"struct": False}))
    store.store("train", training, "training_args")
    resolvers: dict[str, Callable[..., Any]] = {
        "folder": choose_folder, "name_run": name_run, "jobs": default_jobs, "keys": explain_choices
    }  # fmt: skip
    for name, function in resolvers.items():
        OmegaConf.register_new_resolver(f"ntl.{name}", function, replace=True)


register()  # on import, because the processes of a launcher import this module to load their configuration


def choose_loss(loss: LossSettings, model: ModelArgs) -> LossSettings:
    """Return the loss to minimize, whose `normalize_by` is not None.

    It is that of the group `loss` or, if this is `from_model_args`, of the published keys of `model_args`.
    """
    if loss.criterion == OF_MODEL:
        weight, sigma = model.number_token_loss_weight, {"sigma": model.label_smoother_sigma}
        is_was = model.number_token_loss_with_wasserstein
        function = "ntl_was" if is_was else OF_FUNCTION[model.number_token_loss_function]
        chosen: dict[str, Any] = {"criterion": None}
        if model.gaussian_label_smoother and model.number_token_loss:
            chosen = {"criterion": SMOOTHED, "options": {**sigma, "weight": weight}}
        elif model.gaussian_label_smoother:
            chosen = {"criterion": "gaussian_smoothing", "options": sigma}
        elif model.number_token_loss:
            chosen = {"criterion": function, "weight": weight}
        if model.gaussian_label_smoother:
            chosen |= {"weight": 1.0, "mode": Mode.replace}
        loss = replace(loss, **chosen)
    if loss.criterion is None:  # a sweep over losses and weights has several weights of cross-entropy alone
        loss = replace(loss, weight=LossSettings.weight, options={})
    each = NormalizeBy.items if loss.mode == "replace" else NormalizeBy.numbers
    return replace(loss, normalize_by=loss.normalize_by or each)
