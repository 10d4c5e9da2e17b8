"""Batches for the combined losses, each way to compute them, and what the oracle says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import combined_oracle
import numpy as np
import oracle
import torch
from combined_oracle import Combined, Expected
from tolerances import (
    GRADIENT_TOLERANCE,
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    VALUE_TOLERANCE,
    assert_close,
)
from torch import Tensor

from ntloss import (
    ExpectedValue,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberVocabulary,
    Wasserstein,
)

# A prime, so a multiple of nothing. 4, ` 4` and 04 are one value; 2 tokens are further forms.
VOCAB = 23
HIDDEN = 6
NUMBERS = NumberVocabulary.from_mapping(
    {**{2 * i + 1: str(i) for i in range(10)}, 0: " 4", 22: "04", 20: "2.5"}, vocab_size=VOCAB
)


def values_of(vocabulary: NumberVocabulary) -> dict[int, float]:
    """Value of each number token."""
    return dict(zip(vocabulary.token_ids, vocabulary.values, strict=True))


VALUES = values_of(NUMBERS)
TEXTS = [i for i in range(VOCAB) if i not in VALUES]
# The paths a loss can take. "inplace" and "logits" start from logits, the others from hidden states.
LINEAR_PATHS = ("linear", "linear, all positions")
PATHS = ("logits", "inplace", *LINEAR_PATHS)


@dataclass(frozen=True)
class SquaredDistance:
    """A criterion as a user would write it: the expected squared error of a number drawn from the model."""

    def __call__(self, record: Any) -> Tensor:
        return (record.probs * (record.values - record.target_values.unsqueeze(-1)).square()).sum(-1)

    def worst(self, values: Tensor) -> float:
        return float((values[-1] - values[0]) ** 2)


def squared_distance(reweigh: bool) -> combined_oracle.PositionTerm:
    """The oracle's side of `SquaredDistance`."""

    def term(
        row: np.ndarray, label_value: float, number_values: Mapping[int, float]
    ) -> tuple[float, np.ndarray]:
        ids = np.array(list(number_values))
        cost = (np.array(list(number_values.values())) - label_value) ** 2
        full = np.exp(row - row.max())
        full /= full.sum()
        mass, joint = full[ids].sum(), full[ids]
        within = joint / mass
        gradient = np.zeros_like(row)
        if not reweigh:
            gradient[ids] = within * (cost - within @ cost)
            return float(within @ cost), gradient
        # mass * cost under p = sum of joint * cost; the rest costs 1.01 * worst.
        worst = 1.01 * max((a - b) ** 2 for a in number_values.values() for b in number_values.values())
        costs = np.full_like(row, worst)
        costs[ids] = cost
        return float(full @ costs), full * (costs - full @ costs)

    return term


# name -> (criterion, the oracle's objective by `reweigh`)
CRITERIA: dict[str, tuple[Any, Any]] = {
    "wasserstein": (Wasserstein(), lambda r: oracle.Objective("wasserstein", None, r)),
    "squashed": (Wasserstein(3.0), lambda r: oracle.Objective("wasserstein", 3.0, r)),
    "squared": (ExpectedValue(), lambda r: oracle.Objective("squared", None, r)),
    "huber": (ExpectedValue("huber"), lambda r: oracle.Objective("huber", None, r)),
    "user's own": (SquaredDistance(), squared_distance),
}


@dataclass(frozen=True)
class Case:
    """A batch and what to make of it; tensors are float64 and exact in every dtype of the tests."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    loss_weights: Tensor | None = None
    num_items: Any = None
    num_numbers: Any = None
    criterion: str = "wasserstein"
    reweigh: bool = True
    options: Combined = Combined()  # noqa: RUF009  # frozen
    upstream: Any = 1.5
    vocabulary: NumberVocabulary = NUMBERS

    def arguments(self) -> dict[str, Any]:
        """The options as the modules take them."""
        return {
            "criterion": CRITERIA[self.criterion][0],
            "reweigh": self.reweigh,
            "weight": self.options.weight,
            "mode": self.options.mode,
            "ignore_index": self.options.ignore_index,
            "label_smoothing": self.options.label_smoothing,
            "z_loss": self.options.z_loss,
            "softcap": self.options.softcap,
            "logit_scale": self.options.logit_scale,
            "reduction": self.options.reduction,
        }

    def logits(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """What the head makes of the hidden states, rounded to `dtype`."""
        logits = self.hidden @ self.weight.T
        return (logits if self.bias is None else logits + self.bias).to(dtype)

    def expected(self, logits: Tensor | None = None) -> Expected:
        """What the oracle says."""
        logits = self.logits() if logits is None else logits
        return combined_oracle.combined(
            logits.detach().double().numpy(),
            self.labels.numpy(),
            values_of(self.vocabulary),
            replace(self.options, number=CRITERIA[self.criterion][1](self.reweigh)),
            weights=None if self.loss_weights is None else self.loss_weights.double().numpy(),
            num_items=None if self.num_items is None else float(self.num_items),
            num_numbers=None if self.num_numbers is None else float(self.num_numbers),
            upstream=self.upstream,
        )


def make_case(
    *shape: int,
    seed: int = 0,
    hidden_size: int = HIDDEN,
    bias: bool = True,
    weighted: bool = False,
    gone: bool = False,
    ignore_index: int = -100,
    share_of_text: float = 0.4,
    vocabulary: NumberVocabulary = NUMBERS,
    **changes: Any,
) -> Case:
    """A batch of the given leading shape.

    Hidden states are multiples of 1/2 and the head of 1/8: products and their sums are exact in float32, so a
    bfloat16 logit is the same in whatever order it was added up.
    """
    rng = np.random.default_rng(seed)
    hidden = rng.integers(-4, 5, (*shape, hidden_size)) / 2
    weight = rng.integers(-8, 9, (VOCAB, hidden_size)) / 8
    numbers = sorted(vocabulary.token_ids)
    texts = [i for i in range(VOCAB) if i not in numbers]
    labels = np.where(rng.random(shape) < share_of_text, rng.choice(texts, shape), rng.choice(numbers, shape))
    labels = np.where(rng.random(shape) < 0.2, ignore_index, labels)
    head_bias = rng.integers(-8, 9, VOCAB) / 8
    if gone:
        # Masked tokens: two texts and a number. None of them is a label.
        masked = [texts[0], texts[3], numbers[-1]]
        labels = np.where(np.isin(labels, masked), numbers[0], labels)
        head_bias[masked] = -np.inf
    weights = rng.integers(0, 4, shape) / 2 if weighted else None
    options = {name: changes.pop(name) for name in list(changes) if name in Combined.__dataclass_fields__}
    reduction = options.get("reduction", "mean")
    return Case(
        hidden=torch.as_tensor(hidden),
        weight=torch.from_numpy(weight),
        bias=torch.from_numpy(head_bias) if bias or gone else None,
        labels=torch.as_tensor(labels),
        loss_weights=None if weights is None else torch.as_tensor(weights),
        upstream=rng.integers(1, 8, shape) / 4 if reduction == "none" else 1.5,
        options=Combined(ignore_index=ignore_index, **options),
        vocabulary=vocabulary,
        **changes,
    )


@dataclass
class Result:
    """What a path gave: the terms, and the gradients by name."""

    loss: Tensor
    ce: Tensor
    ntl: Tensor
    gradients: dict[str, Tensor | None]


def run(case: Case, path: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Result:
    """Compute the case's loss and gradients on one of PATHS."""
    arguments = {**case.arguments(), "return_terms": True, **changes}
    upstream = torch.as_tensor(case.upstream)
    rest = {
        "loss_weights": case.loss_weights,
        "num_items_in_batch": case.num_items,
        "num_numbers_in_batch": case.num_numbers,
    }
    if path in LINEAR_PATHS:
        arguments.setdefault("drop_ignored", path == "linear")
        module = NTLLinearCrossEntropyLoss(case.vocabulary, **arguments)
        given = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
        leaves = {k: None if v is None else v.to(dtype, copy=True).requires_grad_() for k, v in given.items()}
        terms = module(leaves["hidden"], leaves["weight"], case.labels, leaves["bias"], **rest)
    else:
        module = NTLCrossEntropyLoss(case.vocabulary, inplace_backward=path == "inplace", **arguments)
        leaves = {"logits": case.logits(dtype).requires_grad_()}
        # A product, so that writing in place does not write over the leaf.
        terms = module(leaves["logits"] * 1, case.labels, **rest)
    (terms.loss * upstream).sum().backward()
    return Result(*terms, {k: None if v is None else v.grad for k, v in leaves.items()})


def assert_matches(case: Case, path: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Result:
    """Compare a path with the oracle: terms and gradients."""
    result = run(case, path, dtype, **changes)
    wanted = case.expected(case.logits(dtype))
    # The oracle is told logits that were rounded once, as the head may round them in another way.
    rounded = dtype == torch.bfloat16 and path in LINEAR_PATHS
    value = HALF_PRECISION if rounded else VALUE_TOLERANCE[dtype]
    slope = HALF_PRECISION_GRADIENT if rounded else GRADIENT_TOLERANCE[dtype]
    for name in ("loss", "ce", "ntl"):
        assert_close(getattr(result, name), getattr(wanted, name), value, f"{path}: {name}")
    gradients = {"logits": wanted.gradient}
    if path in LINEAR_PATHS:
        hidden, weight, bias = combined_oracle.through_head(
            case.hidden.numpy(), case.weight.numpy(), wanted.gradient
        )
        gradients = {"hidden": hidden, "weight": weight, "bias": bias}
    for name, gradient in result.gradients.items():
        if gradient is not None:
            assert gradient.dtype == dtype
            assert_close(gradient, gradients[name], slope, f"{path}: gradient of {name}")
    return result
