"""What people read: settings, and what they mean."""

import inspect
from dataclasses import fields, is_dataclass
from enum import Enum
from textwrap import wrap
from typing import Any, get_args, get_type_hints

from omegaconf import DictConfig, OmegaConf


def explain_choices(_root_: DictConfig) -> str:
    """Explain the keys of each group that a command chooses: the resolver `ntl.keys` of Hydra's help."""
    lines = []
    for override in _root_.hydra.overrides.task:
        group = override.partition("=")[0]
        kind = OmegaConf.get_type(_root_, group) if group in _root_ else None
        if kind is None or not is_dataclass(kind):
            continue
        first_line, *_ = (inspect.getdoc(kind) or "").splitlines()
        lines += ["", *wrap(f"{override}: {first_line}", 100)]
        values: Any = OmegaConf.to_container(_root_[group], resolve=False, enum_to_str=True)
        hints = get_type_hints(kind)
        for each in fields(kind):
            kinds = (hints[each.name], *get_args(hints[each.name]))
            choices = [part for part in kinds if isinstance(part, type) and issubclass(part, Enum)]
            meaning = [", ".join(part) for part in choices] + [each.metadata.get("help", "")]
            lines.append(f"  {group}.{each.name}={format_setting(values[each.name])}")
            lines += wrap("; ".join(meaning), 96, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines).replace("$", "$$")  # for Hydra, which fills in a template


def format_setting(value: Any) -> str:
    """Write a setting as a user types it.

    Example:
        >>> [format_setting(value) for value in (None, True, 0.3, ["greedy", "median"], {"sigma": 1.0})]
        ['null', 'true', '0.3', '[greedy,median]', '{sigma: 1.0}']
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {format_setting(each)}' for key, each in value.items())}}}"
    return f"[{','.join(map(format_setting, value))}]" if isinstance(value, list) else str(value)
