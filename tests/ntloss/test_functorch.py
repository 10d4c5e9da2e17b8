"""Transforms of `torch.func`: gradients, gradients of each sample, and second derivatives."""

import pytest
import torch
from combined_cases import CRITERIA, NUMBERS, OF_TOKENS, make_case, numbers_case
from tolerances import CANCELLATION, assert_close
from torch.func import grad, hessian, vmap

from ntloss import NTLCrossEntropyLoss, NTLoss


def gradient_of(loss_fn, logits, labels):
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(loss_fn(leaf, labels), leaf)[0]


@pytest.mark.parametrize("name", [*OF_TOKENS, "ntil", "by digits after", "hl_gauss"])
def test_grad_equals_the_backward_pass(name):
    case = numbers_case(name)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0])
    got = grad(loss_fn)(case.logits(), case.labels)
    assert_close(got, gradient_of(loss_fn, case.logits(), case.labels))


@pytest.mark.parametrize("kind", [NTLCrossEntropyLoss, NTLoss])
def test_vmap_of_grad_gives_the_gradient_of_each_sample(kind):
    case = make_case(4, 5)
    loss_fn = kind(NUMBERS)
    each = vmap(grad(loss_fn))(case.logits(), case.labels)
    wanted = [gradient_of(loss_fn, *given) for given in zip(case.logits(), case.labels, strict=True)]
    assert_close(each, torch.stack(wanted))


@pytest.mark.parametrize("name", ["hl_gauss", "number_level", "by digits after"])
def test_vmap_takes_the_prepared_labels_of_whole_number_criteria(name):
    case = numbers_case(name)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, CRITERIA[name][0])
    record = loss_fn.prepare(case.labels)
    in_dims = record.map(lambda _: 0)._replace(made_for=None)
    each = vmap(grad(loss_fn), in_dims=(0, in_dims))(case.logits(), record)
    rows = zip(case.logits(), case.labels, strict=True)
    wanted = [gradient_of(loss_fn, logits[None], labels[None])[0] for logits, labels in rows]
    assert_close(each, torch.stack(wanted))
    for transformed in (loss_fn, grad(loss_fn)):
        with pytest.raises(RuntimeError, match="prepare"):
            vmap(transformed)(case.logits()[:, None], case.labels[:, None])


def test_options_and_weights_work_in_a_transform():
    case = make_case(4, 5, weighted=True)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, label_smoothing=0.1)

    def of_sample(logits, labels, weights):
        return loss_fn(logits, loss_fn.prepare(labels, weights=weights))

    given = case.logits(), case.labels, case.loss_weights
    wanted = torch.stack([of_sample(*sample) for sample in zip(*given, strict=True)])
    assert_close(vmap(of_sample)(*given), wanted)


@pytest.mark.parametrize("criterion", ["ntl_was", "smmd"])
def test_hessian_equals_differences_of_gradients(criterion):
    case = make_case(2, seed=3)
    loss_fn = NTLCrossEntropyLoss(NUMBERS, criterion)
    curvature = hessian(loss_fn)(case.logits(), case.labels)
    step = 1e-5 * torch.randn(case.logits().shape, generator=torch.manual_seed(0), dtype=torch.float64)
    ahead, behind = (gradient_of(loss_fn, case.logits() + s * step, case.labels) for s in (1, -1))
    assert_close(torch.einsum("abcd,cd->ab", curvature, step) * 2e5, (ahead - behind) * 1e5, CANCELLATION)


def test_from_hidden_is_an_error():
    case = make_case(3)
    with pytest.raises(RuntimeError, match=r"torch.func"):
        grad(NTLCrossEntropyLoss(NUMBERS).from_hidden)(case.hidden, case.weight, case.labels)
