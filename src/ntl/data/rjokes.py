"""rJokes: predict a joke's score from 0 to 11, the logarithm of its votes.

Source: Weller & Seppi, "The rJokes Dataset: a Large Scale Humor Collection", LREC 2020.
"""

from dataclasses import dataclass

from ntl.data.files import Layout, load_files, parse_pair
from ntl.data.task import Data, TaskData, setting

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
        parsers = {".jsonl": parse_pair, ".tsv.gz": parse_joke, ".tsv": parse_joke}
        files = {"train": "train", "validation": "dev", "test": "test"}
        layouts = [
            Layout({split: f"{file}{ending}" for split, file in files.items()}, parse)
            for ending, parse in parsers.items()
        ]
        return load_files(self, layouts)


def parse_joke(line: str) -> list[tuple[str, str]]:
    """Parse a line of an official file: a score, a tab and a joke, in which tabs follow a backslash."""
    score, text = line.split("\t", 1)
    if not score.isascii() or not score.isdigit() or int(score) > HIGHEST:
        raise ValueError(f"expected a whole number from 0 to {HIGHEST}, a tab and a joke")
    return [(text.replace("\\\t", " "), score)]
