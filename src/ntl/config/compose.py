"""Compose a configuration with Hydra, which checks keys and types, and check the values that it cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.config.rules import rule_of
from ntl.config.schema import SCHEMAS, choices, describe, register
from ntl.config.settings import LOSS_OF_MODEL
from ntl.errors import UserError, unknown_key

GROUPS = ("dataset_args", "model_args", "training_args", "loss", "run_specific_config", "preset")
SECTIONS = ("evaluation", "dataset_args", "model_args", "training_args", "loss")


def compose_config(root: str, overrides: Sequence[str], program: str) -> dict[str, Any]:
    """Compose and check a configuration.

    Args:
        root: Name of the main file in `ntl.config`.
        overrides: Hydra overrides. The `+` of a key that has no value yet is optional.
        program: The command that the user typed, for error messages.

    Returns:
        The configuration as plain dicts, lists, numbers and strings, with the keys and values that
        `ntl.config.schema` describes.

    Raises:
        UserError: An override is malformed, names an unknown key or choice, or has an invalid value.
    """
    register(training=not root.startswith("prepare/"))
    for override in overrides:
        _check_override(override, program)
    # ++ merges {key: value} into what a file sets, and adds arguments of training that have no value yet.
    forced = [o if _group(o) else re.sub(r"^\+*(?=[\w.]+=)", "++", o) for o in overrides]
    try:
        with initialize_config_module("ntl.config", version_base="1.3"):
            composed = compose(root, forced)
        _check_section("", composed, () if root.startswith("prepare/") else SECTIONS)
        for name in SECTIONS:
            if name in composed:
                _check_section(f"{name}.", composed[name])
        config = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain(error, program)) from None
    # Arguments of training without a value are left to transformers.
    config = {k: _without_missing(v) if k == "training_args" else v for k, v in config.items()}
    if config.get("loss", {}).get("criterion") == LOSS_OF_MODEL:
        config["loss"] = {key: config["loss"][key] for key in ("criterion", "normalize_by")}
    return config


def _without_missing(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if value != "???"}


def _group(override: str) -> str:
    """Return the group of which an override chooses a file, such as `dataset_args`, or nothing."""
    group = override.partition("=")[0].partition("@")[0].lstrip("+")
    return group if group in GROUPS else ""


def _check_override(override: str, program: str) -> None:
    """Raise a UserError for an override that Hydra would read, but that has no meaning here."""
    key, _, value = override.partition("=")
    if re.match(r"\+*hydra\b", key):
        raise UserError(
            f"{override} has no effect, because Hydra only composes the configuration; expected a key "
            f"that `{program} --help` lists. Omit the override."
        )
    if key.startswith("~"):
        raise UserError(
            f"{override} removes a key, and then {key[1:]} is missing; expected key=value. Omit it, or set "
            "another value."
        )
    if (group := _group(override)) and (value == "null" or value.startswith("{")):
        raise UserError(
            f"{override} names no file of the group {group}; expected one of: {', '.join(choices(group))}. "
            "Omit the override to use the default."
        )


def _check_section(prefix: str, section: Any, known: Sequence[str] = ()) -> None:
    """Check the keys of a section and the values that omegaconf does not check.

    Raises:
        UserError: A key is unknown, or a value is out of range or not among the choices.
    """
    if not OmegaConf.is_dict(section):
        raise UserError(f"{prefix[:-1]} is {section!r}; expected keys and values. Omit the override.")
    schema = OmegaConf.get_type(section)
    hints = getattr(schema, "hints", {})
    for key in section:
        if key not in hints and key not in known:
            raise unknown_key(prefix, str(key), [*known, *hints], [*known, *getattr(schema, "own", ())])
        if key in hints and not OmegaConf.is_missing(section, key):
            value, rule = section[key], rule_of(hints[key])
            value = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            if rule is not None and not rule.fits(value):
                raise UserError(_invalid(f"{prefix}{key}", value, hints[key]))


def _invalid(key: str, value: Any, hint: Any) -> str:
    rule = rule_of(hint)
    if rule is None:
        return f"{key} is {value!r}, which cannot be used. Correct it."
    return f"{key} is {value!r}; expected {rule.expected}. Pass for example {key}={rule.example}."


def _explain(error: BaseException, program: str) -> str:
    """Return what was given, what was expected and what to do, for an error of Hydra or omegaconf."""
    if isinstance(error, MissingConfigException):
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        options = choices(group)
        return (
            f"{group}={name} is unknown; expected one of: {', '.join(options)}. Pass for example "
            f"{group}={options[0]}."
        )
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override.removeprefix('++')!r} cannot be read; expected key=value, such as seeds=[0,1] "
            "or, with quotes around special characters, \"output_dir='a b=c'\". "
            f"`{program} --help` lists the keys."
        )
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        node, path = cause.parent_node, str(cause.full_key).partition("[")[0]
        while node is not None and not hasattr(OmegaConf.get_type(node), "hints"):
            node = node._get_parent()
        prefix, dot, key = path.rpartition(".")
        if node is not None and key in OmegaConf.get_type(node).hints:
            return _invalid(path, cause.value, OmegaConf.get_type(node).hints[key])
        if node is not None and prefix:
            schema = OmegaConf.get_type(node)
            return str(unknown_key(prefix + dot, key, schema.hints, schema.own))
    return f"{str(error).splitlines()[0]} Correct the override; `{program} --help` lists the keys."


def describe_config(root: str) -> str:
    """Return the keys of a program with their comments and defaults, and the choices of each group."""
    text = (resources.files("ntl.config") / f"{root}.yaml").read_text(encoding="utf-8")
    entries = [entry for entry in OmegaConf.create(text)["defaults"] if OmegaConf.is_dict(entry)]
    groups = {
        str(k).partition("@")[0]: v for entry in entries for k, v in entry.items() if "schema" not in str(k)
    }
    lines = ["Groups, chosen with GROUP=NAME:"]
    lines += [f"  {group}: {', '.join(choices(group))}" for group in groups]
    lines.append(f"\n--- {root}.yaml\n{text.rstrip()}")
    shown = [("schema", "comparison")] if root == "compare" else []
    shown += [("schema", "evaluation"), *((g, n) for g, n in groups.items() if g != "loss"), ("loss", "ce")]
    for group, name in shown:
        if schema := SCHEMAS.get(group, {}).get(name):
            title = name if group == "schema" else f"{group}={name}"
            lines.append(f"\n--- {title}\n{describe(schema)}")
    return "\n".join(lines)
