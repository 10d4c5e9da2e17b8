"""The fixed-width walk of `number_quantiles` inside transformers' `generate`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.decoding.fixed_width import choose
from ntloss.numbers.format import CODES, MINUS, PLUS, SIGN, NumberFormat, SlotTokens
from ntloss.numbers.vocabulary import NumberVocabulary

# Most probability that a character's other tokens, or a sign's other spelling, may have.
_NOT_FOLLOWED = 0.01


class QuantileLogitsProcessor:
    r"""Make greedy `generate` write a quantile of the model's distribution over numbers of one width.

    At each step all tokens but one are masked: a token of the digit at which the cumulative probability
    crosses the row's remaining quantile. `generate` may be called again with the same processor, on any
    batch.

    A row follows one spelling of its number: of the tokens of a character (`4`, ` 4`), and of a plus and no
    sign, the likelier. The others are an error if they have more than 1 % of the probability, so the quantile
    is exact where each character has one token, and off by at most 0.01 for each other character.
    `number_quantiles` follows all spellings, also those of multi-digit tokens.

    Beam search and sampling are errors: the processor reads the settings of the `generate` that calls it. In
    a loop of one's own, a row that continues with a masked token is an error.

    Args:
        vocabulary: the number tokens, one character each.
        quantile: above 0 and below 1; 0.5 writes the median.
        format: a format of fixed width.
        prompt_length: width of the `input_ids` that `generate` starts from: that of the padded prompts for a
            decoder-only model, 1 for an encoder-decoder.
        eos_token_id: the end token; of several, the likeliest is written.

    Raises:
        ValueError: a quantile outside (0, 1), multi-digit tokens, or a width that the vocabulary cannot
            write; in `generate`, another `prompt_length`, beams, sampling, or two likely spellings.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers import NumberFormat
        >>> digits = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=12)
        >>> median = QuantileLogitsProcessor(digits, 0.5, NumberFormat(2), prompt_length=1, eos_token_id=11)
        >>> scores = torch.full((1, 12), -torch.inf)
        >>> scores[0, [2, 3, 9]] = torch.tensor([0.4, 0.3, 0.3]).log()
        >>> median(torch.tensor([[10]]), scores).argmax().item()  # the likeliest is 2
        3
    """

    def __init__(
        self,
        vocabulary: NumberVocabulary,
        quantile: float,
        format: NumberFormat,
        *,
        prompt_length: int,
        eos_token_id: int | Sequence[int],
    ):
        if not 0 < quantile < 1:
            raise ValueError(f"quantile={quantile}: expected a number above 0 and below 1")
        self.quantile, self.prompt_length = quantile, prompt_length
        self.slots, self.tables = format.slots, format.tables(vocabulary, torch.device("cpu"))
        # A digit without a sign fills the slot of the sign too, as a plus.
        if any(
            len(codes) > 1 + (slot == SIGN and codes[0] == PLUS)
            for slot, tokens in zip(self.slots, format.tokens(vocabulary), strict=True)
            for _, codes in tokens
        ):
            raise ValueError(
                "the vocabulary has number tokens of several characters, and one row cannot add up the "
                "probabilities of different spellings. Pass a vocabulary with digit_level=True, or use "
                "number_quantiles."
            )
        self.ends = torch.tensor([eos_token_id] if isinstance(eos_token_id, int) else list(eos_token_id))
        self._length = -1  # of the previous step's input_ids

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask all tokens but one in each row.

        Args:
            input_ids: `[rows, seq]`.
            scores: `[rows, vocab]`.

        Returns:
            `[rows, vocab]`, 0 for this token and -inf for the others.
        """
        rows, length = input_ids.shape
        if length == self.prompt_length:
            _check_greedy()
            self._slot = self._tokens = torch.zeros(rows, dtype=torch.int64, device=scores.device)
            self._remaining = torch.full_like(self._slot, self.quantile, dtype=torch.float64)
            self._negative = self._slot > 0
        elif length != self._length + 1 or rows != len(self._slot):
            raise ValueError(
                f"input_ids of shape {list(input_ids.shape)} continue neither prompts of "
                f"{self.prompt_length} tokens nor the previous step. Pass prompt_length=<width of the "
                "input_ids that generate starts from>: 1 for an encoder-decoder. Beams cannot be used."
            )
        elif bool(((input_ids[:, -1] != self._tokens) & (self._slot <= len(self.slots))).any()):
            raise ValueError(
                "a row continues with a token that was masked: expected greedy decoding, num_beams=1 and "
                "do_sample=False"
            )
        self._length = length
        ends = self.ends.to(scores.device)
        self._tokens, before = ends[scores[:, ends].argmax(-1)], self._slot
        self._slot = before + (before >= len(self.slots))  # one more for the end
        for slot in set(before.tolist()) & set(range(len(self.slots))):  # two, with and without a sign
            self._write((before == slot).nonzero().squeeze(-1), slot, scores)
        return torch.full_like(scores, -torch.inf).scatter(1, self._tokens[:, None], 0.0)

    def _write(self, rows: Tensor, slot: int, scores: Tensor) -> None:
        """Choose the token that each row writes into the slot (or two slots, a digit without a sign)."""
        entries = self.tables[slot]
        assert entries is not None, "with single characters every slot has tokens"
        entries = SlotTokens(*(table.to(scores.device) for table in entries))
        weights = mask_logits(scores[rows], entries.token_ids)[0].exp()
        codes, bare = entries.codes[:, 0], entries.lengths > 1
        if self.slots[slot] == SIGN:
            sign, self._remaining[rows], _ = choose(weights @ entries.one_hot[0], self._remaining[rows])
            negative = self._negative[rows] = sign == MINUS
            weights = torch.where(codes == sign[:, None], weights, 0)
            # A plus and no sign are two spellings.
            total, unsigned = weights.sum(-1), torch.where(bare, weights, 0).sum(-1)
            follows_bare = ~negative & (2 * unsigned >= total)
            _check_one_spelling(rows, torch.where(follows_bare, unsigned, total - unsigned), total)
            weights = torch.where(bare == follows_bare[:, None], weights, 0)
            codes = torch.where(bare, entries.codes[:, -1], 0)
        by_code = weights @ F.one_hot(codes, CODES).double()
        chosen, self._remaining[rows], weight = choose(by_code, self._remaining[rows], self._negative[rows])
        spellings = torch.where(codes == chosen[:, None], weights, 0)
        followed, index = spellings.max(-1)
        _check_one_spelling(rows, followed, spellings.sum(-1))
        # A row that rules out every number ends here.
        self._slot[rows] = torch.where(weight > 0, slot + entries.lengths[index], len(self.slots) + 1)
        self._tokens[rows] = torch.where(weight > 0, entries.token_ids[index], self.ends.to(index)[0])


def _check_one_spelling(rows: Tensor, followed: Tensor, total: Tensor) -> None:
    """Raise a ValueError where the spelling that a row follows has less than 99 % of the probability."""
    lost = torch.where(total > 0, 1 - followed / total, 0)
    if bool((lost > _NOT_FOLLOWED).any()):
        worst = int(lost.argmax())
        raise ValueError(
            f"row {int(rows[worst])} can write its number with and without a plus or a space, and follows "
            f"only the likeliest spelling: the others have {lost[worst].item():.1%} of the probability, "
            f"expected at most {_NOT_FOLLOWED:.0%}. Use number_quantiles, which follows all of them."
        )


def _check_greedy() -> None:
    """Raise a ValueError for beams or sampling; generate tells its processors of neither."""
    frame: FrameType | None = sys._getframe(1)
    settings: Any = None
    while frame is not None and settings is None:
        settings = frame.f_locals.get("generation_config")
        frame = frame.f_back
    beams, sampled = getattr(settings, "num_beams", 1) or 1, getattr(settings, "do_sample", False)
    if beams > 1 or sampled:
        raise ValueError(
            f"num_beams={beams}, do_sample={bool(sampled)}: the processor chooses every token itself. "
            "Expected greedy decoding: pass num_beams=1 and do_sample=False to generate."
        )


def mask_logits(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of some tokens among themselves, `[rows, allowed]`, and their `logsumexp`.

    Both are float64, and -inf if a row of the logits rules all of these tokens out.
    """
    allowed = logits[:, token_ids].double()
    normalizer = allowed.logsumexp(-1, keepdim=True)
    log_probs = torch.where(normalizer > -math.inf, allowed - normalizer, -math.inf)
    return log_probs, normalizer.squeeze(-1)
