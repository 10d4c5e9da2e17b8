"""Causal language models that are trained to write numbers: rows and batches, and the weights that change.

    writer = Writer(model, tokenizer, NumberFormat.of(answers))
    rows = writer.encode(writer.prompts(questions), [writer.form.write(answer) for answer in answers])
    logits = writer.logits(writer.collate(rows[:16]))

`NumberRegressor` is trained by it, and so are the decoder-only models of the lab.
"""

from ntloss.writing.lora import Lora
from ntloss.writing.upper_layers import UpperLayers
from ntloss.writing.weights import digest_of_weights
from ntloss.writing.writer import Writer, copy_views, pad_left

__all__ = [
    # prompts and answers in, batches, logits and quantiles out
    "Writer",
    "pad_left",
    "copy_views",
    # the weights that are trained
    "UpperLayers",
    "Lora",
    "digest_of_weights",
]
