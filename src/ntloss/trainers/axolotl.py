"""A number token loss in axolotl: a plug-in, and its keys in axolotl's YAML file.

plugins:
  - ntloss.trainers.axolotl.NumberLoss
ntl_weight: 0.3
ntl_criterion: ntl_was
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, model_validator

from ntloss.trainers import make_number_aware
from ntloss.trainers.share import check_options, given_vocabulary

try:
    from axolotl.integrations.base import BasePlugin
except ImportError as missing:
    raise ImportError("ntloss.trainers.axolotl needs axolotl 0.19: " + str(missing)) from missing

# Keys whose loss does not use the model's logits.
_OTHER_LOSSES = (
    "liger_cross_entropy",
    "liger_fused_linear_cross_entropy",
    "cut_cross_entropy",
    "chunked_cross_entropy",
    "rl",
)


class NumberLossArgs(BaseModel):
    """Keys of axolotl's YAML file: `ntl_` and an option of `make_number_aware`.

    `ntl_vocabulary` is the `module:function` of a function that makes the number tokens from the tokenizer.

    Raises:
        ValueError: an invalid option, or a key with another loss.
    """

    ntl_weight: float | None = None
    ntl_criterion: str | dict[str, Any] | None = None
    ntl_mode: str | None = None
    ntl_label_smoothing: float | None = None
    ntl_thousands: str | None = None
    ntl_vocabulary: str | None = None
    ntl_chunked: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> NumberLossArgs:
        of_loss = vars(self) | {"ntl_chunked": None}  # which is how the loss is computed
        check_options(**_options(of_loss))
        return self

    @model_validator(mode="before")
    @classmethod
    def _check_no_other_loss(cls, data: dict[str, Any]) -> dict[str, Any]:
        others = [f"{key}: {data[key]}" for key in _OTHER_LOSSES if data.get(key)]
        if others:
            raise ValueError(
                f"{', '.join(others)} replaces the model's loss, and the number term would be lost: omit it, "
                "or the plug-in ntloss.trainers.axolotl.NumberLoss"
            )
        return data


class NumberLoss(BasePlugin):  # type: ignore[misc]
    """Makes the trainer number-aware; evaluations also log `eval_ce` and `eval_ntl`."""

    def get_input_args(self) -> str:
        """Name the class of the plug-in's keys."""
        return f"{NumberLossArgs.__module__}.{NumberLossArgs.__qualname__}"

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Make the trainer number-aware."""
        options = _options(cfg)
        vocabulary = given_vocabulary(options.pop("vocabulary", None), trainer.processing_class)
        make_number_aware(trainer, vocabulary=vocabulary, **options)


def _options(cfg: Any) -> dict[str, Any]:
    given = {key: cfg[key] for key in NumberLossArgs.model_fields if cfg.get(key) is not None}
    return {key.removeprefix("ntl_"): value for key, value in given.items()}
