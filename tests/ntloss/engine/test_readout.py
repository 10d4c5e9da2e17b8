"""Losses of large logits are as exact as PyTorch's cross-entropy."""

import pytest
import torch
import torch.nn.functional as F
from tolerances import LARGE_LOGITS, approx

from ntloss import NTLCrossEntropyLoss, NTLoss, NumberVocabulary, losses
from ntloss.engine import read, shards, targets

VOCAB, POSITIONS, LARGEST = 400, 256, 100
# Numbers of several digits, some in two forms.
HUNDRED = NumberVocabulary.from_mapping(
    {**{v: str(v) for v in range(LARGEST + 1)}, **{LARGEST + 1 + v: f" {v}" for v in range(50)}}, VOCAB
)
SCALES = [30.0, 3000.0]
LOGITS = {
    "logits": {},
    "compiled for an accelerator": {},
    "sharded": {"group": "alone"},
}
HIDDEN = {"hidden": {}, "hidden, each position": {"reduction": "none"}, "scaled": {"logit_scale": 0.5}}
OPTIONS = [
    {},
    {"criterion": "raft"},
    {"criterion": "ntl_mse"},
    {"label_smoothing": 0.1},
]


def make_batch(scale):
    generator = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(POSITIONS, VOCAB, generator=generator)
    labels = torch.randint(VOCAB, (POSITIONS,), generator=generator)
    labels[::2] = logits[::2].topk(2).indices[:, 1]
    return logits, labels


def compute(path, logits, labels, **options):
    options = {**(LOGITS | HIDDEN)[path], **options}
    scale = options.pop("logit_scale", 1.0)
    loss_fn = NTLCrossEntropyLoss(HUNDRED, **options)
    if path in HIDDEN:
        # An identity head does not round.
        return loss_fn.from_hidden(logits, torch.eye(VOCAB).to(logits), labels, logit_scale=scale).mean()
    return loss_fn(logits, labels).mean()


def error_of(loss_fn, logits, size=0.0):
    """Compute the error of a float32 gradient, relative to the largest of the batch, or to `size`."""
    gradients = []
    for leaf in (logits.clone(), logits.double()):
        (gradient,) = torch.autograd.grad(loss_fn(leaf.requires_grad_()), leaf)
        gradients.append(gradient.double())
    got, wanted = gradients
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=size))


@pytest.fixture(autouse=True)
def one_rank(monkeypatch):
    monkeypatch.setattr(shards.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(shards.dist, "get_world_size", lambda _: 1)
    monkeypatch.setattr(shards.dist, "get_rank", lambda _: 0)
    monkeypatch.setattr(targets, "check_same_labels", lambda *_: None)


@pytest.mark.exact_rounding(
    "the noise of the head would move logits in the thousands by more than it measures"
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("path", [*LOGITS, *HIDDEN])
def test_gradients_are_as_exact_as_those_of_cross_entropy(path, scale, options, monkeypatch):
    if path == "compiled for an accelerator":
        monkeypatch.setattr(losses, "read", lambda logits, *given: read.read_plainly(logits, *given[:2]))
    logits, labels = make_batch(scale)
    worst = LARGEST**2 if "criterion" in options else LARGEST
    torchs = error_of(lambda z: F.cross_entropy(z, labels), logits)
    ours = error_of(lambda z: compute(path, z, labels, **options), logits, 0.3 * worst / POSITIONS)
    assert ours < max(LARGE_LOGITS, 4 * torchs)
    exact = compute(path, logits.double(), labels, **options)
    for requires_grad in (False, True):
        value = compute(path, logits.clone().requires_grad_(requires_grad), labels, **options)
        assert value.item() == approx(exact.item(), LARGE_LOGITS)


@pytest.mark.parametrize("reweigh", [False, True])
@pytest.mark.parametrize("scale", SCALES)
def test_a_number_loss_alone_is_as_exact(scale, reweigh):
    logits, labels = make_batch(scale)
    loss_fn = NTLoss(HUNDRED, reweigh=reweigh)
    assert error_of(lambda z: loss_fn(z, labels), logits, LARGEST / POSITIONS) < LARGE_LOGITS
