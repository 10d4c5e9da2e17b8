"""Batches for the losses, the paths that compute them, and the oracle's results."""

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import oracle
import torch
from oracle import Combined, Term
from tolerances import (
    GRADIENT_TOLERANCE,
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    VALUE_TOLERANCE,
    assert_close,
)
from torch import Tensor

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, del_loss, ntl_was
from ntloss.criteria import make_criterion
from ntloss.criteria.signature import reads_of
from ntloss.engine.targets import OF_NUMBERS

# A prime number, so no multiple of a block size. `4`, ` 4` and `04` are forms of one value.
VOCAB = 23
HIDDEN = 6
POINT = 2
NUMBERS = NumberVocabulary.from_mapping(
    {**{2 * i + 1: str(i) for i in range(10)}, 0: " 4", 22: "04", 20: "2.5", POINT: "."}, vocab_size=VOCAB
)


def values_of(vocabulary):
    return dict(zip(vocabulary.token_ids, vocabulary.values, strict=True))


VALUES = values_of(NUMBERS)
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
TEXTS = [i for i in range(VOCAB) if i not in VALUES]
# The paths of a loss: from logits; from hidden states with the gradient in the forward pass; and with one
# that is recomputed in the backward pass.
HIDDEN_PATHS = ("hidden", "hidden, recomputed")
PATHS = ("logits", *HIDDEN_PATHS)


def squared_distance(probs, values, target):
    """A user's criterion: the expected squared error of a number drawn from the model."""
    return (probs * (values - values[target].unsqueeze(-1)).square()).sum(-1)


def weighted_by_digits_after(probs, values, target, digits_after, base=1.2, decimals=False):
    """A user's criterion that is made of another one."""
    return ntl_was(probs, values, target) * base**digits_after


def del_loss_by_place(probs, logits, target, place):
    """DEL with the weights of its paper."""
    return torch.where(place >= 0, 2 * (place + 1), 1.02 ** (place - 1)) * del_loss(probs, logits, target)


# name -> (criterion, the oracle's term)
CRITERIA: dict[str, tuple[Any, Term]] = {
    **{
        label: (make_criterion({"name": name, **options}), term)
        for label, (name, options, term) in oracle.CRITERIA.items()
    },
    "user's own": (squared_distance, Term(oracle.squared_distance)),
    "del_loss by place": (del_loss_by_place, Term(oracle.del_loss_by_place, decimals=True)),
    "by digits after": (weighted_by_digits_after, Term(oracle.weighted_by_digits_after)),
    "by digits after, decimals": (
        partial(weighted_by_digits_after, base=1.5, decimals=True),
        Term(oracle.weighted_by_digits_after, decimals=True, options=(("base", 1.5),)),
    ),
}
OF_WHOLE_NUMBERS = [name for name, (c, _) in CRITERIA.items() if "numbers" in reads_of(c)]
# The criteria that do not need to know which tokens form a number.
OF_TOKENS = [name for name, (c, _) in CRITERIA.items() if not set(OF_NUMBERS) & set(reads_of(c))]


def covering(options):
    """Draw cases of options, each a list of values, until every two values of two options are in one."""
    draw = random.Random(0)
    missing = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(options, 2)
        for x, y in itertools.product(options[a], options[b])
    }
    cases = []
    while missing:
        drawn = [{name: draw.choice(values) for name, values in options.items()} for _ in range(99)]
        cases.append(max(drawn, key=lambda case: len(missing & {*itertools.combinations(case.items(), 2)})))
        missing -= {*itertools.combinations(cases[-1].items(), 2)}
    return cases


@dataclass(frozen=True)
class Case:
    """A batch and the options of its loss; tensors are float64, and exact in every dtype of the tests."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    loss_weights: Tensor | None = None
    num_items: Any = None
    sequence_ids: Tensor | None = None
    number_weights: Tensor | None = None
    criterion: str = "ntl_was"
    options: Combined = Combined()  # noqa: RUF009  # frozen
    upstream: Any = 1.5
    vocabulary: NumberVocabulary = NUMBERS

    def arguments(self):
        return {
            "criterion": CRITERIA[self.criterion][0],
            "weight": self.options.weight,
            "mode": self.options.mode,
            "ignore_index": self.options.ignore_index,
            "label_smoothing": self.options.label_smoothing,
            "reduction": self.options.reduction,
        }

    def logits(self, dtype=torch.float64):
        logits = self.hidden @ self.weight.T
        return (logits if self.bias is None else logits + self.bias).to(dtype)

    def expected(self, logits=None):
        logits = self.logits() if logits is None else logits
        options = replace(self.options, number=CRITERIA[self.criterion][1])
        if self.criterion not in OF_TOKENS:
            texts = {token.token_id: token.text for token in self.vocabulary.tokens}
            options = replace(options, texts=texts | dict.fromkeys(self.vocabulary.point_ids, "."))
        return oracle.combined(
            logits.detach().double().numpy(),
            self.labels.numpy(),
            values_of(self.vocabulary),
            options,
            weights=None if self.loss_weights is None else self.loss_weights.double().numpy(),
            num_items=None if self.num_items is None else float(self.num_items),
            sequence_ids=None if self.sequence_ids is None else self.sequence_ids.numpy(),
            number_weights=None if self.number_weights is None else self.number_weights.double().numpy(),
            upstream=self.upstream,
        )


def make_case(
    *shape,
    seed=0,
    hidden_size=HIDDEN,
    bias=True,
    weighted=False,
    gone=False,
    ignore_index=-100,
    share_of_text=0.4,
    vocabulary=NUMBERS,
    **changes,
):
    """Make a batch of the given leading shape.

    Hidden states are multiples of 1/2 and the head of 1/8, so their products and sums are exact in float32,
    and a bfloat16 logit does not depend on the order of summation.
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
        # Mask two text tokens and a number token, none of which is a label.
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


def numbers_case(criterion, **changes):
    """Make two packed rows with numbers of several tokens, points, several forms and every kind of ending."""
    # A seed without two almost equally likely digits, between which the argmax could jump.
    case = make_case(2, 12, seed=384, criterion=criterion, **changes)
    text, one, two, three, seven = TEXTS[3], 3, 5, 7, 15
    labels = [
        [three, 5, POINT, 11, 1, text, 19, 0, seven, POINT, POINT, 20],
        [22, 17, -100, 13, POINT, two, POINT, 9, 3, one, text, 3],
    ]
    sequences = torch.tensor([[0] * 9 + [1] * 3, [0] * 9 + [1] * 3])
    return replace(case, labels=torch.tensor(labels), sequence_ids=sequences)


@dataclass
class Result:
    loss: Tensor
    ce: Tensor
    ntl: Tensor
    gradients: Mapping[str, Tensor | None]


def leaves_of(case, path, dtype=torch.float64):
    given = {"logits": case.logits(dtype)}
    if path in HIDDEN_PATHS:
        given = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    return {k: None if v is None else v.to(dtype, copy=True).requires_grad_() for k, v in given.items()}


def prepared(loss_fn, case):
    """The labels of a case, and what it has beside them."""
    beside = {"weights": case.loss_weights, "number_weights": case.number_weights}
    return loss_fn.prepare(case.labels, **beside, sequence_ids=case.sequence_ids)


def compute(case, path, leaves, chunk_size=None, **changes):
    loss_fn = NTLCrossEntropyLoss(case.vocabulary, **{**case.arguments(), **changes})
    if path == "hidden, recomputed":
        loss_fn.term.gradient_reads_mass = True  # so no gradient is known before the logits
    labels = prepared(loss_fn, case)
    transform = {"softcap": case.options.softcap, "logit_scale": case.options.logit_scale}
    if path in HIDDEN_PATHS:
        given = leaves["hidden"], labels, leaves["weight"], leaves["bias"]
        return loss_fn.terms(*given, count=case.num_items, **transform, chunk_size=chunk_size)
    logits = leaves["logits"]
    if transform != {"softcap": None, "logit_scale": 1.0}:
        logits = oracle.transform(logits.to(torch.promote_types(logits.dtype, torch.float32)), case.options)
    return loss_fn.terms(logits, labels, count=case.num_items)


def run(case, path, dtype=torch.float64, **changes):
    leaves = leaves_of(case, path, dtype)
    loss, ce, ntl = compute(case, path, leaves, **changes)
    (loss * torch.as_tensor(case.upstream)).sum().backward()
    return Result(loss, ce, ntl, {k: None if v is None else v.grad for k, v in leaves.items()})


def assert_matches(case, path, dtype=torch.float64, **changes):
    result = run(case, path, dtype, **changes)
    wanted = case.expected(case.logits(dtype))
    # The oracle gets logits that were rounded once; the head may round them differently.
    rounded = dtype == torch.bfloat16 and path in HIDDEN_PATHS
    value = HALF_PRECISION if rounded else VALUE_TOLERANCE[dtype]
    slope = HALF_PRECISION_GRADIENT if rounded else GRADIENT_TOLERANCE[dtype]
    for name in ("loss", "ce", "ntl"):
        found = getattr(result, name)
        assert found.dtype == torch.promote_types(dtype, torch.float32)
        assert_close(found, getattr(wanted, name), value, f"{path}: {name}")
    gradients = {"logits": wanted.gradient}
    if path in HIDDEN_PATHS:
        hidden, weight, bias = oracle.through_head(case.hidden.numpy(), case.weight.numpy(), wanted.gradient)
        gradients = {"hidden": hidden, "weight": weight, "bias": bias}
    assert_gradients(result.gradients, gradients, slope, path, dtype)
    return result


def assert_gradients(given, wanted, tolerance, what="", dtype=None):
    for name, gradient in given.items():
        if gradient is not None:
            assert dtype is None or gradient.dtype == dtype, what
            assert_close(gradient, wanted[name], tolerance, f"{what}: gradient of {name}")
