"""The models that answer with numbers, one module each.

    language_model   T5 with digits as tokens, the unchanged tokenizer, or the Regression Transformer's tokens
    decoder_only     Llama, Mamba, ...: question and answer in one sequence, with the loss on the answer only
    xval             one [NUM] token scaled by the value, and a number head: T5, or a decoder-only model
    regression_head  a model that predicts one number instead of text

`build` makes one. It holds a `model` and a `tokenizer` of transformers, and what turns texts into batches and
back: `encode`, `collate` and `answer`.
"""

from ntl.models.source import IGNORE, PACKED, AnsweringModel, Row, build

__all__ = ["IGNORE", "PACKED", "AnsweringModel", "Row", "build"]
