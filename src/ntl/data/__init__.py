"""The data that models learn: one module for each dataset, with its settings, its reading and its answers.

A dataset is one class: a dataclass of its settings, which extends `Data`, whose `read` returns the examples.
It stands in `DATASETS`, where `dataset_args=NAME` finds it. The same settings give the same examples in every
process. Invalid files, and settings that do not fit them or each other, raise a UserError.

Importing this package imports neither torch nor datasets nor pandas, which are slow, because the help of a
command needs the settings alone.
"""

from ntl.data.arithmetic import Arithmetic
from ntl.data.gsm8k import Gsm8k
from ntl.data.mathematics_dataset import MathematicsDataset
from ntl.data.multirc import Multirc
from ntl.data.noisy_regression import NoisyRegression
from ntl.data.own import Own
from ntl.data.rjokes import Rjokes
from ntl.data.tabular import Tabular
from ntl.data.task import (
    PAPERS_CLIP,
    Data,
    Example,
    TaskData,
    evenly_spaced,
    fingerprint,
    format_number,
    single_number,
)

__all__ = [
    "DATASETS", "Data", "Example", "TaskData", "evenly_spaced", "fingerprint",
    "format_number", "single_number", "PAPERS_CLIP",
]  # fmt: skip

DATASETS: dict[str, type[Data]] = {
    "arithmetic": Arithmetic,
    "gsm8k": Gsm8k,
    "mathematics_dataset": MathematicsDataset,
    "multirc": Multirc,
    "noisy_regression": NoisyRegression,
    "own": Own,
    "rjokes": Rjokes,
    "tabular": Tabular,
}
