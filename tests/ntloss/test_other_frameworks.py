"""`loss.arrays` in plain torch, MLX and JAX, and in a function that an API traces, is the loss itself.

The functions are those of docs/hosted_trainers.md.
"""

import re
from pathlib import Path

import pytest
import torch
from test_soft_labels import FORMS, random_logits, with_gradient
from tolerances import approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

PAGE = Path(__file__).parents[2] / "docs" / "hosted_trainers.md"
DIGITS = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=13)
ROWS = torch.tensor([[3, 9, 11, 0, 10, 3, 5], [-100, -100, 1, 2, 3, 12, -100]])
WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0, 0.3, 1.0, 1.0]])
CRITERIA = {
    "none": None,
    "hl_gauss": HLGauss(2.0),
    "gaussian": "gaussian_smoothing",
    "ntl_was": "ntl_was",
    "squashed": {"name": "ntl_was", "squash": 3.0},
    "crps": "crps",
}


def function_of(name):
    """The function of this name on the page."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (block,) = [block for block in blocks if f"def {name}(" in block]
    found = {}
    exec(block, found)
    return found[name]


def case(criterion, vocabulary=DIGITS, **options):
    logits = random_logits(2, 7, vocabulary.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion, **options)
    labels = loss_fn.prepare(ROWS, weights=WEIGHTS, number_weights=WEIGHTS.clamp(max=1))
    return logits, loss_fn.arrays(labels), loss_fn(logits, labels)


@pytest.mark.parametrize(
    "options",
    [{}, {"shift": True}, {"reduction": "sum"}, {"label_smoothing": 0.1}, {"mode": "replace"}],
    ids=str,
)
@pytest.mark.parametrize("name", CRITERIA)
def test_plain_torch(name, options):
    logits, arrays, expected = case(CRITERIA[name], **options)
    found = function_of("loss_in_torch")(logits.log_softmax(-1), arrays)
    assert_close(with_gradient(found, logits), with_gradient(expected, logits), 1e-9)


@pytest.mark.parametrize("name", ["ntl_was", "crps"])
def test_several_tokens_of_one_value(name):
    logits, arrays, expected = case(name, FORMS)
    found = function_of("loss_in_torch")(logits.log_softmax(-1), arrays)
    assert_close(with_gradient(found, logits), with_gradient(expected, logits), 1e-9)


@pytest.mark.parametrize("name", CRITERIA)
def test_jax(name):
    jax = pytest.importorskip("jax")
    logits, arrays, expected = case(CRITERIA[name])
    function = function_of("loss_in_jax")

    def objective(z):
        return function(jax.nn.log_softmax(z, -1), arrays)

    loss, gradient = jax.value_and_grad(objective)(jax.numpy.asarray(logits.detach().numpy()))
    _, wanted = with_gradient(expected, logits)
    assert float(loss) == approx(expected.item(), 1e-5)
    assert_close(torch.tensor(gradient.tolist()).double(), wanted, 1e-5)


@pytest.mark.parametrize("name", CRITERIA)
def test_mlx(name):
    mx = pytest.importorskip("mlx.core")
    logits, arrays, expected = case(CRITERIA[name])
    function = function_of("loss_in_mlx")

    def objective(z):
        return function(z - mx.logsumexp(z, axis=-1, keepdims=True), arrays)

    given = mx.array(logits.detach().float().numpy())
    loss, gradient = mx.value_and_grad(objective)(given)
    _, wanted = with_gradient(expected, logits)
    assert loss.item() == approx(expected.item(), 1e-5)
    assert_close(torch.tensor(gradient.tolist()).double(), wanted, 1e-5)


def test_a_function_that_an_api_traces():
    logits, arrays, expected = case("ntl_was", reduction="sum")
    loss_fn = NTLCrossEntropyLoss(DIGITS, "ntl_was", reduction="sum")
    ids = loss_fn.candidates(ROWS)
    log_probs = logits.log_softmax(-1).gather(-1, ids).flatten(0, 1)
    traced = torch.fx.symbolic_trace(function_of("ntl_was"))
    is_label = (ids == torch.from_numpy(arrays.token_ids)).int()
    first = is_label.argmax(-1, keepdim=True)
    onehot = (
        torch.zeros(ids.shape).double().scatter(-1, first, torch.from_numpy(arrays.weights)).flatten(0, 1)
    )
    order = torch.from_numpy(arrays.number_ids).argsort()  # candidates are by ascending id
    cost, number = (
        torch.from_numpy(arrays.costs)[..., order].flatten(0, 1),
        torch.from_numpy(arrays.number).flatten(),
    )
    tensors = log_probs, onehot, cost, number
    assert all(each.dim() <= 2 for each in tensors)
    assert_close(with_gradient(traced(*tensors), logits), with_gradient(expected, logits), 1e-9)


@pytest.mark.parametrize("criterion", ["dist2", "smmd", "ntil", "ntl_mse"])
def test_a_criterion_with_neither_is_an_error(criterion):
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion)
    if criterion == "dist2":  # which is a fixed target, but among the number tokens alone; see `targets`
        assert loss_fn.arrays(ROWS).weights.shape[-1] > 1
        return
    with pytest.raises(ValueError, match="fixed target"):
        loss_fn.arrays(ROWS)
