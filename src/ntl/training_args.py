"""The settings of the group `training_args`, and transformers' arguments that are made from them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ntl.errors import UserError, unknown_key
from ntl.settings import Settings, setting

Number = int | float  # a whole number stays as it was given


@dataclass
class TrainingArgs(Settings):
    """Training as published: any argument of transformers' Seq2SeqTrainingArguments, and a few of the lab."""

    group = "training_args."

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
    resume_from_checkpoint: bool | str | None = setting(
        None, "a checkpoint's folder; null: the latest in output_dir", "nothing"
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


EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}
NOT_OF_TRANSFORMERS = ("trial", "special_name", "do_only_eval", "overwrite_output_dir")
# Further arguments of transformers that change nothing of a run.
INCIDENTAL = (
    "use_cpu", "dataloader_num_workers", "dataloader_pin_memory", "run_name", "logging_dir",
    "logging_strategy",
)  # fmt: skip


def trainer_arguments(settings: TrainingArgs, folder: Path) -> Any:
    """Make transformers' arguments. Under `torchrun`, this initializes the process group."""
    import torch
    from transformers import Seq2SeqTrainingArguments

    from ntl.metrics.registry import find_metric

    given = {key: value for key, value in vars(settings).items() if key not in NOT_OF_TRANSFORMERS}
    known = [*Seq2SeqTrainingArguments.__dataclass_fields__]
    if unknown := [key for key in given if key not in known]:
        raise unknown_key("training_args.", unknown[0], known)
    hints = get_type_hints(Seq2SeqTrainingArguments)
    for key, value in given.items():  # whose types transformers does not check: any text would be true
        kinds = {hints[key], *get_args(hints[key])}
        is_text = isinstance(value, str) and str not in kinds and kinds & {bool, int, float}
        is_counted = isinstance(value, float) and int in kinds and float not in kinds
        if is_text or (is_counted and not value.is_integer()):
            expected = next(name for kind, name in EXPECTED.items() if kind in kinds)
            raise UserError(f"training_args.{key}={value!r}; expected {expected}.")
        if is_counted:
            given[key] = int(value)
    best = given["metric_for_best_model"]
    if given["greater_is_better"] is None and best is not None:
        given["greater_is_better"] = find_metric(best).higher_is_better
        if given["greater_is_better"] is None:
            raise UserError(
                f"training_args.metric_for_best_model={best}: whether larger values are better is not known. "
                "Pass training_args.greater_is_better=true or false."
            )
    if given["lr_scheduler_type"] == "reduce_lr_on_plateau":
        mode = "max" if given["greater_is_better"] else "min"
        published = {"factor": 0.5, "patience": 5}
        given["lr_scheduler_kwargs"] = {"mode": mode, **(given["lr_scheduler_kwargs"] or published)}
    given |= {
        "output_dir": str(folder),
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "report_to": [] if given["report_to"] in (None, "none") else given["report_to"],
        "disable_tqdm": not sys.stderr.isatty() if given["disable_tqdm"] is None else given["disable_tqdm"],
        "label_smoothing_factor": 0.0,  # the lab's loss smooths
    }
    given.setdefault("dataloader_pin_memory", torch.cuda.is_available() and not given.get("use_cpu"))
    try:
        return Seq2SeqTrainingArguments(**given)
    except Exception as error:  # transformers raises many types, whose messages have several lines
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"training_args cannot be used: {reason}") from None
