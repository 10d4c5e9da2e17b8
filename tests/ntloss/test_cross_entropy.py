"""Cross-entropy plus number term: every path and pair of options against the float64 oracle."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from combined_cases import (
    HIDDEN_PATHS,
    NUMBERS,
    PATHS,
    TEXTS,
    VALUES,
    VOCAB,
    assert_gradients,
    assert_matches,
    compute,
    covering,
    leaves_of,
    make_case,
    numbers_case,
    run,
)
from tolerances import (
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    TWO_PATHS,
    assert_close,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ntloss import NTLCrossEntropyLoss, NumberVocabulary, ntl_mse
from ntloss.engine import read
from ntloss.engine.terms import NumberTerm

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
REDUCTIONS = ["mean", "sum", "none"]
EVERY_PAIR = covering(
    {
        "dtype": DTYPES,
        "mode": ["add", "replace"],
        "reduction": REDUCTIONS,
        "transform": [(None, 1.0), (3.0, 1.0), (None, 0.5), (2.0, 1.5)],
        "criterion": ["ntl_was", "ntl_was squashed", "ntl_mse", "gaussian", "user's own"],
        "label_smoothing": [0.0, 0.1],
        "weighted": [False, True],
        "num_items": [None, 20.0],
        "ignore_index": [-100, 9, -1],  # 9 is a number token
        "bias": [True, False],
        "gone": [False, True],
        "chunk_size": [None, 1, 3, 11, 50],
        "block": [1 << 22, 60],  # logits copied at a time: all of them, or two rows
    }
)


def describe(case):
    return "-".join(str(value).removeprefix("torch.") for value in case.values())


@pytest.mark.parametrize("drawn", EVERY_PAIR, ids=describe)
def test_every_path_equals_the_oracle(drawn, monkeypatch):
    drawn = dict(drawn)
    dtype, chunk_size = drawn.pop("dtype"), drawn.pop("chunk_size")
    drawn["softcap"], drawn["logit_scale"] = drawn.pop("transform")
    monkeypatch.setattr(read, "CHUNK", drawn.pop("block"))
    num_items = drawn.pop("num_items")
    if drawn["reduction"] == "mean":
        drawn["num_items"] = num_items
    if drawn["softcap"] is None and drawn["label_smoothing"]:
        drawn["gone"] = False  # cross-entropy would be infinite, which another test covers
    case = make_case(11, seed=1, **drawn)
    for path in PATHS:
        changes = {"chunk_size": chunk_size} if path in HIDDEN_PATHS else {}
        assert_matches(case, path, dtype, **changes)


class TestLogitsPath:
    @pytest.mark.parametrize("block", [1 << 22, 2 * VOCAB])
    def test_a_label_with_a_vanishing_probability_equals_the_oracle(self, block, monkeypatch):
        # exp(-300) is 0 in float32, and exp(-55) has few digits: another logit must give the log-normalizer.
        monkeypatch.setattr(read, "CHUNK", block)
        logits = make_case(6).logits(torch.float32)
        labels = torch.tensor([9, 12, 3, TEXTS[0], 5, 7])
        for row, depth in enumerate([0.0, -300.0, -55.0, -1e30, -88.0, -46.0]):
            logits[row, labels[row]] = depth
        case = replace(make_case(6), labels=labels, upstream=1.0)
        leaf = logits.clone().requires_grad_()
        terms = NTLCrossEntropyLoss(NUMBERS).terms(leaf, labels)
        terms.loss.backward()
        wanted = case.expected(logits)
        assert_close(terms.ce, wanted.ce)
        assert_close(terms.ntl, wanted.ntl)
        assert_close(leaf.grad, wanted.gradient)

    def test_a_label_logit_of_minus_infinity_costs_infinity_without_nan(self):
        case = make_case(4)
        logits = case.logits()
        labels = torch.tensor([9, TEXTS[1], 3, TEXTS[2]])
        logits[0, 9] = logits[1, TEXTS[1]] = -torch.inf
        leaf = logits.requires_grad_()
        loss = NTLCrossEntropyLoss(NUMBERS, reduction="none")(leaf, labels)
        assert loss[:2].isposinf().all()
        assert loss[2:].isfinite().all()
        loss.sum().backward()
        wanted = replace(case, labels=labels, upstream=1.0, options=replace(case.options, reduction="sum"))
        assert_close(leaf.grad, wanted.expected(logits).gradient)
        # As in PyTorch.
        twin = logits.detach().requires_grad_()
        F.cross_entropy(twin, labels, reduction="sum").backward()
        plain = logits.detach().requires_grad_()
        NTLCrossEntropyLoss(NUMBERS, weight=0.0, reduction="sum")(plain, labels).backward()
        assert_close(plain.grad, twin.grad)

    @pytest.mark.parametrize("path", PATHS)
    def test_label_smoothing_over_masked_tokens_is_infinite_as_in_torch(self, path):
        case = make_case(4, gone=True, label_smoothing=0.1)
        result = run(case, path)
        assert result.loss.isposinf()
        assert all(g is None or not g.isnan().any() for g in result.gradients.values())

    @pytest.mark.parametrize("path", PATHS)
    def test_masking_all_number_tokens_is_finite(self, path):
        # The model cannot write a number: the gradient is finite all the same.
        case = make_case(9, seed=2, share_of_text=0.5)
        bias = case.bias.clone()
        bias[list(VALUES)] = -torch.inf
        labels = torch.where(torch.arange(9) < 4, 9, TEXTS[2])
        case = replace(case, bias=bias, labels=labels, options=replace(case.options, mode="replace"))
        for reduction in REDUCTIONS:
            here = replace(case, options=replace(case.options, reduction=reduction))
            result = run(here, path)
            assert result.loss.isfinite().all()
            assert all(g is None or g.isfinite().all() for g in result.gradients.values())

    @pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
    def test_nan_and_infinite_logits_at_ignored_positions_have_no_effect(self, broken):
        # Some attention kernels leave NaN at padding.
        labels = torch.tensor([9, -100, 3, TEXTS[0], -100, 7])
        case = replace(make_case(6), labels=labels, upstream=1.0)
        logits = case.logits()
        wanted = case.expected(logits)
        logits[1], logits[4, 3] = broken, broken
        leaf = logits.requires_grad_()
        terms = compute(case, "logits", {"logits": leaf})
        terms.loss.backward()
        assert_close(terms.loss, wanted.loss)
        assert_close(leaf.grad, wanted.gradient)


def test_nan_hidden_states_at_ignored_positions_have_no_effect():
    # Padding may contain NaN, which a matrix product would spread.
    case = replace(make_case(6), labels=torch.tensor([9, -100, 3, TEXTS[0], -100, 7]))
    hidden = case.hidden.clone()
    hidden[1] = torch.nan
    for reduction in ("mean", "none"):
        leaf, weight = hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
        loss = NTLCrossEntropyLoss(NUMBERS, reduction=reduction).from_hidden(
            leaf, weight, case.labels, case.bias
        )
        loss.sum().backward()
        assert weight.grad.isfinite().all()
        assert leaf.grad.isfinite().all()
        if reduction == "mean":
            assert_close(loss, case.expected().loss)


def assert_zeros(result):
    """Sharded training needs a gradient of every parameter on every rank, even of zero."""
    assert not result.loss.any()
    assert all(gradient is not None and not gradient.any() for gradient in result.gradients.values())


class TestShapes:
    @pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3), (1, 1)])
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("path", PATHS)
    def test_any_leading_shape_equals_the_oracle(self, path, reduction, shape):
        case = make_case(*shape, reduction=reduction, weighted=True, seed=4)
        result = assert_matches(case, path)
        assert result.loss.shape == (shape if reduction == "none" else ())

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (1, 0, 2)])
    def test_an_empty_batch_is_a_zero_that_supports_backward(self, shape, path):
        for reduction in REDUCTIONS:
            result = run(make_case(*shape, reduction=reduction), path)
            assert result.loss.shape == (shape if reduction == "none" else ())
            assert_zeros(result)

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("shape", [(2, 0), (0, 3), (2, 1)])
    def test_sequences_without_a_next_token_can_be_shifted(self, shape, path):
        case = replace(make_case(*shape, weighted=True), number_weights=torch.ones(shape))
        assert_zeros(run(case, path, shift=True))

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_an_ignored_batch_and_weights_of_zero_are_a_zero_that_supports_backward(self, reduction, path):
        case = make_case(5, reduction=reduction, label_smoothing=0.1)
        assert_zeros(run(replace(case, labels=torch.full((5,), -100)), path))
        assert_zeros(run(replace(case, loss_weights=torch.zeros(5)), path))

    def test_strided_logits_and_labels_equal_the_oracle(self):
        case = make_case(4, 3, seed=6, weighted=True)
        logits, wanted = case.logits(), case.expected()
        strided = replace(case, labels=case.labels.t().contiguous().t())
        strided = replace(strided, loss_weights=case.loss_weights.t().contiguous().t())
        views: dict[str, Tensor] = {
            "vocabulary first": logits.permute(2, 0, 1).contiguous().permute(1, 2, 0),
            "sequence first": logits.transpose(0, 1).contiguous().transpose(0, 1),
            "every other": logits.repeat_interleave(2, -1)[..., ::2],
            "padded": F.pad(logits, (0, 5))[..., :VOCAB],
        }
        for name, view in views.items():
            assert not view.is_contiguous()
            leaf = view.clone(memory_format=torch.preserve_format).requires_grad_()
            terms = compute(strided, "logits", {"logits": leaf})
            (1.5 * terms.loss).backward()
            assert_close(terms.loss, wanted.loss, what=name)
            assert_close(leaf.grad, wanted.gradient, what=name)


class TestShift:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("criterion", ["ntl_was", "by digits after", "number_level decimals", "ntil"])
    def test_equals_slicing_logits_and_labels(self, criterion, reduction, path):
        case = numbers_case(criterion, reduction=reduction)
        weights = torch.arange(1, 25).reshape(2, 12)
        case = replace(case, loss_weights=weights / 4, number_weights=weights % 5 / 4)
        shifted = run(case, path, shift=True)
        by_hand = run(
            replace(
                case,
                hidden=case.hidden[:, :-1],
                labels=case.labels[:, 1:],
                loss_weights=case.loss_weights[:, 1:],
                sequence_ids=case.sequence_ids[:, 1:],
                number_weights=case.number_weights[:, 1:],
                upstream=case.upstream[:, :-1] if reduction == "none" else case.upstream,
            ),
            path,
        )
        wanted = by_hand.loss.detach()
        assert_close(shifted.loss, F.pad(wanted, (0, 1)) if reduction == "none" else wanted)
        of_rows = {
            name: F.pad(gradient, (0, 0, 0, 1))
            for name, gradient in by_hand.gradients.items()
            if name in ("hidden", "logits")
        }
        assert_gradients(shifted.gradients, {**by_hand.gradients, **of_rows}, TWO_PATHS, path)


class TestCount:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize(
        "kind",
        [float, int, torch.tensor, lambda n: torch.tensor(float(n), dtype=torch.float64)],
        ids=["float", "int", "int64 tensor", "float64 tensor"],
    )
    def test_counts_of_any_type_are_exact_in_float64(self, kind, path):
        assert_matches(make_case(7, num_items=kind(29)), path)

    def test_a_count_for_each_row_is_summed(self):
        case = make_case(7)
        loss_fn = NTLCrossEntropyLoss(NUMBERS)
        rows = loss_fn(case.logits(), case.labels, count=torch.tensor([20, 9]))
        assert_close(rows, loss_fn(case.logits(), case.labels, count=29))
        with pytest.raises(ValueError, match="count"):
            loss_fn(case.logits(), case.labels, count=torch.tensor([2, -9]))


class TestTerms:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_are_detached_and_add_up_to_the_loss(self, reduction, path):
        case = make_case(5, reduction=reduction, label_smoothing=0.1)
        terms = run(case, path)
        assert not terms.ce.requires_grad
        assert not terms.ntl.requires_grad
        assert terms.loss.requires_grad
        assert_close(terms.loss, (terms.ce + 0.3 * terms.ntl).numpy())

    @pytest.mark.parametrize("path", PATHS)
    def test_a_tensor_as_weight_counts_as_its_number_and_gets_no_gradient(self, path):
        case, weight = make_case(5), torch.tensor(0.75, requires_grad=True)
        tensor = replace(case, options=replace(case.options, weight=weight))
        wanted = replace(case, options=replace(case.options, weight=0.75))
        assert_close(run(tensor, path).loss, wanted.expected().loss)
        assert weight.grad is None

    def test_the_weight_may_be_assigned_as_a_number_or_a_tensor_that_casting_leaves_as_it_is(self):
        case, weight = make_case(5), torch.tensor(0.1, dtype=torch.float64)
        module = NTLCrossEntropyLoss(NUMBERS, weight=weight).bfloat16()
        weight.fill_(0.5)
        assert module.weight.dtype == torch.float64
        wanted = NTLCrossEntropyLoss(NUMBERS, weight=0.5)(case.logits(), case.labels)
        for changed in (weight, 0.5, np.float32(0.5), torch.tensor(0.5), 0.5):
            module.weight = changed
            assert_close(module(case.logits(), case.labels), wanted)
            assert not module.state_dict()

    def test_the_default_weight_is_0_3_or_1_in_replace_mode(self):
        assert NTLCrossEntropyLoss(NUMBERS).weight == 0.3
        assert NTLCrossEntropyLoss(NUMBERS, mode="replace").weight == 1.0


def matrix_product(probs, values, target):
    """A criterion with a matrix product, which autocast would compute in bfloat16."""
    mean = probs @ values
    assert mean.dtype == probs.dtype
    return (mean - values[target]).square()


class TestUsersOwnCriterion:
    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    def test_is_computed_in_float32_under_autocast(self, reduction, path):
        case = make_case(5, reduction=reduction)
        wanted = run(case, path, torch.float32, criterion=matrix_product)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            # The head runs in bfloat16; the criterion does not, and checks it.
            got = run(case, path, torch.float32, criterion=matrix_product)
        assert_close(got.ntl, wanted.ntl, HALF_PRECISION if path in HIDDEN_PATHS else TWO_PATHS)


class TestAutocast:
    @pytest.mark.parametrize("reduction", ["mean", "none"])
    @pytest.mark.parametrize("path", HIDDEN_PATHS)
    def test_the_head_runs_in_bfloat16_and_the_loss_in_float32(self, path, reduction):
        case = make_case(6, 4, reduction=reduction, seed=9)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = run(case, path, torch.float32)
        wanted = case.expected(case.logits(torch.bfloat16))
        assert result.loss.dtype == torch.float32
        assert_close(result.loss, wanted.loss, HALF_PRECISION)
        gradients = oracle.through_head(case.hidden.numpy(), case.weight.numpy(), wanted.gradient)
        by_name = dict(zip(result.gradients, gradients, strict=True))
        assert_gradients(result.gradients, by_name, HALF_PRECISION_GRADIENT, path, torch.float32)


class TestAutograd:
    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    @pytest.mark.parametrize("path", PATHS)
    def test_gradient_checkpointing_changes_nothing(self, path, reduction, reentrant):
        case = make_case(5, reduction=reduction)
        wanted, leaves = run(case, path), leaves_of(case, path)

        def loss_of(*given):
            return compute(case, path, dict(zip(leaves, given, strict=True))).loss

        loss = checkpoint(loss_of, *leaves.values(), use_reentrant=reentrant)
        (loss * torch.as_tensor(case.upstream)).sum().backward()
        assert_gradients({name: leaf.grad for name, leaf in leaves.items()}, wanted.gradients, TWO_PATHS)

    @pytest.mark.parametrize(
        ("path", "options"),
        [
            ("logits", {}),
            ("logits", {"label_smoothing": 0.1}),
            ("hidden", {"reduction": "none"}),
        ],
    )
    def test_a_second_backward_gives_the_same_gradient(self, path, options):
        case = make_case(5, **options)
        leaves = leaves_of(case, path)
        terms, leaf = compute(case, path, leaves), next(iter(leaves.values()))
        loss = terms.loss.sum()
        (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        before = first.clone()
        for _ in range(2):
            (again,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            assert_close(again, before)
        assert torch.equal(first, before)

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_the_loss_of_hidden_states_may_be_divided_in_place(self, reduction):
        case = make_case(5, bias=False)
        hidden, head = case.hidden.clone().requires_grad_(), case.weight.clone().requires_grad_()
        found = []
        for divisor in (1, 4):
            loss = NTLCrossEntropyLoss(NUMBERS, reduction=reduction).from_hidden(hidden, head, case.labels)
            loss /= divisor
            found.append([divisor * each for each in torch.autograd.grad(loss.sum(), (hidden, head))])
        assert_close(*found)

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_a_second_backward_is_an_error_if_the_gradient_is_not_kept(self, reduction):
        case = make_case(5, reduction=reduction)
        loss = compute(case, "hidden", leaves_of(case, "hidden")).loss
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    @pytest.mark.parametrize("path", PATHS)
    def test_double_backward_is_an_error(self, path, reduction):
        case = make_case(5, reduction=reduction)
        leaves = leaves_of(case, path)
        loss, leaf = compute(case, path, leaves).loss, next(iter(leaves.values()))

        # A gradient penalty. Without an error it would silently have no effect.
        def penalize():
            (gradient,) = torch.autograd.grad(loss.sum(), leaf, create_graph=True)
            (loss.sum() + gradient.square().sum()).backward()

        with pytest.raises(RuntimeError, match="differentiated twice"):
            penalize()

    @pytest.mark.parametrize(
        ("numbers", "positions", "counts"),
        [(10, 2048, {}), (100, 2048, {}), (10, 64, {"count": 1e8})],
        ids=["many positions", "large values", "many more elsewhere"],
    )
    def test_float16_gradients_neither_underflow_nor_overflow(self, numbers, positions, counts):
        # From hidden states, the loss computes gradients before a GradScaler's factor is known.
        vocab = numbers + 20
        vocabulary = NumberVocabulary.from_mapping({value: value for value in range(numbers)}, vocab)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(positions, 16, generator=generator).half().requires_grad_()
        weight = (0.3 * torch.randn(vocab, 16, generator=generator)).half().requires_grad_()
        labels = torch.randint(vocab, (positions,), generator=generator)
        exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
        loss_fn = NTLCrossEntropyLoss(vocabulary, ntl_mse)
        for leaves in ((hidden, weight), exact):
            loss = loss_fn.from_hidden(*leaves, labels, **counts)
            (loss * (2.0**16 if numbers == 10 else 2.0**-4)).backward()
        for half, double in zip((hidden, weight), exact, strict=True):
            error = (half.grad.double() - double.grad).norm() / double.grad.norm()
            assert error < HALF_PRECISION

    @pytest.mark.parametrize("name", ["weights", "number_weights"])
    @pytest.mark.parametrize("reduction", ["sum", "none"])
    def test_weights_get_their_gradient(self, reduction, name):
        hidden, head, labels = torch.randn(2, 6), torch.randn(NUMBERS.vocab_size, 6), torch.tensor([3, 5])
        leaves = hidden.requires_grad_(), torch.ones(2, requires_grad=True)
        found = []
        loss_fn = NTLCrossEntropyLoss(NUMBERS, reduction=reduction)
        prepared = loss_fn.prepare(labels, **{name: leaves[1]})
        for loss in (loss_fn(hidden @ head.T, prepared), loss_fn.from_hidden(hidden, head, prepared)):
            found.append(torch.autograd.grad(loss.sum(), leaves))
        assert found[0][1].abs().min() > 0
        assert_close(*found)

    @pytest.mark.parametrize("path", PATHS)
    def test_without_gradients_the_loss_has_no_graph(self, path):
        case = make_case(5)

        def loss_of(requires_grad):
            leaves = {
                name: x.detach().requires_grad_(requires_grad) for name, x in leaves_of(case, path).items()
            }
            return compute(case, path, leaves).loss

        with torch.no_grad():
            quiet = [loss_of(True), loss_of(False)]
        with torch.inference_mode():
            quiet.append(loss_of(False))
        for loss in (*quiet, loss_of(False)):
            assert not loss.requires_grad
            assert_close(loss, case.expected().loss)

    @pytest.mark.parametrize("path", PATHS)
    def test_inputs_are_not_modified(self, path):
        for options in ({}, {"reduction": "none"}):
            case = make_case(5, weighted=True, **options)
            # Not with `compute`, which passes products of some leaves.
            leaves = leaves_of(case, path)
            given = [*leaves.values(), case.labels, case.loss_weights]
            before = [tensor.detach().clone() for tensor in given]
            if path == "logits":
                loss_fn = NTLCrossEntropyLoss(NUMBERS, **options)
                prepared = loss_fn.prepare(case.labels, weights=case.loss_weights)
                loss_fn(leaves["logits"], prepared).sum().backward()
            else:
                compute(case, path, leaves).loss.sum().backward()
            for tensor, old in zip(given, before, strict=True):
                assert torch.equal(tensor.detach(), old)


def test_options_are_attributes_that_may_be_assigned_unless_labels_are_prepared_with_them():
    case = make_case(6, weighted=True)
    options = {"weight": 0.7, "label_smoothing": 0.2, "reduction": "sum"}
    later, made = NTLCrossEntropyLoss(NUMBERS), NTLCrossEntropyLoss(NUMBERS, **options)
    for name, value in options.items():
        setattr(later, name, value)
    assert_close(later(case.logits(), case.labels), made(case.logits(), case.labels))
    for name in ("vocabulary", "criterion", "mode", "ignore_index", "shift"):
        for value in (getattr(made, name), torch.nn.Linear(1, 1)):
            with pytest.raises(AttributeError, match=name):
                setattr(later, name, value)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_without_a_criterion_the_loss_is_cross_entropy_alone(reduction, monkeypatch):
    vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    monkeypatch.setattr(NumberTerm, "readable", None)  # no work of a number term is done
    loss_fn = NTLCrossEntropyLoss(vocabulary, None, reduction=reduction)
    torch.manual_seed(0)
    hidden, head = torch.randn(5, 4, requires_grad=True), torch.randn(12, 4)
    labels = torch.tensor([3, 11, -100, 0, 9])
    expected = F.cross_entropy(hidden @ head.T, labels, reduction=reduction)
    for terms in (loss_fn.terms(hidden @ head.T, labels), loss_fn.terms(hidden, labels, head)):
        assert_close((terms.loss, terms.ce), (expected, expected))
        assert not terms.ntl.any()
        (gradient,) = torch.autograd.grad(terms.loss.sum(), hidden, retain_graph=True)
        assert_close(gradient, torch.autograd.grad(expected.sum(), hidden, retain_graph=True)[0])
