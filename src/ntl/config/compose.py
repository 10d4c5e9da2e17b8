"""Compose a configuration with Hydra, which checks keys and types, and check the values that it cannot."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ntl.config.rules import Rule, rules
from ntl.config.schema import LOSS_OF_MODEL, SCHEMAS, TrainingArgs, choices, format_setting
from ntl.errors import UserError, unknown_key

GROUPS = ("dataset_args", "model_args", "training_args", "loss", "run_specific_config", "preset")
TEXTS = ("dataset_args.prompt", "model_args.separator")
PATHS = (
    "output_dir", "model_name_or_path", "tokenizer_name_or_path", "config_name", "resume_from_checkpoint",
    "data_dir", "cache_dir", "file", "source", "destination",
)  # fmt: skip
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
    """
    prepares = root.startswith("prepare/")
    _register(training=not prepares)
    overrides = [_quoted(override) for override in overrides]
    for override in overrides:
        _check_override(override, program)
    # ++ merges {key: value} into what a file sets, and adds arguments of training that have no value yet.
    forced = [o if _group(o) else re.sub(r"^\+*(?=[\w.]+=)", "++", _literal(o)) for o in overrides]
    try:
        with initialize_config_module("ntl.config", version_base="1.3"):
            composed = compose(root, forced)
        _check_section("", composed, () if prepares else SECTIONS)
        for name in SECTIONS:
            if name in composed:
                _check_section(f"{name}.", composed[name])
        config = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain(error, program)) from None
    if not prepares:
        # Arguments of training without a value are left to transformers.
        config["training_args"] = {k: v for k, v in config["training_args"].items() if v != MISSING}
        if config["loss"]["criterion"] == LOSS_OF_MODEL:
            config["loss"] = {key: config["loss"][key] for key in ("criterion", "normalize_by")}
    return config


@cache
def _register(training: bool) -> None:
    """Tell Hydra the schemas."""
    for group, named in SCHEMAS.items():
        if (group == "prepare") != training:
            for name, schema in named.items():
                # Open, because transformers' arguments stand beside those of training, and the keys of a
                # comparison beside the sections of a run.
                node = OmegaConf.structured(schema, flags={"struct": False})
                ConfigStore.instance().store(name, node, group, None if training else "_global_")


def _quoted(override: str) -> str:
    """Quote a path that Hydra would not read as text, such as the lab's own `outputs/loss=ntl_was,seed=1`."""
    key, _, value = override.partition("=")
    if key.rpartition(".")[2] in PATHS and re.search(r"[=,~(){}\[\]]", value) and value[0] not in "'\"":
        value = value.replace("'", r"\'")
        return f"{key}='{value}'"
    return override


def _literal(override: str) -> str:
    """Escape `${` in texts that models read, where it stands for itself."""
    if override.partition("=")[0].lstrip("+") in TEXTS:
        return re.sub(r"(?<!\\)\$\{", r"\\${", override)
    return override


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


def _check_section(prefix: str, section: Any, more: Sequence[str] = ()) -> None:
    """Raise a UserError for a key that is neither in the schema nor in `more`, or for an invalid value."""
    if not isinstance(section, DictConfig):
        raise UserError(f"{prefix[:-1]} is {section!r}; expected keys and values. Omit the override.")
    accepted = _rules(section)
    for key, value in OmegaConf.to_container(section, resolve=True).items():
        if key not in (*more, *accepted):
            raise _unknown(prefix, str(key), section, more)
        rule = accepted.get(key)
        if rule is not None and value != MISSING and not rule.fits(value):
            raise UserError(_invalid(f"{prefix}{key}", value, section))


def _rules(section: DictConfig) -> dict[str, Rule | None]:
    """Return the rules of a section's keys; arguments of transformers can be added to those of training."""
    schema = OmegaConf.get_type(section)
    if schema is TrainingArgs:
        from transformers import Seq2SeqTrainingArguments

        return {**rules(Seq2SeqTrainingArguments), **rules(schema)}
    return rules(schema) if hasattr(schema, "__dataclass_fields__") else {}


def _unknown(prefix: str, key: str, section: DictConfig, more: Sequence[str] = ()) -> UserError:
    own = getattr(OmegaConf.get_type(section), "__dataclass_fields__", ())
    listed = [name for name in own if not OmegaConf.is_missing(section, name)]
    return unknown_key(prefix, key, [*more, *_rules(section)], [*more, *listed])


def _invalid(key: str, value: Any, section: DictConfig) -> str:
    rule = _rules(section).get(key.rpartition(".")[2])
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
        while node is not None and not _rules(node):  # a list or a mapping below a section
            node = node._get_parent()
        prefix, dot, key = path.rpartition(".")
        if node is not None and key in _rules(node):
            return _invalid(path, cause.value, node)
        if node is not None and prefix:
            return str(_unknown(prefix + dot, key, node))
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


def describe(schema: type) -> str:
    """Return the keys of a schema with their defaults and comments, as YAML."""
    defaults = OmegaConf.to_container(OmegaConf.structured(schema))
    lines: dict[str, str] = {}
    for base in reversed(schema.__mro__[:-1]):
        above_field = ""
        for line in inspect.getsource(base).partition('"""\n')[2].splitlines():
            if name := re.match(r"    (\w+): ", line):
                comment = re.search(r"  # (?!type: |fmt: ).*", line)
                value = f"{name[1]}: {format_setting(defaults[name[1]])}{comment[0] if comment else ''}"
                lines[name[1]], above_field = above_field + value, ""
            elif line.strip().startswith("#"):
                above_field += f"{line.strip()}\n"
    return "\n".join([f"# {schema.__doc__}", *lines.values()])
