"""Data of the user's own: a function beside the study, which returns the examples."""

from dataclasses import dataclass
from typing import Any

from ntl.data.task import Data, Example, TaskData, setting
from ntl.errors import UserError
from ntl.own import load_own

KEY = "dataset_args.load"


@dataclass
class Own(Data):
    """Data of your own: a function that returns training, validation and test examples."""

    dataset_name: str = "own"
    load: str | None = setting(
        None, "module:function; the module is a file in the folder of the command, see docs/lab.md"
    )
    options: dict[str, Any] = setting({}, "arguments of the function, such as {rows: 100}")

    @property
    def title(self) -> str:
        """The function's name."""
        return str(self.load).partition(":")[2] or self.dataset_name

    def read(self) -> TaskData:
        """Call the function.

        Raises:
            UserError: There is no such function, or it does not return a TaskData of Examples of texts.
        """
        if self.load is None:
            raise UserError(f"dataset_args=own has no function. Pass {KEY}=module:function.")
        found = load_own(KEY, self.load)(**self.options)
        if not isinstance(found, TaskData) or {"train", "validation"} & {*found.tests}:
            raise UserError(
                f"{KEY}={self.load} returned {found!r:.100}; expected ntl.data.TaskData(train, validation, "
                "{'test': test}), with tests of other names than train and validation."
            )
        for row in (row for part in (found.train, *found.parts.values()) for row in part[:1]):
            if not isinstance(row, Example) or not all(isinstance(text, str) for text in row[:2]):
                raise UserError(
                    f"{KEY}={self.load} returned the row {row!r:.100}; expected ntl.data.Example(question, "
                    "answer) of texts."
                )
        return found
