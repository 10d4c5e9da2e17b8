"""A griffe extension: reads the section "Example:" of our docstrings, which griffe knows as "Examples:"."""

import re
from typing import Any

import griffe


class DocstringSections(griffe.Extension):
    """Renames the section in every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of one object."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
