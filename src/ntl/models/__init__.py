"""The models that answer with numbers, one module each.

    language_model   text: digits as tokens, the unchanged tokenizer, or tokens of digit and place
    xval             one [NUM] token scaled by the value, and a number head
    regression_head  a model that predicts one number instead of text

`build` makes one. It holds a `model` and a `tokenizer` of transformers, and what turns texts into batches and
back: `encode`, `collate` and `answer`.
"""

from ntl.models.source import IGNORE, PACKED, AnsweringModel, Row, build

__all__ = ["IGNORE", "PACKED", "AnsweringModel", "Row", "build"]
