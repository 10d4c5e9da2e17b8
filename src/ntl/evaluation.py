"""What a trained model answers: greedy decoding to text, text to number, number to metrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, T5ForConditionalGeneration

from ntl.metrics import read_answer
from ntl.models import T5ForRegression
from ntl.tasks import Example

BATCH = 250  # questions decoded at once: enough to keep one core busy, little enough for its cache


def encode_questions(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str]) -> dict[str, Tensor]:
    """Tokenize questions into one padded batch.

    Args:
        tokenizer: The comparison's.
        questions: Texts.

    Returns:
        `input_ids` and `attention_mask`, both `[batch, seq]`.
    """
    batch = tokenizer(list(questions), padding=True, return_tensors="pt")
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}


@torch.inference_mode()
def answer(
    model: T5ForConditionalGeneration | T5ForRegression,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    max_new_tokens: int,
) -> list[float | None]:
    """Let a model answer questions.

    Args:
        model: A language model decodes greedily; a regression head gives its number.
        tokenizer: The comparison's.
        examples: The questions.
        max_new_tokens: The longest answer, in tokens, with its end token.

    Returns:
        One number per example; None where the decoded text is no number.
    """
    was_training = model.training
    model.eval()
    # Questions of like length together: less padding.
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].question))
    numbers: list[float | None] = [None] * len(examples)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        inputs = encode_questions(tokenizer, [examples[i].question for i in chosen])
        if isinstance(model, T5ForRegression):
            batch = (model(**inputs).double() * model.scale + model.mean).tolist()
        else:
            tokens = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, num_beams=1)
            texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
            batch = [read_answer(text) for text in texts]
        for i, number in zip(chosen, batch, strict=True):
            numbers[i] = number
    model.train(was_training)
    return numbers
