"""Named architectures for training from scratch. The tokenizer sets the vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ntl.errors import UserError

# The published T5s have d_kv = 64 (128 for the 3B model), 32 buckets of relative positions, and ReLU.
SHAPES: dict[str, dict[str, Any]] = {
    "t5-tiny": {"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 2, "num_heads": 4},
    "t5-small": {
        "model_type": "t5",
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
    },
    "t5-base": {
        "model_type": "t5",
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 3072,
        "num_layers": 12,
        "num_heads": 12,
    },
    "t5-3b": {
        "model_type": "t5",
        "d_model": 1024,
        "d_kv": 128,
        "d_ff": 16384,
        "num_layers": 24,
        "num_heads": 32,
    },
    "llama-tiny": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "llama-small": {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    },
    "mamba-tiny": {"model_type": "mamba", "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2},
}
# Configuration entries that describe the vocabulary or the run instead of the architecture.
_NOT_SHAPE = {
    "architectures",
    "bos_token_id",
    "decoder_start_token_id",
    "dtype",
    "eos_token_id",
    "ntl",
    "pad_token_id",
    "torch_dtype",
    "transformers_version",
    "vocab_size",
    "_name_or_path",
}  # fmt: skip


def get_shape(name: str) -> dict[str, Any]:
    """Return the arguments of an architecture.

    Args:
        name: One of `SHAPES`, or a folder that holds config.json.

    Returns:
        Arguments of transformers' configuration, including `model_type`.

    Raises:
        UserError: `name` is neither a shape nor such a folder, or the file is not a model configuration.
    """
    if name in SHAPES:
        return dict(SHAPES[name])
    path = Path(name).expanduser() / "config.json"
    expected = f"expected one of {', '.join(SHAPES)}, or a folder that holds config.json"
    if not path.is_file():
        raise UserError(f"the architecture {name!r} is unknown; {expected}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config.get("model_type"), str):
            raise ValueError("it has no model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a model configuration ({error}); {expected}.") from error
    return {key: value for key, value in config.items() if key not in _NOT_SHAPE}
