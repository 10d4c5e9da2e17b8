"""Which loss a run minimizes: its settings, and the losses of the paper where the library's differ."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ntl.errors import UserError
from ntl.models.settings import ModelArgs
from ntl.own import is_own, load_own
from ntl.settings import Settings, setting

if TYPE_CHECKING:
    from torch import Tensor

    from ntloss.criteria import Criterion

Mode = StrEnum("Mode", "add replace")
NormalizeBy = StrEnum("NormalizeBy", "numbers items")

AUTO = "auto"  # value of loss.options.sigma that leaves the width to the training answers
OF_MODEL = "from_model_args"  # value of loss.criterion that leaves the loss to model_args
OF_FUNCTION = {None: "ntl_mse", "mse": "ntl_mse", "mae": "ntl_mae", "huber": "ntl_huber"}
# The paper's Gaussian smoothing together with its smoothed Wasserstein loss.
SMOOTHED = "ntl.losses:gaussian_and_wasserstein"
# Names in tables.
TITLES = {
    "ntl_was": "NTL-WAS", "crps": "CRPS", "gaussian_smoothing": "Gaussian smoothing",
    "smoothed_wasserstein": "smoothed NTL-WAS", "hl_gauss": "HL-Gauss", "dist2": "DIST2", "del_loss": "DEL",
    "smmd": "SMMD", "ntil": "NTIL", "number_level": "number-level NTL", "ntl_mse": "NTL-MSE",
    "ntl_mae": "NTL-MAE", "raft": "RAFT", "ntl_huber": "NTL-Huber",
    SMOOTHED: "Gaussian smoothing + smoothed NTL-WAS",
}  # fmt: skip


@dataclass
class LossSettings(Settings):
    """Which loss to minimize in addition to cross-entropy, or in place of it at number tokens."""

    group = "loss."

    criterion: str | None = setting(
        None,
        "a name of ntloss.criteria.CRITERIA, as in loss=ce loss.criterion=smmd, or a function of your own, "
        "as in loss.criterion=my_module:my_function; null: cross-entropy alone",
    )
    options: dict[str, Any] = setting({}, "arguments of the criterion, such as {sigma: 1.0}")
    weight: float = setting(0.3, "λ, by which the criterion is multiplied", least=0)
    mode: Mode = setting(Mode.add, "replace: the criterion replaces cross-entropy at number tokens")
    normalize_by: NormalizeBy | None = setting(
        None,
        "what the criterion is divided by: number tokens, as in the paper, or items, which are all labels, "
        "as cross-entropy is; null: numbers, and items with mode=replace",
    )
    label_smoothing: float = setting(
        0.0, "of cross-entropy; training_args.label_smoothing_factor sets it, too"
    )

    @property
    def title(self) -> str:
        """The criterion's name in tables, such as `NTL-WAS`; empty without a criterion."""
        return "" if self.criterion is None else TITLES.get(self.criterion, self.criterion)


def choose_loss(loss: LossSettings, model: ModelArgs) -> LossSettings:
    """Return the loss to minimize.

    It is that of the group `loss` or, if this is `from_model_args`, of the published keys of `model_args`.
    Its `normalize_by` is not None.

    Raises:
        UserError: both are given, or some keys contradict each other.
    """
    if loss.criterion == OF_MODEL:
        for each in ("options", "weight", "mode"):
            if getattr(loss, each) != getattr(LossSettings(), each):
                raise UserError(
                    f"loss.{each}={getattr(loss, each)} is given, but model_args sets the loss, which has "
                    f"keys such as model_args.number_token_loss_weight. Pass loss=NAME, or omit loss.{each}."
                )
        smoothing = loss.label_smoothing
        loss = replace(_published(model), normalize_by=loss.normalize_by, label_smoothing=smoothing)
    elif key := next(filter(vars(model).get, ("number_token_loss", "gaussian_label_smoother")), None):
        raise UserError(
            f"the group loss is given together with model_args.{key}=true, which also sets the loss. "
            f"Pass model_args={model.name.removesuffix('_ntl')}, or omit loss."
        )
    elif loss.criterion is None and loss.mode == "replace":
        raise UserError(
            "loss.mode=replace is given without a criterion that could replace cross-entropy. Pass "
            "loss.criterion=NAME or a loss such as loss=hl_gauss, or omit loss.mode."
        )
    if loss.mode == "add":
        return replace(loss, normalize_by=loss.normalize_by or NormalizeBy.numbers)
    if loss.normalize_by == "numbers":
        raise UserError(
            f"loss.normalize_by=numbers is given together with {loss.criterion}, which replaces a part of "
            "cross-entropy and is divided by all labels as the rest of it is. Pass loss.normalize_by=null, "
            "or loss.mode=add."
        )
    return replace(loss, normalize_by=NormalizeBy.items)


def _published(model: ModelArgs) -> LossSettings:
    weight = model.number_token_loss_weight
    if not model.gaussian_label_smoother:
        if not model.number_token_loss:
            return LossSettings()
        if model.number_token_loss_with_wasserstein:
            return LossSettings("ntl_was", weight=weight)
        return LossSettings(OF_FUNCTION[model.number_token_loss_function], weight=weight)
    sigma = {"sigma": model.label_smoother_sigma}
    if not model.number_token_loss:
        return LossSettings("gaussian_smoothing", sigma, weight=1.0, mode=Mode.replace)
    if not model.number_token_loss_with_wasserstein:
        raise UserError(
            "model_args.gaussian_label_smoother=true is given together with NTL-MSE; expected it alone or "
            "with model_args.number_token_loss_with_wasserstein=true."
        )
    return LossSettings(SMOOTHED, {**sigma, "weight": weight}, weight=1.0, mode=Mode.replace)


def library_options(loss: LossSettings, model: ModelArgs) -> dict[str, Any]:
    """Return the arguments of `make_number_aware` for a loss.

    Args:
        loss: The settings, whose sigma is a number or a pair of numbers.
        model: The settings of the model, which say how numbers are written.

    Raises:
        UserError: An option of the loss is invalid.
    """
    from ntloss.criteria import make_criterion

    if loss.criterion is None:
        return {"criterion": None, "label_smoothing": loss.label_smoothing}
    options = dict(loss.options)
    if loss.criterion == "hl_gauss":
        options.setdefault("leading_zeros", model.number_format == "padded")
    if is_own(loss.criterion):
        load_own("loss.criterion", loss.criterion)
    try:
        criterion = make_criterion({"name": loss.criterion, **options})
    except (ValueError, TypeError) as error:
        raise UserError(f"the loss settings are invalid: {error}") from error
    is_ours = ":" not in loss.criterion and loss.criterion != "hl_gauss"
    if model.encoding in ("auto", "own") and is_ours and loss.mode == "add":
        criterion = in_any_unit(criterion)
    return {
        "criterion": criterion,
        "weight": loss.weight,
        "mode": str(loss.mode),
        "normalize_by": str(loss.normalize_by),
        "label_smoothing": loss.label_smoothing,
    }


def choose_widths(answers: Sequence[str]) -> tuple[float, float]:
    """Return the first and the last sigma of HL-Gauss for training answers, as the model writes them.

    Raises:
        UserError: They are not numbers, or do not differ.
    """
    from ntloss import HLGauss
    from ntloss.numbers import parse_number

    numbers: list[Any] = [parse_number(answer.strip(), "whole") for answer in answers]
    try:
        if None in numbers:
            raise ValueError(f"{answers[numbers.index(None)]!r} is not a number")
        schedule = HLGauss.for_answers(numbers).schedule
    except ValueError as error:
        reason = f"loss.options={{sigma: auto}} does not fit the training answers: {error}"
        raise UserError(f"{reason.rstrip('.')}. Pass for example loss.options={{sigma: 1.0}}.") from None
    assert schedule is not None  # `for_answers` makes one
    return schedule


def in_any_unit(criterion: Criterion) -> Criterion:
    """Allow a criterion on tokens of several digits, whose loss is in units of up to thousands.

    The library refuses NTL-WAS and NTL-MSE there, because they outweigh cross-entropy; the paper's ablation
    with T5's own tokens uses them. It does not know the function that is returned, which reads the same.
    """

    def allowed(**read: Any) -> Any:
        return criterion(**read)

    function = criterion.func if isinstance(criterion, functools.partial) else criterion
    allowed.__name__ = getattr(function, "__name__", repr(function))
    allowed.__signature__ = inspect.signature(criterion)  # type: ignore[attr-defined]
    return allowed


def gaussian_and_wasserstein(
    probs: Tensor,
    vocab_log_probs: Tensor,
    values: Tensor,
    target: Tensor,
    form_log_probs: Tensor | None = None,
    sigma: float = 1.0,
    weight: float = 0.3,
) -> Tensor:
    """Gaussian label smoothing plus `weight` times the smoothed Wasserstein loss, with one sigma."""
    from ntloss import gaussian_smoothing, smoothed_wasserstein

    smoothing = gaussian_smoothing(
        vocab_log_probs, values, target, form_log_probs=form_log_probs, sigma=sigma
    )
    return smoothing + weight * smoothed_wasserstein(probs, values, target, sigma=sigma)
