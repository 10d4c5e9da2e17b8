"""The criteria: each on every path against the oracle, their common properties, and documented claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from combined_cases import (
    ALONE_PATHS,
    BOUNDED,
    CRITERIA,
    LINEAR_PATHS,
    NUMBERS,
    PATHS,
    POINT,
    TEXTS,
    VALUES,
    VOCAB,
    assert_matches,
    numbers_case,
    run,
)
from hypothesis import given
from hypothesis import strategies as st
from tolerances import CANCELLATION, TWO_PATHS, approx, assert_close
from torch import Tensor

import ntloss.criteria.registry as registry
from ntloss import (
    CRPS,
    SMMD,
    CriterionInput,
    DigitEntropy,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberLevel,
    NumberTokenLoss,
    NumberVocabulary,
    SmoothedWasserstein,
    Wasserstein,
    criterion_names,
    get_criterion,
    ntil,
    register_criterion,
)
from ntloss.criteria import (
    Magnitude,
    PerNumber,
    PlaceWeighted,
    RelativeError,
    WeightedSum,
    bind,
    needs_of,
    reweigh_by_mass,
)

DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
# The only criterion that depends on the level of the logits.
SEES_THE_LEVEL = ("entropy", "entropy places")
# Their loss is infinite if a value that they need is masked.
LOGARITHMS = ("gaussian", "dist2", "entropy")


def loss_and_gradient(
    name: str, logits: Tensor, vocabulary: NumberVocabulary = NUMBERS, labels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the number term of each position, reweighed if possible, and the gradient of the sum."""
    case = numbers_case(name)
    logits = logits.detach().clone().requires_grad_()
    loss = NumberTokenLoss(vocabulary, CRITERIA[name][0], reweigh=name in BOUNDED)(
        logits, case.labels if labels is None else labels, reduction="none", sequence_ids=case.sequence_ids
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


def make_input(probs: Any, values: Any, target: int) -> CriterionInput:
    """Make a criterion's input of one position."""
    log_probs = torch.as_tensor(probs, dtype=torch.float64).log().clamp(min=-1e30).reshape(1, -1)
    return CriterionInput(
        log_probs,
        torch.as_tensor(values, dtype=torch.float64),
        torch.tensor([target]),
        log_mass=torch.zeros(1, dtype=torch.float64),
        number_logsumexp=torch.zeros(1, dtype=torch.float64),
    )


@pytest.mark.parametrize("name", CRITERIA)
class TestEveryCriterion:
    @pytest.mark.parametrize("path", [*PATHS, *ALONE_PATHS])
    def test_value_and_gradient_equal_the_oracle(self, name: str, path: str) -> None:
        changes = {"chunk_size": 5} if path in LINEAR_PATHS else {}
        for options in (
            {"mode": "replace", "reduction": "none", "weighted": True, "softcap": 5.0},
            {"mode": "add", "z_loss": 0.01, "weighted": True, "logit_scale": 0.5},
            {"mode": "replace", "reduction": "sum", "reweigh": False},
        ):
            result = assert_matches(numbers_case(name, **options), path, **changes)
            assert options.get("reduction") != "none" or (result.ntl != 0).sum() >= 5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_half_precision_logits_are_computed_in_float32(self, name: str, dtype: torch.dtype) -> None:
        result = assert_matches(numbers_case(name), "alone", dtype)
        assert result.loss.dtype == torch.float32

    def test_a_constant_added_to_a_row_changes_nothing(self, name: str) -> None:
        logits = numbers_case(name).logits()
        moved = logits + torch.linspace(-30, 30, 24, dtype=torch.float64).reshape(2, 12, 1)
        before, after = loss_and_gradient(name, logits), loss_and_gradient(name, moved)
        if name in SEES_THE_LEVEL:
            assert (before[0] - after[0]).abs().max() > 1e-6
        else:
            assert_close(after, before, CANCELLATION)

    def test_each_row_of_the_gradient_sums_to_zero(self, name: str) -> None:
        _, gradient = loss_and_gradient(name, numbers_case(name).logits())
        if name in SEES_THE_LEVEL:
            assert gradient.sum(-1).abs().max() > 1e-6
        else:
            assert_close(gradient.sum(-1), np.zeros((2, 12)), scale=float(gradient.abs().max()))

    def test_losses_are_not_negative_and_exactly_zero_at_text_labels(self, name: str) -> None:
        loss, gradient = loss_and_gradient(name, numbers_case(name).logits())
        assert (loss >= -TWO_PATHS[torch.float64]).all()
        is_text = ~torch.isin(numbers_case(name).labels, torch.tensor(list(VALUES)))
        assert not loss[is_text].any()
        assert not gradient[is_text].any()
        if not needs_of(CRITERIA[name][0]).across_positions:
            assert (loss[~is_text] != 0).all()

    def test_moving_probability_between_forms_of_a_value_changes_nothing(self, name: str) -> None:
        logits = numbers_case(name).logits()
        forms = [9, 0, 22]
        assert len({VALUES[i] for i in forms}) == 1
        moved = logits.clone()
        shares = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
        moved[..., forms] = logits[..., forms].logsumexp(-1, keepdim=True) + shares.log()
        assert_close(loss_and_gradient(name, moved)[0], loss_and_gradient(name, logits)[0])

    def test_permuting_the_vocabulary_changes_nothing(self, name: str) -> None:
        case = numbers_case(name)
        new_id = torch.from_numpy(np.random.default_rng(0).permutation(VOCAB))
        texts = {token.token_id: token.text for token in NUMBERS.tokens} | {POINT: "."}
        permuted = NumberVocabulary.from_mapping({int(new_id[i]): t for i, t in texts.items()}, VOCAB)
        labels = torch.where(case.labels == -100, -100, new_id[case.labels.clamp(min=0)])
        loss, gradient = loss_and_gradient(name, case.logits()[..., new_id.argsort()], permuted, labels)
        assert_close((loss, gradient[..., new_id]), loss_and_gradient(name, case.logits()))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_logits_of_minus_infinity_give_no_nan(self, name: str, dtype: torch.dtype) -> None:
        logits = numbers_case(name).logits(dtype)
        logits[0, :, 7] = -math.inf
        logits[0, :, [19, TEXTS[3]]] = -math.inf
        logits[1, :4, list(VALUES)] = -math.inf  # no number at all
        logits[1, 4:, 3:20] = -math.inf
        loss, gradient = loss_and_gradient(name, logits)
        assert not loss.isnan().any()
        assert not gradient.isnan().any()
        if not name.startswith(LOGARITHMS):
            assert loss.isfinite().all()
            assert loss.max() < 1000

    @pytest.mark.parametrize("path", [*PATHS, *ALONE_PATHS])
    def test_without_numbers_the_term_is_a_zero_with_a_graph(self, name: str, path: str) -> None:
        for label in (TEXTS[3], -100):
            case = replace(numbers_case(name), labels=torch.full((2, 12), label))
            result = run(case, path)
            assert result.ntl == 0
            for gradient in result.gradients.values():
                assert gradient.isfinite().all()
                if label == -100 or path in ALONE_PATHS:
                    assert not gradient.any()

    @pytest.mark.parametrize("path", ["logits", "alone"])
    def test_autocast_changes_nothing(self, name: str, path: str) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_matches(numbers_case(name), path, torch.float32)

    def test_worst_is_the_largest_loss_of_a_certain_prediction(self, name: str) -> None:
        criterion, term = CRITERIA[name]
        if name not in BOUNDED:
            with pytest.raises(ValueError, match=r"reweigh=True.*worst cost"):
                NumberTokenLoss(NUMBERS, criterion, reweigh=True)
            return
        for values in (NUMBERS.distinct_values, [-3.0, 0.0, 0.5, 3.25, 1000.0], [-7.0, -4.0, -1.0, 0.0]):
            worst = criterion.worst(torch.tensor(values, dtype=torch.float64))
            assert worst == approx(term.worst(tuple(values)), CANCELLATION, dtype=torch.float64)
        if needs_of(criterion).across_positions:
            return
        # After reweighing, text costs more.
        text = torch.full((1, 2, VOCAB), -1e4, dtype=torch.float64)
        text[..., TEXTS[3]] = 0.0
        loss = NumberTokenLoss(NUMBERS, criterion, reweigh=True)(text, torch.tensor([[3, 9]]))
        assert float(loss) == approx(1.01 * criterion.worst(NUMBERS.value_tensor()))


COMPILED = [
    "wasserstein",
    "crps",
    "raft",
    "gaussian",
    "smoothed",
    "dist2 places",
    "entropy places",
    "smmd",
    "per number",
]


@pytest.mark.parametrize("name", [*COMPILED, "number_level decimals", "relative", "magnitude", "ntil"])
def test_criteria_compile_without_graph_breaks(name: str) -> None:
    torch._dynamo.reset()
    case = numbers_case(name)
    loss = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0], shift=True)

    def differentiated(function: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        logits = case.logits(torch.float32).requires_grad_()
        value = function(logits, case.labels)
        return value.detach(), torch.autograd.grad(value, logits)[0]

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(differentiated(compiled), differentiated(loss))


# --- minima ---------------------------------------------------------------------------------------

SPACED = [0.0, 1.0, 2.0, 4.0, 7.0]
SPACED_VALUES = torch.tensor(SPACED, dtype=torch.float64)


def one_hot(k: int) -> np.ndarray:
    return np.eye(len(SPACED))[k]


def smoothed(k: int) -> np.ndarray:
    return oracle.gaussian(SPACED_VALUES, k).numpy()


def dist2_target(k: int) -> np.ndarray:
    return oracle.dist2_target(SPACED_VALUES, k).numpy()


# criterion: the distribution of its minimum for a label of value SPACED[k]
MINIMA = {
    "wasserstein": (Wasserstein(), one_hot),
    "crps": (CRPS(), one_hot),
    "smmd": (SMMD(squash_factor=None), one_hot),
    "smmd squashed": (SMMD(), one_hot),
    "smmd mmd": (SMMD(form="mmd"), one_hot),
    "smmd smoothness": (SMMD(form="smoothness"), one_hot),
    "gaussian_cross_entropy": (GaussianCrossEntropy(), smoothed),
    "smoothed_wasserstein": (SmoothedWasserstein(), smoothed),
    "dist2": (Dist2(), dist2_target),
}


def draw_distributions(generator: np.random.Generator, count: int) -> np.ndarray:
    """Draw distributions: flat, moderate and peaked."""
    logits = generator.standard_normal((count, len(SPACED))) * generator.choice([0.3, 2.0, 8.0], (count, 1))
    return torch.from_numpy(logits).softmax(-1).numpy()


@pytest.mark.parametrize("name", MINIMA)
@pytest.mark.parametrize("k", range(len(SPACED)))
def test_the_minimum_is_exactly_at_the_target(name: str, k: int) -> None:
    criterion, target = MINIMA[name]
    lowest = float(criterion(make_input(target(k), SPACED, k)))
    if not name.startswith("gaussian"):
        assert lowest == approx(0, dtype=torch.float64, scale=1)
    for p in draw_distributions(np.random.default_rng(k), 60):
        for nearness in (1.0, 0.1):
            q = (1 - nearness) * target(k) + nearness * p
            if np.abs(q - target(k)).max() > 1e-3:
                assert float(criterion(make_input(q, SPACED, k))) > lowest


UNSURE = np.array([0.2, 0.1, 0.15, 0.25, 0.3])  # how often each value is the label: median 4, mean 3.5


def median_of_targets() -> np.ndarray:
    cumulated = np.array([smoothed(k).cumsum() for k in range(len(SPACED))])
    middle = []
    for column in cumulated.T:
        order = column.argsort()
        middle.append(column[order][np.searchsorted(UNSURE[order].cumsum(), 0.5)])
    return np.diff(middle, prepend=0.0)


# criterion: the distribution with the lowest expected loss for an uncertain label
BAYES = {
    "all on the median": (Wasserstein(), one_hot(3)),
    "anything whose mean is the mean": (ExpectedValue(), np.array([0, 0, 0.7, 0, 0.3])),
    "the labels' distribution": (SMMD(squash_factor=None), UNSURE),
    "the labels' distribution by CRPS": (CRPS(), UNSURE),
    "the labels' distribution, smoothed": (
        GaussianCrossEntropy(),
        sum(UNSURE[k] * smoothed(k) for k in range(len(SPACED))),
    ),
    "the same with DIST2's targets": (
        Dist2(),
        sum(UNSURE[k] * dist2_target(k) for k in range(len(SPACED))),
    ),
    "the median of the cumulated targets": (SmoothedWasserstein(), median_of_targets()),
}


@pytest.mark.parametrize("name", BAYES)
def test_the_documented_distribution_minimizes_the_expected_loss(name: str) -> None:
    criterion, best = BAYES[name]

    def expected(p: np.ndarray) -> float:
        return sum(UNSURE[k] * float(criterion(make_input(p, SPACED, k))) for k in range(len(SPACED)))

    lowest = expected(best)
    for p in draw_distributions(np.random.default_rng(0), 100):
        for nearness in (1.0, 0.05):
            assert expected((1 - nearness) * best + nearness * p) >= lowest - TWO_PATHS[torch.float64]


@given(
    truth=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    predicted=st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
)
def test_expected_crps_exceeds_its_minimum_by_the_distance_of_the_cumulative_probabilities(
    truth: list[float], predicted: list[float]
) -> None:
    # So it is strictly proper: the distance is 0 for equal distributions alone.
    q, p = (np.array(weights) / sum(weights) for weights in (truth, predicted))

    def expected(distribution: np.ndarray) -> float:
        return sum(q[k] * float(CRPS()(make_input(distribution, SPACED, k))) for k in range(len(SPACED)))

    distance = ((p.cumsum() - q.cumsum())[:-1] ** 2 * np.diff(SPACED)).sum()
    assert expected(p) - expected(q) == approx(distance, dtype=torch.float64, scale=7.0)


def test_expected_value_over_the_vocabulary_in_place_of_cross_entropy_is_the_loss_of_raft() -> None:
    logits = torch.randn(
        12, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    criterion = ExpectedValue("squared", over="vocabulary")
    loss = NTLCrossEntropyLoss(DIGITS, criterion, reweigh=False, mode="replace")
    # Of three positions one counts.
    ours = loss(torch.stack([-logits, logits, 2 * logits]), torch.tensor([-100, 7, -100]))
    raft = (logits.softmax(-1)[:10] @ torch.arange(10.0, dtype=torch.float64) - 7) ** 2
    assert_close(ours, raft)
    assert_close(torch.autograd.grad(ours, logits)[0], torch.autograd.grad(raft, logits)[0])


def test_expected_value_over_the_vocabulary_needs_the_mass() -> None:
    x = make_input([0.5, 0.5, 0, 0, 0], SPACED, 0)
    with pytest.raises(ValueError, match=r"log_mass is None, but ExpectedValue.*all number tokens"):
        ExpectedValue(over="vocabulary")(replace(x, log_mass=None))


def test_expected_value_and_number_level_are_zero_if_the_mean_is_right() -> None:
    halves = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    halves[..., 3] = halves[..., 5] = 0.0
    labels = torch.tensor([[4, 4]])
    for criterion in (ExpectedValue(), NumberLevel()):
        assert NumberTokenLoss(DIGITS, criterion, reweigh=False)(halves, labels) < TWO_PATHS[torch.float64]
    for criterion in (Wasserstein(), SMMD(), ntil()):
        assert NumberTokenLoss(DIGITS, criterion, reweigh=False)(halves, labels) > 0.1


def test_relative_error_and_magnitude_are_zero_if_the_most_likely_digits_are_right() -> None:
    unsure = torch.zeros(1, 2, 12, dtype=torch.float64)
    unsure[0, 0, 4], unsure[0, 1, 2] = 1.0, 0.1
    for criterion in (RelativeError(), Magnitude()):
        loss = NumberTokenLoss(DIGITS, criterion, reweigh=False)
        assert loss(unsure, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
        assert loss(unsure, torch.tensor([[4, 3]])) > 0.01


def test_ntil_is_zero_only_if_all_digits_are_certain_and_right() -> None:
    certain = torch.full((1, 2, 12), -1e4, dtype=torch.float64)
    certain[0, 0, 4] = certain[0, 1, 2] = 0.0
    loss = NumberTokenLoss(DIGITS, ntil())
    assert loss(certain, torch.tensor([[4, 2]])) < TWO_PATHS[torch.float64]
    assert loss(certain / 2e3, torch.tensor([[4, 2]])) > 0.01


def test_digit_entropy_tends_to_zero_at_the_label_and_for_low_logits() -> None:
    digits = NumberTokenLoss(DIGITS, DigitEntropy())

    def certain(digit: int, level: float, rest: float) -> float:
        logits = torch.full((1, 12), rest, dtype=torch.float64)
        logits[0, digit] = level
        return float(digits(logits, torch.tensor([4])))

    assert certain(4, 40.0, -40.0) < TWO_PATHS[torch.float64]
    assert certain(3, 40.0, -40.0) == approx(0.01 * 40 / 10)
    assert certain(3, -40.0, -1e4) < TWO_PATHS[torch.float64]  # documented


# --- regression losses, reweighing ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_loss", "named"),
    [
        (F.mse_loss, "squared"),
        (F.l1_loss, "absolute"),
        (F.huber_loss, "huber"),
        (F.smooth_l1_loss, "huber"),
        (partial(F.huber_loss, delta=1.0), "huber"),
        (partial(F.mse_loss, reduction="none"), "squared"),
        (torch.nn.MSELoss(reduction="none"), "squared"),
        (lambda p, t: (p - t) ** 2, "squared"),
    ],
)
def test_expected_value_takes_callables(given_loss: Any, named: str) -> None:
    made = make_input([0.1, 0.2, 0.3, 0.2, 0.2], [0.0, 1.0, 2.5, 4.0, 100.0], 3)
    assert_close(ExpectedValue(given_loss)(made), ExpectedValue(named)(made))


class TestReweigh:
    @given(mass=st.floats(0, 1), loss=st.floats(0, 9), worst=st.floats(0, 100))
    def test_interpolates_between_the_loss_and_more_than_the_worst_cost(
        self, mass: float, loss: float, worst: float
    ) -> None:
        log_mass = torch.tensor([mass], dtype=torch.float64).log()
        wanted = mass * loss + 1.01 * worst * (1 - mass)
        got = reweigh_by_mass(torch.tensor([loss], dtype=torch.float64), log_mass, worst)
        assert_close(got, np.array([wanted]))

    def test_is_exact_for_a_mass_near_one(self) -> None:
        # 1 - exp(x) in float32 would be 0 here.
        got = reweigh_by_mass(torch.zeros(1), torch.tensor([-1e-9]), 9.0)
        assert got.item() == approx(9.09e-9)

    @pytest.mark.parametrize("log_mass", [-1e-6, -0.1, -1.0, -5.0, -18.0, -25.0, -60.0])
    def test_gradient_is_exact_for_a_small_mass(self, log_mass: float) -> None:
        # At the start of training, little mass is on numbers.
        x = torch.tensor([log_mass], requires_grad=True)
        reweigh_by_mass(torch.tensor([2.0]), x, 9.0).sum().backward()
        assert x.grad.item() == approx((2.0 - 9.09) * np.exp(log_mass))

    def test_is_finite_without_mass_on_numbers(self) -> None:
        log_mass = torch.tensor([-torch.inf, -1e30], requires_grad=True)
        loss = reweigh_by_mass(torch.ones(2), log_mass, 9.0)
        loss.sum().backward()
        assert loss.tolist() == approx([9.09, 9.09])
        assert (log_mass.grad == 0).all()


# --- options, registry, tables --------------------------------------------------------------------


def test_default_options_are_the_published_ones() -> None:
    assert get_criterion("smmd") == SMMD(2.0, "gaussian", "both", None, 9.0)
    assert get_criterion("dist2") == Dist2(1.0, "squared")
    assert get_criterion("gaussian_cross_entropy") == GaussianCrossEntropy(1.0)
    weighted = PlaceWeighted(Wasserstein(), "exponential", 1.2, False)
    assert get_criterion("place_weighted", criterion="wasserstein", decimals=False) == weighted
    parts = (PerNumber(weighted), RelativeError(0.1, True, False), Magnitude(0.1, True, False))
    assert get_criterion("ntil") == WeightedSum(parts, (1.0, 0.2, 0.2))


def test_a_weighted_sum_has_the_sum_of_the_worst_costs() -> None:
    values = NUMBERS.value_tensor()
    assert WeightedSum([Wasserstein(), SMMD()], [2.0, 1.0]).worst(values) == approx(18 + SMMD().worst(values))
    assert WeightedSum([Wasserstein(), Dist2()]).worst(values) is None


def test_every_name_makes_a_criterion() -> None:
    options = {
        "place_weighted": {"criterion": "smmd"},
        "per_number": {"criterion": {"name": "dist2", "tau": 2.0}},
        "weighted_sum": {"criteria": ["wasserstein", {"name": "dist2", "tau": 2.0}], "weights": [0.5, 2]},
        "smmd": {"sigma": [1.0, 4.0]},
    }
    case = numbers_case("ntil")
    for name in criterion_names():
        criterion = get_criterion(name, **options.get(name, {}))
        assert hash(criterion) == hash(criterion)
        assert NumberTokenLoss(NUMBERS, criterion)(case.logits(), case.labels).isfinite()


def squared_distance(x: CriterionInput, power: float = 2.0) -> Tensor:
    return (x.probs * (x.values - x.target_values.unsqueeze(-1)).abs() ** power).sum(-1)


def test_a_function_is_a_criterion() -> None:
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    loss = NumberTokenLoss(digits, squared_distance)(torch.zeros(1, 12), torch.tensor([4]))
    assert_close(loss, (torch.arange(10.0) - 4).square().mean())
    with pytest.raises(ValueError, match="reweigh=True needs a criterion with a worst cost"):
        NumberTokenLoss(NUMBERS, squared_distance, reweigh=True)


def test_unknown_names_and_options_list_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_CRITERIA", dict(registry._CRITERIA))
    with pytest.raises(ValueError, match=r"'wassersten'.*dist2.*wasserstein"):
        get_criterion("wassersten")
    with pytest.raises(ValueError, match=r"no option 'temperature'.*tau, distance"):
        get_criterion("dist2", temperature=2.0)
    with pytest.raises(ValueError, match=r"dist2.*is taken by"):
        register_criterion("dist2", Wasserstein)
    register_criterion("a function for the test", squared_distance)
    x = CriterionInput(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([0.0, 2.0]), torch.tensor([0]))
    assert get_criterion("a function for the test")(x) == approx(3.0)
    assert get_criterion("a function for the test", power=1.0)(x) == approx(1.5)
    with pytest.raises(ValueError, match=r"has no option 'sigma'. Its options: power"):
        get_criterion("a function for the test", sigma=1.0)
    register_criterion("squashed for the test", lambda factor=3.0: Wasserstein(factor))
    assert get_criterion("squashed for the test", factor=4.0) == Wasserstein(4.0)
    assert "squashed for the test" in criterion_names()


UNEVEN = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        *[
            (partial(Wasserstein, factor), f"squash_factor={factor}.*above 1")
            for factor in (1, 1.0, 0.5, 0, -3, math.inf, math.nan)
        ],
        *[
            (partial(Wasserstein(3).worst, torch.tensor(values)), "squash_factor=3.*three distinct values")
            for values in ([5.0], [0.0, 9.0])
        ],
        (partial(Wasserstein(3), make_input([0.5, 0.5], [0.0, 9.0], 0)), "squash_factor=3.*three distinct"),
        (lambda: NumberTokenLoss(NumberVocabulary.from_mapping({0: 0, 1: 5}, 3), SMMD()), "squash_factor"),
        *[
            (partial(ExpectedValue, loss), r"(?s)loss=.*absolute.*huber.*squared")
            for loss in ("mse", "", None, 3)
        ],
        *[
            (
                partial(ExpectedValue(loss), make_input([0.2, 0.3, 0.5], UNEVEN, 0)),
                r"shape \(\).*\(1,\).*one loss",
            )
            for loss in (torch.nn.MSELoss(), lambda p, t: ((p - t) ** 2).mean())
        ],
        (lambda: GaussianCrossEntropy(0.0), "expected"),
        (lambda: SmoothedWasserstein(math.nan), "expected"),
        (lambda: ExpectedValue(over="text"), "over='text': expected 'numbers' or 'vocabulary'"),
        (lambda: Dist2(tau=-1.0), "expected"),
        (lambda: Dist2(distance="cosine"), "expected"),
        (lambda: SMMD(()), "expected"),
        (lambda: SMMD((1.0, 0.0)), "expected"),
        (lambda: SMMD(kernel="linear"), "expected"),
        (lambda: SMMD(form="none"), "expected"),
        (lambda: SMMD(squash_factor=1.0), "expected"),
        (lambda: RelativeError(0.0), "expected"),
        (lambda: Magnitude(math.inf), "expected"),
        (lambda: PlaceWeighted(Wasserstein(), "quadratic"), "expected"),
        (lambda: PlaceWeighted(Wasserstein(), place_base=0.5), "expected"),
        (lambda: PlaceWeighted(NumberLevel()), "expected"),
        (lambda: PerNumber(NumberLevel()), "omit PerNumber"),
        (lambda: WeightedSum(()), "expected"),
        (lambda: WeightedSum((Wasserstein(),), (1.0, 2.0)), "expected"),
        (lambda: WeightedSum((Wasserstein(),), (-1.0,)), "expected"),
        (lambda: WeightedSum((Wasserstein(), NumberLevel())), "wrap them in PerNumber"),
        *[
            (partial(criterion, make_input([0.5, 0.5, 0.0], UNEVEN, 0)), "spans")
            for criterion in (PlaceWeighted(Wasserstein()), NumberLevel(), PerNumber(Wasserstein()), ntil())
        ],
    ],
)
def test_invalid_options_and_inputs_are_errors(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_smmd_without_squashing_accepts_equally_spaced_values() -> None:
    NumberTokenLoss(NumberVocabulary.from_mapping({0: 0, 1: 5}, vocab_size=3), SMMD(squash_factor=None))


def test_tables_are_built_once_move_with_the_module_and_keep_their_dtype(monkeypatch: Any) -> None:
    calls = []
    make = SMMD.bind
    monkeypatch.setattr(SMMD, "bind", lambda self, *given: calls.append(1) or make(self, *given))
    loss = NumberTokenLoss(NUMBERS, WeightedSum((SMMD(), Dist2())))
    before = len(calls)
    case = numbers_case("smmd")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        loss(case.logits(dtype), case.labels)
    assert len(calls) == before
    assert not loss.state_dict()
    for dtype in (torch.float32, torch.float64):
        smmd, dist2 = loss.half().objective._bound[dtype].keywords["criteria"]
        assert {table.dtype for table in (smmd.keywords | dist2.keywords).values()} == {dtype}
    smmd, _ = loss.to("meta").objective._bound[torch.float32].keywords["criteria"]
    assert smmd.keywords["matrix"].device.type == "meta"


def test_a_criterion_that_is_not_bound_computes_its_tables() -> None:
    made = make_input([0.2, 0.2, 0.2, 0.2, 0.2], SPACED, 1)
    for criterion in (SMMD(), Dist2(), SmoothedWasserstein(), GaussianCrossEntropy()):
        assert_close(criterion(made), bind(criterion, made.values, made.log_probs)(made))


def test_your_own_criterion_may_omit_needs_and_bind() -> None:
    class Mine:
        def __call__(self, x: Any) -> Tensor:
            return 1 - x.probs.gather(-1, x.target.unsqueeze(-1)).squeeze(-1)

        def worst(self, values: Tensor) -> float:
            return 1.0

    case = numbers_case("wasserstein", bias=False)
    loss = NTLLinearCrossEntropyLoss(NUMBERS, Mine())(case.hidden, case.weight, case.labels)
    assert_close(loss, NTLCrossEntropyLoss(NUMBERS, Mine())(case.logits(), case.labels))
