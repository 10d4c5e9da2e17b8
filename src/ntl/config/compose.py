"""Compose a configuration with Hydra and check its keys and values, once, before anything reads it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.errors import UserError


def compose_config(root: str, overrides: Sequence[str], program: str) -> dict[str, Any]:
    """Compose and check a configuration.

    Args:
        root: Name of the main file in `ntl.config`.
        overrides: Hydra overrides. The `+` of a key that no file has is optional.
        program: The command that the user typed, for error messages.

    Returns:
        The configuration as plain dicts, lists, numbers and strings. Every key is known, none is missing, and
        every value has the right type and is within its range.

    Raises:
        UserError: An override is malformed, names an unknown key or choice, or has an invalid value.
    """
    from ntl.config.known_values import check_values

    for override in overrides:
        if re.match(r"[+~]*hydra\b", override):
            raise UserError(
                f"{override} has no effect, because Hydra only composes the configuration; expected a key "
                f"that `{program} --help` lists. Omit the override."
            )
    groups = [override for override in overrides if _is_group(override)]
    for override in groups:
        group, _, choice = override.partition("=")
        if choice == "null" or choice.startswith("{"):  # Hydra's error would not name the group
            raise UserError(
                f"{override} names no file of the group {group}; expected a name. `{program} --help` lists "
                "the names; omit the override to use the default."
            )
    # With ++, unknown keys are left to `_check_keys`, and {key: value} is merged into what a file sets.
    forced = [o if o in groups else re.sub(r"^\+*(?=[\w.]+=)", "++", o) for o in overrides]
    try:
        config = _compose(root, forced)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain(error, program)) from None
    files = _files(root, tuple(groups))
    _drop_unused(config, files, overrides)
    _check_keys(config, files)
    check_values(config, files)
    return config


def _explain(error: Exception, program: str) -> str:
    """Return what was given, what was expected and what to do, for an error that Hydra raised."""
    if isinstance(error, MissingConfigException):
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        options = error.options or choices(group)
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
    return f"{str(error).splitlines()[0]} Correct the override; `{program} --help` lists the keys."


def _compose(root: str, overrides: Sequence[str]) -> dict[str, Any]:
    with initialize_config_module("ntl.config", version_base="1.3"):
        return OmegaConf.to_container(compose(root, list(overrides)), resolve=True)


@cache
def _files(root: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of the chosen files, without those that only change or remove keys of others."""
    return _compose(root, [o for o in groups if "@" not in o and o[0] != "~"])


def _drop_unused(config: dict[str, Any], files: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Drop the keys of `dataset_args` that a run-specific file sets and the dataset lacks: `data_dir`."""
    typed = {".".join(re.split("[.=]", override.lstrip("+"))[:2]) for override in overrides}
    for key in {*config.get("dataset_args", ())} - {*files.get("dataset_args", ())}:
        if f"dataset_args.{key}" not in typed:
            del config["dataset_args"][key]


def _check_keys(config: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Check that no key is missing, and that each is in a file or among those that files omit.

    Raises:
        UserError: A key is unknown or missing, or a section has no keys.
    """
    from ntl.config.known_keys import keys_without_file

    check_section("", config, files, files)
    more = keys_without_file() if "training_args" in files else {}
    for name, section in files.items():
        if isinstance(section, Mapping):
            if not isinstance(config[name], Mapping):
                raise UserError(f"{name} is {config[name]!r}; expected keys and values. Omit the override.")
            check_section(name, config[name], [*section, *more.get(name, ())], section)


def choices(group: str) -> list[str]:
    """Return the names of the files of a group, sorted."""
    files = (path.name for path in (resources.files("ntl.config") / group).iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def describe_config(root: str) -> str:
    """Return the files that document a program's keys and their defaults, and the choices of each group."""
    folder = resources.files("ntl.config")
    defaults = OmegaConf.create((folder / f"{root}.yaml").read_text(encoding="utf-8"))["defaults"]
    entries = [entry.items() for entry in defaults if OmegaConf.is_dict(entry)]
    groups = {str(k): v for entry in entries for k, v in entry if not str(k).startswith("override ")}
    lines = ["Groups, chosen with GROUP=NAME:"]
    lines += [f"  {group}: {', '.join(choices(group.partition('@')[0]))}" for group in groups]
    chosen = [f"{group}/{choice}" for group, choice in groups.items() if choice]
    for name in dict.fromkeys([root, *chosen, "loss/ce"]):
        text = (folder / f"{name}.yaml").read_text(encoding="utf-8")
        lines.append(f"\n--- {name}.yaml\n{text.rstrip()}")
    return "\n".join(lines)


def check_section(
    section: str, given: Collection[str], known: Collection[str], needed: Collection[str] = ()
) -> None:
    """Check the keys of one section of a composed configuration.

    Args:
        section: Name of the section; "" for the top level.
        given: Keys in the section.
        known: Keys that the section may have. For an unknown key, the message suggests the closest one.
        needed: Keys that the section must have. If no known key is close, the message lists these or, if
            there are none, all known keys.

    Raises:
        UserError: A key is unknown or missing.
    """
    dot = f"{section}." if section else ""
    for key in map(str, given):
        if key in known:
            continue
        if near := difflib.get_close_matches(key, known, n=1):
            raise UserError(f"{dot}{key} is unknown. Did you mean {dot}{near[0]}?")
        listed = ", ".join(needed or known)
        raise UserError(f"{dot}{key} is unknown; expected one of: {listed}. Correct the name.")
    if missing := [key for key in needed if key not in given]:
        raise UserError(
            f"{dot}{missing[0]} is missing; expected a value. Do not remove it (~{dot}{missing[0]}), and "
            "choose a file of each group, such as dataset_args=gsm8k or loss=ntl_was."
        )


def _is_group(override: str) -> bool:
    """Return whether an override chooses a file of a group, such as `dataset_args=arithmetic`."""
    group = override.partition("=")[0].partition("@")[0].lstrip("+~")
    return (resources.files("ntl.config") / group).is_dir()
