"""Cache the output of a model's frozen layers on disk, one row of states for each encoded example.

Each row is computed once, whichever runs train on it: a run adds a file with the rows that no other run has.
A regression head reads prompts alone, whose states are the first ones of prompt and answer.
"""

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from filelock import FileLock
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ntl.approaches.frozen_layers import STATES, FrozenLayers
from ntl.approaches.shapes import NOT_SHAPE
from ntl.data.cache import cache_key, writing
from ntl.data.files import write_json
from ntl.errors import UserError

log = logging.getLogger(__name__)
FORMAT = 4  # version of the cache's format; changing it invalidates all caches
BATCH = 16

Place = tuple[np.ndarray, int]
"""States of many rows, `[tokens, width]`, and the index of a row's first token in them."""


class RowsWithStates(torch.utils.data.Dataset[dict[str, Any]]):
    """Encoded examples with the column `states`, `[tokens, width]` float32, read from a file when used."""

    def __init__(self, rows: Dataset, places: Sequence[Place]):
        self.rows, self._places = rows, places

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row, (held, start) = self.rows[index], self._places[index]
        states = held[start : start + len(row["input_ids"])]
        if len(states) < len(row["input_ids"]):
            raise _damaged(held.filename)
        return {**row, STATES: torch.from_numpy(np.array(states))}  # a copy: the file is read-only


def add_states(rows: Any, approach: Any, cache_dir: Path, largest: float, optional: bool = False) -> Any:
    """Add the column `states` to encoded rows, and compute those that are not cached; others wait for them.

    Args:
        rows: Encoded rows, as a `Dataset` or a list of dicts.
        approach: The approach that encoded them.
        cache_dir: Folder that holds the cache.
        largest: Size in GB that is allowed.
        optional: Whether rows that are too large to be cached are returned as they are. Default: an error.

    Returns:
        A `RowsWithStates`; the rows as they are if no layers are frozen, or `largest` is 0.
    """
    frozen: FrozenLayers | None = approach.frozen
    if frozen is None or not frozen.can_be_cached or not largest:
        return rows
    given, rows = rows, Dataset.from_list(rows) if isinstance(rows, list) else rows
    size = _gigabytes(rows, frozen)
    if optional and (frozen.ties or size > largest):
        return given
    if frozen.ties:
        raise UserError(
            "weights.train_head=true also trains the embeddings, which this model's head shares, "
            "so that the output of the frozen layers changes; expected weights.state_cache_gb=0, which "
            "computes it at each step, or train_head=false. Pass one of them."
        )
    if size > largest:
        raise UserError(
            f"the output of the frozen layers for {len(rows)} rows takes {size:.1f} GB; expected at most "
            f"weights.state_cache_gb={largest:g}. Raise it, lower dataset_args.train_size, or pass "
            "weights.state_cache_gb=0 to compute the frozen layers at each step."
        )
    folder = cache_dir / f"states_{cache_key([FORMAT, _digest(frozen), _settings(approach.model)])}"
    keys = [_key(ids) for ids in rows["input_ids"]]
    with writing(folder), FileLock(folder / "lock"):
        known = _find(folder, frozen.width)
        if missing := {key: i for i, key in enumerate(keys) if key not in known}:
            chosen = rows.select(missing.values())
            log.log(
                logging.DEBUG if optional else logging.INFO,
                f"caching the output of the frozen layers: {len(chosen)} rows, "
                f"{_gigabytes(chosen, frozen):.2g} GB in {folder}",
            )
            _write(folder / cache_key([*missing]), [*missing], chosen, approach)
            known = _find(folder, frozen.width)
    return RowsWithStates(rows, [known[key] for key in keys])


def _key(ids: Sequence[int]) -> str:
    return hashlib.blake2b(np.int64(ids).tobytes(), digest_size=12).hexdigest()


def _gigabytes(rows: Dataset, frozen: FrozenLayers) -> float:
    return sum(map(len, rows["input_ids"])) * frozen.width * 4 / 1e9


def _digest(frozen: FrozenLayers) -> str:
    """Hash what the states depend on besides the tokens: the names and values of the frozen weights."""
    digest = hashlib.blake2b()
    for name, weight in frozen.frozen_weights():
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _settings(model: PreTrainedModel) -> dict[str, Any]:
    """Return the model's own configuration, such as `rope_theta`, on which the states depend, too."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    return {key: value for key, value in config.items() if key not in NOT_SHAPE}


def _find(folder: Path, width: int) -> dict[str, Place]:
    """Find the places of all cached rows, by their keys."""
    places: dict[str, Place] = {}
    for index in folder.glob("*.json"):  # written after the states
        path = index.with_suffix(".states")
        try:
            held = np.memmap(path, np.float32, "r").reshape(-1, width)
            starts: dict[str, int] = json.loads(index.read_text("utf-8"))
        except (OSError, ValueError):
            raise _damaged(path) from None
        places |= {key: (held, start) for key, start in starts.items()}
    return places


def _damaged(path: Any) -> UserError:
    return UserError(f"{path} is damaged; expected the states that a run has cached. Delete its folder.")


def _write(path: Path, keys: Sequence[str], rows: Dataset, approach: Any) -> None:
    """Compute the states, longest rows first, and move the complete file to its place."""
    lengths = [len(ids) for ids in rows["input_ids"]]
    order = sorted(range(len(rows)), key=lambda i: -lengths[i])
    partial, starts, written = path.with_suffix(".partial"), dict[str, int](), 0
    try:
        with partial.open("wb") as file:
            for first in tqdm(range(0, len(order), BATCH), desc="frozen layers", leave=False, disable=None):
                chosen = order[first : first + BATCH]
                batch = approach.collate([rows[i] for i in chosen])
                inputs = {name: x.to(approach.model.device) for name, x in approach.inputs(batch).items()}
                computed = approach.frozen.states(inputs).float().cpu().numpy()
                for i, states in zip(chosen, computed, strict=True):
                    states[-lengths[i] :].tofile(file)
                    if isinstance(answer := rows[i].get("labels"), list):
                        starts[_key(rows[i]["input_ids"][: -len(answer)])] = written
                    starts[keys[i]] = written
                    written += lengths[i]
        os.replace(partial, path.with_suffix(".states"))
        write_json(path.with_suffix(".json"), starts)
    finally:
        partial.unlink(missing_ok=True)
