"""The criteria of the field against an oracle from their definitions, and what is claimed of each."""

import functools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tolerances import CANCELLATION, TWO_PATHS, approx, assert_close

sys.path.insert(0, str(Path(__file__).parent))
import oracle_criteria as oracle

from ntloss import (
    SMMD,
    CriterionInput,
    DigitEntropy,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    Magnitude,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberLevel,
    NumberTokenLoss,
    NumberVocabulary,
    PerNumber,
    PlaceWeighted,
    RelativeError,
    SmoothedWasserstein,
    Wasserstein,
    WeightedSum,
    criterion_names,
    get_criterion,
    ntil,
    register_criterion,
)
from ntloss.criteria import bind, needs_of, reweigh_by_mass

# The digits, further forms of two of them, the point, and text.
TEXTS = [*"0123456789", ".", " 4", " 7", None, None]
VOCABULARY = NumberVocabulary.from_mapping({i: t for i, t in enumerate(TEXTS) if t}, vocab_size=len(TEXTS))
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)

# name: criterion, the oracle's function, its options, decimals
CASES = {
    "wasserstein": (Wasserstein(), oracle.wasserstein, {}, False),
    "gaussian_cross_entropy": (GaussianCrossEntropy(), oracle.gaussian_cross_entropy, {}, False),
    "gaussian_cross_entropy 2.5": (
        GaussianCrossEntropy(2.5),
        oracle.gaussian_cross_entropy,
        {"sigma": 2.5},
        False,
    ),
    "smoothed_wasserstein": (SmoothedWasserstein(), oracle.smoothed_wasserstein, {}, False),
    "smoothed_wasserstein 0.6": (
        SmoothedWasserstein(0.6),
        oracle.smoothed_wasserstein,
        {"sigma": 0.6},
        False,
    ),
    "dist2": (Dist2(), oracle.dist2, {}, False),
    "dist2 absolute": (Dist2(0.5, "absolute"), oracle.dist2, {"tau": 0.5, "distance": "absolute"}, False),
    "dist2 places": (PlaceWeighted(Dist2(), "linear"), oracle.dist2, {"place_weighted": True}, False),
    "digit_entropy": (DigitEntropy(), oracle.digit_entropy, {}, False),
    "digit_entropy places": (
        PlaceWeighted(DigitEntropy(), "decimal"),
        oracle.digit_entropy,
        {"place_weighted": True},
        True,
    ),
    "smmd": (SMMD(), oracle.smmd, {}, False),
    "smmd mmd": (SMMD(form="mmd"), oracle.smmd, {"form": "mmd"}, False),
    "smmd smoothness": (SMMD(form="smoothness"), oracle.smmd, {"form": "smoothness"}, False),
    "smmd laplace": (
        SMMD((1.0, 3.0), "laplace", alpha=0.2, squash_factor=4.0),
        oracle.smmd,
        {"sigma": (1.0, 3.0), "kernel": "laplace", "alpha": 0.2, "factor": 4.0},
        False,
    ),
    "smmd unsquashed": (SMMD(squash_factor=None), oracle.smmd, {"factor": None}, False),
    "place_weighted": (PlaceWeighted(Wasserstein()), oracle.place_weighted, {}, False),
    "place_weighted linear": (
        PlaceWeighted(Wasserstein(), "linear"),
        oracle.place_weighted,
        {"weighting": "linear"},
        False,
    ),
    "place_weighted decimal": (
        PlaceWeighted(Wasserstein(), "decimal"),
        oracle.place_weighted,
        {"weighting": "decimal"},
        True,
    ),
    "number_level": (NumberLevel(), oracle.number_level, {}, False),
    "number_level decimals": (NumberLevel(decimals=True), oracle.number_level, {}, True),
    "relative_error": (RelativeError(), oracle.relative_error, {}, False),
    "relative_error soft": (
        RelativeError(0.4, hard=False, decimals=True),
        oracle.relative_error,
        {"temperature": 0.4, "hard": False},
        True,
    ),
    "magnitude": (Magnitude(decimals=True), oracle.magnitude, {}, True),
    "magnitude soft": (
        Magnitude(0.3, hard=False),
        oracle.magnitude,
        {"temperature": 0.3, "hard": False},
        False,
    ),
    "ntil": (ntil(), oracle.ntil, {}, False),
    "ntil soft": (ntil(hard=False), oracle.ntil, {"hard": False}, False),
}
SOFT = [name for name, (criterion, *_) in CASES.items() if "hard=True" not in repr(criterion)]
BOUNDED = [name for name, (c, *_) in CASES.items() if c.worst(VOCABULARY.value_tensor()) is not None]
LOGARITHMS = ("gaussian", "dist2")

LABELS = torch.tensor(
    [
        [1, 2, 10, 5, 0, 13, 9, 11, 3, 14, 10, 7],
        [12, 8, -100, 6, 10, 10, 4, 14, 0, 0, 0, 1],
    ]
)


def batch(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*LABELS.shape, len(TEXTS), generator=generator, dtype=dtype) * 2


def module(name, vocabulary=VOCABULARY, reweigh=False):
    return NumberTokenLoss(vocabulary, CASES[name][0], reweigh=reweigh)


def record(probs, values, target):
    """A record of one position."""
    log_probs = torch.as_tensor(probs, dtype=torch.float64).log().clamp(min=-1e30).reshape(1, -1)
    return CriterionInput(
        log_probs,
        torch.as_tensor(values, dtype=torch.float64),
        torch.tensor([target]),
        log_mass=torch.zeros(1, dtype=torch.float64),
        number_logsumexp=torch.zeros(1, dtype=torch.float64),
    )


# --- numbers --------------------------------------------------------------------------------------

WITH_DECIMALS = {
    "digit_entropy": PlaceWeighted(DigitEntropy(), "decimal"),
    "place_weighted decimal": PlaceWeighted(Wasserstein(), "decimal"),
    "place_weighted exponential": PlaceWeighted(Wasserstein(), decimals=True),
    "number_level": NumberLevel(decimals=True),
    "relative_error": RelativeError(decimals=True),
    "magnitude": Magnitude(decimals=True),
    "per_number": PerNumber(Wasserstein(), decimals=True),
    "ntil": ntil(decimals=True),
}


@pytest.mark.parametrize("name", WITH_DECIMALS)
def test_a_number_ends_before_its_second_point(name):
    """12.3.4 is 12.3 and 4: the second point counts as text does."""
    point, text = TEXTS.index("."), TEXTS.index(None)
    labels = torch.tensor([[1, 2, point, 3, point, 4]])
    logits = batch()[:1, :6]
    loss = NumberTokenLoss(VOCABULARY, WITH_DECIMALS[name], reweigh=False)
    given = loss(logits, labels, reduction="none")
    as_text = torch.tensor([[1, 2, point, 3, text, 4]])
    assert_close(given, loss(logits, as_text, reduction="none"))
    assert given[0, 5] > 0
    assert_close(given[0, 5], loss(logits[:, 5:], labels[:, 5:], reduction="none")[0, 0])
    joined = torch.tensor([[1, 2, point, 3, 4]])
    assert not torch.isclose(given.sum(), loss(logits[:, [0, 1, 2, 3, 5]], joined, reduction="sum"))


# --- against the oracle ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_value_is_that_of_the_definition(name, dtype):
    _, function, options, decimals = CASES[name]
    logits = batch(dtype=dtype)
    loss = module(name)(logits, LABELS, reduction="none")
    expected = oracle.Oracle(TEXTS, decimals).losses(
        function, logits.double().numpy(), LABELS.numpy(), **options
    )
    assert (expected != 0).sum() >= 5
    assert_close(loss, expected)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_definition(name):
    """By central differences of the oracle in random directions; straight-through: of its surrogate."""
    _, function, options, decimals = CASES[name]
    logits = batch(1).requires_grad_()
    module(name)(logits, LABELS, reduction="sum").backward()
    reference = oracle.Oracle(TEXTS, decimals)
    here = logits.detach().numpy()
    if "hard=True" in repr(CASES[name][0]):
        options = {**options, "around": here}
    generator = np.random.default_rng(0)
    step = 1e-6
    for _ in range(3):
        direction = generator.standard_normal(here.shape)
        ends = [
            reference.losses(function, here + sign * step * direction, LABELS.numpy(), **options).sum()
            for sign in (1, -1)
        ]
        expected = (ends[0] - ends[1]) / (2 * step)
        given = float((logits.grad.numpy() * direction).sum())
        assert given == approx(expected)


@pytest.mark.parametrize("name", SOFT)
def test_gradcheck(name):
    logits, labels = batch(2)[:, :5].clone().requires_grad_(), LABELS[:, :5]
    loss = module(name, reweigh=None)
    # A second backward pass starts from the logits instead of their softmax, and rounds differently.
    assert torch.autograd.gradcheck(
        lambda z: loss(z, labels, reduction="none"), logits, nondet_tol=TWO_PATHS[torch.float64]
    )


@pytest.mark.parametrize("name", ["relative_error", "magnitude", "ntil"])
def test_straight_through_reads_the_argmax_and_has_gradients(name):
    logits = batch(3).requires_grad_()
    module(name)(logits, LABELS).backward()
    assert logits.grad.abs().sum() > 0
    certain = torch.full((1, 3, len(TEXTS)), -1e4).double()
    certain[0, range(3), [1, 2, 3]] = 0.0
    close = torch.zeros_like(certain)
    close[0, range(3), [1, 2, 3]] = 1.0
    labels = torch.tensor([[1, 2, 4]])
    if name != "ntil":  # whose token term sees how sure the digits are
        assert_close(module(name)(certain, labels), module(name)(close, labels))


# --- properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_constant_added_to_a_row_changes_nothing(name):
    logits = batch(4)
    shifted = logits + torch.randn(*LABELS.shape, 1, dtype=torch.float64)
    loss = module(name)
    difference = (loss(logits, LABELS) - loss(shifted, LABELS)).abs()
    if name.startswith("digit_entropy"):
        assert difference > 1e-6  # the one criterion that sees the logits' level
    else:
        assert difference < CANCELLATION


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_the_gradient_sums_to_zero(name):
    logits = batch(5).requires_grad_()
    module(name, reweigh=None)(logits, LABELS, reduction="sum").backward()
    sums = logits.grad.sum(-1).abs().max()
    if name.startswith("digit_entropy"):
        assert sums > 1e-6
    else:
        assert sums < CANCELLATION


@pytest.mark.parametrize("name", CASES)
def test_not_negative_and_nothing_from_text(name):
    criterion = CASES[name][0]
    logits = batch(6).requires_grad_()
    loss = module(name, reweigh=None)(logits, LABELS, reduction="none")
    assert (loss >= -TWO_PATHS[torch.float64]).all()
    loss.sum().backward()
    is_text = (LABELS == -100) | (LABELS == 10) | (LABELS >= 13)
    assert loss[is_text].abs().sum() == 0
    assert logits.grad[is_text].abs().sum() == 0
    if not needs_of(criterion).across_positions:
        assert (loss[~is_text] != 0).all()


@pytest.mark.parametrize("name", CASES)
def test_probability_may_move_between_forms_of_one_value(name):
    logits = batch(7)
    moved = logits.clone()
    both = torch.logaddexp(logits[..., 4], logits[..., 11])
    moved[..., 4], moved[..., 11] = both + math.log(0.9), both + math.log(0.1)
    loss = module(name, reweigh=None)
    assert_close(loss(logits, LABELS), loss(moved, LABELS))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_logits_of_minus_infinity_give_no_nan(name, dtype):
    logits = batch(8, dtype)
    logits[0, :, 3] = -math.inf
    logits[0, :, [9, 14]] = -math.inf
    logits[1, :4, :13] = -math.inf  # no number at all
    logits[1, 4:, 1:10] = -math.inf
    logits.requires_grad_()
    loss = module(name, reweigh=None)(logits, LABELS, reduction="none")
    loss.sum().backward()
    assert not loss.isnan().any()
    assert not logits.grad.isnan().any()
    if not name.startswith((*LOGARITHMS, "digit_entropy")):
        assert loss.isfinite().all()
        assert loss.max() < 1000


@pytest.mark.parametrize("name", BOUNDED)
def test_worst_is_the_largest_loss_of_one_value_for_another(name):
    criterion = CASES[name][0]
    certain = torch.full((10, 10), -1e4, dtype=torch.float64)
    certain[range(10), range(10)] = 0.0
    labels = torch.arange(10).repeat_interleave(10).reshape(-1, 1)  # each a number of its own
    loss = NumberTokenLoss(NumberVocabulary.from_mapping({d: d for d in range(10)}, 10), criterion, False)
    losses = loss(certain.repeat(10, 1).unsqueeze(1), labels, reduction="none")
    worst = criterion.worst(VOCABULARY.value_tensor())
    if needs_of(criterion).across_positions:  # relative errors: 1 is the bound that numbers come near to
        assert 0.89 <= losses.max() <= worst
    else:
        assert float(losses.max()) == approx(worst, CANCELLATION, dtype=torch.float64)


@pytest.mark.parametrize(
    "criterion",
    [
        Wasserstein(),
        Wasserstein(3.0),
        ExpectedValue(),
        SMMD(),
        SMMD(form="smoothness"),
        SmoothedWasserstein(),
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_worst_on_values_that_are_not_evenly_spaced(criterion, sign):
    values = sorted(sign * v for v in VALUES)
    losses = [
        float(criterion(record(one_hot(j), values, k)))
        for j in range(len(VALUES))
        for k in range(len(VALUES))
    ]
    worst = criterion.worst(torch.tensor(values, dtype=torch.float64))
    assert max(losses) == approx(worst, CANCELLATION, dtype=torch.float64)


def test_with_reweigh_text_costs_more_than_the_worst_number():
    text = torch.full((1, 2, len(TEXTS)), -1e4).double()
    text[..., 14] = 0.0
    for name in BOUNDED:
        criterion = CASES[name][0]
        loss = module(name, reweigh=None)(text, torch.tensor([[3, 4]]))
        assert float(loss) == approx(1.01 * criterion.worst(VOCABULARY.value_tensor()))


def test_criteria_without_a_worst_cost_refuse_reweigh():
    for name in set(CASES) - set(BOUNDED):
        with pytest.raises(ValueError, match="worst cost"):
            module(name, reweigh=True)


# --- where the minimum is -------------------------------------------------------------------------

VALUES = [0.0, 1.0, 2.0, 4.0, 7.0]


def one_hot(k):
    return np.eye(len(VALUES))[k]


def smoothed(k, sigma=1.0):
    return oracle.gaussian(np.array(VALUES), k, sigma)


def dist2_target(k):
    return oracle.softmax(-((np.array(VALUES) - VALUES[k]) ** 2))


# criterion: where it is smallest for a label of value VALUES[k]
MINIMA = {
    "wasserstein": (Wasserstein(), one_hot),
    "smmd": (SMMD(squash_factor=None), one_hot),
    "smmd squashed": (SMMD(), one_hot),
    "smmd mmd": (SMMD(form="mmd"), one_hot),
    "smmd smoothness": (SMMD(form="smoothness"), one_hot),
    "gaussian_cross_entropy": (GaussianCrossEntropy(), smoothed),
    "smoothed_wasserstein": (SmoothedWasserstein(), smoothed),
    "dist2": (Dist2(), dist2_target),
}


def somewhere(generator, count):
    """Distributions of all kinds: even, peaked, and near others."""
    logits = generator.standard_normal((count, len(VALUES))) * generator.choice([0.3, 2.0, 8.0], (count, 1))
    return np.array([oracle.softmax(row) for row in logits])


@pytest.mark.parametrize("name", MINIMA)
@pytest.mark.parametrize("k", range(len(VALUES)))
def test_smallest_exactly_at_its_target(name, k):
    criterion, target = MINIMA[name]
    generator = np.random.default_rng(k)
    lowest = float(criterion(record(target(k), VALUES, k)))
    if not name.startswith("gaussian"):
        assert lowest == approx(0, dtype=torch.float64, scale=1)
    for p in somewhere(generator, 60):
        for nearness in (1.0, 0.1):
            q = (1 - nearness) * target(k) + nearness * p
            if np.abs(q - target(k)).max() > 1e-3:
                assert float(criterion(record(q, VALUES, k))) > lowest


UNSURE = np.array([0.2, 0.1, 0.15, 0.25, 0.3])  # how often each value is the label: median 4, mean 3.5


def median_of_targets():
    cumulated = np.array([smoothed(k).cumsum() for k in range(len(VALUES))])
    middle = []
    for column in cumulated.T:
        order = column.argsort()
        middle.append(column[order][np.searchsorted(UNSURE[order].cumsum(), 0.5)])
    return np.diff(middle, prepend=0.0)


# criterion: the distribution with the lowest expected loss where the label is uncertain
BAYES = {
    "all on the median": (Wasserstein(), one_hot(3)),
    "anything whose mean is the mean": (
        ExpectedValue(),
        np.array([0, 0, 7 / 12, 0, 0]) + one_hot(4) * 5 / 12,
    ),
    "the labels' distribution": (SMMD(squash_factor=None), UNSURE),
    "the labels' distribution, smoothed": (
        GaussianCrossEntropy(),
        sum(UNSURE[k] * smoothed(k) for k in range(len(VALUES))),
    ),
    "the same with DIST2's targets": (
        Dist2(),
        sum(UNSURE[k] * dist2_target(k) for k in range(len(VALUES))),
    ),
    "the median of the cumulated targets": (SmoothedWasserstein(), median_of_targets()),
}


@pytest.mark.parametrize("name", BAYES)
def test_what_is_best_where_the_label_is_uncertain(name):
    criterion, best = BAYES[name]
    if name.startswith("anything"):
        # Its mean is 2 * 7/12 + 7 * 5/12 = 4.08; mend it to 3.5.
        best = np.array([0, 0, 0.7, 0, 0.3])
        assert best @ VALUES == approx(UNSURE @ VALUES)

    def expected(p):
        return sum(UNSURE[k] * float(criterion(record(p, VALUES, k))) for k in range(len(VALUES)))

    lowest = expected(best)
    for p in somewhere(np.random.default_rng(0), 100):
        for nearness in (1.0, 0.05):
            assert expected((1 - nearness) * best + nearness * p) >= lowest - TWO_PATHS[torch.float64]


def test_expected_value_and_number_level_are_zero_wherever_the_mean_is_right():
    halves = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    halves[..., 3] = halves[..., 5] = 0.0
    labels = torch.tensor([[4, 4]])
    for criterion in (ExpectedValue(), NumberLevel()):
        assert NumberTokenLoss(DIGITS, criterion, reweigh=False)(halves, labels) < TWO_PATHS[torch.float64]
    for criterion in (Wasserstein(), SMMD(), ntil()):
        assert NumberTokenLoss(DIGITS, criterion, reweigh=False)(halves, labels) > 0.1


def test_relative_error_and_magnitude_are_zero_wherever_the_most_likely_digits_are_right():
    unsure = torch.zeros(1, 2, 12, dtype=torch.float64)
    unsure[0, 0, 4], unsure[0, 1, 2] = 1.0, 0.1
    for criterion in (RelativeError(), Magnitude()):
        loss = NumberTokenLoss(DIGITS, criterion, reweigh=False)
        assert loss(unsure, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
        assert loss(unsure, torch.tensor([[4, 3]])) > 0.01


def test_ntil_is_zero_only_where_all_digits_are_certain_and_right():
    certain = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    certain[0, 0, 4] = certain[0, 1, 2] = 0.0
    loss = NumberTokenLoss(DIGITS, ntil())
    assert loss(certain, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
    assert loss(certain / 2e3, torch.tensor([[4, 2]])) > 0.01


def test_digit_entropy_tends_to_zero_at_the_label_and_at_a_low_level():
    digits = NumberTokenLoss(DIGITS, DigitEntropy())
    label = torch.tensor([4])

    def certain(digit, level, rest):
        logits = torch.full((1, 12), rest, dtype=torch.float64)
        logits[0, digit] = level
        return float(digits(logits, label))

    assert certain(4, 40.0, -40.0) < TWO_PATHS[torch.float64]
    assert certain(3, 40.0, -40.0) == approx(0.01 * 40 / 10)
    assert certain(3, -40.0, -1e4) < TWO_PATHS[torch.float64]  # the caveat in its docstring


# --- hyperparameters, registry --------------------------------------------------------------------


def test_published_defaults():
    assert get_criterion("smmd") == SMMD(2.0, "gaussian", "both", None, 9.0)
    assert get_criterion("dist2") == Dist2(1.0, "squared")
    assert get_criterion("gaussian_cross_entropy") == GaussianCrossEntropy(1.0)
    assert get_criterion("digit_entropy") == DigitEntropy()
    assert get_criterion("place_weighted", criterion="wasserstein") == PlaceWeighted(
        Wasserstein(), "exponential", 1.2
    )
    published = get_criterion("ntil")
    assert published == WeightedSum(
        (
            PerNumber(PlaceWeighted(Wasserstein(), "exponential", 1.2, False)),
            RelativeError(0.1, True, False),
            Magnitude(0.1, True, False),
        ),
        (1.0, 0.2, 0.2),
    )


def test_limits_of_the_hyperparameters():
    """Small widths and temperatures are the losses without smoothing."""
    logits = batch(9)
    plain = module("wasserstein")(logits, LABELS)
    narrow = NumberTokenLoss(VOCABULARY, SmoothedWasserstein(0.05), reweigh=False)(logits, LABELS)
    assert_close(plain, narrow)
    cold = NumberTokenLoss(VOCABULARY, Dist2(1e-3))(logits, LABELS, reduction="none")
    sharp = NumberTokenLoss(VOCABULARY, GaussianCrossEntropy(0.05))(logits, LABELS, reduction="none")
    log_probs = logits.log_softmax(-1)
    four = torch.logsumexp(log_probs[0, 7, [4, 11]], 0)
    numbers = torch.logsumexp(log_probs[0, 7, [*range(10), 11, 12]], 0)
    assert_close(cold[0, 7], numbers - four)
    assert_close(sharp[0, 7], -four)


def test_several_bandwidths_are_averaged():
    logits = batch(10)
    parts = [
        NumberTokenLoss(VOCABULARY, SMMD(s, form="mmd"), reweigh=False)(logits, LABELS) for s in (1.0, 4.0)
    ]
    both = NumberTokenLoss(VOCABULARY, get_criterion("smmd", sigma=[1.0, 4.0], form="mmd"), reweigh=False)
    assert_close(both(logits, LABELS), (parts[0] + parts[1]) / 2)


def test_a_weighted_sum_is_the_sum():
    logits = batch(11)
    one, other = module("smmd")(logits, LABELS), module("dist2")(logits, LABELS)
    both = get_criterion("weighted_sum", criteria=["smmd", {"name": "dist2", "tau": 1.0}], weights=[0.5, 2])
    assert_close(NumberTokenLoss(VOCABULARY, both)(logits, LABELS), 0.5 * one + 2 * other)
    bounded = WeightedSum([Wasserstein(), SMMD()], [2.0, 1.0])
    values = VOCABULARY.value_tensor()
    assert bounded.worst(values) == approx(18 + SMMD().worst(values))


def test_per_number_is_the_mean_over_each_numbers_tokens():
    logits = batch(12)
    tokens = module("wasserstein")(logits, LABELS, reduction="none")
    numbers = NumberTokenLoss(VOCABULARY, PerNumber(Wasserstein()), reweigh=False)(
        logits, LABELS, reduction="none"
    )
    assert_close(numbers[0, 0], tokens[0, :2].mean())
    assert_close(numbers[0, 7], tokens[0, 7:9].mean())
    assert_close(numbers[1, 8], tokens[1, 8:].mean())
    assert numbers[0, 1] == 0


def test_every_name_makes_a_criterion():
    given = {
        "place_weighted": {"criterion": "smmd"},
        "per_number": {"criterion": {"name": "dist2", "tau": 2.0}},
        "weighted_sum": {"criteria": ["wasserstein", "dist2"]},
    }
    for name in criterion_names():
        criterion = get_criterion(name, **given.get(name, {}))
        assert hash(criterion) == hash(criterion)
        loss = NumberTokenLoss(VOCABULARY, criterion)(batch(), LABELS)
        assert loss.isfinite()


def test_unknown_names_and_options_list_the_choices():
    with pytest.raises(ValueError, match=r"'wassersten'.*dist2.*wasserstein"):
        get_criterion("wassersten")
    with pytest.raises(ValueError, match=r"no option 'temperature'.*tau, distance"):
        get_criterion("dist2", temperature=2.0)
    with pytest.raises(ValueError, match="already"):
        register_criterion("dist2", Wasserstein)
    register_criterion("squashed for the test", lambda factor=3.0: Wasserstein(factor))
    assert get_criterion("squashed for the test", factor=4.0) == Wasserstein(4.0)
    assert "squashed for the test" in criterion_names()


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianCrossEntropy(0.0),
        lambda: SmoothedWasserstein(math.nan),
        lambda: Dist2(tau=-1.0),
        lambda: Dist2(distance="cosine"),
        lambda: SMMD(()),
        lambda: SMMD((1.0, 0.0)),
        lambda: SMMD(kernel="linear"),
        lambda: SMMD(form="none"),
        lambda: SMMD(squash_factor=1.0),
        lambda: RelativeError(0.0),
        lambda: Magnitude(math.inf),
        lambda: PlaceWeighted(Wasserstein(), "quadratic"),
        lambda: PlaceWeighted(Wasserstein(), place_base=0.5),
        lambda: PlaceWeighted(NumberLevel()),
        lambda: PerNumber(NumberLevel()),
        lambda: WeightedSum(()),
        lambda: WeightedSum((Wasserstein(),), (1.0, 2.0)),
        lambda: WeightedSum((Wasserstein(),), (-1.0,)),
        lambda: WeightedSum((Wasserstein(), NumberLevel())),
    ],
)
def test_options_outside_of_their_range_are_errors(make):
    with pytest.raises(ValueError, match=r"expected|Expected|Wrap|use it"):
        make()


def test_squashing_needs_distances_that_differ():
    two = NumberVocabulary.from_mapping({0: 0, 1: 5}, vocab_size=3)
    with pytest.raises(ValueError, match="squash_factor"):
        NumberTokenLoss(two, SMMD())
    NumberTokenLoss(two, SMMD(squash_factor=None))


@pytest.mark.parametrize(
    "criterion", [PlaceWeighted(Wasserstein()), NumberLevel(), PerNumber(Wasserstein()), ntil()]
)
def test_an_input_without_spans_says_what_is_missing(criterion):
    with pytest.raises(ValueError, match="spans"):
        criterion(record([0.5, 0.5, 0.0, 0.0, 0.0], VALUES, 0))


# --- tables ---------------------------------------------------------------------------------------


def test_tables_are_built_once_follow_the_module_and_keep_their_dtype(monkeypatch):
    calls = []
    make = SMMD.bind
    monkeypatch.setattr(SMMD, "bind", lambda self, *given: calls.append(1) or make(self, *given))
    loss = NumberTokenLoss(VOCABULARY, WeightedSum((SMMD(), Dist2())))
    before = len(calls)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        loss(batch(dtype=dtype), LABELS)
    assert len(calls) == before
    assert not loss.state_dict()
    for dtype in (torch.float32, torch.float64):
        smmd, dist2 = loss.half().objective._bound[dtype].keywords["criteria"]
        assert {table.dtype for table in (smmd.keywords | dist2.keywords).values()} == {dtype}
    smmd, _ = loss.to("meta").objective._bound[torch.float32].keywords["criteria"]
    assert smmd.keywords["matrix"].device.type == "meta"


def test_a_criterion_that_is_not_bound_computes_its_tables():
    made = record([0.2, 0.2, 0.2, 0.2, 0.2], VALUES, 1)
    for criterion in (SMMD(), Dist2(), SmoothedWasserstein(), GaussianCrossEntropy()):
        assert_close(criterion(made), bind(criterion, made.values, made.log_probs)(made))


def test_a_users_criterion_needs_neither_needs_nor_bind():
    class Mine:
        def __call__(self, record):
            return 1 - record.probs.gather(-1, record.target.unsqueeze(-1)).squeeze(-1)

        def worst(self, values):
            return 1.0

    hidden, head = torch.randn(2, 12, 6), torch.randn(len(TEXTS), 6)
    loss = NTLLinearCrossEntropyLoss(VOCABULARY, Mine())(hidden, head, LABELS)
    assert_close(loss, NTLCrossEntropyLoss(VOCABULARY, Mine())(hidden @ head.T, LABELS))


# --- the engine's paths ---------------------------------------------------------------------------

PATHS = [name for name in CASES if " " not in name] + ["digit_entropy places", "number_level decimals"]


@functools.cache
def hidden_and_head():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(*LABELS.shape, 7, generator=generator, dtype=torch.float64)
    return hidden, torch.randn(len(TEXTS), 7, generator=generator, dtype=torch.float64)


def grads_of(loss, *leaves):
    return [loss.detach(), *torch.autograd.grad(loss.sum(), leaves)]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("mode", ["add", "replace"])
@pytest.mark.parametrize("shift", [False, True])
def test_logits_and_linear_paths_agree(name, mode, shift):
    hidden, head = (tensor.clone().requires_grad_() for tensor in hidden_and_head())
    sequence_ids = torch.tensor([[0] * 8 + [1] * 4, [0] * 12])
    weights = torch.rand(LABELS.shape, dtype=torch.float64) + 0.5
    for reduction in ("mean", "none"):
        options = {"mode": mode, "reduction": reduction, "shift": shift}
        logits_loss = NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], **options)
        expected = grads_of(
            logits_loss(hidden @ head.T, LABELS, weights, sequence_ids=sequence_ids), hidden, head
        )
        for drop in (True, False):
            linear = NTLLinearCrossEntropyLoss(
                VOCABULARY, CASES[name][0], chunk_size=5, drop_ignored=drop, **options
            )
            given = grads_of(
                linear(hidden, head, LABELS, loss_weights=weights, sequence_ids=sequence_ids), hidden, head
            )
            assert_close(given, expected)


@pytest.mark.parametrize("name", PATHS)
def test_from_hidden_agrees_with_logits(name):
    hidden, head = (tensor.clone().requires_grad_() for tensor in hidden_and_head())
    loss = module(name, reweigh=None)
    expected = grads_of(loss(hidden @ head.T, LABELS), hidden, head)
    log_normalizer = (hidden @ head.T).logsumexp(-1)
    given = loss.from_hidden(hidden, head, LABELS, log_normalizer=log_normalizer, sparse_grad=False)
    assert_close(grads_of(given, hidden, head), expected)


def test_from_hidden_asks_for_the_normalizer_where_the_criterion_does():
    hidden, head = hidden_and_head()
    with pytest.raises(ValueError, match="log_normalizer"):
        module("gaussian_cross_entropy").from_hidden(hidden, head, LABELS)


@pytest.mark.parametrize("name", PATHS)
def test_combined_loss_is_cross_entropy_plus_the_term(name):
    logits = batch(13)
    combined = NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], weight=0.7, return_terms=True)(logits, LABELS)
    alone = module(name, reweigh=None)(logits, LABELS)
    ce = torch.nn.functional.cross_entropy(logits.flatten(0, 1), LABELS.flatten())
    assert_close(combined.ntl, alone)
    assert_close(combined.loss, ce + 0.7 * alone)


@pytest.mark.parametrize("name", ["number_level", "ntil", "smmd"])
def test_the_gradient_does_not_depend_on_how_a_batch_is_split(name):
    logits = batch(14).requires_grad_()
    loss = NTLCrossEntropyLoss(VOCABULARY, CASES[name][0])
    (whole,) = torch.autograd.grad(loss(logits, LABELS), logits)
    items, numbers = loss.normalizers(LABELS)
    parts = sum(loss(logits[i : i + 1], LABELS[i : i + 1], None, items, numbers) for i in range(2))
    assert_close(torch.autograd.grad(parts, logits)[0], whole)


@pytest.mark.parametrize("name", PATHS)
def test_no_numbers_is_a_zero_with_a_graph(name):
    hidden, head = (tensor.clone().requires_grad_() for tensor in hidden_and_head())
    text = torch.full_like(LABELS, 13)
    loss = module(name, reweigh=None)(hidden @ head.T, text)
    assert [float(x.abs().sum()) for x in grads_of(loss, hidden, head)] == [0, 0, 0]
    for labels in (text, torch.full_like(LABELS, -100)):
        linear = NTLLinearCrossEntropyLoss(VOCABULARY, CASES[name][0], return_terms=True)
        terms = linear(hidden, head, labels)
        assert terms.ntl == 0
        assert all(x.isfinite().all() for x in grads_of(terms.loss, hidden, head))


@pytest.mark.parametrize("name", PATHS)
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    logits = batch(15, torch.float32).requires_grad_()
    loss = NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], shift=True)
    expected = grads_of(loss(logits, LABELS), logits)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(grads_of(compiled(logits, LABELS), logits), expected)


@pytest.mark.parametrize("name", CASES)
def test_bfloat16_logits_are_read_in_float32(name):
    logits = batch(16, torch.bfloat16)
    loss = module(name, reweigh=None)
    given = loss(logits, LABELS)
    assert given.dtype == torch.float32
    assert_close(given, loss(logits.float(), LABELS))


@pytest.mark.parametrize("name", CASES)
def test_autocast_changes_nothing(name):
    logits = batch(18, torch.float32).requires_grad_()
    loss = module(name, reweigh=None)
    expected = grads_of(loss(logits, LABELS), logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = loss(logits, LABELS)
    assert_close(grads_of(given, logits), expected)


def _on_a_rank(rank, init_file, results):
    dist.init_process_group("gloo", init_method=f"file://{init_file}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    hidden, head = hidden_and_head()
    columns = slice(0, 8) if rank == 0 else slice(8, len(TEXTS))
    given = {}
    for name in PATHS:
        options = {"group": dist.group.WORLD, "softcap": 4.0}
        logits = (hidden @ head[columns].T).requires_grad_()
        by_logits = NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], **options)(logits, LABELS)
        states, rows = hidden.clone().requires_grad_(), head[columns].clone().requires_grad_()
        linear = NTLLinearCrossEntropyLoss(VOCABULARY, CASES[name][0], chunk_size=5, **options)
        by_hidden = linear(states, rows, LABELS)
        given[name] = [*grads_of(by_logits, logits), *grads_of(by_hidden, states, rows)]
    torch.save(given, f"{results}/{rank}")
    dist.destroy_process_group()


def test_vocabulary_parallel_agrees_with_one_process(tmp_path):
    context = mp.get_context("spawn")
    arguments = (str(tmp_path / "init"), str(tmp_path))
    ranks = [context.Process(target=_on_a_rank, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        assert process.exitcode == 0
    parts = [torch.load(tmp_path / str(rank)) for rank in range(2)]
    hidden, head = hidden_and_head()
    for name in PATHS:
        logits = (hidden @ head.T).requires_grad_()
        loss, grad = grads_of(
            NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], softcap=4.0)(logits, LABELS), logits
        )
        states, rows = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        expected = grads_of(
            NTLCrossEntropyLoss(VOCABULARY, CASES[name][0], softcap=4.0)(states @ rows.T, LABELS),
            states,
            rows,
        )
        for rank, columns in ((0, slice(0, 8)), (1, slice(8, None))):
            given = parts[rank][name]
            assert_close(given, [loss, grad[..., columns], expected[0], expected[1], expected[2][columns]])


def test_reweighing_acts_at_a_numbers_first_token():
    logits = batch(17)
    plain = module("number_level")(logits, LABELS, reduction="none")
    given = module("number_level", reweigh=None)(logits, LABELS, reduction="none")
    numbers = torch.tensor([*range(10), 11, 12])
    log_mass = logits.logsumexp(-1).neg() + logits[..., numbers].logsumexp(-1)
    expected = torch.where(plain != 0, reweigh_by_mass(plain, log_mass, 1.0), 0)
    assert_close(given, expected)
