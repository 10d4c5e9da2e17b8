"""Decide what is left of a run in its folder."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from ntl.config import Config, read_config
from ntl.data.files import is_leftover
from ntl.errors import UserError
from ntl.training.run_folder import ERROR, EvaluationFolder, RunFolder, check_table

# Keys that do not affect what is learned, by group.
INDEPENDENT = {
    "dataset_args": {"cache_dir", "max_new_tokens"},
    "weights": {"state_cache_gb"},
    "training_args": {
        "trial", "special_name", "output_dir", "do_only_eval", "overwrite_output_dir", "disable_tqdm",
        "resume_from_checkpoint", "logging_steps", "per_device_eval_batch_size", "report_to",
        "save_total_limit", "use_cpu", "dataloader_num_workers", "dataloader_pin_memory", "run_name",
    },
}  # fmt: skip
HYDRA = ".hydra"  # in the folder before the run starts, beside log files


class Start(NamedTuple):
    """What is left of a run, and the checkpoint to continue from."""

    task: Literal["train", "evaluate", "nothing"]
    checkpoint: Path | None = None


def decide(config: Config, folder: RunFolder) -> Start:
    """Decide what is left of a run.

    Raises:
        UserError: The folder holds a run with other settings or another table, or files of something else.
    """
    training = config.training_args
    resume = training.resume_from_checkpoint
    checkpoint = Path(resume) if isinstance(resume, str) else None
    if checkpoint is not None and not (checkpoint / "trainer_state.json").is_file():
        raise UserError(f"training_args.resume_from_checkpoint={resume} is not the folder of a checkpoint.")
    if not folder.holds_run():
        _check_new(folder)
    elif not training.overwrite_output_dir:
        record = folder.record()
        before = read_config(record.config)
        if changed := find_differences(before, config):
            key, (there, here) = next(iter(changed.items()))
            raise UserError(
                f"{folder} holds a run with other settings: {key} is {there!r} there, {here!r} here. Pass "
                "another training_args.output_dir, or training_args.overwrite_output_dir=true to replace it."
            )
        check_table(
            config.dataset_args, record.table, f"the run in {folder} began",
            "Pass another training_args.output_dir, or training_args.overwrite_output_dir=true to replace "
            "the run.",
        )  # fmt: skip
        if record.status in ("trained", "finished"):
            return Start("nothing" if _is_evaluated(config, folder) else "evaluate")
        checkpoint = checkpoint or folder.last_checkpoint()
    if resume is True and checkpoint is None:
        raise UserError(
            f"training_args.resume_from_checkpoint=true, but {folder} has no complete checkpoint. Correct "
            "training_args.output_dir, or omit the key to train from the start."
        )
    return Start("train", checkpoint)


def find_differences(one: Config, other: Config) -> dict[str, tuple[Any, Any]]:
    """Map each setting that affects what is learned and differs to its two values."""
    first, second = _learning(one), _learning(other)
    keys = sorted({*first, *second})
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def _learning(config: Config) -> dict[str, Any]:
    values = {}
    for group in ("dataset_args", "model_args", "weights", "loss", "training_args"):
        for key, value in vars(getattr(config, group)).items():
            if key not in INDEPENDENT.get(group, ()):
                values[f"{group}.{key}"] = value
    return values


def find_own_evaluation(folder: RunFolder, name: str) -> EvaluationFolder | None:
    """Return the complete evaluation of a run on its own data; None if it is of other data or another model.

    An evaluation on other data, which `training_args=eval` asks for, may have replaced it.
    """
    evaluation = folder.evaluation(name)
    if not evaluation.is_complete():
        return None
    run, done = folder.record(), evaluation.record()
    tables = {run.table, done.table} - {None}
    if len(tables) > 1 or run.steps != done.steps:
        return None
    return None if find_differences(read_config(run.config), read_config(done.config)) else evaluation


def _is_evaluated(config: Config, folder: RunFolder) -> bool:
    """Return whether the folder holds the evaluation that is asked for."""
    evaluation = find_own_evaluation(folder, config.evaluation.name)
    if evaluation is None:
        return False
    done = read_config(evaluation.record().config)
    without = ("name", "batch_size", "samples_during_training")
    asked, held = ({k: v for k, v in vars(c.evaluation).items() if k not in without} for c in (config, done))
    return asked == held


def _check_new(folder: RunFolder) -> None:
    others = [] if not folder.path.is_dir() else [p.name for p in folder.path.iterdir() if not _is_ours(p)]
    if others:
        raise UserError(
            f"{folder} holds files but no run, such as {min(others)}; expected a new or empty folder. "
            "Pass another training_args.output_dir."
        )


def _is_ours(path: Path) -> bool:
    """Return whether Hydra, the log or the lock of this run made a file, or a killed run left it."""
    return path.name in (HYDRA, ERROR) or path.suffix == ".log" or is_leftover(path)
