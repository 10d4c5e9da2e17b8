"""A number-aware loss in axolotl 0.19: a plug-in, and its keys in axolotl's YAML file.

plugins:
  - ntloss.trainers.axolotl.NumberLoss
ntl_criterion: ntl_was
"""

from __future__ import annotations

from typing import Any, get_type_hints

from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel, create_model, model_validator

from ntloss.trainers.plug_ins import PREFIX, Options

_OTHER_LOSSES = (  # which do not use the model's logits
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
    "cut_cross_entropy",
    "chunked_cross_entropy",
    "rl",
)


class _Checks(BaseModel):
    @model_validator(mode="after")
    def _check(self) -> _Checks:
        Options.of_keys(vars(self))
        return self

    @model_validator(mode="before")
    @classmethod
    def _check_no_other_loss(cls, data: dict[str, Any]) -> dict[str, Any]:
        if others := [f"{key}: {data[key]}" for key in _OTHER_LOSSES if data.get(key)]:
            raise ValueError(
                f"{', '.join(others)} replaces the model's loss, and the number term would be lost: omit it, "
                "or the plug-in ntloss.trainers.axolotl.NumberLoss"
            )
        return data


# The keys of axolotl's YAML file: `ntl_` and one of the options.
_KEYS: Any = {f"{PREFIX}{name}": (of | None, None) for name, of in get_type_hints(Options).items()}
NumberLossArgs = create_model("NumberLossArgs", __base__=_Checks, __module__=__name__, **_KEYS)


class NumberLoss(BasePlugin):  # type: ignore[misc]
    """Makes the trainer number-aware; evaluations also log `eval_ce` and `eval_ntl`."""

    def get_input_args(self) -> str:
        """Name the class of the plug-in's keys."""
        return f"{__name__}.NumberLossArgs"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Make the trainer number-aware."""
        Options.of_keys(cfg).apply(trainer)
