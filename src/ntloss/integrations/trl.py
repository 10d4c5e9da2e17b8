"""Number-aware losses in TRL's `SFTTrainer`, `make_sft_number_aware(trainer)`; rewards for its `GRPOTrainer`.

An `SFTTrainer` does not use the model's loss. It asks the model for log-probabilities of the labels, computed
without logits, and derives its loss and metrics from them. A number-aware model answers with its own loss,
also computed without logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import trl.trainer.utils
from torch import Tensor
from trl.trainer.sft_trainer import SFTTrainer

from ntloss.criteria import Criterion
from ntloss.criteria.criterion import check_positive
from ntloss.engine.linear import rows_for
from ntloss.integrations.transformers.head import HeadTensors
from ntloss.integrations.transformers.model import NumberAwareModel, install_handle
from ntloss.integrations.transformers.trainer import check_uses_model_loss, count_numbers, tokenizer_of
from ntloss.numbers.parsing import Which, as_float, parse_number
from ntloss.numbers.vocabulary import NumberVocabulary

if not hasattr(trl.trainer.utils, "FusedCausalLMOutput"):
    raise ImportError(
        f"TRL {trl.__version__} is too old: expected 1.15 or newer, which needs Python 3.11. "
        "pip install 'trl>=1.15,<2'"
    )


class _SFTModel(NumberAwareModel):
    """A number-aware model that answers an `SFTTrainer`."""

    metrics = True
    # An SFTTrainer divides by its count of labels itself, and does not pass it to the model.
    counts_to_pass = ("num_items_in_batch", "num_numbers_in_batch")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, or return what the trainer computes its loss from."""
        if not (self.active and kwargs.pop("fused_lm_head", False)):
            return super().forward(*args, **kwargs)
        kwargs = self.as_keywords(args, kwargs)
        outputs, loss = self.compute(kwargs, from_hidden=True)
        # The trainer sums these log-probabilities, changes the sign, and divides by its count.
        num_items = kwargs.get("num_items_in_batch")
        count = torch.as_tensor(self._mask.sum() if num_items is None else num_items).clamp(min=1)
        return trl.trainer.utils.FusedCausalLMOutput(
            loss=outputs["loss"],
            log_probs=-loss * count.to(loss.device),
            entropy=self._entropy,
            is_top1=self._is_top1,
            label_mask=self._mask,
            aux_loss=outputs.get("aux_loss"),
        )

    def _compute_of_hidden(self, tensors: HeadTensors) -> None:
        super()._compute_of_hidden(tensors)
        assert self._aligned is not None
        self._mask = self._aligned["labels"] != self.loss.ignore_index
        if self.metrics:
            self._entropy, self._is_top1 = self._measure(tensors, self._aligned["labels"])
        else:
            self._entropy = self._is_top1 = torch.full((), torch.nan)

    @torch.no_grad()
    def _measure(self, tensors: HeadTensors, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Sum the entropies, and count the labels that are the most likely token."""
        kept = labels.reshape(-1).to(tensors.hidden_states.device) != self.loss.ignore_index
        hidden = tensors.hidden_states.reshape(-1, tensors.hidden_states.shape[-1])[kept]
        labels = labels.reshape(-1).to(hidden.device)[kept]
        rows = rows_for(len(hidden), len(tensors.lm_head_weight), hidden.device)
        entropy = torch.zeros((), device=hidden.device)
        is_top1 = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), rows):
            logits = F.linear(hidden[start : start + rows], tensors.lm_head_weight, tensors.bias).float()
            log_probs = self.loss.transform.apply(logits).log_softmax(-1)
            entropy -= torch.where(log_probs > -torch.inf, log_probs.exp() * log_probs, 0).sum()
            is_top1 += (log_probs.argmax(-1) == labels[start : start + rows]).sum()
        return entropy, is_top1


def make_sft_number_aware(
    trainer: Any,
    numbers: NumberVocabulary | Any | None = None,
    criterion: Criterion | None = None,
    weight: float | Tensor | None = None,
    reweigh: bool = False,
    *,
    metrics: bool = True,
    **options: Any,
) -> NumberAwareModel:
    """Give an `SFTTrainer` a number-aware loss, computed without logits as its own is.

    Completion-only masks, packing, adapters (TRL refuses LoRA around the head), gradient accumulation and
    several ranks work as before, and the trainer keeps its metrics.

    Args:
        trainer: an `SFTTrainer` with the default `loss_type`, before `train()`.
        numbers: the tokenizer or `NumberVocabulary`. Default: `trainer.processing_class`.
        criterion, weight, reweigh: see `NTLCrossEntropyLoss`.
        metrics: also compute the entropy and token accuracy that the trainer logs, at the cost of one more
            matrix product with the head. Default: True; with False they are logged as NaN.
        options: passed to `ntloss.integrations.transformers.make_number_aware`.

    Returns:
        The handle: its `loss`, and `undo`, which restores the trainer's own loss.

    Raises:
        TypeError: not an `SFTTrainer`; an unknown option, such as `chunked`, which is always on.
        ValueError: another `loss_type`, or an option that replaces the loss; the tokenizer is another
            model's.
    """
    if not isinstance(trainer, SFTTrainer):
        raise TypeError(
            f"expected an SFTTrainer, given {type(trainer).__name__}. For a Trainer of transformers: "
            "ntloss.integrations.transformers.make_trainer_number_aware(trainer)."
        )
    loss_type = vars(trainer.args)["loss_type"]
    if loss_type not in ("nll", "chunked_nll"):  # two names of one loss
        raise ValueError(f"loss_type={loss_type!r} weights cross-entropy in its own way: expected 'nll'")
    check_uses_model_loss(trainer)
    tokenizer, number_term = tokenizer_of(trainer, numbers), (criterion, weight, reweigh)
    handle = install_handle(_SFTModel, trainer.model, tokenizer, number_term, True, None, options)
    handle.metrics = metrics
    count_numbers(trainer)
    return handle


def number_reward(
    column: str = "answer",
    *,
    error: str = "log",
    scale: float = 1.0,
    which: Which = "last",
    invalid: float = -1.0,
) -> Callable[..., list[float | None]]:
    r"""Make a reward function for a `GRPOTrainer`: how close the number of a completion is to the true one.

    The reward is $\exp(-e / scale)$, from 1 for the true number down to 0.

    Args:
        column: the dataset's column with the true numbers, as numbers or as texts.
        error: $e$ for the completion's number $\hat x$ and the true one $x$. "log" (default):
            $|s(\hat x) - s(x)|$ with $s(x) = \mathrm{sign}(x) \log_{10}(|x| + 1)$; "absolute":
            $|\hat x - x|$; "relative": $2 |\hat x - x| / (|\hat x| + |x|)$, from 0 to 2.
        scale: error at which the reward is $\exp(-1) \approx 0.37$, above 0. Default: 1, with "log" a factor
            of ten.
        which: which number of a completion counts; see `ntloss.numbers.parse_number`. It also applies to true
            texts that are not a single number. Default: "last".
        invalid: reward of a completion without a number. Default: -1. A number that is too large for float64
            is a number, with reward 0.

    Returns:
        A function with the signature that `GRPOTrainer(reward_funcs=...)` expects. It takes completions as
        texts or as messages, of which the last one counts, and returns one reward for each; None for a row
        whose column holds no finite number, which the trainer leaves out.

    Raises:
        TypeError: when called, a true number that is neither a number nor a text nor None.
        ValueError: an unknown `error` or `which`, a `scale` that is not above 0, or an `invalid` that is not
            finite; when called, a dataset without the column.

    Example:
        >>> from ntloss.integrations.trl import number_reward
        >>> reward = number_reward("answer", error="absolute", scale=10.0)
        >>> reward(completions=["It is 42.", "No idea.", "7"], answer=["42", 42, None])
        [1.0, -1.0, None]
    """
    if error not in _ERRORS:
        raise ValueError(f"error={error!r}: expected one of {', '.join(map(repr, _ERRORS))}")
    check_positive("scale", scale)
    if not math.isfinite(invalid):
        raise ValueError(f"invalid={invalid!r}: expected a finite reward")
    if not callable(which):
        parse_number("", which)  # raises for an unknown name

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        if column not in columns:
            raise ValueError(
                f"the dataset has no column {column!r} with the true numbers, only "
                f"{', '.join(sorted(columns))}: pass number_reward(column=...), and leave "
                "remove_unused_columns=False"
            )
        pairs = zip(completions, columns[column], strict=True)
        return [_reward(_text_of(completion), _true_number(given, which)) for completion, given in pairs]

    def _reward(text: str, true: float | None) -> float | None:
        predicted = as_float(parse_number(text, which))
        if true is None:
            return None
        if math.isnan(predicted):
            return invalid
        return math.exp(-_ERRORS[error](predicted, true) / scale) if math.isfinite(predicted) else 0.0

    reward.__name__ = "number_reward"  # in the trainer's logs
    return reward


def _log_scaled(x: float) -> float:
    return math.copysign(math.log10(abs(x) + 1), x)


def _relative_error(x: float, true: float) -> float:
    largest = max(abs(x), abs(true))
    if largest == 0:
        return 0.0
    x, true = x / largest, true / largest  # so that sums of large numbers do not overflow
    return 2 * abs(x - true) / (abs(x) + abs(true))


# Of the completion's number and the true one, both finite.
_ERRORS: dict[str, Callable[[float, float], float]] = {
    "log": lambda x, true: abs(_log_scaled(x) - _log_scaled(true)),
    "absolute": lambda x, true: abs(x - true),
    "relative": _relative_error,
}


def _true_number(given: Any, which: Which) -> float | None:
    """Return the number of a dataset's row, None without a finite one; a TypeError for other values."""
    if isinstance(given, str):
        whole = parse_number(given, "whole")
        given = parse_number(given, which) if whole is None else whole
    try:
        true = as_float(given)
    except (TypeError, ValueError) as unreadable:
        raise TypeError(f"a true number is {given!r}: expected a number, a text or None") from unreadable
    return true if math.isfinite(true) else None


def _text_of(completion: Any) -> str:
    """The text of a completion; of a conversation, that of its last message."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or "" for part in content or ())  # images have none
