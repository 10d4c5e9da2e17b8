"""Compare the configurations of runs, to continue one, to evaluate one again, and to report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import MISSING

from ntl.config.schema import READINGS, SCHEMAS, greater_is_better

# Keys, by their last part, that do not matter for a purpose. They do not affect the result of training, ...
TRAINING = {
    "trial", "special_name", "output_dir", "do_only_eval", "overwrite_output_dir", "resume_from_checkpoint",
    "cache_dir", "disable_tqdm", "logging_steps", "per_device_eval_batch_size", "report_to",
    "save_total_limit", "state_cache_gb", "evaluated",
}  # fmt: skip
# ... of an evaluation of the same model, ...
EVALUATION = {"cache_dir", "samples_during_training", "name"}
# ... or do not separate the rows of a report.
REPORT = TRAINING | EVALUATION | {
    "seed", "run_name", "logging_dir", "logging_strategy", "eval_steps",
    "save_steps", "save_strategy", "use_cpu", "dataloader_num_workers", "dataloader_pin_memory",
}  # fmt: skip
NORMALIZE_BY = "loss.normalize_by"


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], purpose: set[str]
) -> dict[str, tuple[Any, Any]]:
    """Map each setting, by dotted key, that matters for a purpose and differs to its two values."""
    first, second = comparable(one, purpose), comparable(other, purpose)
    pairs = {key: (first.get(key), second.get(key)) for key in sorted({*first, *second})}
    return {key: (before, now) for key, (before, now) in pairs.items() if before != now}


def comparable(config: Mapping[str, Any], purpose: set[str]) -> dict[str, Any]:
    """Return the settings, by dotted key, that matter for a purpose: `TRAINING`, `EVALUATION` or `REPORT`.

    Null is left out of a report's. Readings and their interval only count if there is another one than
    `greedy`.
    """
    evaluation = dict(config.get("evaluation", {}))
    if {*evaluation.get("read", ())} <= {"greedy"}:
        evaluation = {key: evaluation[key] for key in evaluation if key not in ("read", "interval")}
    else:
        evaluation["read"] = [name for name in READINGS if name in ("greedy", *evaluation["read"])]
    if purpose is EVALUATION:
        data = {**config.get("dataset_args", {}), "max_new_tokens": None}  # that of `evaluation` counts
        return _flatten({"dataset_args": data, "evaluation": evaluation}, purpose)
    settings = _flatten({**config, **with_defaults(config), "evaluation": evaluation}, purpose)
    if purpose is REPORT:
        return {key: value for key, value in settings.items() if value is not None}
    return {key: value for key, value in settings.items() if not key.startswith("evaluation.")}


def with_defaults(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Give keys that did not exist yet when a run was recorded the default that they have since then.

    `greater_is_better` is inferred: older versions recorded false by default.
    """
    data = config.get("dataset_args", {})
    schemas: dict[str, type | None] = {
        "model_args": SCHEMAS["model_args"]["vanilla_t5"],
        "training_args": SCHEMAS["training_args"]["train"],
        "loss": SCHEMAS["loss"]["ce"],
        "evaluation": SCHEMAS["schema"]["evaluation"],
        "dataset_args": SCHEMAS["dataset_args"].get(data.get("dataset_name", "")),
    }
    filled = {}
    for section, schema in schemas.items():
        defaults = {} if schema is None else vars(schema())
        defaults = {key: value for key, value in defaults.items() if value != MISSING}
        filled[section] = {**defaults, **config.get(section, {})}
    if "max_new_tokens" not in config.get("evaluation", {}):
        filled["evaluation"]["max_new_tokens"] = filled["dataset_args"].get("max_new_tokens")
    filled["training_args"]["greater_is_better"] = greater_is_better(filled["training_args"])
    return filled


def _flatten(nested: Mapping[str, Any], without: set[str], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, without, f"{prefix}{key}.")
        elif key not in without:
            flat[f"{prefix}{key}"] = value
    return flat


def only_adds_readings(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether the evaluation of `other` differs from that of `config` only by additional readings."""
    differing = differences(config, other, EVALUATION)
    before, now = differing.pop("evaluation.read", ((), ()))
    no_interval = differing.pop("evaluation.interval", (None, None))[0] is None
    return not differing and no_interval and {*(before or ())} <= {*(now or ())}
