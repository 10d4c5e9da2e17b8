"""How settings are declared: dataclasses beside the code that they configure, each field with its help."""

import copy
from dataclasses import field
from typing import Any


def setting(default: Any, help: str, **more: Any) -> Any:
    """Declare a field of a settings class.

    Args:
        default: Its default. A list or a dictionary is copied for each instance.
        help: What it means; `ntl train GROUP=NAME --help` prints it beside the value.
        more: Other metadata of the field.
    """
    metadata = {"help": help, **more}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)
