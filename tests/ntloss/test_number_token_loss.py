"""Number token loss against the float64 oracle, and the properties that must stay true."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import (
    CANCELLATION,
    DIFFERENCE_IN_GRADIENT,
    GRADIENT_TOLERANCE,
    ONE_COMPUTATION,
    VALUE_TOLERANCE,
    approx,
    assert_close,
    assert_matches_oracle,
    assert_repeats,
)
from torch import Tensor

from ntloss import (
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
    NTLoss,
    NTLossDotProduct,
    NumberTokenLoss,
    NumberVocabulary,
    SmoothedWasserstein,
    Wasserstein,
)
from ntloss.functional import number_token_loss

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
REDUCTIONS = ["mean", "sum", "none"]


def pinball(prediction: Tensor, target: Tensor) -> Tensor:
    return torch.maximum(0.9 * (target - prediction), 0.1 * (prediction - target))


def criterion_of(objective: oracle.Objective) -> Any:
    if objective.loss == "wasserstein":
        return Wasserstein(objective.squash_factor)
    return ExpectedValue(pinball if objective.loss == "pinball" else objective.loss)


def values_of(vocabulary: NumberVocabulary) -> dict[int, float]:
    return dict(zip(vocabulary.token_ids, vocabulary.values, strict=True))


def worst_of(vocabulary: NumberVocabulary, objective: oracle.Objective) -> float:
    return oracle.worst_cost(np.array(vocabulary.distinct_values), objective)


OBJECTIVES = [
    oracle.Objective(loss, squash, reweigh)
    for loss, squash in [("wasserstein", None), ("wasserstein", 4.0), *((n, None) for n in oracle.REGRESSION)]
    for reweigh in (True, False)
]


@st.composite
def cases(draw: st.DrawFn, minus_infinity: bool = False) -> dict[str, Any]:
    """A vocabulary with several forms of a value, logits, labels, weights and options."""
    vocab = draw(st.integers(4, 24))
    ids = draw(st.lists(st.integers(0, vocab - 1), min_size=3, max_size=vocab, unique=True))
    pool = draw(
        st.sampled_from([[0.0, 1.0, 2.0, 3.0], [-3.0, 0.0, 0.5, 3.14, 1000.0], [7.0, 8.0, 256.0, 257.0]])
    )
    chosen = [*pool[:3], *draw(st.lists(st.sampled_from(pool), min_size=vocab, max_size=vocab))]
    values = dict(zip(ids, chosen, strict=False))
    vocabulary = NumberVocabulary.from_mapping(values, vocab_size=vocab)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from([(), (1,), (5,), (2, 3), (2, 1, 3)]))
    logits = draw(st.sampled_from([0.1, 2.0, 20.0])) * rng.standard_normal((*shape, vocab))
    ignore_index = draw(st.sampled_from([-100, -1, ids[0]]))
    labels = rng.integers(0, vocab, shape)
    labels = np.where(rng.random(shape) < 0.2, ignore_index, labels)
    if minus_infinity:
        gone = rng.random(logits.shape) < draw(st.sampled_from([0.3, 0.8]))
        gone[..., rng.integers(vocab)] = False  # as CE asks: one token is left
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
        "vocabulary": vocabulary,
        "logits": np.asarray(logits),
        "labels": np.asarray(labels),
        "objective": draw(st.sampled_from(OBJECTIVES)),
        "options": {"reduction": draw(st.sampled_from(REDUCTIONS)), "ignore_index": ignore_index},
        "weights": drawn,
    }


def ours(case: dict[str, Any], dtype: torch.dtype = torch.float64, **changes: Any) -> tuple[Tensor, Tensor]:
    """The library's loss of a case, and the logits that it is of."""
    case = {**case, **changes}
    logits = torch.from_numpy(np.array(case["logits"])).to(dtype).requires_grad_()
    weights = None if case["weights"] is None else torch.from_numpy(np.asarray(case["weights"]))
    loss = number_token_loss(
        logits,
        torch.from_numpy(np.asarray(case["labels"])),
        case["vocabulary"],
        criterion_of(case["objective"]),
        reweigh=case["objective"].reweigh,
        loss_weights=weights,
        **case["options"],
    )
    return loss, logits


def expected(case: dict[str, Any], logits: Tensor | None = None) -> tuple[np.ndarray, np.ndarray]:
    return oracle.number_token_loss(
        case["logits"] if logits is None else logits.detach().double().numpy(),
        case["labels"],
        values_of(case["vocabulary"]),
        case["objective"],
        weights=case["weights"],
        **case["options"],
    )


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), logits)[0]


class TestAgainstTheOracle:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @given(case=cases())
    def test_value_and_gradient(self, case: dict[str, Any], dtype: torch.dtype) -> None:
        loss, logits = ours(case, dtype)
        assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        worst = worst_of(case["vocabulary"], case["objective"])
        assert_matches_oracle(loss, logits, expected(case, logits), dtype, worst)

    @given(case=cases(minus_infinity=True))
    def test_logits_of_minus_infinity(self, case: dict[str, Any]) -> None:
        loss, logits = ours(case)
        slope = gradient(loss, logits)
        assert loss.isfinite().all()
        assert slope.isfinite().all()
        ids = list(case["vocabulary"].token_ids)
        no_number_left = np.isneginf(case["logits"][..., ids]).all(-1)
        if case["objective"].reweigh or not no_number_left.any():
            worst = worst_of(case["vocabulary"], case["objective"])
            assert_close(loss, expected(case)[0], VALUE_TOLERANCE[torch.float64], scale=worst)
            assert_close(slope, expected(case)[1], GRADIENT_TOLERANCE[torch.float64], scale=worst)

    @pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
    def test_gradcheck(self, objective: oracle.Objective, irregular: NumberVocabulary, batch: Any) -> None:
        logits, _ = batch(irregular.vocab_size, 3)
        labels, weights = torch.tensor([2, 0, 14]), torch.tensor([0.5, 1.0, 2.0])
        loss = NumberTokenLoss(irregular, criterion_of(objective), reweigh=objective.reweigh)
        assert torch.autograd.gradcheck(lambda x: loss(x, labels, weights), logits)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_many_tokens_keep_their_digits(self, dtype: torch.dtype, digits: NumberVocabulary) -> None:
        # bfloat16 sums would stop growing at 256, bfloat16 tables read 257 as 256.
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(3000, 12, generator=generator).to(dtype).requires_grad_()
        labels = torch.randint(12, (3000,), generator=generator)
        for reduction in REDUCTIONS:
            wanted = oracle.number_token_loss(
                logits.detach().double().numpy(),
                labels.numpy(),
                values_of(digits),
                oracle.Objective(),
                reduction=reduction,
            )
            loss = number_token_loss(logits, labels, digits, reduction=reduction)
            assert_close(loss, wanted[0], VALUE_TOLERANCE[dtype])

    @pytest.mark.parametrize("certainty", [5.0, 15.0, 20.0, 30.0])
    def test_gradient_of_a_model_that_is_certain_of_text(
        self, certainty: float, digits: NumberVocabulary, batch: Any
    ) -> None:
        logits, _ = batch(12, 3, dtype=torch.float32)
        with torch.no_grad():
            logits[:, 11] += certainty
        labels = torch.tensor([1, 5, 9])
        slope = gradient(NTLoss(digits)(logits, labels), logits)
        wanted = oracle.number_token_loss(
            logits.detach().double().numpy(), labels.numpy(), values_of(digits), oracle.Objective()
        )[1]
        assert_close(slope, wanted, DIFFERENCE_IN_GRADIENT)

    def test_large_values_keep_their_difference_in_bfloat16(self) -> None:
        vocabulary = NumberVocabulary.from_mapping({0: 256, 1: 257, 2: 1001}, vocab_size=4)
        logits = torch.tensor([[0.0, -1e4, -1e4, -1e4]], dtype=torch.bfloat16)
        assert number_token_loss(logits, torch.tensor([1]), vocabulary).item() == 1.0


class TestProperties:
    @given(case=cases(), shift=st.floats(-50, 50))
    def test_adding_a_constant_to_a_row_changes_nothing(self, case: dict[str, Any], shift: float) -> None:
        rows = shift * np.arange(1, 1 + case["logits"][..., 0].size).reshape(case["logits"].shape[:-1])
        worst = worst_of(case["vocabulary"], case["objective"])
        loss, logits = ours(case)
        moved, moved_logits = ours(case, logits=case["logits"] + rows[..., None])
        assert_close(moved, loss, CANCELLATION, scale=worst)
        assert_close(gradient(moved, moved_logits), gradient(loss, logits), CANCELLATION, scale=worst)

    @given(case=cases(minus_infinity=True))
    def test_each_row_of_the_gradient_sums_to_zero(self, case: dict[str, Any]) -> None:
        loss, logits = ours(case)
        sums = gradient(loss, logits).sum(-1)
        worst = worst_of(case["vocabulary"], case["objective"])
        assert_close(sums, torch.zeros_like(sums), scale=worst)

    @given(case=cases(minus_infinity=True))
    def test_the_loss_is_never_negative(self, case: dict[str, Any]) -> None:
        for dtype in (torch.float64, torch.float32):
            assert (ours(case, dtype)[0] >= 0).all()

    @given(case=cases(), at=st.integers(0, 2**16))
    def test_zero_exactly_at_the_target(self, case: dict[str, Any], at: int) -> None:
        vocabulary = case["vocabulary"]
        token = vocabulary.tokens[at % len(vocabulary.tokens)]
        logits = np.full((1, vocabulary.vocab_size), -np.inf)
        logits[0, token.token_id] = 3.0
        certain = {
            **case,
            "logits": logits,
            "labels": np.array([token.token_id]),
            "weights": None,
            "options": {"reduction": "mean", "ignore_index": -100},
        }
        assert ours(certain)[0].item() == approx(0, dtype=torch.float64, scale=1)
        other = next(t for t in vocabulary.tokens if t.value != token.value)
        logits[0, other.token_id] = 0.0
        assert ours(certain)[0].item() > 1e-3

    @given(case=cases())
    def test_text_costs_more_than_the_worst_number_when_reweighed(self, case: dict[str, Any]) -> None:
        vocabulary = case["vocabulary"]
        text = [i for i in range(vocabulary.vocab_size) if i not in vocabulary.token_ids]
        if not text:
            return
        worst = worst_of(vocabulary, case["objective"])
        objective = oracle.Objective(case["objective"].loss, case["objective"].squash_factor, reweigh=True)
        logits = np.full((1, vocabulary.vocab_size), -np.inf)
        logits[0, text[0]] = 0.0
        certain = {
            **case,
            "objective": objective,
            "logits": logits,
            "labels": np.array([vocabulary.token_ids[0]]),
            "weights": None,
            "options": {"reduction": "mean", "ignore_index": -100},
        }
        assert ours(certain)[0].item() == approx(1.01 * worst)

    @given(case=cases())
    def test_positions_without_a_number_contribute_exactly_nothing(self, case: dict[str, Any]) -> None:
        loss, logits = ours(case)
        slope = gradient(loss, logits)
        labels, ignore = case["labels"], case["options"]["ignore_index"]
        counts = np.isin(labels, case["vocabulary"].token_ids) & (labels != ignore)
        if case["weights"] is not None:
            counts &= np.asarray(case["weights"]) > 0
        assert (slope[torch.from_numpy(np.asarray(~counts))] == 0).all()
        # Other logits there, however wild, change nothing.
        wild = np.where(counts[..., None], case["logits"], 77.0 * np.sin(np.arange(case["logits"].shape[-1])))
        moved, moved_logits = ours(case, logits=wild)
        worst = worst_of(case["vocabulary"], case["objective"])
        assert_close(moved, loss, ONE_COMPUTATION, scale=worst)
        assert_close(gradient(moved, moved_logits), slope, ONE_COMPUTATION, scale=worst)

    @given(case=cases(minus_infinity=True), seed=st.integers(0, 1000))
    def test_permuting_the_vocabulary_changes_nothing(self, case: dict[str, Any], seed: int) -> None:
        vocabulary = case["vocabulary"]
        new_id = np.random.default_rng(seed).permutation(vocabulary.vocab_size)
        old_id = np.argsort(new_id)
        permuted = NumberVocabulary.from_mapping(
            {int(new_id[i]): v for i, v in values_of(vocabulary).items()}, vocab_size=vocabulary.vocab_size
        )
        labels, ignore = case["labels"], case["options"]["ignore_index"]
        moved_labels = np.where(labels == ignore, -100, new_id[np.clip(labels, 0, None)])
        loss, logits = ours(case)
        moved, moved_logits = ours(
            case,
            vocabulary=permuted,
            logits=case["logits"][..., old_id],
            labels=moved_labels,
            options={**case["options"], "ignore_index": -100},
        )
        worst = worst_of(vocabulary, case["objective"])
        assert_close(moved, loss, scale=worst)
        back = gradient(moved, moved_logits)[..., torch.from_numpy(new_id)]
        assert_close(back, gradient(loss, logits), scale=worst)

    @given(share=st.floats(0.0, 1.0), label=st.sampled_from([1, 2, 4]), seed=st.integers(0, 999))
    @pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
    @settings(max_examples=15)
    def test_forms_of_one_value_share_their_probability(
        self, objective: oracle.Objective, share: float, label: int, seed: int, irregular: NumberVocabulary
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(1, irregular.vocab_size, generator=generator, dtype=torch.float64)
        loss = NumberTokenLoss(irregular, criterion_of(objective), reweigh=objective.reweigh)
        before = loss(logits, torch.tensor([1]))
        probs = logits.detach().softmax(-1)
        both = probs[0, 1] + probs[0, 2]
        probs[0, 1], probs[0, 2] = share * both, (1 - share) * both
        assert_close(loss(probs.log(), torch.tensor([label])), before, scale=loss.objective.worst or 1.0)

    @given(case=cases(), at=st.integers(0, 5))
    def test_the_gradient_does_not_depend_on_how_a_batch_is_split(
        self, case: dict[str, Any], at: int
    ) -> None:
        vocab = case["vocabulary"].vocab_size
        flat = {
            **case,
            "logits": case["logits"].reshape(-1, vocab),
            "labels": case["labels"].reshape(-1),
            "weights": None if case["weights"] is None else np.asarray(case["weights"]).reshape(-1),
            "options": {**case["options"], "reduction": "sum"},
        }
        whole, logits = ours(flat)
        parts = []
        for cut in (slice(None, at), slice(at, None)):
            weights = None if flat["weights"] is None else flat["weights"][cut]
            part = ours(flat, logits=flat["logits"][cut], labels=flat["labels"][cut], weights=weights)
            parts.append((part[0], gradient(*part)))
        worst = worst_of(case["vocabulary"], case["objective"])
        assert_close(parts[0][0] + parts[1][0], whole, scale=worst)
        assert_close(torch.cat([parts[0][1], parts[1][1]]), gradient(whole, logits), scale=worst)

    @given(case=cases())
    def test_mean_is_the_sum_over_the_weights_of_number_labels(self, case: dict[str, Any]) -> None:
        by_name = {
            name: ours(case, options={**case["options"], "reduction": name})[0].detach()
            for name in REDUCTIONS
        }
        assert by_name["none"].shape == case["labels"].shape
        assert_close(by_name["none"].sum(), by_name["sum"])
        counts = np.isin(case["labels"], case["vocabulary"].token_ids)
        counts &= case["labels"] != case["options"]["ignore_index"]
        weights = 1.0 if case["weights"] is None else np.asarray(case["weights"], dtype=float)
        total = float((counts * weights).sum())
        assert_close(by_name["mean"], by_name["sum"].numpy() / total if total else 0.0)


class TestBatches:
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("labels", [[10, 11], [-100, -100], [11, -100]])
    def test_without_numbers_the_loss_is_a_zero_with_a_graph(
        self, labels: list[int], reduction: str, digits: NumberVocabulary, batch: Any
    ) -> None:
        logits, _ = batch(12, 2)
        loss = NTLoss(digits)(logits, torch.tensor(labels), reduction=reduction)
        assert loss.requires_grad
        assert (loss == 0).all()
        loss.sum().backward()
        assert (logits.grad == 0).all()

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_weights_of_zero_give_a_zero_with_a_graph(
        self, reduction: str, digits: NumberVocabulary, batch: Any
    ) -> None:
        logits, _ = batch(12, 2)
        loss = NTLoss(digits)(logits, torch.tensor([3, 4]), torch.zeros(2), reduction)
        loss.sum().backward()
        assert (loss == 0).all()
        assert (logits.grad == 0).all()

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (1, 0, 2)])
    def test_empty_batches(
        self, shape: tuple[int, ...], reduction: str, digits: NumberVocabulary, batch: Any
    ) -> None:
        logits, labels = batch(12, *shape)
        loss = NTLoss(digits)(logits, labels, reduction=reduction)
        assert loss.shape == (shape if reduction == "none" else ())
        assert (loss == 0).all()
        loss.sum().backward()
        assert logits.grad.shape == logits.shape

    def test_rows_of_nothing_but_minus_infinity_stay_finite(self, digits: NumberVocabulary) -> None:
        for reweigh in (True, False):
            for label in (3, 11, -100):
                logits = torch.full((1, 12), -torch.inf, requires_grad=True)
                loss = NTLoss(digits, reweigh=reweigh)(logits, torch.tensor([label]))
                loss.backward()
                assert loss.isfinite(), (reweigh, label)
                assert logits.grad.isfinite().all(), (reweigh, label)

    @pytest.mark.parametrize("wild", [torch.nan, torch.inf])
    def test_broken_logits_at_ignored_positions_do_no_harm(
        self, wild: float, digits: NumberVocabulary
    ) -> None:
        # Some attention kernels leave NaN at padding.
        logits = torch.zeros(2, 12)
        logits[1] = wild
        logits.requires_grad_()
        labels = torch.tensor([3, -100])
        loss = NTLoss(digits)(logits, labels)
        loss.backward()
        assert loss.isfinite()
        assert logits.grad.isfinite().all()

    def test_a_vocabulary_of_numbers_only(self, batch: Any) -> None:
        vocabulary = NumberVocabulary.from_mapping({i: i * i for i in range(5)}, vocab_size=5)
        logits, labels = batch(5, 7)
        for reweigh in (True, False):
            objective = oracle.Objective(reweigh=reweigh)
            wanted = oracle.number_token_loss(
                logits.detach().numpy(), labels.numpy(), values_of(vocabulary), objective
            )
            loss = number_token_loss(logits, labels, vocabulary, reweigh=reweigh)
            assert_matches_oracle(loss, logits, wanted, torch.float64, 16.0)  # 4 squared

    def test_a_vocabulary_of_one_number(self, batch: Any) -> None:
        vocabulary = NumberVocabulary.from_mapping({1: 5.0}, vocab_size=3)
        logits, _ = batch(3, 2)
        loss = number_token_loss(logits, torch.tensor([1, 1]), vocabulary)
        loss.backward()
        assert loss.item() == 0
        assert (logits.grad == 0).all()

    @pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 3, 4)])
    def test_any_leading_shape(self, shape: tuple[int, ...], irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, *shape)
        wanted = oracle.number_token_loss(
            logits.detach().numpy(),
            labels.numpy(),
            values_of(irregular),
            oracle.Objective(),
            reduction="none",
        )
        loss = NumberTokenLoss(irregular)(logits, labels, reduction="none")
        assert_matches_oracle(loss, logits, wanted, torch.float64, 1003.0)

    def test_strided_logits_and_labels(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 4, 6)
        straight = NumberTokenLoss(irregular)(logits, labels, reduction="none")
        layouts = {
            "batch and time swapped": (logits.transpose(0, 1), labels.t(), straight.t()),
            "vocabulary first in memory": (
                logits.permute(2, 0, 1).contiguous().permute(1, 2, 0),
                labels,
                straight,
            ),
            "every second": (logits[:, ::2], labels[:, ::2], straight[:, ::2]),
            "shifted by one": (logits[:, :-1], labels[:, :-1], straight[:, :-1]),
            "expanded": (logits[:1].expand(3, -1, -1), labels[:1].expand(3, -1), straight[:1].expand(3, -1)),
        }
        for name, (strided, its_labels, wanted) in layouts.items():
            assert not strided.is_contiguous(), name
            assert_close(NumberTokenLoss(irregular)(strided, its_labels, reduction="none"), wanted)

    def test_ignore_index_may_be_a_number_token(self, digits: NumberVocabulary, batch: Any) -> None:
        logits, _ = batch(12, 3)
        labels = torch.tensor([0, 4, 0])
        kept = NTLoss(digits)(logits[1:2], labels[1:2])
        assert_close(NTLoss(digits)(logits, labels, ignore_index=0), kept)

    def test_labels_may_be_int32(self, digits: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(12, 6)
        assert_close(NTLoss(digits)(logits, labels.int()), NTLoss(digits)(logits, labels), ONE_COMPUTATION)

    def test_weights_of_any_real_dtype(self, digits: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(12, 6)
        weights = torch.tensor([0, 1, 1, 0, 1, 1])
        reference = NTLoss(digits)(logits, labels, weights.double())
        for dtype in (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32):
            assert_close(NTLoss(digits)(logits, labels, weights.to(dtype)), reference, ONE_COMPUTATION)

    def test_the_inputs_stay_as_they_are(self, digits: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(12, 6)
        labels[0] = -100
        weights = torch.rand(6)
        before = [logits.detach().clone(), labels.clone(), weights.clone()]
        NTLoss(digits)(logits, labels, weights).backward()
        for tensor, copy_ in zip((logits.detach(), labels, weights), before, strict=True):
            assert torch.equal(tensor, copy_)


class TestWithoutGradients:
    """On the CPU the logits of number labels alone are read then, where they are few."""

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 1.0])
    def test_the_loss_is_the_same(
        self, share: float, weighted: bool, reduction: str, irregular: NumberVocabulary
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (3, 40)
        logits = torch.randn(*shape, irregular.vocab_size, generator=generator)
        texts = [i for i in range(irregular.vocab_size) if i not in irregular.token_ids]
        pick = torch.rand(shape, generator=generator) < share
        numbers, text = (
            torch.tensor(ids)[torch.randint(len(ids), shape, generator=generator)]
            for ids in (irregular.token_ids, texts)
        )
        labels = torch.where(pick, numbers, text)
        labels[0, :3] = -100
        weights = torch.rand(shape, generator=generator) if weighted else None
        loss_fn = NTLoss(irregular)
        wanted = loss_fn(logits.clone().requires_grad_(), labels, weights, reduction)
        with torch.no_grad():
            got = loss_fn(logits.clone().requires_grad_(), labels, weights, reduction)
        for loss in (got, loss_fn(logits, labels, weights, reduction)):
            assert not loss.requires_grad
            assert_close(loss, wanted.detach())


class TestModule:
    def losses(self, vocabulary: NumberVocabulary) -> list[NumberTokenLoss]:
        return [
            NTLoss(vocabulary),
            NTLoss(vocabulary, squash_factor=3.0),
            NTLossDotProduct(vocabulary, loss_function=F.huber_loss),
            NumberTokenLoss(vocabulary, ExpectedValue("absolute"), reweigh=False),
        ]

    def test_has_nothing_to_save_or_to_train(self, digits: NumberVocabulary) -> None:
        for loss in self.losses(digits):
            assert loss.state_dict() == {}
            assert list(loss.parameters()) == []
            loss.load_state_dict({})

    def test_copies_and_pickles(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        for loss in self.losses(irregular):
            for clone in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
                assert_repeats(partial(loss, logits, labels), partial(clone, logits, labels))

    @pytest.mark.parametrize("make", ["sentence_piece", "byte_level"])
    def test_pickles_when_made_of_a_tokenizer(self, make: str, batch: Any) -> None:
        # torch.save(model), spawned workers and launchers pickle whatever a model holds.
        import tiny_tokenizers

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = NTLoss(tiny_tokenizers.MAKES[make]())
        logits, labels = batch(loss.vocab_size, 5)
        clone = pickle.loads(pickle.dumps(loss))
        assert_repeats(partial(loss, logits, labels), partial(clone, logits, labels))

    def test_keeps_its_tables_exact_under_half(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        for loss in self.losses(irregular):
            reference = loss(logits, labels)
            before = {name: buffer.dtype for name, buffer in loss.named_buffers()}
            model = torch.nn.ModuleList([loss])
            for change in (model.half, model.bfloat16, model.double, model.float):
                change()
                assert {name: buffer.dtype for name, buffer in loss.named_buffers()} == before
                assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_goes_to_another_device_and_back(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        for loss in self.losses(irregular):
            reference = loss(logits, labels)
            loss.to("meta")
            assert {buffer.device.type for buffer in loss.buffers()} == {"meta"}
            assert loss(logits.to("meta"), labels.to("meta")).device.type == "meta"
            loss.to("cpu")
            assert_close(loss(logits, labels), reference, ONE_COMPUTATION)
            loss.to("meta").to_empty(device="cpu")  # how sharded training brings modules to life
            assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_follows_the_logits(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        for loss in self.losses(irregular):
            assert loss(logits.to("meta"), labels.to("meta")).device.type == "meta"
            assert loss(logits, labels).isfinite()

    @pytest.mark.parametrize(
        "criterion", [Dist2(), GaussianCrossEntropy(), SmoothedWasserstein()], ids=lambda c: type(c).__name__
    )
    def test_tables_of_its_criterion_follow_the_logits_too(self, batch: Any, criterion: Any) -> None:
        vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        logits, labels = batch(12, 5)
        for make in (NumberTokenLoss, NTLCrossEntropyLoss):
            loss = make(vocabulary, criterion)
            reference = loss(logits, labels)
            assert loss(logits.to("meta"), labels.to("meta")).device.type == "meta"
            assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_may_be_made_on_the_meta_device(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        reference = NTLoss(irregular)(logits, labels)
        with torch.device("meta"):
            loss = NTLoss(irregular)
        assert_close(loss(logits, labels), reference, ONE_COMPUTATION)

    def test_trains_after_an_evaluation_in_inference_mode(self, batch: Any) -> None:
        # Tables that are built in inference mode cannot be saved for backward.
        vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        logits, labels = batch(12, 5)
        with torch.inference_mode():
            number_token_loss(logits, labels, vocabulary)
        number_token_loss(logits, labels, vocabulary).backward()

        logits, labels = batch(12, 5)
        with torch.inference_mode():
            loss = NTLoss(vocabulary)
            loss(logits, labels)
        loss(logits, labels).backward()
        assert logits.grad.isfinite().all()

    def test_autocast_changes_nothing(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5, dtype=torch.float32)
        for loss in self.losses(irregular):
            plain = loss(logits, labels)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                cast = loss(logits, labels)
            assert cast.dtype == torch.float32
            assert_close(cast, plain, ONE_COMPUTATION)
            assert_close(gradient(cast, logits), gradient(plain, logits), ONE_COMPUTATION)

    def test_default_dtype_of_the_process_changes_nothing(
        self, irregular: NumberVocabulary, batch: Any
    ) -> None:
        logits, labels = batch(irregular.vocab_size, 5, dtype=torch.float32)
        plain = [loss(logits, labels) for loss in self.losses(irregular)]
        torch.set_default_dtype(torch.float64)
        try:
            changed = [loss(logits, labels) for loss in self.losses(irregular)]
        finally:
            torch.set_default_dtype(torch.float32)
        assert_close(changed, plain, ONE_COMPUTATION)

    def test_function_and_module_agree(self, irregular: NumberVocabulary, batch: Any) -> None:
        logits, labels = batch(irregular.vocab_size, 5)
        assert_close(
            NTLoss(irregular)(logits, labels), number_token_loss(logits, labels, irregular), ONE_COMPUTATION
        )

    def test_says_what_it_is_when_printed(self, digits: NumberVocabulary) -> None:
        assert "vocab_size=12" in repr(NTLoss(digits))


class TestPredictNumbers:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_mean_and_mass_of_each_position(
        self, dtype: torch.dtype, irregular: NumberVocabulary, batch: Any
    ) -> None:
        logits, _ = batch(irregular.vocab_size, 2, 3, dtype=dtype)
        prediction, mass = NTLossDotProduct(irregular).predict_numbers(logits)
        rows = logits.detach().double().numpy()
        full = np.exp(rows - rows.max(-1, keepdims=True))
        full /= full.sum(-1, keepdims=True)
        on_numbers = full[..., list(irregular.token_ids)]
        wanted = (on_numbers * np.array(irregular.values)).sum(-1) / on_numbers.sum(-1)
        assert_close(prediction, wanted, VALUE_TOLERANCE[dtype])
        assert_close(mass, on_numbers.sum(-1), VALUE_TOLERANCE[dtype])

    def test_passes_gradients(self, digits: NumberVocabulary, batch: Any) -> None:
        logits, _ = batch(12, 3)
        fn = NTLossDotProduct(digits)
        assert torch.autograd.gradcheck(fn.predict_numbers, logits)

    def test_no_number_left(self, digits: NumberVocabulary) -> None:
        logits = torch.full((1, 1, 12), -torch.inf)
        logits[..., 11] = 0
        prediction, mass = NTLossDotProduct(digits).predict_numbers(logits)
        assert prediction.isfinite().all()
        assert mass.item() == 0

    def test_checks_its_logits(self, digits: NumberVocabulary) -> None:
        with pytest.raises(ValueError, match=r"\[1, 2, 13\].*12"):
            NTLossDotProduct(digits).predict_numbers(torch.zeros(1, 2, 13))
        with pytest.raises(TypeError, match=r"int64"):
            NTLossDotProduct(digits).predict_numbers(torch.zeros(1, 2, 12, dtype=torch.int64))


class TestBadInput:
    def call(self, vocabulary: NumberVocabulary, **changes: Any) -> Tensor:
        given = {"logits": torch.zeros(2, 3, 12), "labels": torch.zeros(2, 3, dtype=torch.int64), **changes}
        validate = given.pop("validate", None)
        return NTLoss(vocabulary, validate=validate)(**given)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"logits": torch.zeros(2, 3, 12, dtype=torch.int64)}, TypeError, "floating-point.*int64"),
            (
                {"logits": torch.zeros(2, 3, 12, dtype=torch.complex64)},
                TypeError,
                "floating-point.*complex64",
            ),
            ({"logits": [[0.0] * 12]}, TypeError, "floating-point.*list"),
            ({"logits": torch.zeros(2, 3, 13)}, ValueError, r"\[2, 3, 13\].*12.*vocab_size"),
            ({"logits": torch.tensor(1.0)}, ValueError, r"\[\].*12"),
            ({"labels": torch.zeros(2, 3)}, TypeError, "int64.*float32"),
            ({"labels": torch.zeros(2, 3, dtype=torch.bool)}, TypeError, "int64.*bool"),
            ({"labels": [[0, 1, 2]]}, TypeError, "int64.*list"),
            ({"labels": None}, TypeError, "int64.*NoneType"),
            (
                {"labels": torch.zeros(2, 4, dtype=torch.int64)},
                ValueError,
                r"\[2, 4\].*\[2, 3\]",
            ),
            ({"labels": torch.zeros(6, dtype=torch.int64)}, ValueError, r"\[6\].*\[2, 3\]"),
            ({"labels": torch.zeros(2, 3, 1, dtype=torch.int64)}, ValueError, r"\[2, 3, 1\].*\[2, 3\]"),
            ({"labels": torch.full((2, 3), 12)}, ValueError, "label 12.*0 to 11.*ignore_index=-100"),
            ({"labels": torch.full((2, 3), -1)}, ValueError, "label -1.*0 to 11"),
            ({"labels": torch.full((2, 3), -100), "ignore_index": -1}, ValueError, "label -100"),
            ({"labels": torch.zeros(2, 3, dtype=torch.int64, device="meta")}, ValueError, "meta.*cpu"),
            ({"loss_weights": 1.0}, TypeError, "loss_weights.*float"),
            ({"loss_weights": [[1.0] * 3] * 2}, TypeError, "loss_weights.*list"),
            ({"loss_weights": torch.ones(2, 3, dtype=torch.complex64)}, TypeError, "loss_weights.*complex64"),
            ({"loss_weights": torch.ones(3)}, ValueError, r"\[3\].*\[2, 3\]"),
            ({"loss_weights": torch.ones(2, 3, device="meta")}, ValueError, "meta.*cpu"),
            ({"loss_weights": torch.full((2, 3), -0.5)}, ValueError, "-0.5.*0 or more"),
            ({"loss_weights": torch.full((2, 3), torch.nan)}, ValueError, "nan.*0 or more"),
            ({"reduction": "avg"}, ValueError, "'avg'.*'mean', 'sum', 'none'"),
            ({"reduction": None}, ValueError, "None.*'mean', 'sum', 'none'"),
        ],
        ids=lambda x: " ".join(x) if isinstance(x, dict) else None,
    )
    def test_says_what_was_given_and_what_was_expected(
        self, changes: dict[str, Any], error: type[Exception], message: str, digits: NumberVocabulary
    ) -> None:
        with pytest.raises(error, match=f"(?s){message}"):
            self.call(digits, **changes)

    def test_values_are_checked_when_asked(self, digits: NumberVocabulary) -> None:
        bad_weight = {"loss_weights": torch.full((2, 3), -1.0)}
        for validate in (None, True):
            with pytest.raises(ValueError, match="0 or more"):
                self.call(digits, validate=validate, **bad_weight)
        assert self.call(digits, validate=False, **bad_weight).isfinite()
        # The function too.
        arguments = (torch.zeros(2, 12), torch.tensor([3, 12]), digits)
        with pytest.raises(ValueError, match="label 12"):
            number_token_loss(*arguments, validate=True)

    def test_values_are_not_read_off_the_cpu_unless_asked(self, digits: NumberVocabulary) -> None:
        # The meta device has no values: reading one raises, as a synchronisation would cost elsewhere.
        on_meta = {
            "logits": torch.zeros(2, 3, 12, device="meta"),
            "labels": torch.zeros(2, 3, dtype=torch.int64, device="meta"),
        }
        for validate in (None, False):
            assert self.call(digits, validate=validate, **on_meta).device.type == "meta"
        with pytest.raises((RuntimeError, NotImplementedError)):
            self.call(digits, validate=True, **on_meta)

    def test_shapes_are_checked_even_without_validation(self, digits: NumberVocabulary) -> None:
        with pytest.raises(ValueError, match="labels of shape"):
            self.call(digits, validate=False, labels=torch.zeros(7, dtype=torch.int64))

    def test_a_vocabulary_is_asked_for(self) -> None:
        with pytest.raises(TypeError, match=r"NumberVocabulary.*dict"):
            NumberTokenLoss({1: 1.0})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"tokenizer.*dict"):
            NTLoss({1: 1.0})

    @pytest.mark.parametrize(
        "settings", [{"vocab_size": 13}, {"digit_level": False}, {"space_prefixed": True}], ids=str
    )
    @pytest.mark.parametrize("kind", [NTLoss, NTLossDotProduct])
    def test_settings_that_contradict_a_vocabulary(
        self, kind: type, settings: dict[str, Any], digits: NumberVocabulary
    ) -> None:
        name, value = next(iter(settings.items()))
        with pytest.raises(ValueError, match=f"{name}={value}"):
            kind(digits, **settings)
        assert kind(digits, vocab_size=12).vocab_size == 12

    def test_reweigh_needs_a_worst_cost(self, digits: NumberVocabulary) -> None:
        class Boundless:
            def __call__(self, record: Any) -> Tensor:
                return -record.log_probs.gather(-1, record.target[:, None]).squeeze(-1)

            def worst(self, values: Tensor) -> None:
                return None

        logits, labels = torch.zeros(2, 12), torch.tensor([3, 11])
        with pytest.raises(ValueError, match=r"reweigh=True.*worst"):
            NumberTokenLoss(digits, Boundless(), reweigh=True)
        with pytest.raises(ValueError, match=r"reweigh=True.*worst"):
            number_token_loss(logits, labels, digits, Boundless(), reweigh=True)
        assert not NumberTokenLoss(digits, Boundless()).reweigh
        assert NumberTokenLoss(digits, Boundless())(logits, labels).item() == approx(np.log(10))

    @pytest.mark.parametrize("largest", [1e39, 1e300])
    def test_values_beyond_float32_are_refused_or_harmless(self, largest: float) -> None:
        # float() reads "1e300" as finite; float32, in which the loss is computed, does not.
        try:
            vocabulary = NumberVocabulary.from_mapping({0: 0.0, 1: "1", 2: largest}, vocab_size=4)
            loss = number_token_loss(torch.zeros(1, 4), torch.tensor([1]), vocabulary)
        except ValueError:
            return
        assert loss.isfinite()
