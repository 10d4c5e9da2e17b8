"""How settings are declared: dataclasses beside the code that they configure, each field with its help."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from omegaconf import MISSING, OmegaConf

from ntl.errors import UserError, unknown_key

Changes = Literal["model", "answers", "nothing"]


def setting(
    default: Any,
    help: str,
    changes: Changes = "model",
    *,
    least: float | None = None,
    is_share: bool = False,
) -> Any:
    """Declare a field of a settings class.

    Args:
        default: Its default. A list or a dictionary is copied for each instance.
        help: What it means; `ntl train GROUP=NAME --help` prints it beside the value.
        changes: What depends on the value: the `model` that is learned; the `answers` of a trained model
            alone; or `nothing` of a run, as of a path, a log, or a size of batches that are evaluated.
        least: The smallest value.
        is_share: Whether the value lies between 0 and 1, and is neither.
    """
    metadata = {"help": help, "changes": changes, "least": least, "is_share": is_share}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Settings:
    """Base of the settings classes: a value out of its range raises a UserError."""

    group: ClassVar[str] = ""
    """What stands before a key on the command line, such as `loss.`."""
    is_open: ClassVar[bool] = False
    """Whether it has any further key."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), each.metadata.get("least")
            if not isinstance(value, int | float):
                continue
            if least is not None and value < least:
                raise UserError(f"{self.group}{each.name}={value}; expected at least {least}.")
            if each.metadata.get("is_share") and not 0 < value < 1:
                raise UserError(f"{self.group}{each.name}={value}; expected a share above 0 and below 1.")


Kind = TypeVar("Kind", bound=Settings)


def read_settings(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """Make the settings of a class from values that Hydra has resolved; a UserError names an unknown key."""
    known = [each.name for each in fields(kind)]
    given = {key: value for key, value in given.items() if value != MISSING}
    more = {key: value for key, value in given.items() if key not in known}
    if more and not kind.is_open:
        raise unknown_key(kind.group, next(iter(more)), known)
    # Here `${` stands for itself, as in a prompt with prices.
    values = {
        key: value.replace("${", r"\${") if isinstance(value, str) else value
        for key, value in given.items()
        if key in known
    }
    found: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), values))
    vars(found).update(more)
    return found
