"""Tensors of a vocabulary's number tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ntloss.numbers.vocabulary import NumberVocabulary


class NumberTables(nn.Module):
    """Tensors of a vocabulary that losses need, as non-persistent buffers.

    They are built once per device and keep their dtype under `.half()`, because bfloat16 would round 257 to
    256.

    Args:
        vocabulary: the number tokens.
        cells: also build `cells`. Default: False.

    Attributes:
        token_ids: `[number tokens]`, one token of each distinct value by ascending value, then the further
            forms of these values.
        values: `[values]`, the distinct values, ascending, float64 (float32 on devices without float64);
            `values_in_float32` are the same. One that tokens both write and are given by stands there twice.
        value_of_label: `[vocab + 1]`, index into `values` of each number token, -1 for text and, at the end
            (index -1), for labels that are ignored.
        cells: `[2, kinds, values]`, see `criteria.READABLE`, or None.
        own_values: `[values]`, bool, see `criteria.READABLE`, or None.
        has_several_forms: whether some value has more than one token.
    """

    token_ids: Tensor
    values: Tensor
    values_in_float32: Tensor
    value_of_label: Tensor
    cells: Tensor | None
    own_values: Tensor | None

    def __init__(self, vocabulary: NumberVocabulary, cells: bool = False) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("cells", None)
        self.register_buffer("own_values", None)
        self._has_cells = cells
        self._build(torch.device("cpu"))

    def _build(self, device: torch.device) -> None:
        tokens = self.vocabulary.tokens
        distinct = sorted({(token.value, token.is_value) for token in tokens})
        index = {each: i for i, each in enumerate(distinct)}
        forms: list[list[int]] = [[] for _ in distinct]
        value_of_label = [-1] * (self.vocabulary.vocab_size + 1)
        for token in tokens:
            i = index[token.value, token.is_value]
            forms[i].append(token.token_id)
            value_of_label[token.token_id] = i
        # Level 0 holds one form of every value, level 1 a second form of the values that have one, and so on.
        # Merging then takes one operation per level, with static shapes.
        levels = [
            [i for i, ids in enumerate(forms) if len(ids) > level]
            for level in range(max(len(ids) for ids in forms))
        ]
        ids = [forms[i][level] for level, members in enumerate(levels) for i in members]
        floats = torch.float32 if device.type == "mps" else torch.float64
        # Ignore a surrounding `with torch.device("meta")` or inference mode.
        with torch.device("cpu"), torch.inference_mode(False):
            values = torch.tensor([value for value, _ in distinct], dtype=torch.float64)
            tables = {
                "token_ids": torch.tensor(ids),
                "values": values.to(floats),
                "values_in_float32": values.to(torch.float32),
                "value_of_label": torch.tensor(value_of_label),
            }
            for level, members in enumerate(levels[1:], start=1):
                tables[f"level_{level}"] = torch.tensor(members)
            if self._has_cells and not all(is_value for _, is_value in distinct):
                tables["cells"] = self._cells_of(index)
            if self.vocabulary.value_tokens:
                tables["own_values"] = torch.tensor([is_value for _, is_value in distinct])
            for name, table in tables.items():
                self.register_buffer(name, table.to(device), persistent=False)
        self._levels = len(levels)
        self.has_several_forms = len(levels) > 1

    def _cells_of(self, index: dict[tuple[float, bool], int]) -> Tensor:
        tokens = [token for token in self.vocabulary.tokens if token.is_whole]
        table = torch.zeros(
            2, max((t.kind for t in tokens), default=0) // 2 * 2 + 2, len(index), dtype=torch.bool
        )
        for token in tokens:
            kinds = [2 * token.digits, 2 * token.digits + 1] if token.value == 0 else [token.kind]
            i = index[token.value, False]
            table[0, kinds, i] = True
            table[1, kinds, i] = abs(token.value) >= 10 ** (token.digits - 1)
        return table

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NumberTables:
        # Of .half(), .to(device) and .to_empty(...), only the device takes effect; applying `fn` to an empty
        # tensor reveals it. That tensor is on the CPU if the tables are on meta, because meta tensors cannot
        # be moved.
        here = self.values.device if self.values.device.type != "meta" else "cpu"
        device = fn(torch.empty(0, device=here)).device
        if device != self.values.device:
            self._build(device)
        return self

    def merge_forms(self, number_logits: Tensor) -> Tensor:
        """Merge the logits `[..., number tokens]` of all forms of a value by logsumexp: `[..., values]`."""
        start = len(self.values)
        merged = number_logits[..., :start]
        for level in range(1, self._levels):
            members: Tensor = getattr(self, f"level_{level}")
            further = number_logits[..., start : start + len(members)]
            both = torch.logaddexp(merged.index_select(-1, members), further)
            merged = merged.index_copy(-1, members, both)
            start += len(members)
        return merged
