"""Compose the configuration of `ntl compare`, and check it before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ntl.configuration import check_number, check_section, check_value, compose_config, is_whole_number
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
        UserError: An override is malformed, names an unknown key or choice, or has a value out of range.
    """
    config = compose_config("compare", overrides, "ntl compare")
    _check_keys(config, compose_config("compare", [f"task={config['task']['name']}"], "ntl compare"))
    _check(config)
    for section, key in ((config, "tokenizer"), (config, "output_dir"), (config["task"], "data_dir")):
        if section.get(key) is not None:
            section[key] = str(Path(section[key]).expanduser())
    return config


def describe_config() -> str:
    """Return the configuration's files, which document all keys and their defaults."""
    folder = resources.files("ntl.config")
    files = ["compare.yaml", *(f"task/{name}.yaml" for name in TASKS)]
    return "\n".join(f"--- {name}\n{(folder / name).read_text(encoding='utf-8')}" for name in files)


def _check_keys(config: dict[str, Any], known: dict[str, Any]) -> None:
    """Check that keys added with `+` exist, except in `objective`, whose names the user chooses."""
    check_section("", config, known, known)
    for section in ("task", "training"):
        check_section(section, config[section], known[section], known[section])
    arguments = known["model"]
    if set(config["model"]) - set(arguments):
        from ntl.approaches.pretrained import known_arguments  # imports transformers, which takes seconds

        arguments = known_arguments("t5")
    check_section("model", config["model"], arguments, known["model"])


def _check(config: dict[str, Any]) -> None:
    """Check every value that does not need the data."""
    known = list(config["objective"])
    _check_list(
        config, "objectives", lambda x: x in known, f"names among: {', '.join(known)}", "[ce,ntl_was]"
    )
    _check_list(config, "seeds", lambda x: is_whole_number(x, 0), "whole numbers of at least 0", "[0,1,2]")
    jobs_ok = config["jobs"] is None or is_whole_number(config["jobs"], 1)
    check_value(jobs_ok, "jobs", config["jobs"], "a whole number of at least 1, or null (one per core)", 2)
    check_value(
        isinstance(config["overwrite"], bool), "overwrite", config["overwrite"], "true or false", "true"
    )
    for key, optional in (("output_dir", False), ("tokenizer", True)):
        ok = (optional and config[key] is None) or (isinstance(config[key], str) and config[key] != "")
        check_value(ok, key, config[key], "the path of a folder", "some/folder")

    training = config["training"]
    for key in ("steps", "batch_size", "gradient_accumulation_steps", "evaluations", "evaluation_size"):
        check_value(
            is_whole_number(training[key], 1),
            f"training.{key}",
            training[key],
            "a whole number of at least 1",
            8,
        )
    batch, parts = training["batch_size"], training["gradient_accumulation_steps"]
    check_value(
        batch % parts == 0,
        "training.gradient_accumulation_steps",
        parts,
        f"a divisor of training.batch_size={batch}",
        1,
    )
    check_number(training, "training.learning_rate", above=0, example=1e-3)
    for key in ("weight_decay", "max_grad_norm"):
        check_number(training, f"training.{key}", least=0, example=1.0)
    check_number(training, "training.warmup", least=0, below=1, example=0.1)
    check_value(
        training["schedule"] in SCHEDULES, "training.schedule", training["schedule"],
        f"one of: {', '.join(SCHEDULES)}", SCHEDULES[0],
    )  # fmt: skip

    model = config["model"]
    for key in ("d_model", "d_kv", "d_ff", "num_layers", "num_heads"):
        check_value(
            is_whole_number(model[key], 1), f"model.{key}", model[key], "a whole number of at least 1", 64
        )
    check_number(model, "model.dropout_rate", least=0, below=1, example=0.1)

    for name in config["objectives"]:
        _check_objective(name, config["objective"][name])


def _check_objective(name: str, settings: Any) -> None:
    keys = {"head", "term", "weight", "reweigh"}
    check_value(
        isinstance(settings, dict) and set(settings) == keys, f"objective.{name}", settings,
        f"the keys {', '.join(sorted(keys))}",
        "{head: language, term: wasserstein, weight: 0.3, reweigh: true}",
    )  # fmt: skip
    at = f"objective.{name}."
    check_value(
        settings["head"] in HEADS, at + "head", settings["head"], f"one of: {', '.join(HEADS)}", HEADS[0]
    )
    check_value(
        settings["term"] in (None, *TERMS), at + "term", settings["term"],
        f"null or one of: {', '.join(TERMS)}", TERMS[0],
    )  # fmt: skip
    check_number(settings, at + "weight", least=0, example=0.3)
    check_value(
        isinstance(settings["reweigh"], bool), at + "reweigh", settings["reweigh"], "true or false", "true"
    )


def _check_list(
    config: dict[str, Any], key: str, ok: Callable[[Any], bool], expected: str, example: str
) -> None:
    values = config[key]
    good = isinstance(values, list) and values and all(ok(v) for v in values)
    good = good and len(set(values)) == len(values)
    check_value(bool(good), key, values, f"a list, not empty and without repetition, of {expected}", example)
