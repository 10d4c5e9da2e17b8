"""The data that models learn: one module for each dataset, with its settings, its reading and its answers.

A dataset is a module with a dataclass of settings, which extends `Data`, and a function `load(settings) ->
TaskData`. The class stands in `DATASETS`, where `dataset_args=NAME` finds it. The same settings give the same
examples in every process. Invalid files, and settings that do not fit them or each other, raise a UserError.
A module may also define `plan(settings) -> Plan`, for `ntl prepare`.

Importing this package imports neither torch nor datasets nor pandas, which are slow, because the help of a
command needs the settings alone.
"""

from importlib import import_module

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
    add_shots,
    evenly_spaced,
    fingerprint,
    format_number,
    single_number,
)

__all__ = [
    "DATASETS", "load_task", "Data", "Example", "TaskData", "add_shots", "evenly_spaced", "fingerprint",
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


def load_task(settings: Data) -> TaskData:
    """Load the examples of a dataset, with `load` of the module that declares its settings.

    Raises:
        UserError: The files are invalid, or the settings do not fit them or each other.
    """
    data: TaskData = import_module(type(settings).__module__).load(settings)
    return data
