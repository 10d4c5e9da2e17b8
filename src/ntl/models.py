"""Models, from scratch: a small T5, and the same T5 with a regression head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
    T5PreTrainedModel,
)


class T5ForRegression(T5PreTrainedModel):
    """T5 that answers with one number instead of text.

    The decoder reads its start token only, and a linear layer turns that position's state into the number.
    This is transformers' `T5ForSequenceClassification` with one label, but for the decoder: there it reads
    the whole question again, which costs as much as the encoder and adds nothing to what it can see.

    Args:
        config: Of the T5.
        mean: Of the answers in the training set; the head predicts the standardised answer.
        scale: Their standard deviation.
    """

    def __init__(self, config: T5Config, mean: float = 0.0, scale: float = 1.0):
        super().__init__(config)
        self.transformer = T5Model(config)
        self.head = nn.Linear(config.d_model, 1)
        self.mean = mean
        self.scale = scale
        self.post_init()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Predict the standardised answer.

        Args:
            input_ids: Questions, `[batch, seq]`.
            attention_mask: 0 at padding, `[batch, seq]`.

        Returns:
            `[batch]`; times `scale` plus `mean` it is the number.
        """
        start = input_ids.new_full((len(input_ids), 1), self.config.decoder_start_token_id)
        states = self.transformer(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=start, use_cache=False
        ).last_hidden_state
        return self.head(states[:, 0]).squeeze(-1)


def build_model(
    settings: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    regression_targets: Sequence[float] | None = None,
) -> T5ForConditionalGeneration | T5ForRegression:
    """A T5 with random weights.

    Args:
        settings: The `model` section of the configuration: arguments of `T5Config`.
        tokenizer: Its size and special tokens become the model's.
        seed: Of the weights. The same seed gives the same encoder and decoder, with either head.
        regression_targets: The training answers for a regression head; None for a language model head.

    Returns:
        The model.
    """
    config = T5Config(
        **settings,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    language_model = T5ForConditionalGeneration(config)
    if regression_targets is None:
        return language_model
    targets = torch.as_tensor(regression_targets, dtype=torch.float64)
    scale = targets.std(correction=0).item() or 1.0
    model = T5ForRegression(config, mean=targets.mean().item(), scale=scale)
    body = language_model.state_dict()
    model.transformer.load_state_dict({k: v for k, v in body.items() if k != "lm_head.weight"})
    return model
