"""The whole configuration of a run: the settings of each group, registered with Hydra.

The settings are dataclasses that stand beside the code that they configure. Hydra refuses unknown keys, wrong
types and wrong choices, `Settings` values out of their range, and `check_combination` what cannot work
although each value is valid. The files in `conf/` set other defaults.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import MISSING, DictConfig, OmegaConf

from ntl.data import DATASETS, Data
from ntl.errors import UserError, unknown_key
from ntl.evaluate import Evaluation
from ntl.losses import OF_MODEL, LossSettings, choose_loss
from ntl.models.settings import ModelArgs, Weights
from ntl.settings import Changes, Settings, read_settings
from ntl.training_args import INCIDENTAL, TrainingArgs

LONGEST = 180  # characters of a run's folder before the digest
MAX_JOBS = 4  # runs at a time by default; one of a small model takes about 0.7 GiB
MODELS = {
    "rt": "RT",
    "xval": "xVal",
    "own": "T5, own encoding",
    "t5": "T5",
}  # names in tables, by encoding or family
# Keys that say how a sweep is reported.
OF_REPORTS = ("contrasts", "margin", "announce", "names")
PADDED, DECODER = "model_args.number_format=padded", "a model_args.family that is not t5"
# What the other published keys of the loss depend on.
TERM = "model_args.number_token_loss=true with loss=from_model_args"
SMOOTHER = "model_args.gaussian_label_smoother=true with loss=from_model_args"
SECTIONS: dict[str, type[Settings]] = {
    "model_args": ModelArgs, "weights": Weights, "training_args": TrainingArgs, "loss": LossSettings,
    "evaluation": Evaluation,
}  # fmt: skip


@dataclass
class Config:
    """Everything that one run needs to know.

    Args:
        dataset_args, model_args, weights, training_args, loss, evaluation: The groups.
        job: Number of the run in its sweep, see `ntl.commands.Job`.
        sweep: When the sweep, or the run alone, was started, in seconds since 1970.
        choice: Hydra's choice of the group `loss`, if known.
        trained_with: The settings of the run that trained the model, if it is only evaluated.
        known_as: The label and the name of that run.
    """

    dataset_args: Data
    model_args: ModelArgs
    weights: Weights
    training_args: TrainingArgs
    loss: LossSettings
    evaluation: Evaluation
    job: int = 0
    sweep: float = 0.0
    choice: str | None = None
    trained_with: Mapping[str, Any] = field(default_factory=dict)
    known_as: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        """The run's name in tables, such as `T5`, `T5 + NTL-WAS`, `RT + NTL-MSE` or `SmolLM2`."""
        if self.known_as is not None:
            return self.known_as[0]
        args = self.model_args
        name = re.split(r"[-_]", args.config_name)[0].capitalize()
        if args.family == "pretrained" or args.model_name_or_path is not None:
            name = Path(str(args.model_name_or_path)).name
        name = MODELS.get(args.encoding) or MODELS.get(args.family, name)
        if args.head == "regression":
            return f"{name} regression head"
        return " + ".join(filter(None, (name, self.loss.title)))

    @property
    def name(self) -> str:
        """The name by which a contrast refers to the run: its loss, such as `ntl_was`, or `head`."""
        if self.known_as is not None:
            return self.known_as[1]
        if self.model_args.head == "regression":
            return "head"
        chosen = None if self.choice in ("ce", OF_MODEL) else self.choice
        return chosen or self.loss.criterion or "ce"

    def plain(self) -> dict[str, Any]:
        """Return the settings of all groups as plain values."""
        groups = {group: vars(getattr(self, group)) for group in ("dataset_args", *SECTIONS)}
        found: dict[str, Any] = json.loads(json.dumps(groups, default=str))
        return found


def read_config(given: DictConfig | Mapping[str, Any], choice: str | None = None) -> Config:
    """Make the settings of a configuration.

    Args:
        given: What Hydra composed, or what `Config.plain` returned.
        choice: See `Config`.
    """
    is_composed = isinstance(given, DictConfig)
    if isinstance(given, DictConfig):
        groups = [group for group in ("dataset_args", *SECTIONS) if given.get(group) is not None]
        given = {
            group: OmegaConf.to_container(given[group], resolve=True, enum_to_str=True) for group in groups
        }
    dataset = (given.get("dataset_args") or {}).get("dataset_name")
    if dataset in (None, MISSING):
        raise UserError(f"there is no dataset. Pass dataset_args=NAME: {', '.join(DATASETS)}.")
    if dataset not in DATASETS:
        raise unknown_key("dataset_args.dataset_name=", str(dataset), DATASETS)
    kinds: dict[str, type[Settings]] = {"dataset_args": DATASETS[dataset], **SECTIONS}
    sections: Any = {group: read_settings(kind, given.get(group) or {}) for group, kind in kinds.items()}
    training = sections["training_args"]
    for key, value in (given.get("training_args") or {}).items():
        if not hasattr(training, key) and value != MISSING:
            setattr(training, key, value)  # any argument of transformers can be given
    config = Config(**sections, choice=choice)
    config.loss = choose_loss(config.loss, config.model_args)
    if smoothing := getattr(training, "label_smoothing_factor", 0.0):
        config.loss.label_smoothing = smoothing  # transformers' name
    check_combination(config)
    if is_composed:  # a model of an earlier version may have been trained with more
        check_all_are_read(config)
    return config


def compose_config(overrides: Sequence[str], primary: str | Path = "train") -> Config:
    """Compose a configuration as a command does, for programs that do not run it.

    Args:
        overrides: Overrides of Hydra, such as `dataset_args=arithmetic`.
        primary: The name of a command, `train` or `compare`, or the file of a study.
    """
    folder, name, more = find_primary(primary)
    outer = GlobalHydra.instance().hydra  # of a Hydra application that calls this function
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(folder, version_base="1.3"):
            return read_config(compose(name, [*overrides, *more]))
    finally:
        GlobalHydra.instance().hydra = outer


def find_primary(primary: str | Path) -> tuple[str, str, list[str]]:
    """Return the folder and the name of the primary file of a command or a study, and overrides it needs."""
    if isinstance(primary, str):
        return str(files("ntl.conf")), primary, []
    # A study's own files come before those of the lab.
    return str(primary.parent.resolve()), primary.stem, ["hydra.searchpath=[pkg://ntl.conf]"]


def check_combination(config: Config) -> None:
    """Raise a UserError unless the groups of a configuration fit together."""
    args, weights, training = config.model_args, config.weights, config.training_args
    if not re.fullmatch(r"(?!checkpoint-)[\w+-][\w.+-]*", config.evaluation.name):
        raise UserError(
            f"evaluation.name={config.evaluation.name!r} cannot be the name of a folder beside checkpoints; "
            "expected letters, digits, dots and hyphens."
        )
    if args.model_name_or_path is not None and args.config_overrides:
        raise UserError(
            f"model_args.config_overrides is {args.config_overrides}, but the shape of "
            f"model_args.model_name_or_path={args.model_name_or_path} is fixed. Omit one of the two."
        )
    if weights.trained_layers is not None and weights.lora:
        raise UserError("weights.trained_layers is given together with weights.lora. Omit one of the two.")
    readings = config.evaluation.quantile_readings
    partial = next((key for key in ("trained_layers", "lora") if getattr(weights, key)), None)
    if args.model_name_or_path is None and (args.family == "pretrained" or training.do_only_eval):
        what = "training_args=eval" if training.do_only_eval else "model_args=pretrained"
        raise UserError(
            f"{what} has no model. Pass model_args.model_name_or_path=MODEL: a folder or a name on the hub."
        )
    if getattr(training, "fsdp", None):
        raise UserError(
            "training_args.fsdp is given, but the lab trains a whole model in each process. Omit it; "
            "examples/fsdp.py shards a model with the library alone."
        )
    if weights.head_learning_rate is not None and args.head != "regression":
        raise UserError(
            "weights.head_learning_rate is of a regression head, which this model has not. Omit it, or "
            "choose a model with a head, such as model_args=pretrained_regression_head."
        )
    if config.loss.label_smoothing and args.head == "regression":
        raise UserError(
            f"loss.label_smoothing={config.loss.label_smoothing} is of cross-entropy, and a regression head "
            "has none. Omit it and training_args.label_smoothing_factor."
        )
    if args.head == "language" and args.encoding in ("digits", "auto"):
        return
    is_head = args.head == "regression"
    name = "a regression head" if is_head else f"number_encoding={args.encoding}"
    name = f"own_encoding={args.own_encoding}" if args.encoding == "own" else name
    on_decoder = is_head and args.family != "t5"
    wrong = {
        f"weights.{partial}": partial is not None and not on_decoder,
        f"model_args.family={args.family}": args.family != "t5" and not on_decoder,
        f"loss.criterion={config.loss.criterion}": (
            config.loss.criterion is not None and (is_head or args.encoding not in ("rt", "own"))
        ),
        f"model_args.number_format={args.number_format}": args.number_format != "plain" and not is_head,
        f"evaluation.read=[{','.join(readings)}]": bool(readings) and not is_head,
    }
    if found := [key for key, is_wrong in wrong.items() if is_wrong]:
        raise UserError(
            f"{found[0]} needs a language model that writes numbers in digits, which {name} does not. Omit "
            "it, or pass model_args.number_encoding=none without an encoding of your own."
        )


def check_all_are_read(config: Config) -> None:
    """Raise a UserError for a setting that nothing reads, because of another one."""
    args, weights, training = config.model_args, config.weights, config.training_args
    epochs = getattr(training, "num_train_epochs", None)
    is_padded, has_head = args.number_format == "padded", args.head == "regression"
    head_loss = "absolute" if args.family == "pretrained" else "squared"  # the default, see `conf/model_args`
    of_padded = ("number_width", "number_places", "number_digits", "number_scale")
    unread = {
        **{key: (getattr(args, key) not in (None, "plain") and not is_padded, PADDED) for key in of_padded},
        "separator": (args.separator is not None and args.family == "t5", DECODER),
        "chat_template": (args.chat_template and args.family == "t5", DECODER),
        "head_loss": (args.head_loss != head_loss and not has_head, "a regression head"),
    }
    has_term = args.number_token_loss
    of_loss = {
        "number_token_loss_weight": (has_term, TERM),
        "number_token_loss_with_wasserstein": (has_term, TERM),
        "number_token_loss_function": (
            has_term and not args.number_token_loss_with_wasserstein,
            f"{TERM} without model_args.number_token_loss_with_wasserstein=true",
        ),
        "label_smoother_sigma": (args.gaussian_label_smoother, SMOOTHER),
    }
    default = ModelArgs()
    for key, (is_read, needed) in of_loss.items():
        unread[key] = getattr(args, key) != getattr(default, key) and not is_read, needed
    unread = {f"model_args.{key}": why for key, why in unread.items()}
    is_whole = weights.train_head and weights.trained_layers is None
    unread["weights.train_head"] = is_whole, "weights.trained_layers"
    counts_steps = epochs is not None and training.max_steps != -1
    unread["training_args.num_train_epochs"] = counts_steps, "training_args.max_steps=-1"
    for key, (is_unread, needed) in unread.items():
        if is_unread:
            raise UserError(f"{key} needs {needed}, and nothing reads it here. Omit it, or pass that.")


def read_trained(model: str | Path) -> dict[str, Any] | None:
    """Return how a model of the lab was trained, which its configuration holds: see `ntl.train.remember`."""
    try:
        config = json.loads(Path(model, "config.json").expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found: dict[str, Any] | None = config.get("ntl", {}).get("trained")
    return found


def run_folder(_root_: DictConfig) -> str:
    """Return the folder of a run: the resolver `ntl.run_folder` of `hydra.run.dir`."""
    sections = ("training_args", "model_args", "dataset_args")
    training, model, data = (_root_.get(name) or {} for name in sections)
    folder = training.get("output_dir")
    if training.get("do_only_eval"):
        own = model.get("model_name_or_path")
        folder = folder or (own if own and read_trained(own) else None)  # not that of somebody else's model
        folder = folder or Path("outputs/evaluations", Path(str(own)).name)
        return str(Path(folder, _root_.evaluation.name).expanduser())
    if folder is None:
        written = "" if model.get("number_format") == "plain" else str(model.get("number_format"))
        parts = (model.get("name"), written, _loss_name(_root_), training.get("special_name"))
        name = "_".join(str(part) for part in parts if part)
        folder = Path("outputs", data.get("dataset_name", "none"), training.get("trial") or "", name)
    return str(Path(folder).expanduser())


def _loss_name(root: DictConfig) -> str:
    """Return the loss's name in the name of a folder, which has no spaces; errors are reported later."""
    given = OmegaConf.masked_copy(root, [str(key) for key in root if key != "hydra"])
    try:
        return re.sub(r"[^\w.-]+", "-", read_config(given).loss.title)
    except UserError:
        return ""


def sweep_folder(_root_: DictConfig) -> str:
    """Return the folder of a sweep: the resolver `ntl.sweep_folder` of `hydra.sweep.dir`."""
    training, data = _root_.get("training_args") or {}, _root_.get("dataset_args") or {}
    default = Path("outputs", data.get("dataset_name", "none"), training.get("trial") or "", "sweep")
    return str(Path(training.get("output_dir") or default).expanduser())


def job_folder(_root_: DictConfig) -> str:
    """Name a run of a sweep: the resolver `ntl.job_folder` of `hydra.sweep.subdir`."""
    return name_run(_root_.hydra.job.override_dirname, _root_.training_args.seed)


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


def changes(key: str) -> Changes:
    """Return what a key of the configuration, or a group, changes: see `ntl.settings.setting`.

    A key that no settings class declares, such as an argument of transformers, changes the model.
    """
    group, _, name = key.partition(".")
    if group in ("hydra", *OF_REPORTS) or (group == "training_args" and name in INCIDENTAL):
        return "nothing"
    if not name:
        return "answers" if group == "evaluation" else "model"
    for kind in DATASETS.values() if group == "dataset_args" else filter(None, [SECTIONS.get(group)]):
        for each in fields(kind):
            if each.name == name and "changes" in each.metadata:
                found: Changes = each.metadata["changes"]
                return found
    return "model"


def unread_keys(given: Iterable[str], text: str) -> list[str]:
    """Return the keys at the top of a configuration that nothing reads.

    A study may have keys of its own, such as `rate` for `${rate.${hydra:runtime.choices.loss}}`.

    Args:
        given: The keys.
        text: The configuration as YAML, with its interpolations.
    """
    known = {"defaults", "hydra", "dataset_args", *SECTIONS, *OF_REPORTS}
    return [
        key
        for key in given
        if key not in known and not re.search(rf"\$\{{(?:[^}}]*[^\w.}}])?\.*{re.escape(key)}\b", text)
    ]


def unknown_at_the_top(key: str) -> UserError:
    """Make the error of a key at the top of a configuration, with the key of a group that may be meant."""
    top = ["dataset_args", *SECTIONS, *OF_REPORTS]
    kinds = [*(("dataset_args", kind) for kind in DATASETS.values()), *SECTIONS.items()]
    of_groups = {each.name: f"{group}.{each.name}" for group, kind in kinds for each in fields(kind)}
    if get_close_matches(key, top, n=1):
        return unknown_key("", key, top)
    if near := get_close_matches(key, of_groups, n=1):
        return UserError(f"{key} is unknown. Did you mean {of_groups[near[0]]}?")
    return unknown_key("", key, top)


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
    # Open, because all arguments of transformers can be given.
    training = _open_mappings(OmegaConf.structured(TrainingArgs, flags={"struct": False}))
    store.store("train", training, "training_args")
    resolvers: dict[str, Callable[..., Any]] = {
        "run_folder": run_folder, "sweep_folder": sweep_folder, "job_folder": job_folder, "jobs": default_jobs
    }  # fmt: skip
    for name, function in resolvers.items():
        OmegaConf.register_new_resolver(f"ntl.{name}", function, replace=True)


register()  # on import, because the processes of a launcher import this module to load their configuration
