"""The loss that a run minimizes, as arguments of the library, and the paper's where the library's differ."""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from statistics import NormalDist, StatisticsError
from typing import TYPE_CHECKING, Any

from ntl.errors import UserError
from ntl.own import is_own, load_own
from ntl.settings import AUTO, Config, LossSettings, Mode, ModelArgs

if TYPE_CHECKING:
    from torch import Tensor

    from ntloss import NTLCrossEntropyLoss, PreparedLabels
    from ntloss.criteria import Criterion


def add_loss(trainer: Any, config: Config) -> None:
    """Make the trainer of a language model number-aware; other models return their own loss."""
    from ntloss import NTLCrossEntropyLoss
    from ntloss.trainers import make_number_aware

    built, loss = trainer.built, config.loss
    vocabulary = getattr(built, "vocabulary", None)
    if vocabulary is None:
        built.model.label_smoothing = loss.label_smoothing
        return
    if loss.options.get("sigma") == AUTO:
        loss = replace(
            loss, options={**loss.options, "sigma": tuple(built.model.config.ntl["trained"]["sigma"])}
        )
    try:
        handle = make_number_aware(trainer, vocabulary=vocabulary, **library_options(loss, config.model_args))
    except (ValueError, TypeError) as error:
        raise UserError(f"the loss cannot be used with this model: {error}") from error
    if loss.normalize_by == "numbers":
        trainer.of_numbers = handle
    if loss.criterion is None:  # NTL-WAS is reported, to compare with runs that minimize it
        zero = replace(loss, criterion="ntl_was", options={}, weight=0.0, mode=Mode.add)
        options = library_options(zero, config.model_args)
        evaluated = NTLCrossEntropyLoss(vocabulary, **options)
        trainer.evaluated_by = handle, evaluated


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
    if (model.encoding == "auto" or is_own(model.encoding)) and is_ours and loss.mode == "add":
        criterion = in_any_unit(criterion)
    return {
        "criterion": criterion,
        "weight": loss.weight,
        "mode": str(loss.mode),
        "label_smoothing": loss.label_smoothing,
    }


def count_numbers(loss: NTLCrossEntropyLoss, record: PreparedLabels) -> Tensor:
    """Count labels, and those that have a number term, of which the paper's mean is taken: `[2]`."""
    import torch

    from ntloss.criteria import reads_of
    from ntloss.numbers import LabelNumbers

    ids = torch.tensor(loss.vocabulary.token_ids, device=record.labels.device)
    is_number = torch.isin(record.labels, ids)
    if loss.criterion is not None and record.numbers is not None:
        numbers = LabelNumbers.unpack(record.numbers)
        of_numbers = "numbers" in reads_of(loss.criterion)
        is_number &= numbers.starts > 0 if of_numbers else numbers.length > 0
    return torch.stack([(record.labels >= 0).sum(), is_number.sum()])


def choose_widths(answers: Sequence[str], given: str) -> tuple[float, float]:
    """Return the first and the last sigma of HL-Gauss for training answers.

    Args:
        answers: The answers, for targets as the model writes them.
        given: The setting that asks for it.

    Raises:
        UserError: They are not numbers, or do not differ.
    """
    from ntloss import HLGauss

    try:
        schedule = HLGauss.for_answers(answers).schedule
    except ValueError as error:
        reason = f"{given} does not fit the training answers: {error}"
        raise UserError(f"{reason.rstrip('.')}. Pass a number, such as 1.0, in place of auto.") from None
    assert schedule is not None  # `for_answers` makes one
    return schedule


class LabelNoise:
    """Draws the labels of each epoch anew: normal around the answers, within the range of them all.

    Args:
        answers: The training answers, which are numbers.
        width: Standard deviation, above 0; the first and the last one of one that falls; or "auto".
        seed: Random seed.

    Attributes:
        epoch, epochs: The epoch of training, from 0, and their number. A width that falls is that of the
            middle of the epoch.

    Raises:
        UserError: An answer is not a number, or the width cannot be used.
    """

    def __init__(self, answers: Sequence[str], width: Any, seed: int):
        try:
            numbers = [Decimal(answer) for answer in answers]
        except InvalidOperation:
            raise UserError(
                f"loss.label_noise={width} needs training answers that are numbers, such as -12.5. Omit it."
            ) from None
        try:
            found = choose_widths(answers, "loss.label_noise=auto") if width == AUTO else width
            if isinstance(found, bool):
                raise TypeError
            self.first, self.last = found if isinstance(found, list | tuple) else (found, found)
            NormalDist(0, min(self.first, self.last)).cdf(0)
        except (TypeError, ValueError, StatisticsError):
            raise UserError(
                f"loss.label_noise={width}; expected a standard deviation above 0, the first and the last "
                "one, or auto."
            ) from None
        self.smallest, self.largest, self.seed = min(numbers), max(numbers), seed
        self.epoch, self.epochs = 0, 1

    def draw(self, answer: str, row: int) -> str:
        """Draw the label of a row in this epoch, with as many decimals as its answer."""
        share = (self.epoch + 0.5) / self.epochs
        around = NormalDist(float(answer), self.first + (self.last - self.first) * share)
        drawn = random.Random(f"{self.seed} {self.epoch} {row}").uniform(
            around.cdf(float(self.smallest)), around.cdf(float(self.largest))
        )
        places = max(0, -int(Decimal(answer).as_tuple().exponent))
        # In units of the last decimal, which is rounded within the range; a zero has no sign.
        least = math.ceil(self.smallest.scaleb(places))
        most = math.floor(self.largest.scaleb(places))
        units = min(max(round(around.inv_cdf(drawn) * 10**places), least), most)
        return f"{Decimal(units).scaleb(-places):f}"


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
    sigma: float = 1.0,
    weight: float = 0.3,
) -> Tensor:
    """Gaussian label smoothing plus `weight` times the smoothed Wasserstein loss, with one sigma."""
    from ntloss import gaussian_smoothing, smoothed_wasserstein

    smoothing = gaussian_smoothing(vocab_log_probs, values, target, sigma=sigma)
    return smoothing + weight * smoothed_wasserstein(probs, values, target, sigma=sigma)
