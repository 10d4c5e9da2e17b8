"""The Triton kernels in Triton's interpreter: each path against the oracle, wide rows, and what they read.

Triton has to be told to interpret before it is imported, so test_kernels.py runs this file in a process of
its own. What is marked slow repeats what the rest tests, with other options or on paths that know nothing of
kernels.
"""

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from combined_cases import HIDDEN_PATHS, NUMBERS, PATHS, VOCAB, assert_matches, covering, make_case
from graphs import assert_same_results
from tolerances import GRADIENT_TOLERANCE, VALUE_TOLERANCE, assert_close

pytest.importorskip("triton", reason="triton is not installed: it has wheels for Linux only")
from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.engine import kernels, read
from ntloss.engine.readout import Transform, Wanted
from tests.ntloss import test_cross_entropy

if "cpu" not in read.KERNEL_DEVICES:
    pytest.skip("test_kernels.py runs this file with TRITON_INTERPRET=1", allow_module_level=True)

from triton.runtime.interpreter import TensorHandle
from triton.runtime.interpreter import interpreter_builder as builder

KERNELS = kernels.Kernels()
slow = pytest.mark.slow


def each_value_once(cases):
    """Mark all cases as slow but a few, in which each value of each option occurs."""
    missing = {item for case in cases for item in case.items()}
    kept = []
    while missing:
        kept.append(max(cases, key=lambda case: len(missing & {*case.items()})))
        missing -= {*kept[-1].items()}
    return [case if case in kept else pytest.param(case, marks=slow) for case in cases]


def wanted_of(token_ids, softcap=None, mean=False):
    return Wanted(token_ids, mean, Transform(1.0, softcap))


@pytest.fixture(autouse=True, scope="module")
def _as_on_a_gpu():
    """Round a multiply-add once, which the interpreter does not, and let exp and log overflow silently."""

    def fma(x, y, z):
        exact = x.data.astype(np.longdouble) * y.data + z.data
        return TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)

    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(builder, "create_fma", fma)
        yield


@pytest.fixture
def launches(monkeypatch):
    """Names of the kernels that are launched."""
    launched: list[str] = []
    for name in ("read", "write"):
        kernel = getattr(kernels.Kernels, name)
        monkeypatch.setattr(
            kernels.Kernels,
            name,
            lambda *given, n=name, k=kernel, **options: (launched.append(n), k(*given, **options))[1],
        )
    return launched


def test_an_empty_batch_launches_nothing():
    logits, labels = torch.zeros(0, VOCAB), torch.zeros(0, dtype=torch.int64)
    read = KERNELS.read(logits, labels, wanted_of(torch.tensor([1, 2]), mean=True))
    assert [each.shape for each in read[:5]] == [(0,), (0,), (0,), (0, 2), (0,)]
    KERNELS.write(logits, logits, labels, wanted_of(torch.tensor([1, 2]), mean=True), read, read[1:5])


CASES = covering(
    {
        "dtype": [torch.float64, torch.float32, torch.bfloat16, torch.float16],
        "mode": ["add", "replace"],
        "reduction": ["mean", "sum", "none"],
        "transform": [(None, 1.0), (3.0, 1.0), (None, 0.3), (2.0, 1.5)],
        "criterion": ["ntl_was", "ntl_was squashed", "ntl_mse", "raft", "gaussian"],
        "label_smoothing": [0.0, 0.1],
        "weighted": [False, True],
        "ignore_index": [-100, 9, -1],  # 9 is a number token
        "gone": [False, True],
        "chunk_size": [None, 3],
        "piece": [1, 4, 16],  # lanes, and number tokens at a time
    }
)


@pytest.mark.parametrize("drawn", each_value_once(CASES), ids=test_cross_entropy.describe)
def test_every_path_equals_the_oracle(drawn, launches, monkeypatch):
    drawn = dict(drawn)
    dtype, chunk_size, piece = (drawn.pop(name) for name in ("dtype", "chunk_size", "piece"))
    drawn["softcap"], drawn["logit_scale"] = drawn.pop("transform")
    monkeypatch.setattr(kernels, "LANES", piece)
    monkeypatch.setattr(kernels, "MOST_NUMBERS", piece)
    if drawn["softcap"] is None and drawn["label_smoothing"]:
        drawn["gone"] = False  # cross-entropy would be infinite, which another test covers
    case = make_case(7, seed=1, **drawn)
    for path in PATHS:
        changes = {"chunk_size": chunk_size} if path in HIDDEN_PATHS else {}
        # The product with the head is rounded to float16, as in bfloat16.
        if dtype != torch.float16 or path == "logits":
            assert_matches(case, path, dtype, **changes)
    assert {"read", "write"} <= set(launches)


WIDTHS = {
    torch.float32: 16,
    torch.bfloat16: 32,
    torch.float16: 32,
    torch.float64: 8,
}  # columns at a time of two lanes


EDGES = covering(
    {
        "blocks": [(0, 3), (1, -1), (1, 0), (1, 1), (3, 0), (4, 5)],
        "dtype": list(WIDTHS),
        "layout": ["in place", "apart", "columns first", "every other column", "odd addresses", "shifted"],
        "softcap": [None, 30.0],
    }
)


@pytest.mark.parametrize("drawn", each_value_once(EDGES), ids=test_cross_entropy.describe)
def test_rows_of_any_kind_at_the_edges_of_blocks(drawn, monkeypatch):
    blocks, dtype, layout, softcap = drawn.values()
    monkeypatch.setattr(kernels, "LANES", 2)
    monkeypatch.setattr(kernels, "MOST_NUMBERS", 2)
    width = WIDTHS[dtype]
    vocab_size = blocks[0] * width + blocks[1]
    labels = torch.tensor(
        [0, vocab_size - 1, min(width, vocab_size) - 1, min(width, vocab_size - 1), -1, -1, 1]
    )
    token_ids = torch.tensor([vocab_size - 1, 0, 1])
    torch.manual_seed(vocab_size)
    logits = 4 * torch.randn(len(labels), vocab_size, dtype=torch.float64)
    logits[6] += 900
    logits[3, 1 - vocab_size % 2 :: 2] = -torch.inf
    logits[3, labels[3]] = 0.5
    logits[4], logits[5, 0] = torch.nan, torch.inf
    logits = logits.to(dtype)
    if layout == "columns first":
        logits = logits.t().contiguous().t()
    elif layout == "every other column":
        logits = logits.repeat_interleave(2, -1)[:, ::2]
    elif layout in ("odd addresses", "shifted"):  # rows that begin anywhere, the first at the third logit
        buffer = torch.full((len(logits), vocab_size + 5), torch.nan, dtype=dtype)
        logits = buffer[:, 2 : 2 + vocab_size].copy_(logits)

    counts = labels >= 0
    leaf = logits.double().where(counts[:, None], 0).requires_grad_()
    capped = leaf if softcap is None else softcap * torch.tanh(leaf / softcap)
    rows = torch.arange(len(labels))
    wanted = capped.logsumexp(-1), capped[rows, labels], capped[:, token_ids], capped.mean(-1)
    read = KERNELS.read(logits, labels, wanted_of(token_ids, softcap, mean=True))
    for mine, its in zip((read[0] + read[1], *read[2:5]), wanted, strict=True):
        assert_close(mine[counts], its[counts].detach(), VALUE_TOLERANCE[dtype])
    assert not any(each[~counts].any() for each in read[:5])

    grads = [torch.randn(each.shape, dtype=read[0].dtype) for each in wanted]
    grads = [grad * counts.view(-1, *[1] * (grad.ndim - 1)) for grad in grads]
    grads[3][3] = 0  # the mean of a row with -inf
    torch.autograd.backward(wanted, [grad.double() for grad in grads])
    grad = torch.full_like(logits, torch.nan)
    if layout in ("in place", "odd addresses"):
        grad = logits
    KERNELS.write(grad, logits, labels, wanted_of(token_ids, softcap, mean=True), read, grads)
    assert_close(grad, leaf.grad, GRADIENT_TOLERANCE[dtype])
    assert not grad[~counts].any()


def test_a_row_of_minus_infinity_has_no_probability():
    logits = torch.full((1, 9), -torch.inf)
    read = KERNELS.read(logits, torch.tensor([3]), wanted_of(torch.tensor([1])))
    assert read[0].isfinite()
    assert read[1].isneginf()
    assert read[2].isneginf()


@pytest.mark.parametrize(
    ("dtype", "offset", "softcap"),
    [
        (torch.float64, 0.0, 30.0),
        *((torch.float32, *given) for given in ((0.0, None), (3000.0, None), (0.0, 30.0))),
        (torch.bfloat16, 0.0, None),
        (torch.float16, 3000.0, None),
    ],
)
def test_errors_are_those_that_the_page_names(dtype, offset, softcap):
    """docs/fused_kernels.md: relative errors against float64."""
    torch.manual_seed(0)
    logits = (offset + 3 * torch.randn(4, 9000, dtype=torch.float64)).to(dtype)
    labels, rows = torch.arange(4), torch.arange(4)
    wants = wanted_of(torch.arange(10), softcap)
    read = KERNELS.read(logits, labels, wants)
    z = logits.double()
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    wanted = z.logsumexp(-1) - z[rows, labels]
    loss = (read.row_max.double() - read.label_logit) + read.shifted_lse
    of_loss, of_gradient = (5e-7, 5e-6) if dtype != torch.float64 else (2e-14, 2e-13)
    assert ((loss - wanted).abs() / wanted).max() < of_loss

    grad, ones = torch.empty(z.shape, dtype=read.row_max.dtype), torch.ones_like(read.row_max)
    KERNELS.write(grad, logits, labels, wants, read, (ones, -ones, torch.zeros_like(read.number_logits)))
    wanted = z.softmax(-1)
    wanted[rows, labels] -= 1
    if softcap is not None:
        wanted *= 1 - (z / softcap) ** 2
    assert ((grad - wanted).abs() / wanted.abs())[wanted.abs() > 1e-12].max() < of_gradient


@pytest.fixture
def traffic(monkeypatch):
    """Number of elements of each load and store of the interpreter, in order; stores are negative."""
    moved: list[int] = []
    load, store = builder.create_masked_load, builder.create_masked_store

    def count_load(pointers, mask, *rest):
        moved.append(int(mask.data.sum()))
        return load(pointers, mask, *rest)

    def count_store(pointers, value, mask, *rest):
        moved.append(-int(mask.data.sum()))
        return store(pointers, value, mask, *rest)

    monkeypatch.setattr(builder, "create_masked_load", count_load)
    monkeypatch.setattr(builder, "create_masked_store", count_store)
    return moved


@pytest.mark.parametrize("ignored", [0, 3, 7])
def test_logits_are_read_twice_and_written_once_and_ignored_ones_not_read(ignored, traffic):
    positions, vocab_size = 7, 1009
    leaf = torch.randn(positions, vocab_size, requires_grad=True)
    labels = torch.arange(positions)
    labels[:ignored] = -100
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size)
    NTLCrossEntropyLoss(digits)(leaf, labels).backward()
    # Besides the logits: a label, and some entries for each number token.
    slack = positions * 10 * 8
    reads, writes = sum(x for x in traffic if x > 0), -sum(x for x in traffic if x < 0)
    assert 0 <= reads - 2 * (positions - ignored) * vocab_size <= slack
    assert 0 <= writes - positions * vocab_size <= slack


def test_positions_without_cross_entropy_are_not_read_for_their_gradient(traffic):
    # A number term that does not look at the text needs the gradient of the number tokens alone.
    leaf = torch.randn(5, 1009, requires_grad=True)
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, 1009)
    loss = NTLCrossEntropyLoss(digits, mode="replace", reduction="sum")(leaf, torch.arange(5))
    traffic.clear()
    loss.backward()
    assert max(x for x in traffic) <= 10
    assert leaf.grad[:, :10].all()
    assert not leaf.grad[:, 10:].any()


def test_a_label_outside_of_the_vocabulary_is_nan():
    # Accelerators do not check labels, and the kernels must not read other memory.
    read = KERNELS.read(torch.zeros(2, VOCAB), torch.tensor([3, VOCAB]), wanted_of(torch.tensor([1])))
    assert read[2].isnan().tolist() == [False, True]


def test_offsets_exceed_31_bits():
    # Only the pages of two short rows are ever touched.
    buffer = torch.empty((1 << 31) + (1 << 12), dtype=torch.float16)
    logits = buffer.as_strided((2, 50), (1 << 31, 1))
    logits.copy_(torch.randn(2, 50))
    columns = buffer.as_strided((50, 2), (1, 1 << 31)).t()
    labels, ids = torch.tensor([3, 7]), torch.arange(10)
    wanted = logits.float().logsumexp(-1)
    for given in (logits, columns):
        read = KERNELS.read(given, labels, wanted_of(ids))
        assert_close(read.row_max + read.shifted_lse, wanted)
        assert_close(read.label_logit, logits[[0, 1], [3, 7]].float())
        softmax = logits.float().softmax(-1)
        grads = torch.ones(2), torch.zeros(2), torch.zeros(2, 10)
        KERNELS.write(given, given, labels, wanted_of(ids), read, grads)
        assert_close(logits, softmax.half())
        logits.copy_(wide := torch.randn(2, 50))
        wanted = wide.half().float().logsumexp(-1)


@slow
@pytest.mark.parametrize(
    ("dtype", "options"),
    [(torch.bfloat16, {"label_smoothing": 0.1, "reduction": "none"}), (torch.float32, {})],
    ids=str,
)
def test_the_logits_path_is_one_graph_that_equals_eager(dtype, options, launches):
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    module = NTLCrossEntropyLoss(NUMBERS, **options)
    compiled = torch.compile(lambda z, y: module(z * 2, y), fullgraph=True, backend=counter)
    case = make_case(3, 5)
    assert_same_results(lambda z, y: module(z * 2, y), compiled, case.logits(dtype), case.labels)
    assert counter.frame_count == 1
    assert launches == ["read", "write"] * 2
