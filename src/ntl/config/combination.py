"""Check that a model, a loss and the readings of numbers fit together, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from ntl.config.settings import LossSettings, ModelSettings
from ntl.errors import UserError


def check_combination(
    model: ModelSettings, loss: LossSettings, readings: Sequence[str] = (), sharded: bool = False
) -> None:
    """Check that the settings of a run, each of them valid, fit together.

    Args:
        model: Model settings.
        loss: Loss settings.
        readings: Readings of numbers that need quantiles of the model's distribution.
        sharded: Whether training divides the model between processes.

    Raises:
        UserError: The model does not support the family, the loss, the number format or a reading.
    """
    if model.head == "language" and model.encoding in ("digits", "auto"):  # writes numbers as text
        if readings and sharded:
            raise UserError(
                f"evaluation.read=[{','.join(readings)}] needs the whole model in each process; expected "
                "training without training_args.fsdp. Train with evaluation.read=[greedy], then pass "
                "training_args=eval."
            )
        return
    name = "a regression head" if model.head == "regression" else f"number_encoding={model.encoding}"
    if model.family != "t5":
        raise UserError(
            f"model_args.family={model.family} does not support {name}; expected t5. Pass "
            "model_args.family=t5, or model_args.number_encoding=none."
        )
    if loss.criterion is not None and (model.head, model.encoding) != ("language", "rt"):
        raise UserError(
            f"loss.criterion={loss.criterion} needs a token for each digit or number, and {name} has none; "
            "expected no criterion. Pass loss=ce, or model_args.number_encoding=none."
        )
    if model.number_format != "plain":
        raise UserError(
            f"model_args.number_format={model.number_format} needs a model that writes numbers as text, and "
            f"{name} does not; expected number_encoding=none. Omit model_args.number_format."
        )
    if readings:
        raise UserError(
            f"evaluation.read=[{','.join(readings)}] needs the distribution of a number that a model writes "
            f"in digits, and {name} has none; expected a language model with number_encoding=none. Pass "
            "evaluation.read=[greedy]."
        )
