"""The keys of the configuration: types, defaults, choices and ranges.

omegaconf checks the types, and `key` adds a rule for what they cannot express. Mappings are empty by default,
because omegaconf merges nothing into null. The comments are part of `--help`. The files of a group set other
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from omegaconf import MISSING

from ntl.config.rules import Rule, at_least, between, key, list_of, one_of, text, whole
from ntloss import criterion_names

LOSS_OF_MODEL = "from_model_args"  # the value of loss.criterion that leaves the loss to model_args
READINGS = ("greedy", "median", "mean")
# Ends of the names of metrics that are better if they are greater.
GREATER = (
    "accuracy", "accuracy_of_valid", "answer", "answered", "bleu", "exact_match", "exact_number",
    "number_mass", "pearson", "r2", "rouge1", "rouge2", "rougeL", "spearman",
)  # fmt: skip

Number = int | float  # a whole number stays as it was given
COUNT, SEED, NOT_NEGATIVE = whole(1), whole(0, 2**32 - 1), at_least(0)
SHARE, POSITIVE = between(0, 1), between(0)
FOLDER = text("the path of a folder", "some/folder")
HUB = text("the name of a dataset on the hub", "openai/gsm8k")
MODEL = text("a folder, a .gguf file or a name on the hub", "google-t5/t5-small")
STEPS = Rule(
    "a whole number of at least 0, or -1 with training_args.num_train_epochs",
    1000,
    lambda value: value >= -1,
)
OBJECTIVE = Rule(
    "overrides such as 'loss=ntl_was loss.weight=0.8', or a name of the group loss or model_args, such as "
    "ce, crps, ntl_was or xval",
    "ce",
    lambda value: "=" in value or value in (*choices("loss"), *choices("model_args")),
)
NUMBERS = Rule(
    "one number per integer of the question",
    "[5,3,2]",
    lambda values: bool(values) and {*map(type, values)} <= {int, float},
)


@dataclass
class Comparison:
    """Keys of `ntl compare` that belong to the whole comparison."""

    # Objectives to compare: files of the group loss or of model_args, or quoted overrides, such as
    # objectives=[ce,'loss=ntl_was loss.weight=0.8']. Differences are relative to the first one.
    # Runs are paired: the same seed gives every objective the same weights and the same batches.
    objectives: list[str] = key(
        ["ce", "ntl_was", "ntl_mse", "vanilla_t5_regression_head"], list_of(OBJECTIVE)
    )
    seeds: list[int] = key([0, 1, 2, 3, 4], list_of(SEED))
    # single-threaded worker processes; null: one on a GPU, else one per usable core, at most four
    jobs: int | None = key(None, COUNT)
    # one folder per run, and the report
    output_dir: str = key("outputs/compare/${dataset_args.dataset_name}", FOLDER)
    overwrite: bool = False  # true replaces runs of another configuration


@dataclass
class Evaluation:
    """How answers are decoded and scored."""

    beams: int = key(4, COUNT)  # xVal is greedy
    max_new_tokens: int = key("${dataset_args.max_new_tokens}", COUNT)
    samples: int | None = key(None, COUNT)  # examples per test set; null: all
    samples_during_training: int | None = key(500, COUNT)  # validation examples at each evaluation; null: all
    # of the model's distribution; greedy is always included
    read: list[str] = key(["greedy"], list_of(one_of(*READINGS)))
    interval: Number = key(0.9, SHARE)  # share of that distribution between the lower and the upper quantile
    # folder of an evaluation that is not the run's own; null: made from its options; own: replaces the run's
    name: str | None = key(None, text("the name of a folder", "few"))


@dataclass
class LossSettings:
    """Which loss to minimize in addition to cross-entropy, or in place of it at number tokens."""

    # a name from ntloss.criterion_names(), as in loss=ce loss.criterion=smmd; null: cross-entropy alone
    criterion: str | None = key(None, one_of(*criterion_names(), LOSS_OF_MODEL))
    options: dict[str, Any] = field(default_factory=dict)  # arguments of the criterion, such as {sigma: 1.0}
    weight: Number = key(0.3, NOT_NEGATIVE)  # λ
    reweigh: bool = False  # whether probability on text costs more than the worst number
    # replace: the criterion replaces cross-entropy at number positions
    mode: str = key("add", one_of("add", "replace"))
    # what the criterion is divided by: number tokens, as in the paper, or items, all labels, as cross-entropy
    normalize_by: str = key("numbers", one_of("numbers", "items"))
    label_smoothing: Number = key(0.0, Rule("a number of at least 0 and below 1", 0.1, lambda v: 0 <= v < 1))


@dataclass
class ModelArgs:
    """T5 with cross-entropy and digits as tokens."""

    name: str = "vanilla_t5"
    family: str = key("t5", one_of("t5", "decoder_only", "pretrained"))
    number_encoding: str = key("none", one_of("none", "none_regression_head", "rt", "xval"))
    # digits: each is a token; auto: the tokenizer unchanged
    tokenizer_type: str = key("digits", one_of("digits", "auto"))
    # padded: answers of one length, with leading zeros, signs and decimals, and decoded as such
    number_format: str = key("plain", one_of("plain", "padded"))
    # padded: digits before the point; null: as the training answers need
    number_width: int | None = key(None, COUNT)
    number_places: int | None = key(None, whole(0))  # padded: digits after the point; null: as needed
    model_name_or_path: str | None = key("google-t5/t5-small", MODEL)  # null: from scratch, with config_name
    # null: the model's; from scratch, the small one that ships with the lab
    tokenizer_name_or_path: str | None = key(None, MODEL)
    # a shape that ships with the lab, or a folder that holds config.json
    config_name: str = key(
        "t5-small", text("the name of a shape, or a folder that holds config.json", "t5-tiny")
    )
    # changes to config_name, such as {dropout_rate: 0.0}
    config_overrides: dict[str, Any] | None = field(default_factory=dict)
    # Text between question and answer of a decoder-only model; null: a line break, unless the question ends
    # in white space. With chat_template: the beginning of the assistant's turn; null: nothing.
    separator: str | None = key(None, Rule("a text", "' '"))
    chat_template: bool = False  # of instruct models: the question is the user's turn
    head_loss: str = key(
        "squared", one_of("squared", "absolute")
    )  # of a regression head, on standardized numbers
    # embeddings of rt and xval, and predictions of xval and a regression head
    log_scale_embeddings: bool = True
    number_token_loss: bool = False
    number_token_loss_weight: Number = key(0.3, NOT_NEGATIVE)
    number_token_loss_with_wasserstein: bool = False  # NTL-WAS; false: what number_token_loss_function names
    number_token_loss_function: str | None = key(None, one_of("mse", "mae", "huber"))  # null: mse
    gaussian_label_smoother: bool = False
    label_smoother_sigma: Number = key(1.0, POSITIVE)


@dataclass
class TrainingArgs:
    """Training as published. Any argument of transformers' Seq2SeqTrainingArguments can be added."""

    trial: str | None = None  # a folder that groups runs
    special_name: str | None = None  # suffix of the output folder's name
    # null: outputs/<dataset>/<trial>/<model>_<number_format>_<loss>_<special_name>; a sweep appends its
    # overrides.
    output_dir: str | None = key(None, FOLDER)
    do_only_eval: bool = False
    # true continues from the last checkpoint in output_dir; a folder, from that one.
    resume_from_checkpoint: bool | str | None = key(
        False, Rule("true or false or the folder of a checkpoint", "true")
    )
    overwrite_output_dir: bool = False  # true deletes the run in output_dir
    seed: int = key(42, SEED)  # random seed of the weights, of dropout and of the order of the data
    # Layers that are trained, from the top (of the decoder), with the norm behind them; null: all weights.
    trained_layers: int | None = key(None, COUNT)
    train_head: bool = False  # with trained_layers: the output head, too
    lora: int | None = key(None, COUNT)  # rank of LoRA on all layers, merged into the saved model; null: none
    head_learning_rate: Number | None = key(None, NOT_NEGATIVE)  # of a regression head; null: learning_rate
    # Largest cache of the frozen layers' output, in GB of dataset_args.cache_dir; 0: computed at each step.
    state_cache_gb: Number = key(10.0, NOT_NEGATIVE)
    max_steps: int = key(2_500_000, STEPS)  # 0: the model as it is, which is only evaluated
    per_device_train_batch_size: int = key(32, COUNT)
    per_device_eval_batch_size: int = key(64, COUNT)
    gradient_accumulation_steps: int = key(1, COUNT)
    learning_rate: Number = key(1.0e-4, NOT_NEGATIVE)
    weight_decay: Number = key(0.01, NOT_NEGATIVE)
    max_grad_norm: Number = key(1.0, NOT_NEGATIVE)
    lr_scheduler_type: str = "reduce_lr_on_plateau"  # or cosine with warmup_steps, linear, constant
    # {}: {factor: 0.5, patience: 5} for reduce_lr_on_plateau, as published; otherwise none
    lr_scheduler_kwargs: dict[str, Any] | None = field(default_factory=dict)
    warmup_steps: Number = key(0, NOT_NEGATIVE)  # a value below 1 is a share of max_steps
    train_sampling_strategy: str = "random"  # group_by_length saves padding
    logging_steps: Number = key(2000, NOT_NEGATIVE)
    eval_steps: Number | None = key(25000, NOT_NEGATIVE)
    eval_on_start: bool = False
    save_steps: Number = key(25000, NOT_NEGATIVE)
    save_total_limit: int | None = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "loss"
    greater_is_better: bool | None = None  # null: true for accuracy, r2 and the like, false for errors
    bf16: bool = False
    use_cpu: bool = False
    fsdp: Any = MISSING  # true shards the model between processes
    num_train_epochs: Number = key(MISSING, POSITIVE)  # with max_steps=-1, instead of steps
    report_to: Any = "none"  # wandb, tensorboard
    disable_tqdm: bool | None = None  # null: progress bars only in a terminal


@dataclass
class Data:
    """Keys of every dataset."""

    dataset_name: str = MISSING
    max_new_tokens: int = key(MISSING, COUNT)
    cache_dir: str = key("outputs/cache", FOLDER)  # memory-mapped copies of the data, and token ids
    data_dir: str | None = key(None, FOLDER)  # unused, unless the dataset has files
    # one test per module of mathematics_dataset
    mode: str | None = key(None, one_of("dataset_comparison"))


@dataclass
class Split:
    """Share of the official training file (of MultiRC's passages) that is the validation set."""

    validation_share: Number = key(0.1, SHARE)
    split_seed: int = key(0, SEED)


@dataclass
class Sizes:
    """Settings of a generator."""

    train_size: int | None = key(None, COUNT)
    validation_size: int = key(1000, COUNT)
    test_size: int = key(1000, COUNT)
    data_seed: int = key(0, SEED)


@dataclass
class Products(Sizes):
    """Settings of the generator of products."""

    train_size: int | None = key(100_000, COUNT)
    digits: int = key(4, COUNT)  # maximum digits of a factor
    extrapolate_digits: int = key(5, COUNT)  # digits of the larger factor in the extrapolation test


@dataclass
class Gsm8k(Split, Data):
    """Grade-school problems. The answer is the solution, with the final number after ####."""

    dataset_name: str = "gsm8k"
    # Folder that `ntl prepare gsm8k` writes, or a folder of the official files; sample: the shipped sample.
    data_dir: str = key("data/grade-school-math/grade_school_math/data/preprocessed", FOLDER)
    hub: str | None = key(None, HUB)  # to load instead: openai/gsm8k
    annotations: str = key("remove", one_of("remove", "keep"))  # keep: keeps <<48/2=24>>
    validation_share: Number = key(0.15, SHARE)
    max_new_tokens: int = key(512, COUNT)


@dataclass
class MathematicsDataset(Data):
    """Thirteen modules of the DeepMind mathematics dataset, as the paper trained on them."""

    dataset_name: str = "mathematics_dataset"
    # Folder that `ntl prepare mathematics_dataset` writes; sample: the shipped sample.
    data_dir: str = key("data/mathematics_dataset-v1.0", FOLDER)
    max_new_tokens: int = key(64, COUNT)


@dataclass
class Arithmetic(Data):
    """Sums and differences with brackets: the paper's ablations."""

    dataset_name: str = "arithmetic"
    # Folder that `ntl prepare arithmetic` writes; sample: the shipped sample; null: generate.
    data_dir: str | None = key("data/mathematics_dataset-v1.0", FOLDER)
    max_new_tokens: int = key(32, COUNT)
    train_per_difficulty: int = key(33333, COUNT)
    validation_per_difficulty: int = key(1000, COUNT)
    test_size: int = key(1000, COUNT)
    data_seed: int = key(0, SEED)


@dataclass
class Multiplication(Products, Data):
    """Products of integers with up to a given number of digits."""

    dataset_name: str = "multiplication"
    # null: generate; or a folder that `ntl prepare multiplication` wrote; or sample
    data_dir: str | None = key(None, FOLDER)
    max_new_tokens: int = key(32, COUNT)


@dataclass
class Multirc(Split, Data):
    """Passages with questions, answered mostly in words."""

    dataset_name: str = "multirc"
    # Folder that `ntl prepare multirc` writes, or a folder of SuperGLUE's files; sample: the shipped sample.
    data_dir: str = key("data/multirc/data/preprocessed", FOLDER)
    hub: str | None = key(None, HUB)  # to load instead: aps/super_glue
    max_new_tokens: int = key(128, COUNT)


@dataclass
class NoisyRegression(Sizes, Data):
    """Weighted sums with noise: "12 70 45" -> 5*12 + 3*70 + 2*45 + noise, whose MAE is 20."""

    dataset_name: str = "noisy_regression"
    weights: list[Any] = key([5, 3, 2], NUMBERS)
    smallest: int = key(10, whole(0))  # range of the integers
    largest: int = key(99, whole(0))
    noise: Number = key(25.0, NOT_NEGATIVE)  # standard deviation; of the answer's logarithm if log_scale
    log_scale: bool = False  # true: a product of the integers, each raised to its weight, times exp(noise)
    largest_answer: int = key(999, whole(0))  # answers are clipped to the range from 0 to this value
    train_size: int | None = key(50_000, COUNT)
    validation_size: int = key(500, COUNT)
    max_new_tokens: int = key(8, COUNT)


@dataclass
class Rjokes(Data):
    """Jokes and their scores, 0 to 11."""

    dataset_name: str = "rjokes"
    # Folder that `ntl prepare rjokes` writes, or of the official files; sample: the shipped sample.
    data_dir: str = key("data/rjokes-dataset/data", FOLDER)
    max_new_tokens: int = key(8, COUNT)


@dataclass
class Tabular(Sizes, Data):
    """A table as text, a number in one of its columns as the answer: CSV, TSV, Parquet or JSON lines."""

    dataset_name: str = "tabular"
    file: str = "sample"  # the table; sample: 2,000 diamonds that ship with the lab
    # the column to predict, or several, such as [latitude,longitude], which are written one behind the other
    target: Any = key("price", Rule("the name of a column, or a list of names", "price", bool))
    # The question, such as "{text}\nSentiment (0 to 80): "; null: the columns joined with commas.
    prompt: str | None = key(None, text("a text with names of columns in braces", "'A {cut} diamond: '"))
    # Without a prompt: the columns of the question, such as [carat,cut]; null: all but the target.
    columns: list[str] | None = None
    significant_digits: int | None = key(4, COUNT)  # of the question's numbers; null: as they are written
    # characters of a question; rows with longer ones are left out; null: none
    longest: int | None = key(None, COUNT)
    # null: at random; a column, such as a date: the rows with its largest values are the test set
    split_by: str | None = None
    group_by: str | None = None  # of a split at random: a column whose rows with one value stay together
    train_size: int | None = key(None, COUNT)  # null: all rows that are left
    train_seed: int | None = key(None, SEED)  # null: the same training rows in every run; a seed draws them
    validation_size: int = key(200, COUNT)
    test_size: int = key(300, COUNT)
    max_new_tokens: int = key(16, COUNT)


@dataclass
class Prepare:
    """Keys of `ntl prepare`."""

    # the folder of the official files, or of the unpacked archive
    source: str = key("data/mathematics_dataset-v1.0", FOLDER)
    destination: str = key("data/mathematics_dataset-v1.0", FOLDER)
    overwrite: bool = False
    split_seed: int = key(0, SEED)


@dataclass
class PrepareArithmetic(Prepare):
    """The same number of pairs of each difficulty."""

    train_per_difficulty: int = key(33333, COUNT)
    validation_per_difficulty: int = key(1000, COUNT)


@dataclass
class PrepareGsm8k(Prepare):
    """GSM8K."""

    source: str = key("data/grade-school-math/grade_school_math/data", FOLDER)
    destination: str = key("data/grade-school-math/grade_school_math/data/preprocessed", FOLDER)
    annotations: str = key("remove", one_of("remove", "keep"))  # keep: keeps <<48/2=24>>
    validation_share: Number = key(0.15, SHARE)


@dataclass
class PrepareMathematicsDataset(Prepare):
    """The paper's mixture."""

    validation_share: Number = key(0.0005, SHARE)  # of each training file


@dataclass
class PrepareMultirc(Prepare):
    """SuperGLUE's files."""

    source: str = key("data/multirc/data", FOLDER)
    destination: str = key("data/multirc/data/preprocessed", FOLDER)
    validation_share: Number = key(0.1, SHARE)  # of the passages


@dataclass
class PrepareRjokes:
    """The official three splits."""

    source: str = key("data/rjokes-dataset/data", FOLDER)
    destination: str = key("data/rjokes-dataset/data", FOLDER)
    overwrite: bool = False


@dataclass
class PrepareMultiplication(Products):
    """Generated. `dataset_args.data_dir` also reads the files of the paper's branch expression_loss."""

    destination: str = key("data/digit-multiplication/data", FOLDER)
    overwrite: bool = False


DATASETS = (Arithmetic, Gsm8k, MathematicsDataset, Multiplication, Multirc, NoisyRegression, Rjokes, Tabular)

# Group -> name -> keys. The group `schema` holds sections that are not chosen by name.
SCHEMAS: dict[str, dict[str, type]] = {
    "schema": {"comparison": Comparison, "evaluation": Evaluation},
    "model_args": {"vanilla_t5": ModelArgs},
    "training_args": {"train": TrainingArgs},
    "loss": {"ce": LossSettings},
    "dataset_args": {schema.dataset_name: schema for schema in DATASETS},
    "prepare": {
        "arithmetic": PrepareArithmetic,
        "gsm8k": PrepareGsm8k,
        "mathematics_dataset": PrepareMathematicsDataset,
        "multiplication": PrepareMultiplication,
        "multirc": PrepareMultirc,
        "rjokes": PrepareRjokes,
    },
}


def choices(group: str) -> list[str]:
    """Return the names of the files and schemas of a group, sorted."""
    folder = resources.files("ntl.config") / group
    files = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted({*SCHEMAS.get(group, ()), *(n.removesuffix(".yaml") for n in files if n.endswith(".yaml"))})


def greater_is_better(training_args: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint with a greater `metric_for_best_model` is better.

    transformers, too, infers it from the metric's name if null is given, but takes all but losses for better
    if they are greater, errors as well.

    Example:
        >>> [greater_is_better({"metric_for_best_model": n}) for n in ("eval_accuracy", "median_mae", None)]
        [True, False, False]
    """
    given = training_args.get("greater_is_better")
    return given if given is not None else str(training_args.get("metric_for_best_model")).endswith(GREATER)


def format_setting(value: Any) -> str:
    """Format a setting as the user writes it: `null`, `true`, `0.3`, `[greedy,median]`."""
    if isinstance(value, list):
        return f"[{','.join(map(format_setting, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
