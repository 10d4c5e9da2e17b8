"""Load datasets from the Hugging Face hub with the `datasets` library."""

from functools import partial
from typing import Any

from ntl.data import TaskData
from ntl.data.files import FormatError, Layout
from ntl.errors import UserError, describe


def load_hub(settings: Any, subset: str, layout: Layout) -> TaskData:
    """Load a dataset from the hub, memory-mapped.

    Args:
        settings: The section of the configuration, with `hub` (the dataset's id) and `cache_dir`.
        subset: Name of the dataset within its repository on the hub.
        layout: Maps our splits to the hub's, and reads their rows.

    Raises:
        UserError: The hub cannot be reached or has no such dataset, or a row is malformed.
    """
    from datasets import load_dataset

    from ntl.data.cache import read_cached

    name = settings.hub
    parts = {}
    for split, theirs in layout.files.items():
        try:
            rows = load_dataset(name, subset, split=theirs)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"dataset_args.hub={name}: the split {theirs!r} cannot be loaded from the hub "
                f"({describe(error)}); expected a connection, or a copy in the hub's cache. To use a local "
                "folder, pass dataset_args.hub=null dataset_args.data_dir=folder."
            ) from None
        read = partial(layout.examples, split, rows, settings)
        try:
            parts[split] = read_cached([split, rows._fingerprint], settings, read)
        except FormatError as error:
            raise UserError(
                f"dataset_args.hub={name}, split {split!r}: {error}. Choose a dataset in the official "
                "format, or a local folder."
            ) from None
    return TaskData(parts.pop("train"), parts.pop("validation"), parts)
