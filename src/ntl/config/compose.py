"""Compose the configuration with Hydra, with errors that list the valid choices."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.errors import UserError

KnownKeys = Callable[[Mapping[str, Any]], Mapping[str, Collection[str]]]


def compose_config(
    root: str, overrides: Sequence[str], program: str, known: KnownKeys | None = None
) -> dict[str, Any]:
    """Compose a configuration with Hydra, with errors that list the valid choices.

    Args:
        root: Name of the main file in `ntl.config`.
        overrides: Hydra overrides.
        program: The command that the user typed, for error messages.
        known: Function from the configuration to the keys that `+` may add to each section. Default: no key
            beyond those in the files.

    Returns:
        The configuration as plain dicts, lists, numbers and strings.

    Raises:
        UserError: An override is malformed, or names an unknown key or choice.
    """
    for override in overrides:
        if re.match(r"[+~]*hydra\b", override):
            raise UserError(
                f"{override} has no effect, because Hydra only composes the configuration; expected a key "
                f"that `{program} --help` lists. Omit the override."
            )
        group, _, choice = override.partition("=")
        if _is_group(override) and (choice == "null" or choice.startswith("{")):
            raise UserError(
                f"{override} names no file of the group {group}; expected a name. `{program} --help` lists "
                "the names; omit the override to use the default."
            )
    try:
        with initialize_config_module("ntl.config", version_base="1.3"):
            # With ++, keys and values are merged into those that a file sets, which may lack some of them.
            merged = [f"++{o}" if re.match(r"[\w.]+=\{", o) else o for o in overrides]
            composed = compose(root, merged)
        return OmegaConf.to_container(composed, resolve=True)
    except MissingConfigException as error:
        raise UserError(_unknown_choice(error)) from None
    except OverrideParseException as error:
        raise UserError(
            f"{error.override!r} cannot be read; expected key=value, such as seeds=[0,1] or, with quotes "
            f"around special characters, \"output_dir='a b=c'\". `{program} --help` lists the keys."
        ) from None
    except (HydraException, OmegaConfBaseException) as error:
        raise _key_error(error, root, overrides, program, known) from None


def _unknown_choice(error: MissingConfigException) -> str:
    """Return the message for an unknown file of a group, which lists the valid ones."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    options = error.options or choices(group)
    return (
        f"{group}={name} is unknown; expected one of: {', '.join(options)}. Pass for example "
        f"{group}={options[0]}."
    )


def choices(group: str) -> list[str]:
    """Return the names of the files of a group, sorted."""
    files = (path.name for path in (resources.files("ntl.config") / group).iterdir())
    return sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml"))


def describe_config(root: str) -> str:
    """Return the files that document a program's keys and their defaults, and the choices of each group.

    Args:
        root: Name of the main file in `ntl.config`.
    """
    folder = resources.files("ntl.config")
    defaults = OmegaConf.create((folder / f"{root}.yaml").read_text(encoding="utf-8"))["defaults"]
    groups = {
        str(group): choice
        for entry in defaults
        if OmegaConf.is_dict(entry)
        for group, choice in entry.items()
    }
    groups = {group: choice for group, choice in groups.items() if not group.startswith("override ")}
    lines = ["Groups, chosen with GROUP=NAME:"]
    lines += [f"  {group}: {', '.join(choices(group.partition('@')[0]))}" for group in groups]
    chosen = [f"{group}/{choice}" for group, choice in groups.items() if choice]
    files = list(dict.fromkeys([root, *chosen, "loss/ce"]))
    texts = [(folder / f"{name}.yaml").read_text(encoding="utf-8") for name in files]
    lines += [f"\n--- {name}.yaml\n{text.rstrip()}" for name, text in zip(files, texts, strict=True)]
    return "\n".join(lines)


def check_section(
    section: str, given: Collection[str], known: Collection[str], needed: Collection[str] = ()
) -> None:
    """Check the keys of one section of a composed configuration.

    Args:
        section: Name of the section; "" for the top level.
        given: Keys in the section.
        known: Keys that the section may have.
        needed: Keys that the section must have.

    Raises:
        UserError: A key is unknown or missing.
    """
    for key in given:
        if key not in known:
            raise unknown_key(section, str(key), known)
    if missing := [key for key in needed if key not in given]:
        name = f"{section}.{missing[0]}" if section else missing[0]
        raise UserError(
            f"{name} is missing; expected a value. Do not remove it (~{name}), and choose files by their "
            "group, such as dataset_args=gsm8k or loss=ntl_was."
        )


def unknown_key(section: str, key: str, known: Collection[str]) -> UserError:
    """Return the error for a key that does not exist.

    Args:
        section: Section that the key was given in; "" for the top level.
        key: The unknown key.
        known: Valid keys of the section. The message suggests the closest one, or lists all if none is close.

    Returns:
        The error to raise.
    """
    dot = f"{section}." if section else ""
    if near := difflib.get_close_matches(key, known, n=1):
        return UserError(f"{dot}{key} is unknown. Did you mean {dot}{near[0]}?")
    return UserError(f"{dot}{key} is unknown; expected one of: {', '.join(known)}. Correct the name.")


def _key_error(
    error: Exception, root: str, overrides: Sequence[str], program: str, known: KnownKeys | None
) -> UserError:
    """Return the error for the override that names an unknown key, with the closest valid key."""
    with initialize_config_module("ntl.config", version_base="1.3"):
        chosen = [o for o in overrides if "." not in o.partition("=")[0] and _is_group(o)]
        defaults = compose(root, chosen)
    for override in overrides:
        key = override.partition("=")[0].lstrip("~")
        if key.startswith("+") or _is_group(override):
            continue
        if OmegaConf.select(defaults, key, default=_key_error) is not _key_error:
            continue
        parent, _, name = key.rpartition(".")
        section = OmegaConf.select(defaults, parent) if parent else defaults
        keys = [str(k) for k in (section if OmegaConf.is_dict(section) else defaults)]
        more = known(OmegaConf.to_container(defaults, resolve=True)).get(parent, ()) if known else ()
        if name in more:
            return UserError(f"{key} is not in the configuration's files; add it with +. Pass +{override}.")
        return unknown_key(parent, name, list(dict.fromkeys([*keys, *more])))
    hint = "correct the override."
    if "Could not append" in str(error):
        hint = "set an existing key without +, or with ++."
    return UserError(f"{str(error).splitlines()[0]} `{program} --help` lists the keys; {hint}")


def _is_group(override: str) -> bool:
    """Return whether an override chooses a file of a group, such as `task=arithmetic`."""
    group = override.partition("=")[0].partition("@")[0].lstrip("+~")
    return (resources.files("ntl.config") / group).is_dir()


def flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings, joining keys with dots: `{"a": {"b": 1}}` becomes `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def is_whole_number(value: Any, least: int) -> bool:
    """Return whether a value is a whole number of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_value(ok: bool, key: str, value: Any, expected: str, example: Any) -> None:
    """Raise a `UserError` that says what was given and what was expected, unless `ok` is true."""
    if not ok:
        raise UserError(f"{key} is {value!r}; expected {expected}. Pass for example {key}={example}.")


def check_number(
    section: dict[str, Any],
    key: str,
    *,
    least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    example: float,
) -> None:
    """Raise a `UserError` unless the last part of `key` names a number within the bounds in `section`."""
    value = section[key.rpartition(".")[2]]
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
    bounds = {"at least": (least, lambda v, b: v >= b), "above": (above, lambda v, b: v > b)}
    bounds["below"] = (below, lambda v, b: v < b)
    given = {word: bound for word, (bound, _) in bounds.items() if bound is not None}
    ok = ok and all(bounds[word][1](value, bound) for word, bound in given.items())
    words = " and ".join(f"{word} {bound}" for word, bound in given.items())
    check_value(ok, key, value, f"a number that is {words}", example)
