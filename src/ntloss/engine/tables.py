"""A vocabulary's number tokens as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ntloss.criteria import CriterionInput
from ntloss.number_spans import NumberSpans, token_kinds
from ntloss.vocabulary import NumberVocabulary

# Stands in for a logit of -inf among the number tokens: its probability is 0 all the same, and no
# difference of two of them is NaN, in value or in gradient.
_MINUS_INFINITY = -1e30


class NumberTables(nn.Module):
    """The tensors that a loss needs of a vocabulary, as non-persistent buffers.

    They are built once for each device, and keep their dtype under `.half()`: bfloat16 would read 257 as 256.

    Args:
        vocabulary: the number tokens.
        device: where the tables lie. Default: the CPU.
        spans: also keep `kinds`, with which whole numbers are found in labels. Default: False.

    Attributes:
        token_ids: `[number tokens]`: one token of each distinct value, by ascending value, then the further
            forms.
        values: `[values]`, the distinct values, ascending, float64 (float32 on devices without float64).
        value_of_token: `[vocab]`, index into `values` of each number token, -1 for text.
        kinds: `[vocab]`, `numbers.token_kinds`, or None unless `spans`.
    """

    token_ids: Tensor
    values: Tensor
    value_of_token: Tensor
    kinds: Tensor | None

    def __init__(
        self, vocabulary: NumberVocabulary, device: torch.device | str = "cpu", spans: bool = False
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.register_buffer("kinds", None)
        self._spans = spans
        self._build(torch.device(device))

    def _build(self, device: torch.device) -> None:
        distinct = self.vocabulary.distinct_values
        index = {value: i for i, value in enumerate(distinct)}
        forms: list[list[int]] = [[] for _ in distinct]
        value_of_token = [-1] * self.vocabulary.vocab_size
        for token in self.vocabulary.tokens:
            forms[index[token.value]].append(token.token_id)
            value_of_token[token.token_id] = index[token.value]
        # Level 0 holds one form of every value, level 1 a second form of the values that have one, and so
        # on: merging costs one operation a form, and the shapes are known.
        levels = [
            [i for i, ids in enumerate(forms) if len(ids) > level]
            for level in range(max(len(ids) for ids in forms))
        ]
        ids = [forms[i][level] for level, members in enumerate(levels) for i in members]
        floats = torch.float32 if device.type == "mps" else torch.float64
        # Wherever they are made first: under `with torch.device("meta")`, or while evaluating.
        with torch.device("cpu"), torch.inference_mode(False):
            tables = {
                "token_ids": torch.tensor(ids),
                "values": self.vocabulary.value_tensor().to(floats),
                "value_of_token": torch.tensor(value_of_token),
            }
            for level, members in enumerate(levels[1:], start=1):
                tables[f"level_{level}"] = torch.tensor(members)
            if self._spans:
                tables["kinds"] = token_kinds(self.vocabulary)
            for name, table in tables.items():
                self.register_buffer(name, table.to(device), persistent=False)
        self._levels = len(levels)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NumberTables:
        # .half(), .to(device), .to_empty(...): only the device is followed.
        # Nothing can be moved away from meta, so an empty CPU tensor asks there.
        here = self.values.device if self.values.device.type != "meta" else "cpu"
        device = fn(torch.empty(0, device=here)).device
        if device != self.values.device:
            self._build(device)
        return self

    def criterion_input(
        self,
        number_logits: Tensor,
        target: Tensor,
        log_normalizer: tuple[Tensor, Tensor] | None = None,
        spans: NumberSpans | None = None,
    ) -> CriterionInput:
        """Merge the forms of each value and normalise over the values, in float32 at least.

        Args:
            number_logits: `[positions, number tokens]`, in the order of `token_ids`.
            target: `[positions]`, index of the label's value.
            log_normalizer: `level` and `log_sum` of the `Readout`, or None if the mass is not needed.
            spans: `[positions]` each, or None if they are not needed.
        """
        dtype = torch.promote_types(number_logits.dtype, torch.float32)
        number_logits = number_logits.to(dtype).clamp(min=_MINUS_INFINITY)
        # Differences of large logits have more digits behind the point than the logits do.
        highest = number_logits.detach().amax(-1)
        merged = number_logits - highest.unsqueeze(-1)
        if self._levels > 1:
            merged = self._merge_forms(merged)
        number_log_sum = merged.exp().sum(-1).log()
        log_mass = None
        if log_normalizer is not None:
            level, log_sum = log_normalizer
            # Rounding may put the sum over a part above the sum over the whole.
            log_mass = ((highest - level) + (number_log_sum - log_sum)).clamp(max=0)
        return CriterionInput(
            log_probs=merged - number_log_sum.unsqueeze(-1),
            values=self.values.to(dtype),
            target=target,
            log_mass=log_mass,
            number_logsumexp=highest + number_log_sum,
            spans=spans,
        )

    def _merge_forms(self, number_logits: Tensor) -> Tensor:
        """Add up the probability of all forms of a value: `[positions, values]`, logits."""
        start = len(self.values)
        merged = number_logits[..., :start]
        for level in range(1, self._levels):
            members: Tensor = getattr(self, f"level_{level}")
            further = number_logits[..., start : start + len(members)]
            both = torch.logaddexp(merged.index_select(-1, members), further)
            merged = merged.index_copy(-1, members, both)
            start += len(members)
        return merged

    def lookup(self, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
        """Index into `values` of each label, 0 where it is not a number, and whether it is one."""
        counted = labels != ignore_index
        index = self.value_of_token[torch.where(counted, labels, 0)]
        return index.clamp(min=0), counted & (index >= 0)

    def extra_repr(self) -> str:
        """Counts, for `print(model)`."""
        return (
            f"vocab_size={self.vocabulary.vocab_size}, tokens={len(self.token_ids)}, "
            f"values={len(self.values)}"
        )
