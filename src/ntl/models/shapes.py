"""Find the architecture of a model that is trained from scratch, by its name or in a folder."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ntl.errors import UserError, describe

# Configuration entries that describe the vocabulary or the run instead of the architecture.
NOT_SHAPE = (
    "architectures", "bos_token_id", "decoder_start_token_id", "dtype", "eos_token_id", "ntl", "pad_token_id",
    "torch_dtype", "transformers_version", "vocab_size", "_name_or_path",
)  # fmt: skip


def get_shape(name: str) -> dict[str, Any]:
    """Return the arguments of an architecture.

    Args:
        name: A name in shapes.yaml, or a folder that holds config.json.

    Returns:
        Arguments of transformers' configuration, including `model_type`.
    """
    shapes: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_suffix(".yaml")))
    if name in shapes:
        return shapes[name]
    try:
        config = json.loads((Path(name).expanduser() / "config.json").read_text("utf-8"))
        return {"model_type": config["model_type"]} | {k: v for k, v in config.items() if k not in NOT_SHAPE}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"the architecture {name!r} is unknown ({describe(error)}); expected one of {', '.join(shapes)}, "
            "or a folder that holds a model's config.json."
        ) from None
