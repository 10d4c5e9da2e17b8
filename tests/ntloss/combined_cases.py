"""Batches for the losses, the paths that compute them, and the oracle's results."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import oracle
import torch
from oracle import Combined, Term
from tolerances import (
    DIFFERENCE_IN_GRADIENT,
    GRADIENT_TOLERANCE,
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    VALUE_TOLERANCE,
    assert_close,
)
from torch import Tensor

from ntloss import (
    CRPS,
    SMMD,
    DigitEntropy,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    HLGauss,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberLevel,
    NumberTokenLoss,
    NumberVocabulary,
    Reweighed,
    Wasserstein,
    ntil,
)
from ntloss.criteria import (
    Magnitude,
    PerNumber,
    PlaceWeighted,
    RelativeError,
    SmoothedWasserstein,
    needs_of,
    worst_of,
)

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
TEXTS = [i for i in range(VOCAB) if i not in VALUES]
REWEIGHED = Reweighed(Wasserstein())
# The paths of the combined losses. "inplace" and "logits" start from logits, the others from hidden states.
LINEAR_PATHS = ("linear", "linear, all positions")
PATHS = ("logits", "inplace", *LINEAR_PATHS)
# The paths of the number term alone.
ALONE_PATHS = ("alone", "alone from hidden")
HIDDEN_PATHS = (*LINEAR_PATHS, "alone from hidden")


@dataclass(frozen=True)
class SquaredDistance:
    """A user's criterion: the expected squared error of a number drawn from the model."""

    def __call__(self, x):
        return (x.probs * (x.values - x.target_values.unsqueeze(-1)).square()).sum(-1)

    def worst(self, values):
        return float((values[-1] - values[0]) ** 2)


def pinball(prediction, target):
    return torch.maximum(0.9 * (target - prediction), 0.1 * (prediction - target))


def of(formula, **options):
    return Term(formula, decimals=options.pop("decimals", False), options=tuple(options.items()))


# name -> (criterion, the oracle's term)
CRITERIA: dict[str, tuple[Any, Term]] = {
    "wasserstein": (Wasserstein(), of(oracle.wasserstein)),
    "squashed": (Wasserstein(3.0), of(oracle.wasserstein, squash=3.0)),
    "crps": (CRPS(), of(oracle.crps)),
    "squared": (ExpectedValue(), of(oracle.expected_value)),
    "absolute": (ExpectedValue("absolute"), of(oracle.expected_value, loss="absolute")),
    "huber": (ExpectedValue("huber"), of(oracle.expected_value, loss="huber")),
    "pinball": (ExpectedValue(pinball), of(oracle.expected_value, loss="pinball")),
    "raft": (ExpectedValue(over="vocabulary"), of(oracle.raft)),
    "raft absolute": (ExpectedValue("absolute", over="vocabulary"), of(oracle.raft, loss="absolute")),
    "user's own": (SquaredDistance(), of(oracle.squared_distance)),
    "gaussian": (GaussianCrossEntropy(), of(oracle.gaussian_cross_entropy)),
    "gaussian 2.5": (GaussianCrossEntropy(2.5), of(oracle.gaussian_cross_entropy, sigma=2.5)),
    "gaussian 0.05": (GaussianCrossEntropy(0.05), of(oracle.gaussian_cross_entropy, sigma=0.05)),
    "hl_gauss": (HLGauss(1.5), of(oracle.hl_gauss, sigma=1.5, decimals=True)),
    "hl_gauss narrow": (HLGauss(0.05, decimals=False), of(oracle.hl_gauss, sigma=0.05)),
    "hl_gauss relative": (
        HLGauss(0.2, relative=0.3, leading_zeros=True),
        of(oracle.hl_gauss, sigma=0.2, relative=0.3, leading_zeros=True, decimals=True),
    ),
    "smoothed": (SmoothedWasserstein(), of(oracle.smoothed_wasserstein)),
    "smoothed 0.6": (SmoothedWasserstein(0.6), of(oracle.smoothed_wasserstein, sigma=0.6)),
    "dist2": (Dist2(), of(oracle.dist2)),
    "dist2 0.001": (Dist2(1e-3), of(oracle.dist2, tau=1e-3)),
    "dist2 absolute": (Dist2(0.5, "absolute"), of(oracle.dist2, tau=0.5, distance="absolute")),
    "dist2 places": (
        PlaceWeighted(Dist2(), "linear"),
        of(oracle.place_weighted, of=oracle.dist2, weighting="linear"),
    ),
    "entropy": (DigitEntropy(), of(oracle.digit_entropy)),
    "entropy places": (
        PlaceWeighted(DigitEntropy(), "decimal"),
        of(oracle.place_weighted, of=oracle.digit_entropy, weighting="decimal", decimals=True),
    ),
    "smmd": (SMMD(), of(oracle.smmd)),
    "smmd squashed": (SMMD(1.0, squash_factor=4.0), of(oracle.smmd, sigma=1.0, squash=4.0)),
    "smmd unsquashed": (SMMD(squash_factor=None), of(oracle.smmd, squash=None)),
    "places": (PlaceWeighted(Wasserstein()), of(oracle.place_weighted)),
    "places, decimals": (
        PlaceWeighted(Wasserstein(), place_base=1.5, decimals=True),
        of(oracle.place_weighted, base=1.5, decimals=True),
    ),
    "places linear": (PlaceWeighted(Wasserstein(), "linear"), of(oracle.place_weighted, weighting="linear")),
    "places decimal": (
        PlaceWeighted(Wasserstein(), "decimal"),
        of(oracle.place_weighted, weighting="decimal", decimals=True),
    ),
    "per number": (PerNumber(Wasserstein()), of(oracle.per_number)),
    "per number decimals": (PerNumber(Wasserstein(), decimals=True), of(oracle.per_number, decimals=True)),
    "number_level": (NumberLevel(), of(oracle.number_level)),
    "number_level decimals": (NumberLevel(decimals=True), of(oracle.number_level, decimals=True)),
    "relative": (RelativeError(), of(oracle.relative_error)),
    "relative soft": (
        RelativeError(0.4, hard=False, decimals=True),
        of(oracle.relative_error, temperature=0.4, hard=False, decimals=True),
    ),
    "magnitude": (Magnitude(decimals=True), of(oracle.magnitude, decimals=True)),
    "magnitude soft": (Magnitude(0.3, hard=False), of(oracle.magnitude, temperature=0.3, hard=False)),
    "ntil": (ntil(), of(oracle.ntil)),
    "ntil soft": (ntil(hard=False, decimals=True), of(oracle.ntil, hard=False, decimals=True)),
}
# The criteria that do not need to know which tokens form a number.
OF_TOKENS = [name for name, (criterion, _) in CRITERIA.items() if not needs_of(criterion).spans]
BOUNDED = [name for name, (c, _) in CRITERIA.items() if worst_of(c, NUMBERS.value_tensor()) is not None]


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
    criterion: str = "wasserstein"
    reweigh: bool = True
    options: Combined = Combined()  # noqa: RUF009  # frozen
    upstream: Any = 1.5
    vocabulary: NumberVocabulary = NUMBERS

    @property
    def reweighed(self):
        """Whether the loss is reweighed, which needs a criterion with a worst cost."""
        return self.reweigh and self.criterion in BOUNDED

    def made(self):
        criterion = CRITERIA[self.criterion][0]
        return Reweighed(criterion) if self.reweighed else criterion

    def arguments(self):
        return {
            "criterion": self.made(),
            "weight": self.options.weight,
            "mode": self.options.mode,
            "ignore_index": self.options.ignore_index,
            "label_smoothing": self.options.label_smoothing,
            "z_loss": self.options.z_loss,
            "reduction": self.options.reduction,
            "normalize_by": self.options.normalize_by,
        }

    def logits(self, dtype=torch.float64):
        logits = self.hidden @ self.weight.T
        return (logits if self.bias is None else logits + self.bias).to(dtype)

    def expected(self, logits=None, path="logits"):
        logits = self.logits() if logits is None else logits
        term = replace(CRITERIA[self.criterion][1], reweigh=self.reweighed)
        options = replace(self.options, number=term)
        if needs_of(CRITERIA[self.criterion][0]).spans:
            texts = {token.token_id: token.text for token in self.vocabulary.tokens}
            options = replace(options, texts=texts | dict.fromkeys(self.vocabulary.point_ids, "."))
        if path in ALONE_PATHS:
            alone = {"cross_entropy": 0.0, "weight": 1.0, "mode": "add", "z_loss": 0.0}
            alone["normalize_by"] = "numbers"
            options = replace(options, **alone)
        if path == "alone":
            options = replace(options, softcap=None, logit_scale=1.0)
        counted = self.num_items is not None and path not in ALONE_PATHS
        return oracle.combined(
            logits.detach().double().numpy(),
            self.labels.numpy(),
            values_of(self.vocabulary),
            options,
            weights=None if self.loss_weights is None else self.loss_weights.double().numpy(),
            num_items=float(self.num_items) if counted else None,
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
    ce: Tensor | None
    ntl: Tensor
    gradients: Mapping[str, Tensor | None]


def leaves_of(case, path, dtype=torch.float64):
    given = {"logits": case.logits(dtype)}
    if path in HIDDEN_PATHS:
        given = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    return {k: None if v is None else v.to(dtype, copy=True).requires_grad_() for k, v in given.items()}


def compute(case, path, leaves, **changes):
    options = case.options
    rest = {"loss_weights": case.loss_weights, "sequence_ids": case.sequence_ids}
    if path in ALONE_PATHS:
        module = NumberTokenLoss(case.vocabulary, case.made())
        rest |= {"reduction": options.reduction, "ignore_index": options.ignore_index}
        if path == "alone":
            return module(leaves["logits"], case.labels, **rest)
        hidden, weight, bias = leaves.values()
        whole = hidden @ weight.T if bias is None else torch.nn.functional.linear(hidden, weight, bias)
        transformed = oracle.transform(whole.to(torch.promote_types(whole.dtype, torch.float32)), options)
        given = {"log_normalizer": transformed.logsumexp(-1), "sparse_grad": False}
        given |= {"softcap": options.softcap, "logit_scale": options.logit_scale}
        return module.from_hidden(hidden, weight, case.labels, bias, **given, **rest)
    arguments = {**case.arguments(), "return_terms": True, **changes}
    rest |= {"num_items_in_batch": case.num_items, "number_weights": case.number_weights}
    transform = {"softcap": options.softcap, "logit_scale": options.logit_scale}
    if path in LINEAR_PATHS:
        arguments = {"drop_ignored": path == "linear", **transform, **arguments}
        linear = NTLLinearCrossEntropyLoss(case.vocabulary, **arguments)
        return linear(leaves["hidden"], leaves["weight"], case.labels, leaves["bias"], **rest)
    dense = NTLCrossEntropyLoss(case.vocabulary, inplace_backward=path == "inplace", **arguments)
    logits = leaves["logits"] * 1  # a product, so that writing in place does not overwrite the leaf
    if transform != {"softcap": None, "logit_scale": 1.0}:
        logits = oracle.transform(logits.to(torch.promote_types(logits.dtype, torch.float32)), options)
    return dense(logits, case.labels, **rest)


def run(case, path, dtype=torch.float64, **changes):
    leaves = leaves_of(case, path, dtype)
    terms = compute(case, path, leaves, **changes)
    loss, ce, ntl = (terms, None, terms) if path in ALONE_PATHS else terms
    (loss * torch.as_tensor(case.upstream)).sum().backward()
    return Result(loss, ce, ntl, {k: None if v is None else v.grad for k, v in leaves.items()})


def assert_matches(case, path, dtype=torch.float64, **changes):
    result = run(case, path, dtype, **changes)
    wanted = case.expected(case.logits(dtype), path)
    # The oracle gets logits that were rounded once; the head may round them differently.
    rounded = dtype == torch.bfloat16 and path in HIDDEN_PATHS
    value = HALF_PRECISION if rounded else VALUE_TOLERANCE[dtype]
    slope = HALF_PRECISION_GRADIENT if rounded else GRADIENT_TOLERANCE[dtype]
    if path in ALONE_PATHS and dtype == torch.float32:
        slope = DIFFERENCE_IN_GRADIENT
    for name in ("loss", "ce", "ntl"):
        if (found := getattr(result, name)) is not None:
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
