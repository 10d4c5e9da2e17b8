"""A number-aware loss in axolotl 0.19: a plug-in, and its keys, as in examples/trainers/axolotl.yaml."""

from __future__ import annotations

from typing import Any, get_type_hints

from axolotl.integrations.base import BasePlugin
from pydantic import create_model

from ntloss.trainers.plug_ins import PREFIX, Options

# Keys whose losses do not use the model's logits.
_REFUSED = (
    *("liger_cross_entropy", "liger_fused_linear_cross_entropy", "cut_cross_entropy"),
    *("chunked_cross_entropy", "rl"),
)
_KEYS: Any = {f"{PREFIX}{name}": (of | None, None) for name, of in get_type_hints(Options).items()}
NumberLossArgs = create_model("NumberLossArgs", __module__=__name__, **_KEYS)


class NumberLoss(BasePlugin):  # type: ignore[misc]
    """Makes the trainer number-aware; evaluations also log `eval_ce` and `eval_ntl`."""

    def get_input_args(self) -> str:
        """Name the class of the plug-in's keys."""
        return f"{__name__}.NumberLossArgs"

    def register(self, cfg: Any) -> None:
        """Raise an error for an invalid option, or for a key that replaces the model's loss."""
        Options.of_keys(cfg)
        if refused := [f"{key}: {cfg[key]}" for key in _REFUSED if cfg.get(key)]:
            raise ValueError(
                f"{', '.join(refused)} replaces the model's loss: omit it, or the plug-in "
                f"{__name__}.NumberLoss"
            )

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Make the trainer number-aware."""
        Options.of_keys(cfg).apply(trainer)
