"""How the lab's settings are declared: a dataclass beside the code that it configures, each field with its help."""

import copy
from dataclasses import Field, field
from typing import Any


def setting(default: Any, help: str) -> Any:
    """Declare a field of a settings class.

    Args:
        default: Its default. A list or a dictionary is copied for each instance.
        help: What it means; `ntl train GROUP=NAME --help` prints it beside the value.
    """
    found: Field[Any]
    if isinstance(default, list | dict):
        found = field(default_factory=lambda: copy.deepcopy(default), metadata={"help": help})
    else:
        found = field(default=default, metadata={"help": help})
    return found
