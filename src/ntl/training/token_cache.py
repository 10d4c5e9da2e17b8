"""Encode examples once and cache the token ids on disk, so that no training step waits for a tokenizer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from ntl.approaches import Approach
from ntl.data import Example, fingerprint
from ntl.data.cache import cache_key, writing

FORMAT = 2  # version of the cache's format; changing it invalidates all caches
BATCH = 1000


def tokenize(examples: Sequence[Example], approach: Approach, cache_dir: Path) -> Dataset:
    """Encode examples, or load them from the cache.

    Returns:
        One memory-mapped row per example: the columns of `Approach.encode`, and `length`, the length of the
        longest one.
    """
    identity = {
        "format": FORMAT,
        "data": getattr(examples, "fingerprint", None) or fingerprint(examples),
        "approach": type(approach).__qualname__,
        "described": approach.model.config.ntl,  # all that encoding depends on is saved with the model
        "tokenizer": [approach.tokenizer.backend_tokenizer.to_str(), approach.tokenizer.chat_template],
        # Encoding rejects rows that are too long for the model.
        "longest": getattr(approach.model.config, "max_position_embeddings", None),
    }
    key = cache_key(identity)
    texts = getattr(examples, "dataset", None)
    if texts is None:
        texts = Dataset.from_dict(
            {"question": [e.question for e in examples], "answer": [e.answer for e in examples]}
        )

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        columns = approach.encode(batch["question"], batch["answer"])
        ids = [column for column in columns.values() if column and isinstance(column[0], list)]
        return {**columns, "length": [max(map(len, row)) for row in zip(*ids, strict=True)]}

    path = cache_dir / f"{key}.arrow"
    # `datasets` writes to a temporary file and renames it, so an interrupted run leaves no partial cache.
    with writing(cache_dir):
        return texts.map(
            encode,
            batched=True,
            batch_size=BATCH,
            remove_columns=texts.column_names,
            cache_file_name=str(path),
            new_fingerprint=key,
            desc="tokenize",
        )
