"""How settings are declared: dataclasses beside the code that they configure, each field with its help."""

import copy
from dataclasses import field
from typing import Any, Literal

Changes = Literal["model", "answers", "nothing"]


def setting(default: Any, help: str, changes: Changes = "model", **more: Any) -> Any:
    """Declare a field of a settings class.

    Args:
        default: Its default. A list or a dictionary is copied for each instance.
        help: What it means; `ntl train GROUP=NAME --help` prints it beside the value.
        changes: What depends on the value: the `model` that is learned; the `answers` of a trained model
            alone; or `nothing` of a run, as of a path, a log, or a size of batches that are evaluated.
        more: Other metadata of the field.
    """
    metadata = {"help": help, "changes": changes, **more}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)
