"""Which run is this? What a model has learned from which rows, and how its answers were made.

A run's identity is written when it is trained, into the configuration of its model, and whatever asks whether
two runs, or two evaluations, are the same compares identities: a command that continues a run, one that finds
it finished, a report, a contrast. It consists of two flat dictionaries:

    model     each setting that changes what is learned, such as `loss.weight`; `data`, the digest of all
              rows; of code that the user wrote, such as a loss, the digest of the file, as
              `loss.criterion.source`; and such a digest of the weights in a folder from which training starts
    answers   each setting that changes how a trained model is evaluated; and `evaluation.data`, the digest of
              the rows of this evaluation
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.config import Config, changes, read_trained
from ntl.errors import UserError
from ntl.layout import TRAINED_QUESTIONS
from ntl.losses import LossSettings
from ntl.own import digest_of_source, is_own

if TYPE_CHECKING:
    import numpy as np

    from ntl.data import Example, TaskData

Identity = Mapping[str, Any]
"""The settings and digests of a model or of an evaluation, by key."""
DATA, ASKED = "data", "evaluation.data"
START = "model_args.model_name_or_path"
SOURCE = ".source"  # ending of a key that holds the digest of what the setting before it names
REPLACE = "Pass another training_args.output_dir, or training_args.overwrite_output_dir=true to replace it."
# Schedules that do not depend on the number of steps.
OPEN_ENDED = ("constant", "constant_with_warmup", "reduce_lr_on_plateau")


def identify(config: Config, data: TaskData) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the identity of the model that the settings train on the data, and that of its evaluation."""
    from ntl.encodings.locate import source_of_weights  # slow: the hub's client

    parts: dict[str, dict[str, Any]] = {"model": {}, "answers": {}, "nothing": {}}
    for group, settings in config.plain().items():
        for name, value in settings.items():
            parts[changes(f"{group}.{name}")][f"{group}.{name}"] = value
    for key in ("dataset_args.load", "loss.criterion", "model_args.own_encoding"):
        if is_own(parts["model"].get(key)):
            parts["model"][f"{key}{SOURCE}"] = digest_of_source(parts["model"][key])
    start = config.model_args.model_name_or_path
    if start is not None and (weights := source_of_weights(start, START)):
        parts["model"][f"{START}{SOURCE}"] = weights
    model = without_unread(parts["model"])
    return {**model, DATA: data.digest}, {**parts["answers"], ASKED: data.digest}


def without_unread(identity: Identity) -> dict[str, Any]:
    """Return an identity in which settings that nothing reads, because of another one, tell nothing.

    A sweep over losses and weights has several weights of cross-entropy alone, and a study may name the
    shape of a model from scratch beside a pretrained one. `loss.normalize_by` stays, also of cross-entropy:
    it divides NTL-WAS, which is reported of such runs.
    """
    found = dict(identity)
    if found.get(START) is not None:
        found.pop("model_args.config_name", None)
    if found.get("loss.criterion", "") is None:
        default = LossSettings()
        unread = {"loss.weight": default.weight, "loss.options": default.options}
        found |= {key: value for key, value in unread.items() if key in found}
    return found


def differing(one: Identity, other: Identity) -> list[str]:
    """Return the keys in which two identities differ.

    A digest of files that only one of them has tells nothing: runs of earlier versions lack some, and the
    folder from which a finished run started may be gone. They have settings that nothing read, too.
    """
    one, other = without_unread(one), without_unread(other)
    keys = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    return [key for key in keys if not key.endswith(SOURCE) or (key in one and key in other)]


def check_same(now: Identity, model: Path) -> bool:
    """Check that a model or a checkpoint in the run's folder is of the run that the settings describe.

    Returns:
        Whether the run is to be trained for more steps than the model was, which a learning rate that does
        not depend on their number allows.

    Raises:
        UserError: The model was trained with other settings, on other rows or with another source.
    """
    trained = read_trained(model)
    if trained is None:
        raise UserError(
            f"{model} is not of a run of the lab, so it cannot be continued. Pass another "
            "training_args.output_dir, and no training_args.resume_from_checkpoint of another program."
        )
    before: Identity = trained["identity"]
    found = differing(before, now)
    if found == ["training_args.max_steps"] and _can_be_longer(before, now):
        return True
    if not found:
        return False
    key = next((key for key in found if key != DATA), DATA)  # a setting may be why the rows are others
    if key == DATA:
        reason = "before the data changed"
    elif key.endswith(SOURCE):
        what = "the weights in" if key == f"{START}{SOURCE}" else "the file of"
        reason = f"before {what} {now[key.removesuffix(SOURCE)]} changed"
    else:
        reason = f"with other settings: {key} is {before.get(key)!r} there, {now.get(key)!r} here"
    raise UserError(f"{model} was trained {reason}. {REPLACE}")


def _can_be_longer(before: Identity, now: Identity) -> bool:
    key = "training_args.max_steps"
    schedule, warmup = now["training_args.lr_scheduler_type"], now.get("training_args.warmup_steps", 0)
    is_open = schedule in OPEN_ENDED and (warmup == 0 or warmup >= 1)  # below 1, it is a share of the steps
    return 0 < before[key] < now[key] and is_open and now["loss.criterion"] != "hl_gauss"


def hash_questions(examples: Any) -> np.ndarray:
    """Hash the question of each example, as 64-bit integers."""
    import numpy as np
    from pandas.util import hash_array  # slow

    questions = np.array([example.question for example in examples], object)
    return hash_array(questions, categorize=False)


def learned_questions(model: str | Path | None) -> np.ndarray:
    """Return the hashes of the questions that a model, and those that it started from, were trained on.

    There are none of a new model (None), and of one that is not of the lab.
    """
    import numpy as np

    folder = Path(model or "").expanduser()
    # A checkpoint is in the folder of its run.
    files = [
        file for file in (folder / TRAINED_QUESTIONS, folder.parent / TRAINED_QUESTIONS) if file.is_file()
    ]
    if model is None or read_trained(folder) is None or not files:
        return np.empty(0, np.uint64)
    found: np.ndarray = np.load(files[0])
    return found


def leave_out_learned(data: TaskData, model: str | Path | None, is_own: bool) -> tuple[TaskData, list[str]]:
    """Leave out the questions that a model has learned, see `learned_questions`.

    Args:
        data: The data of an evaluation.
        model: Folder of the model, or None.
        is_own: Whether the model is, or will be, trained on these data. Then only those questions are left
            out that are not among the data's own training rows.

    Returns:
        The data, and a sentence for each set from which questions were left out.

    Raises:
        UserError: None is left.
    """
    from dataclasses import replace

    import numpy as np

    known = learned_questions(model)
    if is_own and len(known):
        known = np.setdiff1d(known, hash_questions(data.train))
    if not len(known):
        return data, []
    parts, said = {}, []
    for name, examples in data.parts.items():
        is_known = np.isin(hash_questions(examples), known)
        parts[name] = kept = _without(examples, is_known) if is_known.any() else examples
        if is_known.all():
            raise UserError(f"{model} has learned every question of the {name} set; expected others.")
        if is_known.any():
            said.append(
                f"left out of {name}: {is_known.sum():,} of {len(is_known):,} questions, which {model} has "
                f"learned; {len(kept):,} are left"
            )
    validation = parts.pop("validation")
    return replace(data, validation=validation, tests=parts), said


def _without(examples: Any, left_out: np.ndarray) -> list[Example]:
    return [example for example, is_out in zip(examples, left_out, strict=True) if not is_out]
