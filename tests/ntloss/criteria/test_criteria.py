"""The criteria: each on every path against the oracle, their common properties, and documented claims."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
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
from criterion_cases import BAYES, SPACED, UNSURE, make_input
from tolerances import CANCELLATION, TWO_PATHS, approx, assert_close

from ntloss import (
    SMMD,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
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
    WeightedSum,
    needs_of,
)

# The only criterion that depends on the level of the logits.
SEES_THE_LEVEL = ("entropy", "entropy places")


# Their loss is infinite if a value that they need is masked.
LOGARITHMS = ("gaussian", "dist2", "entropy", "hl_gauss")


def loss_and_gradient(name, logits, vocabulary=NUMBERS, labels=None):
    """Compute the number term of each position, reweighed if possible, and the gradient of the sum."""
    case = numbers_case(name)
    logits = logits.detach().clone().requires_grad_()
    criterion = CRITERIA[name][0]
    loss = NumberTokenLoss(vocabulary, Reweighed(criterion) if name in BOUNDED else criterion)(
        logits, case.labels if labels is None else labels, reduction="none", sequence_ids=case.sequence_ids
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


@pytest.mark.parametrize("name", CRITERIA)
class TestEveryCriterion:
    @pytest.mark.parametrize("path", [*PATHS, *ALONE_PATHS])
    def test_value_and_gradient_equal_the_oracle(self, name, path):
        changes = {"chunk_size": 5} if path in LINEAR_PATHS else {}
        for options in (
            {"mode": "replace", "reduction": "none", "weighted": True, "softcap": 5.0},
            {"mode": "add", "z_loss": 0.01, "weighted": True, "logit_scale": 0.5},
            {"mode": "replace", "reduction": "sum", "reweigh": False},
        ):
            result = assert_matches(numbers_case(name, **options), path, **changes)
            assert options.get("reduction") != "none" or (result.ntl != 0).sum() >= 5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_half_precision_logits_are_computed_in_float32(self, name, dtype):
        assert_matches(numbers_case(name), "alone", dtype)

    def test_a_constant_added_to_a_row_changes_nothing(self, name):
        logits = numbers_case(name).logits()
        moved = logits + torch.linspace(-30, 30, 24, dtype=torch.float64).reshape(2, 12, 1)
        before, after = loss_and_gradient(name, logits), loss_and_gradient(name, moved)
        if name in SEES_THE_LEVEL:
            assert (before[0] - after[0]).abs().max() > 1e-6
        else:
            assert_close(after, before, CANCELLATION)

    def test_losses_are_not_negative_and_exactly_zero_at_text_labels(self, name):
        loss, gradient = loss_and_gradient(name, numbers_case(name).logits())
        assert (loss >= -TWO_PATHS[torch.float64]).all()
        is_text = ~torch.isin(numbers_case(name).labels, torch.tensor(list(VALUES)))
        assert not loss[is_text].any()
        assert not gradient[is_text].any()
        if not needs_of(CRITERIA[name][0]).across_positions:
            assert (loss[~is_text] != 0).all()

    def test_moving_probability_between_forms_of_a_value_changes_nothing(self, name):
        logits = numbers_case(name).logits()
        forms = [9, 0, 22]
        assert len({VALUES[i] for i in forms}) == 1
        moved = logits.clone()
        shares = torch.tensor([0.7, 0.1, 0.2], dtype=torch.float64)
        moved[..., forms] = logits[..., forms].logsumexp(-1, keepdim=True) + shares.log()
        assert_close(loss_and_gradient(name, moved)[0], loss_and_gradient(name, logits)[0])

    def test_permuting_the_vocabulary_changes_nothing(self, name):
        case = numbers_case(name)
        new_id = torch.from_numpy(np.random.default_rng(0).permutation(VOCAB))
        texts = {token.token_id: token.text for token in NUMBERS.tokens} | {POINT: "."}
        permuted = NumberVocabulary.from_mapping({int(new_id[i]): t for i, t in texts.items()}, VOCAB)
        labels = torch.where(case.labels == -100, -100, new_id[case.labels.clamp(min=0)])
        loss, gradient = loss_and_gradient(name, case.logits()[..., new_id.argsort()], permuted, labels)
        assert_close((loss, gradient[..., new_id]), loss_and_gradient(name, case.logits()))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_logits_of_minus_infinity_give_no_nan(self, name, dtype):
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
    def test_without_numbers_the_term_is_a_zero_with_a_graph(self, name, path):
        for label in (TEXTS[3], -100):
            case = replace(numbers_case(name), labels=torch.full((2, 12), label))
            result = run(case, path)
            assert result.ntl == 0
            for gradient in result.gradients.values():
                assert gradient.isfinite().all()
                if label == -100 or path in ALONE_PATHS:
                    assert not gradient.any()

    @pytest.mark.parametrize("path", ["logits", "alone"])
    def test_autocast_changes_nothing(self, name, path):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_matches(numbers_case(name), path, torch.float32)

    def test_worst_is_the_largest_loss_of_a_certain_prediction(self, name):
        criterion, term = CRITERIA[name]
        if name not in BOUNDED:
            with pytest.raises(ValueError, match=r"Reweighed needs a criterion with a worst cost"):
                NumberTokenLoss(NUMBERS, Reweighed(criterion))
            return
        for values in (NUMBERS.distinct_values, [-3.0, 0.0, 0.5, 3.25, 1000.0], [-7.0, -4.0, -1.0, 0.0]):
            worst = criterion.worst(torch.tensor(values, dtype=torch.float64))
            assert worst == approx(term.worst(tuple(values)), CANCELLATION, dtype=torch.float64)
        if needs_of(criterion).across_positions:
            return
        # After reweighing, text costs more.
        text = torch.full((1, 2, VOCAB), -1e4, dtype=torch.float64)
        text[..., TEXTS[3]] = 0.0
        loss = NumberTokenLoss(NUMBERS, Reweighed(criterion))(text, torch.tensor([[3, 9]]))
        assert float(loss) == approx(1.01 * criterion.worst(NUMBERS.value_tensor()))


@pytest.mark.parametrize(
    "name",
    [
        "wasserstein",
        "crps",
        "raft",
        "dist2 places",
        "entropy places",
        "smmd",
        "number_level decimals",
        "ntil",
    ],
)
def test_criteria_compile_without_graph_breaks(name):
    torch._dynamo.reset()
    case = numbers_case(name)
    loss = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0], shift=True)

    def differentiated(function):
        logits = case.logits(torch.float32).requires_grad_()
        value = function(logits, case.labels)
        return value.detach(), torch.autograd.grad(value, logits)[0]

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(differentiated(compiled), differentiated(loss))


def draw_distributions(generator, count):
    logits = generator.standard_normal((count, len(SPACED))) * generator.choice([0.3, 2.0, 8.0], (count, 1))
    return torch.from_numpy(logits).softmax(-1).numpy()


@pytest.mark.parametrize("name", BAYES)
def test_the_documented_distribution_minimizes_the_expected_loss(name):
    criterion, best = BAYES[name]

    def expected(p):
        return sum(UNSURE[k] * float(criterion(make_input(p, SPACED, k))) for k in range(len(SPACED)))

    lowest = expected(best)
    for p in draw_distributions(np.random.default_rng(0), 100):
        for nearness in (1.0, 0.05):
            assert expected((1 - nearness) * best + nearness * p) >= lowest - TWO_PATHS[torch.float64]


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
        (lambda: SMMD(0.0), "expected"),
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
def test_invalid_options_and_inputs_are_errors(make, says):
    with pytest.raises(ValueError, match=says):
        make()
