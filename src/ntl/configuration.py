"""The configuration: Hydra's groups and overrides, with errors that say what can be chosen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.errors import UserError
from ntl.tasks import TASKS

HEADS = ("language", "regression")
TERMS = ("wasserstein", "squared_error")
SCHEDULES = ("linear", "cosine", "constant_with_warmup")


def load_config(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose the configuration of a comparison, and check it.

    Args:
        overrides: Hydra overrides, such as `task=arithmetic` or `seeds=[0,1]`.

    Returns:
        The configuration as plain dicts, lists, numbers and strings.

    Raises:
        UserError: An override is malformed, names something unknown, or has a value out of its range.
    """
    config = compose_config("compare", overrides, "ntl compare")
    _check(config)
    for section, key in ((config, "tokenizer"), (config, "output_dir"), (config["task"], "data_dir")):
        if section.get(key) is not None:
            section[key] = str(Path(section[key]).expanduser())
    return config


def compose_config(root: str, overrides: Sequence[str], program: str) -> dict[str, Any]:
    """Compose a configuration by Hydra, with errors that list what can be chosen.

    Args:
        root: The name of the main file in `ntl.config`.
        overrides: Hydra overrides.
        program: What the user typed, for the messages.

    Returns:
        The configuration as plain dicts, lists, numbers and strings.

    Raises:
        UserError: An override is malformed, or names something unknown.
    """
    try:
        with initialize_config_module("ntl.config", version_base="1.3"):
            composed = compose(root, list(overrides))
        return OmegaConf.to_container(composed, resolve=True)
    except MissingConfigException as error:
        raise UserError(_unknown_choice(error)) from None
    except OverrideParseException as error:
        raise UserError(
            f"{error.override!r} cannot be read; expected key=value, such as seeds=[0,1] or, with quotes "
            f"around special characters, \"output_dir='a b=c'\". `{program} --help` lists the keys."
        ) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_unknown_key(error, root, overrides, program)) from None


def describe_config() -> str:
    """All keys with their defaults and comments: the configuration's files, as they are."""
    folder = resources.files("ntl.config")
    files = ["compare.yaml", *(f"task/{name}.yaml" for name in TASKS)]
    return "\n".join(f"--- {name}\n{(folder / name).read_text(encoding='utf-8')}" for name in files)


def _unknown_choice(error: MissingConfigException) -> str:
    """Say which file of which group is not there, and which are."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = error.options or sorted(
        path.name.removesuffix(".yaml")
        for path in (resources.files("ntl.config") / group).iterdir()
        if path.name.endswith(".yaml")
    )
    return (
        f"{group}={name} is unknown; expected one of: {', '.join(options)}. Pass for example "
        f"{group}={options[0]}."
    )


def _unknown_key(error: Exception, root: str, overrides: Sequence[str], program: str) -> str:
    """Say which override names an unknown key, and what could have been meant."""
    with initialize_config_module("ntl.config", version_base="1.3"):
        chosen = [o for o in overrides if "." not in o.partition("=")[0] and _is_group(o)]
        defaults = compose(root, chosen)
    for override in overrides:
        key = override.partition("=")[0].lstrip("~")
        if key.startswith("+") or _is_group(override):
            continue
        if OmegaConf.select(defaults, key, default=_unknown_key) is not _unknown_key:
            continue
        parent, _, name = key.rpartition(".")
        section = OmegaConf.select(defaults, parent) if parent else defaults
        known = [str(k) for k in section] if OmegaConf.is_dict(section) else list(defaults)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"Did you mean {'.'.join(filter(None, [parent, near[0]]))}?" if near else "Correct the name."
        return f"{key} is unknown; expected one of: {', '.join(known)}. {hint}"
    return f"{str(error).splitlines()[0]} `{program} --help` lists the keys; correct the override."


def _is_group(override: str) -> bool:
    """Whether an override chooses a file of a group, such as `task=arithmetic`."""
    group = override.partition("=")[0].partition("@")[0].lstrip("+~")
    return (resources.files("ntl.config") / group).is_dir()


def _check(config: dict[str, Any]) -> None:
    """Check every value that does not need the data."""
    known = list(config["objective"])
    _require_list(
        config, "objectives", lambda x: x in known, f"names among: {', '.join(known)}", "[ce,ntl_was]"
    )
    _require_list(config, "seeds", lambda x: is_whole(x, 0), "whole numbers of at least 0", "[0,1,2]")
    jobs_ok = config["jobs"] is None or is_whole(config["jobs"], 1)
    require(jobs_ok, "jobs", config["jobs"], "a whole number of at least 1, or null (one per core)", 2)
    require(isinstance(config["overwrite"], bool), "overwrite", config["overwrite"], "true or false", "true")
    for key, optional in (("output_dir", False), ("tokenizer", True)):
        ok = (optional and config[key] is None) or (isinstance(config[key], str) and config[key] != "")
        require(ok, key, config[key], "the path of a folder", "some/folder")

    training = config["training"]
    for key in ("steps", "batch_size", "gradient_accumulation_steps", "evaluations", "evaluation_size"):
        require(
            is_whole(training[key], 1), f"training.{key}", training[key], "a whole number of at least 1", 8
        )
    batch, parts = training["batch_size"], training["gradient_accumulation_steps"]
    require(
        batch % parts == 0,
        "training.gradient_accumulation_steps",
        parts,
        f"a divisor of training.batch_size={batch}",
        1,
    )
    require_number(training, "training.learning_rate", above=0, example=1e-3)
    for key in ("weight_decay", "max_grad_norm"):
        require_number(training, f"training.{key}", least=0, example=1.0)
    require_number(training, "training.warmup", least=0, below=1, example=0.1)
    require(
        training["schedule"] in SCHEDULES, "training.schedule", training["schedule"],
        f"one of: {', '.join(SCHEDULES)}", SCHEDULES[0],
    )  # fmt: skip

    model = config["model"]
    for key in ("d_model", "d_kv", "d_ff", "num_layers", "num_heads"):
        require(is_whole(model[key], 1), f"model.{key}", model[key], "a whole number of at least 1", 64)
    require_number(model, "model.dropout_rate", least=0, below=1, example=0.1)

    for name in config["objectives"]:
        _check_objective(name, config["objective"][name])


def _check_objective(name: str, settings: Any) -> None:
    keys = {"head", "term", "weight", "reweigh"}
    require(
        isinstance(settings, dict) and set(settings) == keys, f"objective.{name}", settings,
        f"the keys {', '.join(sorted(keys))}",
        "{head: language, term: wasserstein, weight: 0.3, reweigh: true}",
    )  # fmt: skip
    at = f"objective.{name}."
    require(settings["head"] in HEADS, at + "head", settings["head"], f"one of: {', '.join(HEADS)}", HEADS[0])
    require(
        settings["term"] in (None, *TERMS), at + "term", settings["term"],
        f"null or one of: {', '.join(TERMS)}", TERMS[0],
    )  # fmt: skip
    require_number(settings, at + "weight", least=0, example=0.3)
    require(
        isinstance(settings["reweigh"], bool), at + "reweigh", settings["reweigh"], "true or false", "true"
    )


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require(ok: bool, key: str, value: Any, expected: str, example: Any) -> None:
    """Refuse a value unless `ok`, with an error that says what was given and expected."""
    if not ok:
        raise UserError(f"{key} is {value!r}; expected {expected}. Pass for example {key}={example}.")


def _require_list(
    config: dict[str, Any], key: str, ok: Callable[[Any], bool], expected: str, example: str
) -> None:
    values = config[key]
    good = isinstance(values, list) and values and all(ok(v) for v in values)
    good = good and len(set(values)) == len(values)
    require(bool(good), key, values, f"a list, not empty and without repetition, of {expected}", example)


def require_number(
    section: dict[str, Any],
    key: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    example: float,
) -> None:
    """Refuse `section[...]`, which the user knows as `key`, unless it is a number within the bounds."""
    value = section[key.rpartition(".")[2]]
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    bounds = {"at least": (least, lambda v, b: v >= b), "above": (above, lambda v, b: v > b)}
    bounds["below"] = (below, lambda v, b: v < b)
    given = {word: bound for word, (bound, _) in bounds.items() if bound is not None}
    ok = ok and all(bounds[word][1](value, bound) for word, bound in given.items())
    words = " and ".join(f"{word} {bound}" for word, bound in given.items())
    require(ok, key, value, f"a number {words}", example)
