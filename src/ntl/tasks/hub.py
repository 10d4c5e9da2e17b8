"""Datasets from the Hugging Face hub, where it has them, by the `datasets` library."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ntl.errors import UserError
from ntl.tasks import Example, key_of
from ntl.tasks.files import FormatError

if TYPE_CHECKING:
    from ntl.tasks.arrow import ArrowExamples

Rows = Iterable[Mapping[str, Any]]


def load_hub(
    settings: Mapping[str, Any],
    subset: str,
    splits: Mapping[str, str],
    read: Callable[[Rows, str], Iterable[Example]],
) -> dict[str, ArrowExamples]:
    """Load a dataset from the hub, memory-mapped.

    Args:
        settings: The section of the configuration, with `hub` (the dataset's id), `cache_dir`, and what
            `read` depends on.
        subset: The hub's name for the dataset among those of its repository.
        splits: Our split -> the hub's.
        read: From the rows of the hub's split and the name of ours to the examples.

    Returns:
        Split -> its examples.

    Raises:
        UserError: The hub cannot be reached, has no such dataset, or its rows are not what they should be.
    """
    from datasets import load_dataset

    from ntl.tasks.arrow import cached

    name, key = settings["hub"], key_of(settings, "hub")
    tables = {}
    for split in dict.fromkeys(splits.values()):
        try:
            tables[split] = load_dataset(name, subset, split=split)
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{key}={name}: the split {split!r} cannot be had from the hub ({_first_line(error)}); "
                f"expected a connection, or a copy of it in the hub's cache. To use a local folder, "
                f"pass {key}=null {key_of(settings, 'data_dir')}=folder."
            ) from None
    depends_on = [
        settings[k] for k in sorted(settings) if k not in ("cache_dir", "data_dir", "max_new_tokens")
    ]
    examples = {}
    for split, theirs in splits.items():
        source = ["hub", tables[theirs]._fingerprint, split, *map(str, depends_on)]
        examples[split] = cached(
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
            f"{where}, split {split!r}: {error}. Choose a dataset of the official form, or a local folder."
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
