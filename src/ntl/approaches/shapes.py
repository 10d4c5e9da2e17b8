"""Find the architecture of a model that is trained from scratch, by its name or in a folder."""

import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ntl.errors import UserError

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
    shapes = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_suffix(".yaml")))
    if name in shapes:
        return shapes[name]
    path = Path(name).expanduser() / "config.json"
    expected = f"expected one of {', '.join(shapes)}, or a folder that holds config.json"
    if not path.is_file():
        raise UserError(f"the architecture {name!r} is unknown; {expected}.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config.get("model_type"), str):
            raise ValueError("it has no model_type")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a model configuration ({error}); {expected}.") from error
    return {key: value for key, value in config.items() if key not in NOT_SHAPE}
