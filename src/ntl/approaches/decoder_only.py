"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from ntl.approaches import Batch, ModelSource, Row
from ntl.approaches.frozen_layers import STATES
from ntl.approaches.language_model import LanguageModel
from ntl.config.settings import LossSettings
from ntl.encodings.digits import TextEncoding
from ntl.errors import UserError


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    A sequence consists of the question, a separator, the answer and the end token. The separator is a line
    break or, if the tokenizer has none, its end token. Sequences are padded on the left, so that all answers
    are at the end and logits are computed only there.

    Raises:
        UserError: The tokenizer has no end token, or the model or the loss cannot be built from the settings.
    """

    pads_left = True
    model_class = AutoModelForCausalLM

    def __init__(self, source: ModelSource, loss: LossSettings):
        tokenizer = source.tokenizer
        if tokenizer.eos_token_id is None:
            raise UserError(
                "the tokenizer has no end token; expected one, because answers would never end without it. "
                "Use another tokenizer."
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token  # padding is always masked
        super().__init__(source, loss)
        self.model.generation_config.pad_token_id = tokenizer.pad_token_id
        parameters = inspect.signature(self.model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._prefix = _prefix_ids(tokenizer)
        self._separator = _separator_ids(self.encoding)
        self._longest = getattr(self.model.config, "max_position_embeddings", None)

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end; see `Approach.encode`."""
        labels = [
            [*ids, self.tokenizer.eos_token_id] for ids in self._plain(self.answer_format.write(answers))
        ]
        rows = [prompt + answer for prompt, answer in zip(self.prompts(questions), labels, strict=True)]
        if self._longest is not None and (longest := max(map(len, rows), default=0)) > self._longest:
            raise UserError(
                f"a question and its answer take {longest} tokens; this model takes at most {self._longest}. "
                "Choose another model, or increase max_position_embeddings in its configuration."
            )
        return {"input_ids": rows, "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows, and the frozen layers' `states` if they are cached; see `Approach.collate`."""
        batch = super().collate(rows)
        if rows and STATES in rows[0]:
            longest = batch["input_ids"].shape[1]
            padded = [F.pad(row[STATES], (0, 0, longest - len(row[STATES]), 0)) for row in rows]
            batch[STATES] = torch.stack(padded)
        return batch

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the logits that predict each label, `[batch, answer, vocab]`."""
        # Each position predicts the next token: include the last one of the question, exclude the end token.
        needed = batch["labels"].shape[1] + 1
        inputs = self.inputs(batch)
        if self._keeps_logits:
            inputs["logits_to_keep"] = needed
        cached = self.frozen is not None and STATES in batch
        with self.frozen.given(batch[STATES]) if cached else nullcontext():
            logits = model(**inputs, use_cache=False).logits
        return logits[:, -needed:-1]

    def inputs(self, batch: Batch) -> dict[str, Any]:
        """Return the model's arguments for a collated batch."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if self._takes_positions:
            inputs["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        return inputs

    def prompts(self, questions: Sequence[str]) -> list[list[int]]:
        """Encode questions with the separator behind them."""
        return [[*self._prefix, *ids, *self._separator] for ids in self._plain(questions)]

    def _plain(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encoding.encode(texts, special_tokens=False)


def _prefix_ids(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Return the ids that the tokenizer puts in front of a text."""
    first = tokenizer("1")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []


def _separator_ids(encoding: TextEncoding) -> list[int]:
    """Return the ids between question and answer."""
    ids = encoding.encode(["\n"], special_tokens=False)[0]
    writes_it = ids and encoding.tokenizer.unk_token_id not in ids and "\n" in encoding.decode([ids])[0]
    return ids if writes_it else [encoding.tokenizer.eos_token_id]
