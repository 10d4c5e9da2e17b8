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
from hypothesis import given
from hypothesis import strategies as st
from oracle import Combined, Term
from tolerances import (
    DIFFERENCE_IN_GRADIENT,
    GRADIENT_TOLERANCE,
    ONE_COMPUTATION,
    VALUE_TOLERANCE,
    assert_close,
    assert_matches_oracle,
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


@st.composite
def cases(draw, minus_infinity=False):
    """Draw a vocabulary with several forms of a value, logits, labels, weights and options."""
    vocab = draw(st.integers(4, 24))
    ids = draw(st.lists(st.integers(0, vocab - 1), min_size=3, max_size=vocab, unique=True))
    pool = draw(
        st.sampled_from([[0.0, 1.0, 2.0, 4.0], [-3.0, 0.0, 0.5, 3.14, 1000.0], [7.0, 8.0, 256.0, 257.0]])
    )
    chosen = [*pool[:3], *draw(st.lists(st.sampled_from(pool), min_size=vocab, max_size=vocab))]
    values = dict(zip(ids, chosen, strict=False))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([(), (1,), (5,), (2, 3), (2, 1, 3)]))
    logits = draw(st.sampled_from([0.1, 2.0, 20.0])) * rng.standard_normal((*shape, vocab))
    ignore_index = draw(st.sampled_from([-100, -1, ids[0]]))
    labels = rng.integers(0, vocab, shape)
    labels = np.where(rng.random(shape) < 0.2, ignore_index, labels)
    if minus_infinity:
        gone = rng.random(logits.shape) < draw(st.sampled_from([0.3, 0.8]))
        gone[..., rng.integers(vocab)] = False  # cross-entropy needs one token
        if draw(st.booleans()):
            text = [i for i in range(vocab) if i not in values]
            gone[..., ids] |= bool(text) and rng.random() < 0.5
            if text:
                gone[..., text[0]] = False
        logits = np.where(gone, -np.inf, logits)
    weights = draw(st.sampled_from([None, "zeros", "fractions", "bools"]))
    drawn = {
        None: None,
        "zeros": np.zeros(shape),
        "fractions": np.round(rng.random(shape) * 8) / 8,
        "bools": rng.random(shape) < 0.5,
    }[weights]
    return {
        "vocabulary": NumberVocabulary.from_mapping(values, vocab_size=vocab),
        "logits": np.asarray(logits),
        "labels": np.asarray(labels),
        "kind": draw(st.sampled_from(sorted(KINDS))),
        "reweigh": draw(st.booleans()),
        "options": {"reduction": draw(st.sampled_from(REDUCTIONS)), "ignore_index": ignore_index},
        "weights": drawn,
    }


def term_of(case):
    _, formula, options = KINDS[case["kind"]]
    return Term(formula, case["reweigh"], options=tuple(options.items()))


def worst_of(case):
    return term_of(case).worst(case["vocabulary"].distinct_values)


def ours(case, dtype=torch.float64, **changes):
    """Compute the library's loss of a case; return its logits too."""
    case = {**case, **changes}
    logits = torch.from_numpy(np.array(case["logits"])).to(dtype).requires_grad_()
    weights = None if case["weights"] is None else torch.from_numpy(np.asarray(case["weights"]))
    labels = torch.from_numpy(np.asarray(case["labels"]))
    loss = KINDS[case["kind"]][0](case["vocabulary"], reweigh=case["reweigh"])
    return loss(logits, labels, weights, **case["options"]), logits


def number_term(logits, labels, vocabulary, term=None, **options):
    weights = options.pop("weights", None)
    alone = {"cross_entropy": 0.0, "weight": 1.0, "normalize_by": "numbers"}
    options = {**alone, "number": term or Term(reweigh=True), **options}
    rows = logits.detach().double().numpy() if isinstance(logits, Tensor) else logits
    return oracle.combined(
        rows, np.asarray(labels), values_of(vocabulary), Combined(**options), weights=weights
    )


def expected(case, logits):
    wanted = number_term(
        logits, case["labels"], case["vocabulary"], term_of(case), weights=case["weights"], **case["options"]
    )
    return wanted.ntl, wanted.gradient


def gradient(loss, logits):
    return torch.autograd.grad(loss.sum(), logits)[0]


class TestDrawnBatches:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @given(case=cases())
    def test_value_and_gradient_equal_the_oracle(self, case, dtype):
        loss, logits = ours(case, dtype)
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert_matches_oracle(loss, logits, expected(case, logits), dtype, worst_of(case))

    @given(case=cases(minus_infinity=True))
    def test_logits_of_minus_infinity_are_finite_and_equal_the_oracle(self, case):
        loss, logits = ours(case)
        slope = gradient(loss, logits)
        assert loss.isfinite().all()
        assert slope.isfinite().all()
        assert (loss >= 0).all()
        assert (ours(case, torch.float32)[0] >= 0).all()
        no_number_left = np.isneginf(case["logits"][..., list(case["vocabulary"].token_ids)]).all(-1)
        if case["reweigh"] or not no_number_left.any():
            value, wanted = expected(case, logits)
            worst = worst_of(case)
            assert_close(loss, value, VALUE_TOLERANCE[torch.float64], scale=worst)
            assert_close(slope, wanted, GRADIENT_TOLERANCE[torch.float64], scale=worst)


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
