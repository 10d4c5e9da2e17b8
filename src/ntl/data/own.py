"""Data of the user's own: a function beside the study, which returns the examples."""

from dataclasses import dataclass
from typing import Any

from ntl.data.task import Data, TaskData, setting
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
            UserError: There is no such function, or it does not return a TaskData.
        """
        if self.load is None:
            raise UserError(f"dataset_args=own has no function. Pass {KEY}=module:function.")
        found = load_own(KEY, self.load)(**self.options)
        if not isinstance(found, TaskData):
            raise UserError(
                f"{KEY}={self.load} returned a {type(found).__name__}; expected ntl.data.TaskData(train, "
                "validation, {'test': test}) with lists of ntl.data.Example(question, answer)."
            )
        for part, rows in {"train": found.train, **found.parts}.items():
            texts = [getattr(row, name, None) for row in rows[:1] for name in ("question", "answer")]
            if not all(isinstance(text, str) for text in texts):
                raise UserError(
                    f"{KEY}={self.load} returned {rows[0]!r:.100} in {part}; expected Examples of texts."
                )
        if reserved := {"train", "validation"} & {*found.tests}:
            raise UserError(
                f"{KEY}={self.load} returned a test set of the name {reserved.pop()}, which is that of other "
                "rows; expected another name."
            )
        return found
