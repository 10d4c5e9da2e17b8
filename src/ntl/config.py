"""The settings: one dataclass a group, registered with Hydra and used by the code as they are.

Hydra refuses unknown keys, wrong types and wrong choices. What cannot work, although each value is valid, is
refused by a `__post_init__` or by `check_combination`. The files in `conf/` set other defaults.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import MISSING, DictConfig, OmegaConf

from ntl.errors import UserError

Number = int | float  # a whole number stays as it was given
Family = StrEnum("Family", "t5 decoder_only pretrained")
NumberEncoding = StrEnum("NumberEncoding", "none none_regression_head rt xval")
TokenizerType = StrEnum("TokenizerType", "digits auto")
AnswerWidth = StrEnum("AnswerWidth", "plain padded")
AnswerScale = StrEnum("AnswerScale", "plain log")
HeadLoss = StrEnum("HeadLoss", "squared absolute")
LossFunction = StrEnum("LossFunction", "mse mae huber")
Mode = StrEnum("Mode", "add replace")
NormalizeBy = StrEnum("NormalizeBy", "numbers items")
Reading = StrEnum("Reading", "greedy median mean")
Annotations = StrEnum("Annotations", "remove keep")

LOSS_OF_MODEL = "from_model_args"  # the value of loss.criterion that leaves the loss to model_args
OF_FUNCTION = {None: "ntl_mse", "mse": "ntl_mse", "mae": "ntl_mae", "huber": "ntl_huber"}
# The paper's Gaussian smoothing together with its smoothed Wasserstein loss.
SMOOTHED = "ntl.criteria:gaussian_and_wasserstein"
MAX_JOBS = 4  # runs at a time by default; one of a small model takes about 0.7 GiB
# Names in tables of encodings and criteria.
NAMES = {
    "rt": "RT", "xval": "xVal", "t5": "T5", "ntl_was": "NTL-WAS", "crps": "CRPS",
    "gaussian_smoothing": "Gaussian smoothing", "smoothed_wasserstein": "smoothed NTL-WAS",
    "hl_gauss": "HL-Gauss", "dist2": "DIST2", "del_loss": "DEL", "smmd": "SMMD", "ntil": "NTIL",
    "number_level": "number-level NTL", "ntl_mse": "NTL-MSE", "ntl_mae": "NTL-MAE", "raft": "RAFT",
    "ntl_huber": "NTL-Huber", SMOOTHED: "Gaussian smoothing + smoothed NTL-WAS",
}  # fmt: skip


@dataclass
class Evaluation:
    """How answers are decoded and scored."""

    name: str = "test"  # folder of the results, in that of the run; evaluating again replaces them
    beams: int = 4  # xVal is greedy
    max_new_tokens: int = 64  # conf/train.yaml: those of the dataset
    batch_size: int = 64  # conf/train.yaml: training_args.per_device_eval_batch_size
    samples: int | None = None  # examples of each test set; null: all
    samples_during_training: int | None = 500  # validation examples at each evaluation; null: all
    # How a number is read from the model's distribution; greedy is always included.
    read: list[Reading] = field(default_factory=lambda: [Reading.greedy])
    interval: float = 0.9  # share of the distribution between the lower and the upper quantile

    def __post_init__(self) -> None:
        if not 0 < self.interval < 1:
            raise UserError(f"evaluation.interval={self.interval}; expected a share above 0 and below 1.")
        if not re.fullmatch(r"[\w+-][\w.+-]*", self.name):
            raise UserError(
                f"evaluation.name={self.name!r} is not the name of a folder; expected letters, digits, "
                "dots and hyphens."
            )

    @property
    def quantile_readings(self) -> tuple[str, ...]:
        """The readings besides `greedy`, which need quantiles of the model's distribution."""
        return tuple(str(name) for name in Reading if name in self.read and name != "greedy")


@dataclass
class LossSettings:
    """Which loss to minimize in addition to cross-entropy, or in place of it at number tokens."""

    # a name of ntloss.criteria.CRITERIA, as in loss=ce loss.criterion=smmd, or one of your own, such as
    # my_module:my_function; null: cross-entropy alone
    criterion: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the criterion, such as {sigma: 1.0}
    weight: float = 0.3  # λ
    mode: Mode = Mode.add  # replace: the criterion replaces cross-entropy at number positions
    # what the criterion is divided by: number tokens, as in the paper, or items, all labels, as cross-entropy
    normalize_by: NormalizeBy = NormalizeBy.numbers
    label_smoothing: float = 0.0

    @property
    def title(self) -> str:
        """The criterion's name in tables, such as `NTL-WAS`; empty without a criterion."""
        return "" if self.criterion is None else NAMES.get(self.criterion, self.criterion)


@dataclass
class ModelArgs:
    """Which model to use, and how it reads and writes numbers: by default T5 with digits as tokens."""

    name: str = "vanilla_t5"
    family: Family = Family.t5
    number_encoding: NumberEncoding = NumberEncoding.none
    tokenizer_type: TokenizerType = TokenizerType.digits  # digits: each is a token; auto: left as it is
    # padded: answers of one length, with leading zeros, signs and decimals, and decoded as such
    number_format: AnswerWidth = AnswerWidth.plain
    number_width: int | None = None  # padded: digits before the point; null: as the training answers need
    number_places: int | None = None  # padded: digits after the point; null: as needed
    # padded: digits of the answers' standard deviation that are written, the rest is rounded; null: all
    number_digits: int | None = None
    number_scale: AnswerScale = AnswerScale.plain  # padded; log: the answers' logarithm to base 10 is written
    # a folder or a name on the hub; null: from scratch, with config_name
    model_name_or_path: str | None = "google-t5/t5-small"
    # null: the model's; from scratch, the small one that ships with the lab
    tokenizer_name_or_path: str | None = None
    config_name: str = "t5-small"  # a shape that ships with the lab, or a folder that holds config.json
    config_overrides: dict[str, Any] | None = field(default_factory=dict)  # such as {dropout_rate: 0.0}
    # Text between question and answer of a decoder-only model; null: a line break, unless the question ends
    # in white space. With chat_template: the beginning of the assistant's turn; null: nothing.
    separator: str | None = None
    chat_template: bool = False  # of instruct models: the question is the user's turn
    head_loss: HeadLoss = HeadLoss.squared  # of a regression head, on standardized numbers
    # embeddings of rt and xval, and predictions of xval and a regression head
    log_scale_embeddings: bool = True
    # The published keys of the loss; the group `loss` has all others.
    number_token_loss: bool = False
    number_token_loss_weight: float = 0.3
    number_token_loss_with_wasserstein: bool = False  # NTL-WAS; false: what number_token_loss_function names
    number_token_loss_function: LossFunction | None = None  # null: mse
    gaussian_label_smoother: bool = False
    label_smoother_sigma: float = 1.0

    def __post_init__(self) -> None:
        of_padded = {
            "number_scale": ("plain", self.number_scale),
            "number_digits": (None, self.number_digits),
        }
        for key, (plain, value) in of_padded.items():
            if self.number_format == "plain" and value != plain:
                raise UserError(
                    f"model_args.{key}={value} is of padded answers, and model_args.number_format is plain. "
                    f"Pass model_args.{key}={plain or 'null'}, or model_args.number_format=padded."
                )
        if self.model_name_or_path is not None and self.config_overrides:
            raise UserError(
                f"model_args.config_overrides is {self.config_overrides}, but the shape of "
                f"model_args.model_name_or_path={self.model_name_or_path} is fixed. Omit one of the two."
            )

    @property
    def encoding(self) -> str:
        """How texts become tokens: `digits`, `auto`, `rt` or `xval`, see `ntl.encodings`."""
        of_numbers = str(self.number_encoding)
        return of_numbers if of_numbers in ("rt", "xval") else str(self.tokenizer_type)

    @property
    def head(self) -> str:
        """What the model answers with: `language`, or `regression` for one number instead of text."""
        return "regression" if self.number_encoding == "none_regression_head" else "language"

    @property
    def writes_digits(self) -> bool:
        """Whether numbers are written as text, so that their distribution can be read."""
        return self.head == "language" and self.encoding in ("digits", "auto")

    def published_loss(self) -> LossSettings:
        """Read the loss from the published keys; a UserError says which of them contradict each other."""
        weight = self.number_token_loss_weight
        if not self.gaussian_label_smoother:
            if not self.number_token_loss:
                return LossSettings()
            if self.number_token_loss_with_wasserstein:
                return LossSettings("ntl_was", weight=weight)
            return LossSettings(OF_FUNCTION[self.number_token_loss_function], weight=weight)
        sigma = {"sigma": self.label_smoother_sigma}
        if not self.number_token_loss:
            return LossSettings("gaussian_smoothing", sigma, weight=1.0, mode=Mode.replace)
        if not self.number_token_loss_with_wasserstein:
            raise UserError(
                "model_args.gaussian_label_smoother=true is given together with NTL-MSE; expected it alone "
                "or with model_args.number_token_loss_with_wasserstein=true."
            )
        return LossSettings(SMOOTHED, {**sigma, "weight": weight}, weight=1.0, mode=Mode.replace)


@dataclass
class Weights:
    """Which weights are trained, by default all of them, and how."""

    # Layers that are trained, from the top (of the decoder), with the norm behind them; null: all.
    trained_layers: int | None = None
    train_head: bool = False  # with trained_layers: the output head, too
    # arguments of peft's LoraConfig, such as {r: 8, lora_alpha: 16}; merged into the saved model
    lora: dict[str, Any] | None = field(default_factory=dict)
    head_learning_rate: float | None = None  # of a regression head; null: training_args.learning_rate
    # Largest cache of the frozen layers' output, in GB of dataset_args.cache_dir; 0: computed at each step.
    state_cache_gb: float = 10.0

    def __post_init__(self) -> None:
        if self.trained_layers is not None and self.lora:
            raise UserError(
                "weights.trained_layers is given together with weights.lora. Omit one of the two."
            )


@dataclass
class TrainingArgs:
    """Training as published: any argument of transformers' Seq2SeqTrainingArguments, and those of OWN."""

    trial: str | None = None  # a folder that groups runs
    special_name: str | None = None  # suffix of the output folder's name
    do_only_eval: bool = False
    overwrite_output_dir: bool = False  # true replaces the run in output_dir
    # null: outputs/<dataset>/<trial>/<model>_<number_format>_<loss>_<special_name>; of a sweep, the folder of
    # its runs: outputs/<dataset>/<trial>/sweep
    output_dir: str | None = None
    resume_from_checkpoint: bool | str | None = None  # a checkpoint's folder; null: the latest in output_dir
    seed: int = 42  # random seed of the weights, of dropout and of the order of the data
    max_steps: int = 2_500_000  # 0: the model as it is, which is only evaluated; -1: num_train_epochs counts
    min_steps: int | None = None  # with max_steps=-1: the fewest steps, however few the rows are
    per_device_train_batch_size: int = 32
    per_device_eval_batch_size: int = 64
    learning_rate: float = 1.0e-4
    weight_decay: float = 0.01
    lr_scheduler_type: str = "reduce_lr_on_plateau"  # or cosine with warmup_steps, linear, constant
    # {}: {factor: 0.5, patience: 5} for reduce_lr_on_plateau, as published; otherwise none
    lr_scheduler_kwargs: dict[str, Any] | None = field(default_factory=dict)
    logging_steps: Number = 2000
    eval_strategy: str = "steps"
    eval_steps: Number | None = 25000
    save_strategy: str = "steps"
    save_steps: Number = 25000
    save_total_limit: int | None = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "loss"
    greater_is_better: bool | None = None  # null: as the metric needs
    report_to: Any = "none"  # wandb, tensorboard
    disable_tqdm: bool | None = None  # null: progress bars only in a terminal

    OWN = ("trial", "special_name", "do_only_eval", "overwrite_output_dir", "min_steps")

    def of_trainer(self) -> dict[str, Any]:
        """Return the arguments of transformers, also those that are not declared here."""
        return {key: value for key, value in vars(self).items() if key not in self.OWN}


COUNTS = (
    "train_size", "validation_size", "test_size", "train_per_difficulty", "validation_per_difficulty",
    "digits", "significant_digits", "longest", "max_new_tokens", "rows",
)  # fmt: skip


def check_ranges(settings: Any, prefix: str = "") -> None:
    """Raise a UserError if a count is not positive or a share is not between 0 and 1."""
    for key in COUNTS:
        if (value := getattr(settings, key, None)) is not None and value < 1:
            raise UserError(f"{prefix}{key}={value}; expected at least 1.")
    if not 0 < (share := getattr(settings, "validation_share", 0.5)) < 1:
        raise UserError(f"{prefix}validation_share={share}; expected a share above 0 and below 1.")


@dataclass
class Data:
    """Keys of every dataset."""

    dataset_name: str = MISSING
    max_new_tokens: int = 64
    cache_dir: str = "outputs/cache"  # memory-mapped copies of the data, and token ids
    data_dir: str | None = None  # unused, unless the dataset has files
    mode: str | None = None  # dataset_comparison: one test per module of mathematics_dataset
    shots: int = 0  # training examples before each question, for models that are not trained

    def __post_init__(self) -> None:
        check_ranges(self, "dataset_args.")
        if self.mode not in (None, "dataset_comparison"):
            raise UserError(f"dataset_args.mode={self.mode}; expected null or dataset_comparison.")

    @property
    def title(self) -> str:
        """The dataset's name in reports."""
        return self.dataset_name


@dataclass
class Split:
    """Share of the official training file (of MultiRC's passages) that is the validation set."""

    validation_share: float = 0.1
    split_seed: int = 0


@dataclass
class Sizes:
    """Settings of a generator."""

    train_size: int | None = None
    validation_size: int | None = 1000
    test_size: int | None = 1000
    data_seed: int = 0


@dataclass
class Products(Sizes):
    """Settings of the generator of products."""

    train_size: int | None = 100_000
    digits: int = 4  # maximum digits of a factor
    extrapolate_digits: int = 5  # digits of the larger factor in the extrapolation test


@dataclass
class Gsm8k(Split, Data):
    """Grade-school problems. The answer is the solution, with the final number after ####."""

    dataset_name: str = "gsm8k"
    # Folder of the paper's files, or of the official ones, which may also be around it; sample: the sample.
    data_dir: str | None = "data/grade-school-math/grade_school_math/data/preprocessed"
    hub: str | None = None  # to load instead: openai/gsm8k
    annotations: Annotations = Annotations.remove  # keep: keeps <<48/2=24>>
    validation_share: float = 0.15
    max_new_tokens: int = 512


@dataclass
class MathematicsDataset(Data):
    """Thirteen modules of the DeepMind mathematics dataset, as the paper trained on them."""

    dataset_name: str = "mathematics_dataset"
    # Folder that `ntl prepare mathematics_dataset` writes; sample: the shipped sample.
    data_dir: str | None = "data/mathematics_dataset-v1.0"


@dataclass
class Arithmetic(Data):
    """Sums and differences with brackets: the paper's ablations."""

    dataset_name: str = "arithmetic"
    # Folder that `ntl prepare arithmetic` writes; sample: the shipped sample; null: generate.
    data_dir: str | None = "data/mathematics_dataset-v1.0"
    max_new_tokens: int = 32
    train_per_difficulty: int = 33333
    validation_per_difficulty: int = 1000
    test_size: int = 1000
    data_seed: int = 0


@dataclass
class Multiplication(Products, Data):
    """Products of integers with up to a given number of digits."""

    dataset_name: str = "multiplication"
    # null: generate; or a folder of the paper's files; or sample
    data_dir: str | None = None
    max_new_tokens: int = 32


@dataclass
class Multirc(Split, Data):
    """Passages with questions, answered mostly in words."""

    dataset_name: str = "multirc"
    # Folder of the paper's files, or of SuperGLUE's, which may also be around it; sample: the sample.
    data_dir: str | None = "data/multirc/data/preprocessed"
    hub: str | None = None  # to load instead: aps/super_glue
    max_new_tokens: int = 128


@dataclass
class NoisyRegression(Sizes, Data):
    """Weighted sums with noise: "12 70 45" -> 5*12 + 3*70 + 2*45 + noise, whose MAE is 20."""

    dataset_name: str = "noisy_regression"
    weights: list[Any] = field(default_factory=lambda: [5, 3, 2])
    smallest: int = 10  # range of the integers
    largest: int = 99
    noise: float = 25.0  # standard deviation; of the answer's logarithm if log_scale
    log_scale: bool = False  # true: a product of the integers, each raised to its weight, times exp(noise)
    largest_answer: int = 999  # answers are clipped to the range from 0 to this value
    train_size: int | None = 50_000
    validation_size: int = 500
    max_new_tokens: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise < 0:
            raise UserError(f"dataset_args.noise={self.noise:g}; expected at least 0.")


@dataclass
class Rjokes(Data):
    """Jokes and their scores, 0 to 11."""

    dataset_name: str = "rjokes"
    # Folder of the official files; sample: the shipped sample.
    data_dir: str | None = "data/rjokes-dataset/data"
    max_new_tokens: int = 8


@dataclass
class Tabular(Sizes, Data):
    """A table as text, a number in one of its columns as the answer: CSV, TSV, Parquet or JSON lines."""

    dataset_name: str = "tabular"
    file: str = "sample"  # the table; sample: 2,000 diamonds that ship with the lab
    # the column to predict, or several, such as [latitude,longitude], which are written one behind the other
    target: Any = "price"
    # A column with the numbers of several people, separated by spaces: the distribution is scored by them.
    ratings: str | None = None
    # The question, such as "{text}\nSentiment (0 to 80): "; null: the columns joined with commas.
    prompt: str | None = None
    columns: list[str] | None = None  # without a prompt: of the question; null: all but the target
    names: bool = False  # without a prompt: whether the columns are named, "carat: 0.23, cut: Ideal, price: "
    significant_digits: int | None = 15  # of the question's numbers; null: as they are written
    longest: int | None = None  # characters of a question; rows with longer ones are left out; null: none
    rows: int | None = None  # most rows that are used, drawn at random or the last by split_by; null: all
    # null: at random; a column, such as a date: the rows with its largest values are the test set
    split_by: str | None = None
    group_by: str | None = None  # of a split at random: a column whose rows with one value stay together
    train_size: int | None = None  # null: all rows that are left
    train_seed: int | None = None  # null: the same training rows in every run; a seed draws them
    validation_size: int | None = 200  # null: a tenth of the rows, at least 20
    test_size: int | None = 300  # null: a tenth of the rows, at least 20
    max_new_tokens: int = 16

    @property
    def title(self) -> str:
        """The table's name, without folder and ending; see `Data.title`."""
        return self.dataset_name if self.file == "sample" else Path(self.file).stem


DATASETS = (Arithmetic, Gsm8k, MathematicsDataset, Multiplication, Multirc, NoisyRegression, Rjokes, Tabular)
DATASET_BY_NAME: dict[str, type[Data]] = {kind.dataset_name: kind for kind in DATASETS}
SECTIONS = {
    "model_args": ModelArgs, "weights": Weights, "training_args": TrainingArgs, "loss": LossSettings,
    "evaluation": Evaluation,
}  # fmt: skip


@dataclass
class Config:
    """Everything that one run needs to know.

    Args:
        given: The composed configuration, as plain values: what `run.json` records.
        objective: The choice of the group `objective`, or else of `loss`, if known.
        job: Number of the run in its sweep.
    """

    dataset_args: Data
    model_args: ModelArgs
    weights: Weights
    training_args: TrainingArgs
    loss: LossSettings
    evaluation: Evaluation
    given: Mapping[str, Any] = field(default_factory=dict)
    objective: str | None = None
    job: int = 0

    @property
    def label(self) -> str:
        """The run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `SmolLM2`."""
        args = self.model_args
        name = re.split(r"[-_]", args.config_name)[0].capitalize()
        if args.family == "pretrained" or args.model_name_or_path is not None:
            name = Path(str(args.model_name_or_path)).name
        name = NAMES.get(args.encoding) or NAMES.get(args.family, name)
        if args.head == "regression":
            return f"{name} regression head"
        return " + ".join(filter(None, (name, self.loss.title)))


def read_config(given: DictConfig | Mapping[str, Any], objective: str | None = None) -> Config:
    """Make the dataclasses of a configuration.

    Args:
        given: What Hydra composed, or what `run.json` holds. Keys that an older version did not record have
            their defaults; keys that no longer exist are ignored.
        objective: See `Config`.
    """
    if isinstance(given, DictConfig):
        given = OmegaConf.to_container(given, resolve=True, enum_to_str=True)
    if not given.get("dataset_args"):
        raise UserError(f"there is no dataset. Pass dataset_args=NAME: {', '.join(DATASET_BY_NAME)}.")
    name = given["dataset_args"].get("dataset_name", "")
    kinds = {"dataset_args": DATASET_BY_NAME.get(name, Data), **SECTIONS}
    sections = {name: _read(kind, given.get(name) or {}) for name, kind in kinds.items()}
    training = sections["training_args"]
    for key, value in (given.get("training_args") or {}).items():
        if not hasattr(training, key) and value != MISSING:
            setattr(training, key, value)
    config = Config(**sections, given=given, objective=objective)
    config.loss = _loss(config)
    check_combination(config)
    return config


def compose_config(overrides: Sequence[str], command: str = "train") -> Config:
    """Compose a configuration as a command does, for programs that do not run it.

    Args:
        overrides: Overrides of Hydra, such as `dataset_args=arithmetic`.
        command: `train` or `compare`.
    """
    outer = GlobalHydra.instance().hydra  # of a Hydra application that calls this function
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("ntl.conf", version_base="1.3"):
            return read_config(compose(command, [*overrides]))
    finally:
        GlobalHydra.instance().hydra = outer


def _read(kind: type, given: Mapping[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    values = {key: value for key, value in given.items() if key in known and value != MISSING}
    # What is given is resolved: `${` stands for itself, as in a prompt with prices.
    texts = {key: value.replace("${", r"\${") for key, value in values.items() if isinstance(value, str)}
    values |= texts
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), values))


def _loss(config: Config) -> LossSettings:
    """Return the loss of the group `loss` or, if it is `from_model_args`, of the keys of `model_args`."""
    loss, args = config.loss, config.model_args
    if loss.criterion == LOSS_OF_MODEL:
        published = args.published_loss()
        published.normalize_by, published.label_smoothing = loss.normalize_by, loss.label_smoothing
        loss = published
    else:
        for key in ("number_token_loss", "gaussian_label_smoother"):
            if getattr(args, key):
                raise UserError(
                    f"the group loss is given together with model_args.{key}=true, which also sets the "
                    f"loss. Pass model_args={args.name.removesuffix('_ntl')}, or omit loss."
                )
    if smoothing := getattr(config.training_args, "label_smoothing_factor", 0.0):
        loss.label_smoothing = smoothing  # transformers' name
    return loss


def check_combination(config: Config) -> None:
    """Raise a UserError unless the groups of a configuration fit together."""
    args, weights, training = config.model_args, config.weights, config.training_args
    readings, sharded = config.evaluation.quantile_readings, bool(getattr(training, "fsdp", None))
    partial = next((key for key in ("trained_layers", "lora") if getattr(weights, key)), None)
    if args.model_name_or_path is None and (args.family == "pretrained" or training.do_only_eval):
        what = "training_args=eval" if training.do_only_eval else "model_args=pretrained"
        raise UserError(
            f"{what} has no model. Pass model_args.model_name_or_path=MODEL: a folder or a name on the hub."
        )
    if sharded and (partial or readings):
        # FSDP would shard trained and frozen weights together, and no process has the whole model.
        other = f"weights.{partial}" if partial else f"evaluation.read=[{','.join(readings)}]"
        raise UserError(f"{other} is given together with training_args.fsdp. Omit one of the two.")
    if args.writes_digits:
        return
    name = "a regression head" if args.head == "regression" else f"number_encoding={args.encoding}"
    on_decoder = args.head == "regression" and args.family != "t5"
    wrong = {
        f"weights.{partial}": partial is not None and not on_decoder,
        f"model_args.family={args.family}": args.family != "t5" and not on_decoder,
        f"loss.criterion={config.loss.criterion}": (
            config.loss.criterion is not None and (args.head, args.encoding) != ("language", "rt")
        ),
        f"model_args.number_format={args.number_format}": args.number_format != "plain",
        f"evaluation.read=[{','.join(readings)}]": bool(readings),
    }
    if found := [key for key, is_wrong in wrong.items() if is_wrong]:
        raise UserError(
            f"{found[0]} needs a language model that writes numbers in digits, which {name} does not. Omit "
            "it, or pass model_args.number_encoding=none."
        )


def run_folder(_root_: DictConfig) -> str:
    """Return the folder of a run: the resolver `ntl.run_folder` of `hydra.run.dir`."""
    sections = ("training_args", "model_args", "dataset_args")
    training, model, data = (_root_.get(name) or {} for name in sections)
    folder = training.get("output_dir")
    if training.get("do_only_eval"):
        own = model.get("model_name_or_path")
        folder = folder or (own if own and Path(own).expanduser().is_dir() else None)
        return str(Path(folder or "outputs/evaluations", _root_.evaluation.name).expanduser())
    if folder is None:
        written = "" if model.get("number_format") == "plain" else str(model.get("number_format"))
        parts = (model.get("name"), written, _loss_name(_root_), training.get("special_name"))
        name = "_".join(str(part) for part in parts if part)
        folder = Path("outputs", data.get("dataset_name", "none"), training.get("trial") or "", name)
    return str(Path(folder).expanduser())


def _loss_name(root: DictConfig) -> str:
    """Return the loss's name in the name of a folder, which has no spaces; errors are reported later."""
    given = OmegaConf.masked_copy(root, [key for key in root if key != "hydra"])
    try:
        return re.sub(r"[^\w.-]+", "-", read_config(given).loss.title)
    except UserError:
        return ""


def sweep_folder(_root_: DictConfig) -> str:
    """Return the folder of a sweep: the resolver `ntl.sweep_folder` of `hydra.sweep.dir`."""
    training, data = _root_.get("training_args") or {}, _root_.get("dataset_args") or {}
    default = Path("outputs", data.get("dataset_name", "none"), training.get("trial") or "", "sweep")
    return str(Path(training.get("output_dir") or default).expanduser())


def job_folder(overrides: str) -> str:
    """Name a run of a sweep by what is swept: the resolver `ntl.job_folder` of `hydra.sweep.subdir`.

    Example:
        >>> job_folder("loss=ntl_was,loss.weight=0.3,training_args.seed=0")
        'loss-ntl_was_loss.weight-0.3_seed-0'
    """
    short = re.sub(r"\b(?:dataset|model|training)_args\.", "", overrides)
    name = re.sub(r"[^\w.+-]+", "-", short.replace(",", "_")).strip("-")
    return name[:200] or "run"


def default_jobs(_root_: DictConfig) -> int:
    """Return the default number of runs at a time, one on a GPU: the resolver `ntl.jobs`."""
    import torch  # slow

    if torch.accelerator.is_available() and not (_root_.get("training_args") or {}).get("use_cpu"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_JOBS)


def _open_mappings(node: DictConfig) -> DictConfig:
    """Let keys be added to the mappings of a group, such as `loss.options`, without Hydra's `+`."""
    for key in [key for key in node if not OmegaConf.is_missing(node, key)]:
        if OmegaConf.is_dict(node._get_node(key)) and node[key] is not None:
            OmegaConf.set_struct(node[key], False)
    return node


def register() -> None:
    """Tell Hydra the dataclasses, and omegaconf the resolvers of `conf/`."""
    store = ConfigStore.instance()
    groups: dict[tuple[str, str], type] = {("dataset_args", name): k for name, k in DATASET_BY_NAME.items()}
    groups |= {
        ("model_args", "vanilla_t5"): ModelArgs,
        ("weights", "all"): Weights,
        ("loss", "ce"): LossSettings,
        ("evaluation", "default"): Evaluation,
    }
    for (group, name), kind in groups.items():
        store.store(name, _open_mappings(OmegaConf.structured(kind)), group)
    # Open, because all arguments of transformers can be given.
    training = _open_mappings(OmegaConf.structured(TrainingArgs, flags={"struct": False}))
    store.store("train", training, "training_args")
    for name, function in {
        "run_folder": run_folder, "sweep_folder": sweep_folder, "job_folder": job_folder, "jobs": default_jobs
    }.items():  # fmt: skip
        OmegaConf.register_new_resolver(f"ntl.{name}", function, replace=True)


register()  # on import, because the processes of a launcher import this module to load their configuration
