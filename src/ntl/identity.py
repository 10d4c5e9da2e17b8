"""Which run is this? What a model has learned from which rows, and how its answers were made.

A run's identity is written when it is trained, into the configuration of its model, and whatever asks whether
two runs, or two evaluations, are the same compares identities: a command that continues a run, one that finds
it finished, a report, a contrast. It consists of two flat dictionaries:

    model     each setting that changes what is learned, such as `loss.weight`; `data`, the digest of what the
              rows are drawn from, and `rows`, that of all rows; `code`, the digest of this version of the lab
              and of ntloss; and, as `loss.criterion.source`, digests of what settings name: code that the
              user wrote, the shape of a model, and the files of a model or a tokenizer
    answers   each setting that changes how a trained model is evaluated; and `evaluation.data`,
              `evaluation.rows` and `evaluation.code`, the same digests of this evaluation
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.errors import UserError
from ntl.layout import JOBS, LEARNED_ROWS
from ntl.own import digest_of_code, digest_of_source, is_own
from ntl.settings import CHANGES, Config, read_trained

if TYPE_CHECKING:
    import numpy as np

    from ntl.data import TaskData

log = logging.getLogger(__name__)
Identity = Mapping[str, Any]
"""The settings and digests of a model or of an evaluation, by key."""
DATA, ROWS, CODE = "data", "rows", "code"
OF_ANSWERS = "evaluation."  # before these keys in the identity of an evaluation
ASKED = f"{OF_ANSWERS}{ROWS}"
START = "model_args.model_name_or_path"
SHAPE, TOKENIZER = "model_args.config_name", "model_args.tokenizer_name_or_path"
SOURCE = ".source"  # ending of a key that holds the digest of what the setting before it names
# Schedules that do not depend on the number of steps.
OPEN_ENDED = ("constant", "constant_with_warmup", "reduce_lr_on_plateau")


def identify(config: Config, data: TaskData) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the identity of the model that the settings train on the data, and that of its evaluation."""
    from ntl.encodings.locate import digest_of_files  # slow: the hub's client
    from ntl.models.source import get_shape

    parts: dict[str, dict[str, Any]] = {"model": {}, "answers": {}, "nothing": {}}
    for group, settings in config.plain().items():
        for name, value in settings.items():
            key = f"{group}.{name}"
            parts[CHANGES.get(key, "model")][key] = value
    for key in ("dataset_args.load", "loss.criterion", "model_args.number_encoding"):
        if is_own(parts["model"].get(key)):
            parts["model"][f"{key}{SOURCE}"] = digest_of_source(key, parts["model"][key])
    for name in config.evaluation.metrics:
        parts["answers"][f"{name}{SOURCE}"] = digest_of_source("evaluation.metrics", name)
    args = config.model_args
    named = {START: args.model_name_or_path, TOKENIZER: args.tokenizer_name_or_path}
    digests = {key: digest_of_files(name, key) for key, name in named.items() if name is not None}
    if args.model_name_or_path is None:
        shape = json.dumps(get_shape(args.config_name), sort_keys=True)
        digests[SHAPE] = sha256(shape.encode()).hexdigest()[:12]
    else:  # a study may name the shape of a model from scratch beside a pretrained one
        del parts["model"][SHAPE]
    parts["model"] |= {f"{key}{SOURCE}": digest for key, digest in digests.items() if digest is not None}
    found = {DATA: data.source or data.digest, ROWS: data.digest, CODE: digest_of_code()}
    of_answers = {f"{OF_ANSWERS}{key}": digest for key, digest in found.items()}
    return {**parts["model"], **found}, {**parts["answers"], **of_answers}


def differing(one: Identity, other: Identity) -> list[str]:
    """Return the keys in which two identities differ, settings first.

    A digest of files that only one of them has tells nothing: the folder from which a finished run started
    may be gone.
    """
    keys = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    return [key for key in keys if not key.endswith(SOURCE) or (key in one and key in other)]


def check_same(now: Identity, model: Path) -> bool:
    """Check that a model or a checkpoint in the run's folder is of the run that the settings describe.

    Returns:
        Whether the run is to be trained for more steps than the model was, which a learning rate that does
        not depend on their number allows.

    Raises:
        UserError: The model was trained with other settings, data or code.
    """
    trained: Any = read_trained(model)
    before: Identity = trained["identity"]
    found = differing(now, before)
    if found == ["training_args.max_steps"] and _can_be_longer(before, now):
        return True
    if found:
        raise _refused(model, found[0], before, now)
    return False


def _can_be_longer(before: Identity, now: Identity) -> bool:
    key = "training_args.max_steps"
    schedule, warmup = now["training_args.lr_scheduler_type"], now.get("training_args.warmup_steps", 0)
    is_open = schedule in OPEN_ENDED and (warmup == 0 or warmup >= 1)  # below 1, it is a share of the steps
    falls = now["loss.criterion"] == "hl_gauss" or not isinstance(
        now.get("loss.label_noise"), int | float | None
    )
    return 0 < before[key] < now[key] and is_open and not falls


def check_siblings(now: Identity, run: Path) -> None:
    """Check that a run of a sweep has the data and the code of the runs beside it, with which it is averaged.

    Raises:
        UserError: A run beside it with the same settings of its data was trained before either changed.
    """
    for path in sorted(run.parent.glob("*/config.json")) if (run.parent / JOBS).is_dir() else ():
        trained = read_trained(path.parent)
        if path.parent == run or trained is None:
            continue
        found = differing(now, trained["identity"])
        of_data = [key for key in found if key.startswith("dataset_args.") and not key.endswith("_seed")]
        if not of_data and (changed := [key for key in (DATA, CODE) if key in found]):
            raise _refused(path.parent, changed[0], trained["identity"], now)


def _refused(model: Path, key: str, before: Identity, now: Identity) -> UserError:
    reason = f"with {key}={before.get(key)!r}, and not {now.get(key)!r}"
    if key in (DATA, ROWS, CODE):
        reason = f"before the {key} changed"
    return UserError(
        f"{model} was trained {reason}. Pass "
        "another training_args.output_dir, or training_args.overwrite_output_dir=true to replace it."
    )


def hash_rows(examples: Any) -> np.ndarray:
    """Hash what each example is known by, as 64-bit integers, `[examples, keys]`."""
    import numpy as np
    from pandas.util import hash_array  # slow

    known_by = [(example.question, *example.known_by) for example in examples]
    most = max(map(len, known_by), default=0)
    padded = [each + each[:1] * (most - len(each)) for each in known_by]
    keys = np.array(padded, object).reshape(len(padded), most)
    return hash_array(keys.ravel(), categorize=False).reshape(keys.shape)


def learned_rows(model: str | Path | None) -> np.ndarray:
    """Return the hashes of the rows that a model, and those that it started from, were trained on.

    There are none of a new model (None), and of one that is not of the lab.

    Raises:
        UserError: The list of a model of the lab is not beside its weights.
    """
    import numpy as np

    if model is None or read_trained(model) is None:
        return np.empty(0, np.uint64)
    file = Path(model).expanduser() / LEARNED_ROWS
    if not file.is_file():
        raise UserError(
            f"{model} lacks {LEARNED_ROWS}, so it is not known which rows it has learned. Copy this "
            "file, too, from the folder of the run or of the checkpoint."
        )
    found: np.ndarray = np.load(file)
    return found


def leave_out_learned(data: TaskData, known: np.ndarray, is_own: bool) -> TaskData:
    """Leave out the rows that a model has learned, and log how many.

    Args:
        data: The data of an evaluation.
        known: What `learned_rows` returns.
        is_own: Whether the model is, or will be, trained on these data. Then only those rows are left out
            that are not among the data's own training rows.

    Raises:
        UserError: None is left.
    """
    import numpy as np

    if is_own and len(known):
        known = np.setdiff1d(known, hash_rows(data.train))
    if not len(known):
        return data
    parts = {}
    for name, examples in data.parts.items():
        is_known = np.isin(hash_rows(examples), known).max(axis=1, initial=False)
        parts[name] = [example for example, out in zip(examples, is_known, strict=True) if not out]
        if not parts[name]:
            raise UserError(f"the model has learned every row of the {name} set; expected others.")
        if is_known.any():
            log.warning(
                f"left out of {name}: {is_known.sum():,} of {len(is_known):,} rows, which the model has "
                f"learned; {len(parts[name]):,} are left"
            )
    return replace(data, validation=parts.pop("validation"), tests=parts)
