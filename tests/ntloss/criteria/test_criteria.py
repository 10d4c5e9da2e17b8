"""Every criterion: its value and gradient by every path, and the properties that all of them have."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from combined_cases import (
    CRITERIA,
    DIGITS,
    HIDDEN_PATHS,
    NUMBERS,
    OF_WHOLE_NUMBERS,
    PATHS,
    TEXTS,
    VALUES,
    assert_matches,
    numbers_case,
    run,
)
from tolerances import TWO_PATHS, approx, assert_close

from ntloss import (
    NTLCrossEntropyLoss,
    NumberVocabulary,
    crps,
    del_loss,
    dist2,
    gaussian_smoothing,
    ntl_mse,
    ntl_was,
    smmd,
    smoothed_wasserstein,
)
from ntloss.criteria import reads_of

# Their loss is infinite if a value that they need is masked.
LOGARITHMS = ("gaussian", "dist2", "del_loss", "hl_gauss")


def loss_and_gradient(name, logits, vocabulary=NUMBERS, labels=None):
    """Compute the number term of each position, and the gradient of the sum of the losses."""
    case = numbers_case(name)
    logits = logits.detach().clone().requires_grad_()
    loss_fn = NTLCrossEntropyLoss(vocabulary, CRITERIA[name][0], 1.0, mode="add", reduction="none")
    labels = case.labels if labels is None else labels
    terms = loss_fn.terms(logits, loss_fn.prepare(labels, sequence_ids=case.sequence_ids))
    ce = NTLCrossEntropyLoss(vocabulary, weight=0.0, reduction="none")(logits, labels)
    # Without cross-entropy, which may be infinite.
    (gradient,) = torch.autograd.grad((terms.loss - ce).nan_to_num(0, posinf=0).sum(), logits)
    return terms.ntl, gradient


@pytest.mark.parametrize("name", CRITERIA)
class TestEveryCriterion:
    @pytest.mark.parametrize("path", PATHS)
    def test_value_and_gradient_equal_the_oracle(self, name, path):
        chunks = {"chunk_size": 5} if path in HIDDEN_PATHS else {}
        shares = torch.randperm(24, generator=torch.manual_seed(0)).reshape(2, 12) % 5 / 4
        for options in (
            {"mode": "replace", "reduction": "none", "weighted": True, "softcap": 5.0},
            {"mode": "add", "weighted": True, "logit_scale": 0.5, "number_weights": shares},
            {"mode": "replace", "reduction": "sum", "number_weights": shares},
        ):
            result = assert_matches(numbers_case(name, **options), path, **chunks)
            assert options.get("reduction") != "none" or (result.ntl != 0).sum() >= 5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_half_precision_logits_are_computed_in_float32(self, name, dtype):
        assert_matches(numbers_case(name), "logits", dtype)

    def test_losses_are_not_negative_and_exactly_zero_at_text_labels(self, name):
        loss, _ = loss_and_gradient(name, numbers_case(name).logits())
        assert (loss >= -TWO_PATHS[torch.float64]).all()
        is_text = ~torch.isin(numbers_case(name).labels, torch.tensor(list(VALUES)))
        assert not loss[is_text].any()
        if name not in OF_WHOLE_NUMBERS:
            assert (loss[~is_text] != 0).all()

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

    def test_logits_of_labels_without_weight_may_be_anything(self, name):
        case = numbers_case(name)
        weights = torch.ones(case.labels.shape)
        weights[0] = 0  # a row, so that no number has some of its tokens left out
        loss_fn = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0], mode="add")
        found = []
        for logits in (case.logits(), case.logits()):
            logits[0] = math.nan if found else logits[0]
            logits.requires_grad_()
            loss = loss_fn(
                logits, loss_fn.prepare(case.labels, weights=weights, sequence_ids=case.sequence_ids)
            )
            found.append((loss, *torch.autograd.grad(loss, logits)))
        assert_close(found[1], found[0])

    @pytest.mark.parametrize("path", PATHS)
    def test_without_numbers_the_term_is_a_zero_that_supports_backward(self, name, path):
        for label in (TEXTS[3], -100):
            case = replace(numbers_case(name), labels=torch.full((2, 12), label))
            result = run(case, path)
            assert result.ntl == 0
            for gradient in result.gradients.values():
                assert gradient.isfinite().all()
                assert label != -100 or not gradient.any()


@pytest.mark.parametrize(
    "name", ["ntl_was", "ntl_was squashed", "crps", "raft", "dist2", "del_loss by place", "smmd",
             "hl_gauss", "number_level decimals", "ntil"],
)  # fmt: skip
def test_criteria_compile_without_graph_breaks(name):
    torch._dynamo.reset()
    case = numbers_case(name)
    loss = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0], shift=True)

    labels = loss.prepare(case.labels)

    def differentiated(function):
        logits = case.logits(torch.float32).requires_grad_()
        value = function(logits, labels)
        return value.detach(), torch.autograd.grad(value, logits)[0]

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_close(differentiated(compiled), differentiated(loss))


def test_two_losses_in_one_compiled_function_have_tables_of_their_own():
    # They share the compiled code: a table that was made a constant of it would be the first loss's.
    torch._dynamo.reset()
    narrow = NTLCrossEntropyLoss(DIGITS, dist2)
    wide = NTLCrossEntropyLoss(NumberVocabulary.from_mapping({d: d**2 for d in range(10)}, 12), dist2)
    logits, labels = torch.randn(4, 12), torch.tensor([1, 5, 9, 11])
    compiled = torch.compile(lambda loss: loss(logits, labels), fullgraph=True, backend="aot_eager")
    for loss in (narrow, wide, narrow):
        assert_close(compiled(loss), loss(logits, labels))


def call(criterion, probs, values, target, **options):
    """Call a criterion with one position's distribution; all of its probability is on numbers."""
    log_probs = torch.as_tensor(probs, dtype=torch.float64).log().clamp(min=-1e30).reshape(1, -1)
    given = {
        "probs": log_probs.exp(),
        "log_probs": log_probs,
        "logits": log_probs,
        "vocab_log_probs": log_probs,
        "log_mass": torch.zeros(1, dtype=torch.float64),
        "values": torch.as_tensor(values, dtype=torch.float64),
        "target": torch.tensor([target]),
        "target_probs": None,
    }
    return criterion(**{name: given[name] for name in reads_of(criterion)}, **options)


SPACED = [0.0, 1.0, 2.0, 4.0, 7.0]
SPACED_VALUES = torch.tensor(SPACED, dtype=torch.float64)


def one_hot(k):
    return np.eye(len(SPACED))[k]


def smoothed(k):
    return oracle.gaussian(SPACED_VALUES, k).numpy()


def dist2_target(k):
    return oracle.dist2_target(SPACED_VALUES, k).numpy()


UNSURE = np.array([0.2, 0.1, 0.15, 0.25, 0.3])  # how often each value is the label: median 4, mean 3.5


def median_of_targets():
    cumulated = np.array([smoothed(k).cumsum() for k in range(len(SPACED))])
    middle = []
    for column in cumulated.T:
        order = column.argsort()
        middle.append(column[order][np.searchsorted(UNSURE[order].cumsum(), 0.5)])
    return np.diff(middle, prepend=0.0)


# what minimizes the expected loss for an uncertain label: (criterion, options, distribution)
BAYES = {
    "all on the median": (ntl_was, {}, one_hot(3)),
    "anything whose mean is the mean": (ntl_mse, {}, np.array([0, 0, 0.7, 0, 0.3])),
    "the labels' distribution": (smmd, {"squash": None}, UNSURE),
    "the labels' distribution by CRPS": (crps, {}, UNSURE),
    "the labels' distribution, smoothed": (
        gaussian_smoothing,
        {},
        sum(UNSURE[k] * smoothed(k) for k in range(len(SPACED))),
    ),
    "the same with DIST2's targets": (
        dist2,
        {},
        sum(UNSURE[k] * dist2_target(k) for k in range(len(SPACED))),
    ),
    "the median of the cumulated targets": (smoothed_wasserstein, {}, median_of_targets()),
}


def draw_distributions(generator, count):
    logits = generator.standard_normal((count, len(SPACED))) * generator.choice([0.3, 2.0, 8.0], (count, 1))
    return torch.from_numpy(logits).softmax(-1).numpy()


@pytest.mark.parametrize("name", BAYES)
def test_the_documented_distribution_minimizes_the_expected_loss(name):
    criterion, options, best = BAYES[name]

    def expected(p):
        return sum(UNSURE[k] * float(call(criterion, p, SPACED, k, **options)) for k in range(len(SPACED)))

    lowest = expected(best)
    for p in draw_distributions(np.random.default_rng(0), 100):
        for nearness in (1.0, 0.05):
            assert expected((1 - nearness) * best + nearness * p) >= lowest - TWO_PATHS[torch.float64]


@pytest.mark.parametrize("criterion", [gaussian_smoothing, dist2])
def test_a_target_that_is_ruled_out_costs_infinity_as_in_cross_entropy(criterion):
    logits = torch.zeros(1, 12)
    logits[0, 7] = -torch.inf
    logits.requires_grad_()
    loss = NTLCrossEntropyLoss(DIGITS, criterion)(logits, torch.tensor([4]))
    loss.backward()
    assert loss.isposinf()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(("criterion", "weight"), [(dist2, 0.0), (gaussian_smoothing, torch.tensor(0.0))])
def test_an_infinite_loss_with_a_weight_of_0_counts_as_0(criterion, weight):
    logits = torch.zeros(1, 12)
    logits[0, 7] = -torch.inf
    logits.requires_grad_()
    terms = NTLCrossEntropyLoss(DIGITS, criterion, weight, mode="add").terms(logits, torch.tensor([4]))
    terms.loss.backward()
    assert_close(terms.loss, terms.ce)
    assert terms.ntl.isposinf()
    assert logits.grad.isfinite().all()


def test_in_place_of_cross_entropy_a_narrow_gaussian_is_cross_entropy_of_the_labels_form():
    forms = {n: str(n) for n in range(10)} | {10 + n: f" {n}" for n in range(10)}
    logits, labels = torch.randn(3, 22, dtype=torch.float64), torch.tensor([4, 14, 21])
    vocabulary = NumberVocabulary.from_mapping(forms, vocab_size=22)
    loss = NTLCrossEntropyLoss(vocabulary, {"name": "gaussian_smoothing", "sigma": 1e-3})
    wanted = torch.nn.functional.cross_entropy(logits, labels)
    assert_close(loss(logits, labels), wanted, TWO_PATHS[torch.float64])


def test_del_loss_tends_to_zero_at_the_label_and_for_low_logits():
    loss_fn = NTLCrossEntropyLoss(DIGITS, del_loss)

    def certain(digit, level, rest):
        logits = torch.full((1, 12), rest, dtype=torch.float64)
        logits[0, digit] = level
        return float(loss_fn.terms(logits, torch.tensor([4])).ntl)

    assert certain(4, 40.0, -40.0) < TWO_PATHS[torch.float64]
    assert certain(3, 40.0, -40.0) == approx(0.01 * 40 / 10)
    assert certain(3, -40.0, -1e4) < TWO_PATHS[torch.float64]  # documented


@pytest.mark.parametrize("squash", [1, 0.5, 0, -3, math.inf, math.nan])
def test_squashing_to_a_factor_of_1_or_less_is_an_error(squash):
    with pytest.raises(ValueError, match="squash"):
        call(ntl_was, [0.2, 0.3, 0.5], [0.0, 1.0, 3.0], 0, squash=squash)


@pytest.mark.parametrize("values", [[5.0], [0.0, 9.0]])
def test_distances_that_are_all_equal_cannot_be_squashed(values):
    for criterion in (ntl_was, smmd):
        with pytest.raises(ValueError, match="squash"):
            call(criterion, [1 / len(values)] * len(values), values, 0, squash=3.0)
    call(smmd, [1 / len(values)] * len(values), values, 0, squash=None)


@pytest.mark.parametrize(
    ("criterion", "option"),
    [(gaussian_smoothing, "sigma"), (smoothed_wasserstein, "sigma"), (smmd, "sigma"), (dist2, "tau")],
)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_width_that_is_not_above_0_is_an_error(criterion, option, value):
    with pytest.raises(ValueError, match=option):
        call(criterion, [0.2, 0.3, 0.5], [0.0, 1.0, 3.0], 0, **{option: value})
