"""The hot path is one graph with static shapes, and reads no tensor's values."""

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from combined_cases import NUMBERS, VOCAB
from graphs import assert_same_results
from tolerances import assert_close
from torch._dynamo.exc import BackendCompilerFailed

from ntloss import NTLCrossEntropyLoss, NTLoss, NTLossDotProduct
from ntloss.engine import targets, terms


def user_loss(prediction, target):
    return (prediction - target).abs().sqrt()


LOSSES = {
    "NTLoss": lambda v: NTLoss(v),
    "NTLoss, plain": lambda v: NTLoss(v, reweigh=False),
    "NTLoss, squashed": lambda v: NTLoss(v, squash_factor=3.0),
    "squared, plain": lambda v: NTLossDotProduct(v, reweigh=False),
    "huber": lambda v: NTLossDotProduct(v, loss_function=F.huber_loss, reweigh=False),
    "user's callable": lambda v: NTLossDotProduct(v, loss_function=user_loss),
}


def combined(loss_fn):
    def objective(logits, labels, weights):
        ce = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return ce + 0.3 * loss_fn(logits, labels, weights)

    return objective


pytestmark = pytest.mark.usefixtures("fresh_compiler")


def inputs(vocab, rows, seed=0, numbers=True):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, 5, vocab, generator=generator).requires_grad_()
    labels = torch.randint(vocab, (rows, 5), generator=generator)
    if not numbers:
        labels.fill_(0)  # a text token
    labels[0, 0] = -100
    return logits, labels, torch.rand(rows, 5, generator=generator)


def assert_compiles(objective, *batches):
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    for batch in batches:
        assert_same_results(objective, compiled, *batch)


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_compiles_to_one_graph_that_equals_eager(name, irregular):
    assert_compiles(combined(LOSSES[name](irregular)), inputs(17, 3), inputs(17, 3, numbers=False))


def test_one_graph_takes_batches_of_any_size(irregular):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    loss_fn = NTLCrossEntropyLoss(irregular, "dist2")

    def objective(logits, labels, weights):
        return loss_fn(logits, loss_fn.prepare(labels, weights=weights))

    compiled = torch.compile(objective, fullgraph=True, backend=counter, dynamic=True)
    for rows in (2, 3, 7, 16):
        assert_same_results(objective, compiled, *inputs(17, rows, seed=rows))
    # The compiler may add an empty graph.
    assert sum(len(graph.graph.nodes) > 0 for graph in counter.graphs) == 1


def test_filling_a_tensor_weight_does_not_recompile(irregular):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    loss_fn = NTLCrossEntropyLoss(irregular, "dist2", weight=torch.tensor(0.3))
    compiled = torch.compile(loss_fn, fullgraph=True, backend=counter)
    logits, labels, _ = inputs(17, 3)
    losses = set()
    for step in range(4):
        loss_fn.weight.fill_(0.3 * step)
        losses.add(compiled(logits, labels).item())
    assert counter.frame_count == 1
    assert len(losses) == 4


def test_predict_numbers_compiles(irregular):
    loss_fn = NTLossDotProduct(irregular)
    logits, _, _ = inputs(17, 3)
    compiled = torch.compile(loss_fn.predict_numbers, fullgraph=True, backend="aot_eager")
    for ours, wanted in zip(compiled(logits), loss_fn.predict_numbers(logits), strict=True):
        assert_close(ours, wanted)


class TestTermOnAccelerators:
    """The number term is compiled there; here it is on the CPU, whose compiler is left out."""

    CRITERIA = (
        "ntl_was",
        {"name": "hl_gauss", "sigma": [4.0, 1.0]},
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("crps", "raft", "dist2", "ntil")),
    )

    @pytest.fixture
    def counter(self, monkeypatch):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(terms.NumberTerm.forward, dynamic=True, backend=counter)
        monkeypatch.setattr(terms, "COMPILED_ON", ("cpu",))
        monkeypatch.setattr(terms, "compiled_term", lambda: compiled)
        monkeypatch.setattr(targets, "values_are_hidden", lambda *_: True)  # static shapes, no values read
        return counter

    @pytest.mark.parametrize("criterion", CRITERIA, ids=str)
    def test_it_is_one_graph_for_batches_of_any_size(self, criterion, counter, monkeypatch):
        loss_fn = NTLCrossEntropyLoss(NUMBERS, criterion)
        wanted = NTLCrossEntropyLoss(NUMBERS, criterion)
        for step, rows in enumerate((3, 5, 8)):
            logits, labels, _ = inputs(VOCAB, rows, seed=rows)
            loss_fn.anneal(step / 2)
            wanted.anneal(step / 2)
            with monkeypatch.context() as patch:
                patch.setattr(terms, "COMPILED_ON", ())
                expected = wanted(logits, labels)
            (gradient,) = torch.autograd.grad(expected, logits)
            loss = loss_fn(logits, labels)
            assert_close(loss, expected)
            assert_close(torch.autograd.grad(loss, logits)[0], gradient)
        # The compiler may add an empty graph.
        assert sum(len(graph.graph.nodes) > 0 for graph in counter.graphs) == 1

    def test_without_a_compiler_it_says_so_once_and_goes_on(self, counter, monkeypatch):
        def missing(*_):
            raise BackendCompilerFailed(missing, RuntimeError("no compiler"), None)

        monkeypatch.setattr(terms, "compiled_term", lambda: missing)
        monkeypatch.setattr(terms, "_compiler_is_missing", False)
        logits, labels, _ = inputs(VOCAB, 3)
        loss_fn = NTLCrossEntropyLoss(NUMBERS)
        with pytest.warns(UserWarning, match="compiled") as warned:
            losses = [loss_fn(logits, labels) for _ in range(2)]
        assert len(warned) == 1
        monkeypatch.setattr(terms, "COMPILED_ON", ())
        assert_close(losses, [loss_fn(logits, labels)] * 2)
