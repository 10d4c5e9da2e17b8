"""What an experiment is made of, as plain frozen records: what lies behind the program takes these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("t5", "decoder_only")
ENCODINGS = ("digits", "auto", "rt", "xval")
HEADS = ("language", "regression")


@dataclass(frozen=True)
class ModelSettings:
    """Which model, and how it reads and writes numbers.

    Args:
        family: `t5` (encoder-decoder), or `decoder_only` (Llama, Mamba, ...).
        encoding: `digits`: every digit a token; `auto`: the tokenizer as it is; `rt`: the Regression
            Transformer's tokens of digit and place; `xval`: one `[NUM]` token scaled by the value.
        head: `language`, or `regression`: one number instead of text.
        checkpoint: Folder or hub name of pretrained weights; None trains from scratch.
        tokenizer: Folder or hub name; None for that of the checkpoint, or, from scratch, the small one that
            ships with the lab.
        config: Arguments of the architecture's configuration from scratch, with `model_type` (`t5`, `llama`,
            `mamba`, ...).
        log_scale: Whether `rt` and `xval` embed, and `xval` and a regression head predict, numbers on a log
            scale.
        seed: Of initial weights.
    """

    family: str = "t5"
    encoding: str = "digits"
    head: str = "language"
    checkpoint: str | None = None
    tokenizer: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    log_scale: bool = True
    seed: int = 42


@dataclass(frozen=True)
class LossSettings:
    """What is minimised beside, or in place of, cross-entropy at number tokens.

    Args:
        criterion: A name from `ntloss.criterion_names()`; None is cross-entropy alone.
        options: Arguments of the criterion.
        weight: λ.
        reweigh: Whether probability on text costs more than the worst number.
        mode: `add`, or `replace` (cross-entropy at number positions).
        label_smoothing: Uniform, of cross-entropy; 0 is none.
    """

    criterion: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 0.3
    reweigh: bool = False
    mode: str = "add"
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class GenerationSettings:
    """How answers are decoded.

    Args:
        beams: Of beam search; 1 is greedy. xVal is always greedy.
        max_new_tokens: The longest answer, in tokens.
        batch_size: Questions decoded at once.
    """

    beams: int = 4
    max_new_tokens: int = 64
    batch_size: int = 64
