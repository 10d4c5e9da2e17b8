"""Cache the output of a model's frozen layers on disk, one row of states for each encoded example."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm

from ntl.approaches.frozen_layers import STATES, FrozenLayers
from ntl.data.arrow import cache_key, writing
from ntl.errors import UserError

FORMAT = 1  # version of the cache's format; changing it invalidates all caches
BATCH = 16


class RowsWithStates(torch.utils.data.Dataset[dict[str, Any]]):
    """Encoded examples with the column `states`, `[tokens, width]` float32, read from a file when used."""

    def __init__(self, rows: Dataset, path: Path):
        self.rows = rows
        self._states = np.load(path, mmap_mode="r")
        self._ends = np.cumsum([len(ids) for ids in rows["input_ids"]])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        end = self._ends[index]
        states = self._states[end - len(row["input_ids"]) : end]
        return {**row, STATES: torch.from_numpy(np.array(states))}  # a copy: the file is read-only


def add_states(rows: Dataset, approach: Any, cache_dir: Path, largest: float) -> Dataset | RowsWithStates:
    """Run the frozen layers on all rows, unless their output is cached already.

    If several processes request the same states at once, one computes them and the others wait.

    Args:
        rows: Encoded examples, with the column `input_ids`.
        approach: Approach that encoded them.
        cache_dir: Folder of the cache.
        largest: Largest size of these rows' cache, in GB. 0 caches nothing.

    Returns:
        The rows with the column `states`; unchanged if no layers are frozen, or their output is not cached.
    """
    frozen: FrozenLayers | None = approach.frozen
    if frozen is None or not frozen.can_be_cached or not largest:
        return rows
    if frozen.ties:
        raise UserError(
            "training_args.train_head=true also trains the embeddings, which this model's head shares, "
            "so that the output of the frozen layers changes; expected training_args.state_cache_gb=0, which "
            "computes it at each step, or train_head=false. Pass one of them."
        )
    tokens = sum(len(ids) for ids in rows["input_ids"])
    size = tokens * frozen.width * 4 / 1e9
    if size > largest:
        raise UserError(
            f"the output of the frozen layers for {len(rows)} rows takes {size:.1f} GB; expected at most "
            f"training_args.state_cache_gb={largest:g}. Raise it, lower dataset_args.train_size, or pass "
            "training_args.state_cache_gb=0 to compute the frozen layers at each step."
        )
    path = cache_dir / f"{cache_key([FORMAT, _digest(rows, frozen)])}.npy"
    with writing(cache_dir), FileLock(path.with_suffix(".lock")):
        if not path.exists():
            print(f"caching the output of the frozen layers: {len(rows)} rows, {size:.2g} GB in {cache_dir}")
            _write(path, (tokens, frozen.width), rows, approach)
    return RowsWithStates(rows, path)


def _digest(rows: Dataset, frozen: FrozenLayers) -> str:
    """Hash what the states depend on: the token ids, and the names and values of the frozen weights."""
    digest = hashlib.blake2b()
    for ids in rows["input_ids"]:
        digest.update(np.asarray([len(ids), *ids], dtype=np.int64).tobytes())
    for name, weight in frozen.frozen_weights():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _write(path: Path, shape: tuple[int, int], rows: Dataset, approach: Any) -> None:
    """Compute the states, longest rows first, and move the complete file to its place."""
    lengths = [len(ids) for ids in rows["input_ids"]]
    ends = np.cumsum(lengths)
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        held = np.lib.format.open_memmap(partial, "w+", np.float32, shape)
        for start in tqdm(range(0, len(order), BATCH), desc="frozen layers", leave=False, disable=None):
            chosen = order[start : start + BATCH]
            batch = approach.collate([rows[i] for i in chosen])
            inputs = {name: x.to(approach.model.device) for name, x in approach.inputs(batch).items()}
            states = approach.frozen.states(inputs).float().cpu().numpy()
            for i, row in zip(chosen, states, strict=True):
                held[ends[i] - lengths[i] : ends[i]] = row[len(row) - lengths[i] :]
        held.flush()
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
