"""The published classes: random vocabularies and batches against the oracle; and properties of all losses."""

import copy
import pickle
from functools import partial

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from combined_cases import values_of
from oracle import Combined, Term
from tolerances import (
    DIFFERENCE_IN_GRADIENT,
    GRADIENT_TOLERANCE,
    ONE_COMPUTATION,
    VALUE_TOLERANCE,
    assert_close,
    assert_repeats,
)
from torch import Tensor

from ntloss import (
    NTLCrossEntropyLoss,
    NTLoss,
    NTLossDotProduct,
    NumberVocabulary,
    dist2,
    ntl_was,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
REDUCTIONS = ["mean", "sum", "none"]


def pinball(prediction, target):
    return torch.maximum(0.9 * (target - prediction), 0.1 * (prediction - target))


# name -> (class and options, the oracle's formula and options)
KINDS = {
    "ntl_was": (partial(NTLoss), oracle.wasserstein, {}),
    "squashed": (partial(NTLoss, squash_factor=3.0), oracle.wasserstein, {"squash": 3.0}),
    "squared": (partial(NTLossDotProduct), oracle.expected_value, {}),
    "absolute": (
        partial(NTLossDotProduct, loss_function=F.l1_loss),
        oracle.expected_value,
        {"loss": "absolute"},
    ),
    "huber": (
        partial(NTLossDotProduct, loss_function=F.huber_loss),
        oracle.expected_value,
        {"loss": "huber"},
    ),
    "pinball": (partial(NTLossDotProduct, loss_function=pinball), oracle.expected_value, {"loss": "pinball"}),
}


def number_term(logits, labels, vocabulary, term=None, **options):
    weights = options.pop("weights", None)
    alone = {"cross_entropy": 0.0, "weight": 1.0, "normalize_by": "numbers"}
    options = {**alone, "number": term or Term(reweigh=True), **options}
    rows = logits.detach().double().numpy() if isinstance(logits, Tensor) else logits
    return oracle.combined(
        rows, np.asarray(labels), values_of(vocabulary), Combined(**options), weights=weights
    )


def gradient(loss, logits):
    return torch.autograd.grad(loss.sum(), logits)[0]


# Several forms of a value, and values that bfloat16 rounds.
VALUES = {0: 7.0, 3: 8.0, 4: 256.0, 6: 257.0, 7: 8.0, 10: 0.5, 11: -3.0}
VOCABULARY = NumberVocabulary.from_mapping(VALUES, vocab_size=13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_equal_the_oracle(kind, reweigh, reduction, dtype):
    make, formula, options = KINDS[kind]
    term, loss_fn = Term(formula, reweigh, options=tuple(options.items())), make(VOCABULARY, reweigh=reweigh)
    rng = np.random.default_rng(0)
    labels, weights = rng.integers(0, 13, (2, 9)), np.round(rng.random((2, 9)) * 8) / 8
    labels[0, :2], weights[1, :3] = -100, 0
    for spread, gone in ((0.1, False), (20.0, False), (2.0, True)):
        rows = spread * rng.standard_normal((2, 9, 13))
        if gone:
            rows[1, 5:, 6] = rows[0, 5:, 1] = -np.inf
            rows[0, 4, list(VALUES) if reweigh else 3] = -np.inf  # text costs 1.01 times the worst number
        logits = torch.from_numpy(rows).to(dtype).requires_grad_()
        given = torch.from_numpy(labels), torch.from_numpy(weights)
        loss = loss_fn(logits, *given, reduction=reduction)
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        wanted = number_term(logits, labels, VOCABULARY, term, weights=weights, reduction=reduction)
        worst = term.worst(VOCABULARY.distinct_values)  # cost of one position
        assert_close(loss, wanted.ntl, VALUE_TOLERANCE[dtype], scale=worst)
        # float16 has no exponents below -24: what is smaller than that is rounded to a fixed step.
        step = 2.0**-24 / GRADIENT_TOLERANCE[dtype] if dtype == torch.float16 else 0.0
        slope = gradient(loss, logits)
        assert_close(slope, wanted.gradient, GRADIENT_TOLERANCE[dtype], scale=max(worst, step))


class TestBatches:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_sums_over_many_tokens_are_exact(self, dtype, digits):
        # bfloat16 sums would stop growing at 256, and bfloat16 tables would round 257 to 256.
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(600, 12, generator=generator).to(dtype)
        labels = torch.randint(12, (600,), generator=generator)
        each = number_term(logits, labels, digits, reduction="none").ntl
        assert each.sum() > 1000
        wanted = {"none": each, "sum": each.sum(), "mean": each.sum() / (labels < 10).sum().item()}
        for reduction, value in wanted.items():
            loss = NTLoss(digits)(logits.requires_grad_(), labels, reduction=reduction)
            assert_close(loss, value, VALUE_TOLERANCE[dtype])

    @pytest.mark.parametrize("certainty", [5.0, 15.0, 20.0, 30.0])
    def test_gradient_is_exact_if_the_model_is_certain_of_text(self, certainty, digits, batch):
        logits, _ = batch(12, 3, dtype=torch.float32)
        with torch.no_grad():
            logits[:, 11] += certainty
        labels = torch.tensor([1, 5, 9])
        slope = gradient(NTLoss(digits)(logits, labels), logits)
        assert_close(slope, number_term(logits, labels, digits).gradient, DIFFERENCE_IN_GRADIENT)

    def test_rows_that_are_all_minus_infinity_stay_finite(self, digits):
        for reweigh in (True, False):
            for label in (3, 11, -100):
                logits = torch.full((1, 12), -torch.inf, requires_grad=True)
                loss = NTLoss(digits, reweigh=reweigh)(logits, torch.tensor([label]))
                loss.backward()
                assert loss.isfinite(), (reweigh, label)
                assert logits.grad.isfinite().all(), (reweigh, label)

    def test_labels_may_be_int32(self, digits, batch):
        logits, labels = batch(12, 6)
        assert_close(NTLoss(digits)(logits, labels.int()), NTLoss(digits)(logits, labels), ONE_COMPUTATION)

    def test_weights_may_have_any_real_dtype(self, digits, batch):
        logits, labels = batch(12, 6)
        weights = torch.tensor([0, 1, 1, 0, 1, 1])
        reference = NTLoss(digits)(logits, labels, weights.double())
        for dtype in (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32):
            assert_close(NTLoss(digits)(logits, labels, weights.to(dtype)), reference, ONE_COMPUTATION)


def test_a_loss_function_of_any_keywords_is_asked_for_each_element(digits, batch):
    logits, labels = batch(digits.vocab_size, 2, 5)

    def squared(prediction, target, **options):
        return F.mse_loss(prediction, target, **options)

    found = NTLossDotProduct(digits, loss_function=squared)(logits, labels, reduction="none")
    assert_close(found, NTLossDotProduct(digits)(logits, labels, reduction="none"))


@pytest.mark.parametrize("reweigh", [True, False])
def test_a_loss_function_that_averages_is_refused(digits, batch, reweigh):
    def averaged(prediction, target):
        return (prediction - target).square().mean()

    with pytest.raises(ValueError, match="criterion"):
        NTLossDotProduct(digits, loss_function=averaged, reweigh=reweigh)(*batch(digits.vocab_size, 2, 5))


class TestModule:
    def losses(self, vocabulary):
        return [
            NTLoss(vocabulary),
            NTLoss(vocabulary, squash_factor=3.0),
            NTLossDotProduct(vocabulary, loss_function=F.huber_loss),
            NTLCrossEntropyLoss(vocabulary, partial(ntl_was, squash=3.0)),
            NTLCrossEntropyLoss(vocabulary, "number_level"),
        ]

    def test_can_be_copied_and_pickled(self, irregular, batch):
        logits, labels = batch(irregular.vocab_size, 1, 5)
        given = logits, labels
        for loss in self.losses(irregular):
            for clone in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
                assert_repeats(partial(loss, *given), partial(clone, *given))

    def test_tables_keep_their_dtype_under_half(self, irregular, batch):
        logits, labels = batch(irregular.vocab_size, 1, 5)
        for loss in self.losses(irregular):
            reference = loss(logits, labels)
            before = {name: buffer.dtype for name, buffer in loss.named_buffers()}
            model = torch.nn.ModuleList([loss])
            for change in (model.half, model.bfloat16, model.double, model.float):
                change()
                assert {name: buffer.dtype for name, buffer in loss.named_buffers()} == before
                assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_moves_to_another_device_and_back(self, irregular, batch):
        logits, labels = batch(irregular.vocab_size, 1, 5)
        for loss in self.losses(irregular):
            reference = loss(logits, labels)
            loss.to("meta")
            assert {buffer.device.type for buffer in loss.buffers()} == {"meta"}
            assert loss(logits.to("meta"), loss.prepare(labels).to("meta")).device.type == "meta"
            loss.to("cpu")
            assert_close(loss(logits, labels), reference, ONE_COMPUTATION)
            loss.to("meta").to_empty(device="cpu")  # as sharded training initializes modules
            assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_may_be_made_on_the_meta_device(self, irregular, batch):
        logits, labels = batch(irregular.vocab_size, 1, 5)
        reference = NTLoss(irregular)(logits, labels)
        with torch.device("meta"):
            loss = NTLoss(irregular)
        assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_trains_after_an_evaluation_in_inference_mode(self, batch):
        # Tables that are built in inference mode cannot be saved for backward.
        vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        logits, labels = batch(12, 5)
        loss = NTLCrossEntropyLoss(vocabulary, dist2)
        with torch.inference_mode():
            loss(logits, labels)
        loss(logits, labels).backward()

        logits, labels = batch(12, 5)
        with torch.inference_mode():
            loss = NTLoss(vocabulary)
            loss(logits, labels)
        loss(logits, labels).backward()
        assert logits.grad.isfinite().all()

    def test_default_dtype_of_the_process_changes_nothing(self, irregular, batch):
        logits, labels = batch(irregular.vocab_size, 1, 5, dtype=torch.float32)
        plain = [loss(logits, labels) for loss in self.losses(irregular)]
        torch.set_default_dtype(torch.float64)
        try:
            changed = [loss(logits, labels) for loss in self.losses(irregular)]
        finally:
            torch.set_default_dtype(torch.float32)
        assert_close(changed, plain, ONE_COMPUTATION)


class TestPredictNumbers:
    def test_passes_gradients(self, digits, batch):
        logits, _ = batch(12, 3)
        fn = NTLossDotProduct(digits)
        assert torch.autograd.gradcheck(fn.predict_numbers, logits)

    def test_is_finite_if_all_numbers_are_masked(self, digits):
        logits = torch.full((1, 1, 12), -torch.inf)
        logits[..., 11] = 0
        prediction, mass = NTLossDotProduct(digits).predict_numbers(logits)
        assert prediction.isfinite().all()
        assert mass.item() == 0
