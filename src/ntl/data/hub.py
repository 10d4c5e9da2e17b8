"""Load datasets from the Hugging Face hub with the `datasets` library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ntl.data import Example, setting_key
from ntl.data.files import FormatError
from ntl.errors import UserError

if TYPE_CHECKING:
    from ntl.data.arrow import ArrowExamples

Rows = Iterable[Mapping[str, Any]]


def load_hub(
    settings: Mapping[str, Any],
    subset: str,
    splits: Mapping[str, str],
    read: Callable[[Rows, str], Iterable[Example]],
) -> dict[str, ArrowExamples]:
    """Load a dataset from the hub, memory-mapped.

    Args:
        settings: The section of the configuration, with `hub` (the dataset's id), `cache_dir`, and the
            settings that `read` depends on.
        subset: Name of the dataset within its repository on the hub.
        splits: Maps our splits to the hub's.
        read: Converts the rows of the hub's split, given the name of our split, to examples.

    Returns:
        Maps each of our splits to its examples.

    Raises:
        UserError: The hub cannot be reached or has no such dataset, or a row is malformed.
    """
    from datasets import load_dataset

    from ntl.data.arrow import read_cached

    name, key = settings["hub"], setting_key(settings, "hub")
    tables = {}
    for split in dict.fromkeys(splits.values()):
        try:
            tables[split] = load_dataset(name, subset, split=split)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{key}={name}: the split {split!r} cannot be loaded from the hub ({_first_line(error)}); "
                f"expected a connection, or a copy in the hub's cache. To use a local folder, "
                f"pass {key}=null {setting_key(settings, 'data_dir')}=folder."
            ) from None
    depends_on = [
        settings[k] for k in sorted(settings) if k not in ("cache_dir", "data_dir", "max_new_tokens")
    ]
    examples = {}
    for split, theirs in splits.items():
        source = ["hub", tables[theirs]._fingerprint, split, *map(str, depends_on)]
        examples[split] = read_cached(
            source, partial(_checked, read, tables[theirs], split, f"{key}={name}"), settings["cache_dir"]
        )
    return examples


def _checked(
    read: Callable[[Rows, str], Iterable[Example]], rows: Rows, split: str, where: str
) -> Iterable[Example]:
    try:
        yield from read(rows, split)
    except FormatError as error:
        raise UserError(
            f"{where}, split {split!r}: {error}. Choose a dataset in the official format, or a local folder."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
