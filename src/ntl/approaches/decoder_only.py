"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ntl.approaches import Batch, ModelSource, Row
from ntl.approaches.batches import check_lengths, decoder_inputs
from ntl.approaches.frozen_layers import given_states, pad_states
from ntl.approaches.language_model import LanguageModel
from ntl.approaches.prompts import decoder_prompts
from ntl.config.settings import LossSettings


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    A sequence consists of the prompt (see `ntl.approaches.prompts`), the answer and the end token. Sequences
    are padded on the left, so that all answers are at the end and logits are computed only there.
    """

    pads_left = True
    model_class = AutoModelForCausalLM

    def __init__(self, source: ModelSource, loss: LossSettings):
        self.prompts = decoder_prompts(source)
        super().__init__(source, loss)
        self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        self._keeps_logits = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end; see `Approach.encode`."""
        written = self.encoding.encode(self.answer_format.write(answers), special_tokens=False)
        labels = [[*ids, self.tokenizer.eos_token_id] for ids in written]
        rows = [prompt + answer for prompt, answer in zip(self.prompts(questions), labels, strict=True)]
        check_lengths(rows, self.model)
        return {"input_ids": rows, "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows, and the frozen layers' `states` if they are cached; see `Approach.collate`."""
        return {**super().collate(rows), **pad_states(rows)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the logits that predict each label, `[batch, answer, vocab]`."""
        # Each position predicts the next token: include the last one of the question, exclude the end token.
        needed = batch["labels"].shape[1] + 1
        kept = {"logits_to_keep": needed} if self._keeps_logits else {}
        with given_states(self.frozen, batch):
            logits = model(**self.inputs(batch), **kept, use_cache=False).logits
        return logits[:, -needed:-1]

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's arguments for a collated batch."""
        return decoder_inputs(self.model, batch)
