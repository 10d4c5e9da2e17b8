"""Decoder-only models (Llama, Mamba, ...): question and answer in one sequence, the loss on the answer."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache, DynamicLayer

from ntl.approaches import Batch, Levels, ModelSource, Row, Texts
from ntl.approaches.batches import check_lengths, decoder_inputs, generation_mode, is_sharded
from ntl.approaches.frozen_layers import given_states, pad_states
from ntl.approaches.language_model import LanguageModel
from ntl.approaches.prompts import decoder_prompts
from ntl.config import Evaluation, LossSettings
from ntloss.reading import NumberQuantiles


class DecoderOnly(LanguageModel):
    """A causal language model that completes questions.

    A sequence consists of the prompt (see `ntl.approaches.prompts`), the answer and, unless answers have a
    fixed width, the end token. Sequences are padded on the left, so that all answers are at the end and
    logits are computed only there.
    """

    pads_left = True
    model_class = AutoModelForCausalLM

    def __init__(self, source: ModelSource, loss: LossSettings):
        self.prompts = decoder_prompts(source)
        super().__init__(source, loss)
        self.model.generation_config.pad_token_id = self.tokenizer.pad_token_id
        if head := self.model.get_output_embeddings():
            # logits_to_keep gives it a view, with which PyTorch's CPU matmul takes 1.5 to 9 times as long.
            head.register_forward_pre_hook(lambda _, args: (args[0].contiguous(), *args[1:]))
        accepted = inspect.signature(self.model.forward).parameters
        self._keeps_logits, self._keeps_cache = "logits_to_keep" in accepted, "past_key_values" in accepted

    def encode(self, questions: Sequence[str], answers: Sequence[str]) -> dict[str, list[Any]]:
        """Encode pairs as `input_ids` of the sequence and `labels` of its end; see `Approach.encode`."""
        written = self.encoding.encode(self.answer_format.write(answers), special_tokens=False)
        # An answer of fixed width ends by itself. A pretrained model does not expect its end token after a
        # digit, and in a short training the large loss of learning that comes at the numbers' cost.
        end = [] if self.answer_format.number_format else [self.tokenizer.eos_token_id]
        labels = [ids + end for ids in written]
        rows = [prompt + answer for prompt, answer in zip(self.prompts(questions), labels, strict=True)]
        check_lengths(rows, self.model)
        return {"input_ids": rows, "labels": labels}

    def collate(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Pad rows, and the frozen layers' `states` if they are cached; see `Approach.collate`."""
        return {**super().collate(rows), **pad_states(rows)}

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute the logits that predict each label, `[batch, answer, vocab]`."""
        # Each position predicts the next token: begin before the answer, end before its last.
        needed = batch["labels"].shape[1] + 1
        kept = {"logits_to_keep": needed} if self._keeps_logits else {}
        with given_states(self.frozen, batch):
            logits = model(**self.inputs(batch), **kept, use_cache=False).logits
        return logits[:, -needed:-1]

    def read(
        self, model: nn.Module, questions: Texts, generation: Evaluation, levels: Levels
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer and find quantiles, if possible with one run of the prompts; see `Approach.read`."""
        past = self._run_prompts(model, questions) if generation.beams == 1 else None
        answers = self.answer(model, questions, generation, copy.deepcopy(past))
        return answers, self.quantiles(model, questions, levels, past)

    def _run_prompts(self, model: nn.Module, questions: Sequence[str]) -> DynamicCache | None:
        """Return the cache of all tokens but the last, if each layer attends to all of them."""
        batch = self._pad(self.prompts(questions))
        kinds = {*(getattr(self.model.config, "layer_types", None) or ["full_attention"])}
        attends = self._keeps_cache and kinds == {"full_attention"}
        if batch["input_ids"].shape[1] < 2 or is_sharded(self.model) or not attends:
            return None
        first = {key: value[:, :-1].to(self.model.device) for key, value in batch.items()}
        kept = {"logits_to_keep": 1} if self._keeps_logits else {}
        with generation_mode(self.model, model):
            output = self.model(**self.inputs(first), **kept, use_cache=True)
        past = output.past_key_values
        known = type(past) is DynamicCache and all(type(layer) is DynamicLayer for layer in past.layers)
        return past if known else None

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's arguments for a collated batch."""
        return decoder_inputs(self.model, batch)
