"""rJokes: predict a joke's score from 0 to 11, the logarithm of its votes.

Source: Weller & Seppi, "The rJokes Dataset: a Large Scale Humor Collection", LREC 2020.
"""

from dataclasses import dataclass
from functools import partial

from ntl.data.files import FormatError, Layout, load_files, read_records
from ntl.data.task import Data, Example, TaskData, setting

HIGHEST = 11


@dataclass
class Rjokes(Data):
    """Jokes and their scores, 0 to 11."""

    dataset_name: str = "rjokes"
    data_dir: str | None = setting(
        "data/rjokes-dataset/data",
        "folder of the official files; sample: the small sample that ships with the lab",
    )
    max_new_tokens: int = setting(8, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Read the jokes as questions, the scores as answers; official files may be compressed with gzip."""
        return load_files(self, [PREPARED, *OFFICIAL])


def parse_joke(line: str) -> list[Example]:
    """Parse a line of an official file: a score, a tab and a joke.

    Raises:
        FormatError: The line has another format.
    """
    line = line.rstrip("\r\n")
    score, tab, text = line.partition("\t")
    # Tabs inside a joke are escaped with a backslash.
    text = text.replace("\\\t", " ").strip()
    if not tab or not text:
        raise FormatError(f"it is {line[:40]!r}; expected a score, a tab and a joke")
    if not score.isascii() or not score.isdigit() or int(score) > HIGHEST:
        raise FormatError(f"the score is {score[:40]!r}; expected a whole number from 0 to {HIGHEST}")
    return [Example(text, score)]


FILES = {"train": "train", "validation": "dev", "test": "test"}
PREPARED = Layout({split: f"{file}.jsonl" for split, file in FILES.items()}, read_records)
OFFICIAL = [
    Layout(
        {split: f"{file}{ending}" for split, file in FILES.items()},
        partial(read_records, convert=parse_joke, parse=str),
    )
    for ending in (".tsv", ".tsv.gz")
]
