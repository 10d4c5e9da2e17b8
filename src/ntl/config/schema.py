"""The keys of the configuration: types, defaults, choices and ranges.

The comments are part of `--help`. The files of a group set other defaults.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from ntl.config.names import format_setting
from ntl.config.rules import Rule, above, at_least, number_between, storable, text, whole
from ntl.config.settings import Family, LossSettings, NumberFormat, Reading

Count = Annotated[int, whole(1)]
Seed = Annotated[int, whole(0, 2**32 - 1)]
NotNegative = Annotated[float, at_least(0)]
Share = Annotated[float, number_between(0, 1)]
Folder = Annotated[str, text("the path of a folder", "some/folder")]
Hub = Annotated[str, text("the name of a dataset on the hub", "openai/gsm8k")]
Model = Annotated[str, text("a folder, a .gguf file or a name on the hub", "google-t5/t5-small")]


def _objective(value: str) -> bool:
    return "=" in value or value in (*choices("loss"), *choices("model_args"))


def _numbers(values: list[Any]) -> bool:
    return bool(values) and {*map(type, values)} <= {int, float}


OBJECTIVE = (
    "overrides such as 'loss=ntl_was loss.weight=0.8', or a name of the group loss or model_args, such as "
    "ce, crps, ntl_was or xval"
)
Objective = Annotated[str, Rule(OBJECTIVE, "ce", _objective)]
STEPS = "a whole number of at least 1, or -1 with training_args.num_train_epochs"
Steps = Annotated[int, Rule(STEPS, 1000, lambda value: value >= 1 or value == -1)]


@dataclass
class Comparison:
    """Keys of `ntl compare` that belong to the whole comparison."""

    # Objectives to compare: files of the group loss or of model_args, or quoted overrides, such as
    # objectives=[ce,'loss=ntl_was loss.weight=0.8']. Differences are relative to the first one.
    # Runs are paired: the same seed gives every objective the same weights and the same batches.
    objectives: list[Objective] = field(
        default_factory=lambda: ["ce", "ntl_was", "ntl_mse", "vanilla_t5_regression_head"]
    )
    seeds: list[Seed] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    jobs: Count | None = None  # single-threaded worker processes; null: one per usable core, at most four
    output_dir: Folder = "outputs/compare/${dataset_args.dataset_name}"  # one folder per run, and the report
    overwrite: bool = False  # true replaces runs of another configuration in output_dir


@dataclass
class Evaluation:
    """How answers are decoded and scored."""

    beams: Count = 4  # xVal is greedy
    max_new_tokens: Count = "${dataset_args.max_new_tokens}"  # type: ignore[assignment]
    samples: Count | None = None  # examples per test set; null: all
    samples_during_training: Count | None = 500  # validation examples at each evaluation; null: all
    read: list[Reading] = field(
        default_factory=lambda: ["greedy"]
    )  # of the model's distribution; greedy is always included
    interval: Share = 0.9  # share of that distribution between the lower and the upper quantile
    # folder of an evaluation that is not the run's own; null: made from its options; own: replaces the run's
    name: Annotated[str, text("the name of a folder", "few")] | None = None


@dataclass
class ModelArgs:
    """T5 with cross-entropy and digits as tokens."""

    name: str = "vanilla_t5"
    family: Family = "t5"
    number_encoding: Literal["none", "none_regression_head", "rt", "xval"] = "none"
    tokenizer_type: Literal["digits", "auto"] = (
        "digits"  # digits: each is a token; auto: the tokenizer unchanged
    )
    # padded: answers of one length, with leading zeros, signs and decimals, and decoded as such
    number_format: NumberFormat = "plain"
    number_width: Count | None = None  # padded: digits before the point; null: as the training answers need
    number_places: Annotated[int, whole(0)] | None = None  # padded: digits after the point; null: as needed
    model_name_or_path: Model | None = "google-t5/t5-small"  # null: from scratch, with config_name
    tokenizer_name_or_path: Model | None = (
        None  # null: the model's; from scratch, the small one that ships with the lab
    )
    # a shape that ships with the lab, or a folder that holds config.json
    config_name: Annotated[
        str, text("the name of a shape, or a folder that holds config.json", "t5-tiny")
    ] = "t5-small"
    # Empty, because omegaconf merges nothing into null.
    config_overrides: dict[str, Any] | None = field(
        default_factory=dict
    )  # changes to config_name, such as {dropout_rate: 0.0}
    log_scale_embeddings: bool = (
        True  # embeddings of rt and xval, and predictions of xval and a regression head
    )
    number_token_loss: bool = False
    number_token_loss_weight: NotNegative = 0.3
    number_token_loss_with_wasserstein: bool = False  # NTL-WAS; false: what number_token_loss_function names
    number_token_loss_function: Literal["mse", "mae", "huber"] | None = None  # null: mse
    gaussian_label_smoother: bool = False
    label_smoother_sigma: Annotated[float, above(0)] = 1.0


@dataclass
class TrainingArgs:
    """Training as published. Any argument of transformers' Seq2SeqTrainingArguments can be added."""

    trial: str | None = None  # a folder that groups runs
    special_name: str | None = None  # suffix of the output folder's name
    # null: outputs/<dataset>/<trial>/<model>_<number_format>_<loss>_<special_name>; a sweep appends its
    # overrides.
    output_dir: Folder | None = None
    do_only_eval: bool = False
    # true continues from the last checkpoint in output_dir; a folder, from that one.
    resume_from_checkpoint: bool | str | None = False
    overwrite_output_dir: bool = False  # true deletes the run in output_dir
    seed: Seed = 42  # random seed of the weights, of dropout and of the order of the data
    # Layers that are trained, from the top (of the decoder), with the norm behind them; null: all weights.
    trained_layers: Count | None = None
    # Largest cache of the frozen layers' output, in GB of dataset_args.cache_dir; 0: computed at each step.
    state_cache_gb: NotNegative = 10.0
    max_steps: Steps = 2_500_000
    per_device_train_batch_size: Count = 32
    per_device_eval_batch_size: Count = 64
    gradient_accumulation_steps: Count = 1
    learning_rate: NotNegative = 1.0e-4
    weight_decay: NotNegative = 0.01
    max_grad_norm: NotNegative = 1.0
    lr_scheduler_type: str = "reduce_lr_on_plateau"  # or cosine with warmup_steps, linear, constant
    # {}: {factor: 0.5, patience: 5} for reduce_lr_on_plateau, as published; otherwise none
    lr_scheduler_kwargs: dict[str, Any] | None = field(default_factory=dict)
    warmup_steps: NotNegative = 0  # a value below 1 is a share of max_steps
    train_sampling_strategy: str = "random"  # group_by_length saves padding
    logging_steps: NotNegative = 2000
    eval_steps: NotNegative | None = 25000
    eval_on_start: bool = False
    save_steps: NotNegative = 25000
    save_total_limit: int | None = 2
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = "loss"
    greater_is_better: bool | None = False
    bf16: bool = False
    use_cpu: bool = False
    num_train_epochs: Annotated[float, above(0)] = MISSING  # with max_steps=-1, instead of steps
    report_to: Any = "none"  # wandb, tensorboard
    disable_tqdm: bool | None = None  # null: progress bars only in a terminal


@dataclass
class Data:
    """Keys of every dataset."""

    dataset_name: str = MISSING
    max_new_tokens: Count = MISSING
    cache_dir: Folder = "outputs/cache"  # memory-mapped copies of the data, and token ids
    data_dir: Folder | None = None  # unused, unless the dataset has files
    mode: Literal["dataset_comparison"] | None = None  # one test per module of mathematics_dataset


@dataclass
class Sizes:
    """Settings of a generator."""

    train_size: Count | None = None
    validation_size: Count = 1000
    test_size: Count = 1000
    data_seed: Seed = 0


@dataclass
class Gsm8k(Data):
    """Grade-school problems. The answer is the solution, with the final number after ####."""

    dataset_name: str = "gsm8k"
    # Folder that `ntl prepare gsm8k` writes, or a folder of the official files; sample: the shipped sample.
    data_dir: Folder = "data/grade-school-math/grade_school_math/data/preprocessed"
    hub: Hub | None = None  # to load instead: openai/gsm8k
    annotations: Literal["remove", "keep"] = "remove"  # keep: keeps <<48/2=24>>
    # Share and seed of the validation split of the official training file
    validation_share: Share = 0.15
    split_seed: Seed = 0
    max_new_tokens: Count = 512


@dataclass
class MathematicsDataset(Data):
    """Thirteen modules of the DeepMind mathematics dataset, as the paper trained on them."""

    dataset_name: str = "mathematics_dataset"
    # Folder that `ntl prepare mathematics_dataset` writes; sample: the shipped sample.
    data_dir: Folder = "data/mathematics_dataset-v1.0"
    max_new_tokens: Count = 64


@dataclass
class Arithmetic(Data):
    """Sums and differences with brackets: the paper's ablations."""

    dataset_name: str = "arithmetic"
    # Folder that `ntl prepare arithmetic` writes; sample: the shipped sample; null: generate.
    data_dir: Folder | None = "data/mathematics_dataset-v1.0"
    max_new_tokens: Count = 32
    train_per_difficulty: Count = 33333
    validation_per_difficulty: Count = 1000
    test_size: Count = 1000
    data_seed: Seed = 0


@dataclass
class Multiplication(Sizes, Data):
    """Products of integers with up to a given number of digits."""

    dataset_name: str = "multiplication"
    data_dir: Folder | None = (
        None  # null: generate; or a folder that `ntl prepare multiplication` wrote; or sample
    )
    max_new_tokens: Count = 32
    train_size: Count = 100_000
    digits: Count = 4  # maximum digits of a factor
    extrapolate_digits: Count = 5  # digits of the larger factor in the extrapolation test


@dataclass
class Multirc(Data):
    """Passages with questions, answered mostly in words."""

    dataset_name: str = "multirc"
    # Folder that `ntl prepare multirc` writes, or a folder of SuperGLUE's files; sample: the shipped sample.
    data_dir: Folder = "data/multirc/data/preprocessed"
    hub: Hub | None = None  # to load instead: aps/super_glue
    # Share of passages and seed of the validation split of the official training file
    validation_share: Share = 0.1
    split_seed: Seed = 0
    max_new_tokens: Count = 128


@dataclass
class NoisyRegression(Sizes, Data):
    """Weighted sums with noise: "12 70 45" -> 5*12 + 3*70 + 2*45 + noise, whose MAE is 20."""

    dataset_name: str = "noisy_regression"
    weights: Annotated[list[Any], Rule("one number per integer of the question", "[5,3,2]", _numbers)] = (
        field(default_factory=lambda: [5, 3, 2])
    )
    smallest: Annotated[int, whole(0)] = 10  # range of the integers
    largest: Annotated[int, whole(0)] = 99
    noise: NotNegative = 25.0  # standard deviation; of the answer's logarithm if log_scale
    log_scale: bool = False  # true: a product of the integers, each raised to its weight, times exp(noise)
    largest_answer: Annotated[int, whole(0)] = 999  # answers are clipped to the range from 0 to this value
    train_size: Count = 50_000
    validation_size: Count = 500
    max_new_tokens: Count = 8


@dataclass
class Rjokes(Data):
    """Jokes and their scores, 0 to 11."""

    dataset_name: str = "rjokes"
    # Folder that `ntl prepare rjokes` writes, or of the official files; sample: the shipped sample.
    data_dir: Folder = "data/rjokes-dataset/data"
    max_new_tokens: Count = 8


@dataclass
class Tabular(Sizes, Data):
    """A table as text, a number in one of its columns as the answer: CSV, TSV, Parquet or JSON lines."""

    dataset_name: str = "tabular"
    file: str = "sample"  # the table; sample: 2,000 diamonds that ship with the lab
    target: str = "price"  # the column to predict
    # The question, such as "{text}\nSentiment (0 to 80): "; null: the columns joined with commas.
    prompt: Annotated[str, text("a text with names of columns in braces", "'A {cut} diamond: '")] | None = (
        None
    )
    # Without a prompt: the columns of the question, such as [carat,cut]; null: all but the target.
    columns: list[str] | None = None
    significant_digits: Count | None = 4  # of the question's numbers; null: as they are written
    longest: Count | None = None  # characters of a question; rows with longer ones are left out; null: none
    # null: at random; a column, such as a date: the rows with its largest values are the test set
    split_by: str | None = None
    group_by: str | None = None  # of a split at random: a column whose rows with one value stay together
    train_size: Count | None = None  # null: all rows that are left
    train_seed: Seed | None = None  # null: the same training rows in every run; a seed draws them
    validation_size: Count = 200
    test_size: Count = 300
    max_new_tokens: Count = 16


@dataclass
class Prepare:
    """Keys of `ntl prepare`."""

    source: Folder = (
        "data/mathematics_dataset-v1.0"  # the folder of the official files, or of the unpacked archive
    )
    destination: Folder = "data/mathematics_dataset-v1.0"
    overwrite: bool = False
    split_seed: Seed = 0


@dataclass
class PrepareArithmetic(Prepare):
    """The same number of pairs of each difficulty."""

    train_per_difficulty: Count = 33333
    validation_per_difficulty: Count = 1000


@dataclass
class PrepareGsm8k(Prepare):
    """GSM8K."""

    source: Folder = "data/grade-school-math/grade_school_math/data"
    destination: Folder = "data/grade-school-math/grade_school_math/data/preprocessed"
    annotations: Literal["remove", "keep"] = "remove"  # keep: keeps <<48/2=24>>
    validation_share: Share = 0.15


@dataclass
class PrepareMathematicsDataset(Prepare):
    """The paper's mixture."""

    validation_share: Share = 0.0005  # of each training file


@dataclass
class PrepareMultirc(Prepare):
    """SuperGLUE's files."""

    source: Folder = "data/multirc/data"
    destination: Folder = "data/multirc/data/preprocessed"
    validation_share: Share = 0.1  # of the passages


@dataclass
class PrepareRjokes:
    """The official three splits."""

    source: Folder = "data/rjokes-dataset/data"
    destination: Folder = "data/rjokes-dataset/data"
    overwrite: bool = False


@dataclass
class PrepareMultiplication(Sizes):
    """Generated: there are no official files."""

    destination: Folder = "data/digit-multiplication/data"
    overwrite: bool = False
    train_size: Count = 100_000
    digits: Count = 4  # maximum digits of a factor
    extrapolate_digits: Count = 5  # digits of the larger factor in the extrapolation test


# Group -> name -> keys. The group `schema` holds sections that are not chosen by name.
SCHEMAS: dict[str, dict[str, type]] = {
    "schema": {"comparison": Comparison, "evaluation": Evaluation},
    "model_args": {"vanilla_t5": ModelArgs},
    "training_args": {"train": TrainingArgs},
    "loss": {"ce": LossSettings},
    "dataset_args": {
        "arithmetic": Arithmetic,
        "gsm8k": Gsm8k,
        "mathematics_dataset": MathematicsDataset,
        "multiplication": Multiplication,
        "multirc": Multirc,
        "noisy_regression": NoisyRegression,
        "rjokes": Rjokes,
        "tabular": Tabular,
    },
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


@cache
def register(training: bool) -> None:
    """Tell Hydra the schemas; those of training import transformers."""
    store = ConfigStore.instance()
    for group, named in SCHEMAS.items():
        if (group == "prepare") != training:
            for name, schema in named.items():
                more: tuple[type, ...] = ()
                if schema is TrainingArgs:
                    from transformers import Seq2SeqTrainingArguments

                    more = (Seq2SeqTrainingArguments,)
                package = None if training else "_global_"
                # Open, because the keys of a comparison stand beside the sections of a run.
                node = OmegaConf.structured(storable(schema, *more), flags={"struct": False})
                store.store(name, node, group, package)


def describe(schema: type) -> str:
    """Return the keys of a schema with their defaults and comments, as YAML."""
    defaults = OmegaConf.to_container(OmegaConf.structured(storable(schema)))
    lines: dict[str, str] = {}
    for base in reversed(schema.__mro__[:-1]):
        above_field = ""
        for line in inspect.getsource(base).partition('"""\n')[2].splitlines():
            if name := re.match(r"    (\w+): ", line):
                comment = re.search(r"  # (?!type: |fmt: ).*", line)
                value = f"{name[1]}: {format_setting(defaults[name[1]])}{comment[0] if comment else ''}"
                lines[name[1]], above_field = above_field + value, ""
            elif line.strip().startswith("#"):
                above_field += f"{line.strip()}\n"
    return "\n".join([f"# {schema.__doc__}", *lines.values()])
