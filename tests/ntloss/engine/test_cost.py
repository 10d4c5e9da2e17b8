"""The cost of the combined losses: buffers, matrix products, synchronizations, graphs."""

from functools import partial

import pytest
import torch
import torch._dynamo.testing
from combined_cases import NUMBERS, TEXTS, make_case
from graphs import assert_same_results, functions_entered
from tolerances import assert_close
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.engine import read
from ntloss.engine.readout import Transform, Wanted

WIDE = NumberVocabulary.from_mapping({7 * i: i for i in range(10)}, vocab_size=1009)
PRODUCTS = ("mm", "addmm", "addmm_", "bmm", "baddbmm", "addmv", "mv")
# Operators that copy their result, or its shape, to the host, and so wait for an accelerator.
SYNCHRONIZING = {
    "_local_scalar_dense", "nonzero", "masked_select", "item", "equal", "is_nonzero", "unique", "unique2",
    "_unique2", "unique_dim", "_to_cpu", "bincount", "histc", "argwhere",
}  # fmt: skip


def dense_tensors(tree):
    # A sparse tensor has no storage of its own: an earlier operator makes its values.
    return [t for t in tree_leaves(tree) if isinstance(t, Tensor) and t.layout == torch.strided]


class Watch(TorchDispatchMode):
    """Records operators, the buffers that they allocate, and matrix products.

    Args:
        inside: also record the operators inside the library's custom operators. Default: True.
    """

    def __init__(self, inside=True):
        super().__init__()
        self.inside = inside
        self.operators: list[str] = []
        self.bytes: list[int] = []
        self.products: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.operators.append(name)
        if func.namespace == "ntloss" and self.inside:
            with self:
                return {"read": read._read, "write": read._write}[name](*args, **kwargs)
        if name in PRODUCTS:
            matrices = [a for a in args if isinstance(a, Tensor)][-2:]
            self.products.append(matrices[0].numel() * matrices[1].shape[-1])
        if (
            name.startswith(("index", "_index", "_unsafe_index"))
            and len(args) > 1
            and isinstance(args[1], (list, tuple))
        ):
            masks = [i for i in args[1] if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)]
            self.operators += ["nonzero"] * len(masks)
        given = {t.untyped_storage()._cdata for t in dense_tensors((args, kwargs))}
        result = func(*args, **kwargs)
        made = [t.untyped_storage() for t in dense_tensors(result)]
        self.bytes += [storage.nbytes() for storage in made if storage._cdata not in given]
        return result

    def buffers(self, size):
        """Count the new buffers of `size` bytes or more."""
        return sum(made >= size for made in self.bytes)


def watched(function):
    """List the operators of a call, in order; each custom operator counts as one."""
    with Watch(inside=False) as watch:
        function()
    return watch.operators


def wide_batch(tokens=40, hidden=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(tokens, hidden, generator=generator).to(dtype)
    weight = torch.randn(1009, hidden, generator=generator).to(dtype)
    labels = torch.randint(1009, (tokens,), generator=generator)
    labels[::2] = 7 * (labels[::2] % 10)
    labels[::4] = -100
    return states, weight, labels


class TestLogitsSizedBuffers:
    """Counts buffers beyond the logits of at least half their size."""

    def count(self, dtype, backward=True, **options):
        hidden, weight, labels = wide_batch(dtype=dtype)
        logits = (hidden @ weight.T).requires_grad_(backward)
        module = NTLCrossEntropyLoss(WIDE, **options)
        with Watch() as watch:
            loss = module(logits, labels)
            if backward:
                loss.backward()
        return watch.buffers(logits.numel() * logits.element_size() / 2)

    @pytest.fixture(autouse=True)
    def _few_rows_at_a_time(self, monkeypatch):
        monkeypatch.setattr(read, "CHUNK", 4 * 1009)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(
        "options",
        [{}, {"label_smoothing": 0.1}, {"criterion": "ntl_mse"}, {"reduction": "sum", "mode": "replace"}],
        ids=str,
    )  # fmt: skip
    def test_there_is_one_which_becomes_the_gradient(self, options, dtype):
        assert self.count(dtype, **options) == 1

    def test_there_is_none_without_a_gradient(self):
        for options in ({}, {"label_smoothing": 0.1}):
            assert self.count(torch.float32, backward=False, **options) == 0


def large_products(watch):
    """Sum the products of the head with more than the number tokens' rows."""
    return sum(product for product in watch.products if product > 40 * 10 * 8)


class TestHiddenPath:
    def watch(self, frozen=(), tokens=40, dtype=torch.float32, ignored=True, **options):
        hidden, weight, labels = wide_batch(tokens, dtype=dtype)
        labels = labels if ignored else labels.clamp(min=0)
        of_head = {name: options.pop(name) for name in ("softcap", "chunk_size") if name in options}
        loss_fn = NTLCrossEntropyLoss(WIDE, **options)
        hidden.requires_grad_("hidden" not in frozen)
        weight.requires_grad_("weight" not in frozen)
        with Watch() as watch:
            loss = loss_fn.from_hidden(hidden, weight, labels, **of_head).sum()
            if loss.requires_grad:
                loss.backward()
        return watch

    @pytest.mark.parametrize("reduction", ["mean", "none"])
    @pytest.mark.parametrize("ignored", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("options", [{}, {"softcap": 5.0, "label_smoothing": 0.1}], ids=str)
    def test_no_buffer_is_as_large_as_all_logits(self, options, dtype, ignored, reduction):
        # With chunks of 8 of 400 tokens, the head's gradient is the largest buffer.
        watch = self.watch(
            tokens=400, dtype=dtype, chunk_size=8, ignored=ignored, reduction=reduction, **options
        )
        assert max(watch.bytes) <= 8 * 1009 * 4
        assert watch.buffers(400 * 1009 * dtype.itemsize / 8) == 0

    @pytest.mark.parametrize("tokens", [1000, 2048, 5000])
    @pytest.mark.parametrize("cap", [1, 200, 300])  # rows of logits that a chunk may always have
    def test_the_default_chunk_has_at_most_an_eighth_of_the_logits_or_the_cap(self, cap, tokens, monkeypatch):
        monkeypatch.setattr(read, "LOGITS_ON_CPU", cap * 1009)
        watch = self.watch(tokens=tokens, ignored=False, frozen=("weight",))
        assert max(watch.bytes) == min(512, max(tokens // 8, cap)) * 1009 * 4

    @pytest.mark.parametrize(
        ("positions", "vocab_size", "rows"),
        [(100, 32_000, 256), (8192, 128_256, 704), (8192, 32_000, 1408), (32_768, 262_144, 2752)],
    )
    def test_there_are_six_to_twelve_chunks_on_an_accelerator(self, positions, vocab_size, rows):
        assert read.rows_for(positions, vocab_size, torch.device("cuda")) == rows

    @pytest.mark.parametrize(
        ("options", "products"),
        [({"chunk_size": size}, (3, 2, 2, 1)) for size in (None, 7, 1000)]
        + [({"reduction": "none"}, (4, 3, 3, 1))],  # one more for a loss per position
        ids=str,
    )
    def test_there_are_three_products_and_none_for_frozen_tensors(self, options, products):
        for frozen, wanted in zip(
            ((), ("weight",), ("hidden",), ("hidden", "weight")), products, strict=True
        ):
            watch = self.watch(frozen, ignored=False, **options)
            assert large_products(watch) == wanted * 40 * 1009 * 8, frozen

    def test_there_is_one_buffer_for_the_gradient_of_the_head(self):
        for dtype in (torch.float32, torch.float64):
            assert self.watch(chunk_size=2, dtype=dtype).buffers(1009 * 8 * dtype.itemsize) == 1


# Operators that launch nothing: views, and reading one number of the CPU.
VIEWS = {
    "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "t", "transpose", "slice", "select", "detach",
    "unbind", "unfold", "_local_scalar_dense",
}  # fmt: skip
HL_GAUSS = {"name": "hl_gauss", "sigma": 2.0}


def launched(call):
    """Count the operators of a call, but for views; a custom operator counts as one."""
    return sum(name not in VIEWS for name in watched(call))


def prepared_batch(criterion):
    """Make a loss, hidden states, a head, and labels `[1, 40]`, of which 30 count."""
    loss_fn, (hidden, weight, labels) = NTLCrossEntropyLoss(WIDE, criterion), wide_batch()
    labels = loss_fn.prepare(labels[None]) if loss_fn.finds_numbers else labels[None]
    return loss_fn, hidden[None].requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize(
    ("criterion", "forward", "backward"),
    [("ntl_was", 40, 16), (HL_GAUSS, 79, 21), ("number_level", 111, 28)],
    ids=str,
)
def test_few_operators_are_dispatched(criterion, forward, backward):
    # Each is a launch of a kernel on a GPU, where the number term is small.
    loss_fn, hidden, weight, labels = prepared_batch(criterion)
    logits, losses = (hidden @ weight.T).detach().requires_grad_(), []
    assert launched(lambda: losses.append(loss_fn(logits, labels))) <= forward
    assert launched(losses[0].backward) <= backward

    def of_hidden(size):
        loss = loss_fn.from_hidden(hidden, weight, labels, chunk_size=size)
        torch.autograd.grad(loss, (hidden, weight))

    three, six = (launched(partial(of_hidden, size)) for size in (10, 5))
    assert (six - three) / 3 <= 17  # for each further chunk


@pytest.mark.parametrize(("criterion", "most"), [("ntl_was", (14, 23)), (HL_GAUSS, (17, 26))], ids=str)
def test_a_reader_follows_few_functions(criterion, most):
    loss_fn, hidden, weight, labels = prepared_batch(criterion)
    logits = (hidden @ weight.T).detach().requires_grad_()
    assert functions_entered(lambda: loss_fn(logits, labels)) <= most[0]
    assert functions_entered(lambda: loss_fn.from_hidden(hidden, weight, labels)) <= most[1]


class TestSynchronization:
    """Meta tensors have no values: reading one raises an error, and would synchronize an accelerator."""

    @pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
    @pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"criterion": "hl_gauss"}], ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_an_accelerator_never_synchronizes(self, dtype, options, reduction):
        if options.get("criterion") == "hl_gauss":
            options = {"criterion": {"name": "hl_gauss", "sigma": 2.0}}
        labels = torch.zeros(2, 20, dtype=torch.int64, device="meta")
        weights = torch.ones(2, 20, device="meta")
        count = torch.ones((), device="meta") if reduction == "mean" else None
        logits = torch.randn(2, 20, 1009, device="meta", dtype=dtype, requires_grad=True)
        loss_fn = NTLCrossEntropyLoss(WIDE, **options, reduction=reduction, shift=True).to("meta")
        on_cpu = labels.new_zeros(labels.shape, device="cpu")
        prepared = loss_fn.prepare(on_cpu, weights=weights.new_ones(labels.shape, device="cpu")).to("meta")
        with Watch() as watch:
            if not loss_fn.finds_numbers:
                prepared = loss_fn.prepare(labels, weights=weights)
            loss = loss_fn(logits, prepared, count=count)
            loss.sum().backward()
        assert loss.shape == ((2, 20) if reduction == "none" else ())
        assert logits.grad.shape == logits.shape
        assert not SYNCHRONIZING & set(watch.operators)

    def test_leaving_out_ignored_positions_is_the_only_synchronization_of_hidden_states(self, monkeypatch):
        # Static shapes, as on an accelerator; in eager mode the CPU counts number labels.
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        hidden, weight, labels = wide_batch()
        with Watch() as watch:
            loss_fn = NTLCrossEntropyLoss(WIDE)
            loss_fn.from_hidden(hidden.requires_grad_(), weight.requires_grad_(), labels).backward()
        # The CPU may read values, which saves a pass over the logits.
        at_no_cost = ("_local_scalar_dense", "is_nonzero")
        assert [o for o in watch.operators if o in SYNCHRONIZING and o not in at_no_cost] == ["nonzero"]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_cuda_never_synchronizes(self):
        hidden, weight, labels = (x.cuda() for x in wide_batch())
        logits = (hidden @ weight.T).requires_grad_()
        loss_fn = NTLCrossEntropyLoss(WIDE).cuda()
        loss_fn(logits, labels).backward()  # loads libraries
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss_fn(logits, labels).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("fresh_compiler")
class TestCompile:
    OPTIONS = (
        {},
        {"label_smoothing": 0.1, "reduction": "none"},
        {"criterion": "ntl_huber", "mode": "replace"},
        {"shift": True, "reduction": "sum"},
    )

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_logits_path_is_one_graph_that_equals_eager(self, dtype, options):
        module = NTLCrossEntropyLoss(NUMBERS, **options)
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def step(logits, labels):
            return module(logits * 2, labels)

        compiled = torch.compile(step, fullgraph=True, backend=counter)
        case = make_case(3, 5)
        assert_same_results(step, compiled, case.logits(dtype), case.labels)
        assert_same_results(step, compiled, case.logits(dtype), torch.full((3, 5), TEXTS[0]))
        assert counter.frame_count == 1

    def test_numbers_of_raw_labels_are_found_outside_of_the_graph(self):
        module, case = NTLCrossEntropyLoss(NUMBERS, "number_level"), make_case(3, 5)
        compiled = torch.compile(module, backend="aot_eager")
        assert_same_results(module, compiled, case.logits(torch.float32), case.labels)

    def test_hidden_states_have_at_most_one_graph_break(self):
        loss_fn = NTLCrossEntropyLoss(NUMBERS)

        def step(hidden, weight, labels):
            return 2 * loss_fn.from_hidden(torch.tanh(hidden), weight * 0.5, labels)

        case = make_case(3, 5)
        given = (case.hidden.float(), case.weight.float(), case.labels)
        assert_same_results(step, torch.compile(step, backend="aot_eager"), *given)
        torch._dynamo.reset()
        assert torch._dynamo.explain(step)(*given).graph_break_count <= 1

    def test_plain_pytorch_gives_the_same_as_the_custom_operators(self, monkeypatch):
        # Accelerators under torch.compile use plain PyTorch, which this test calls on the CPU.
        case = make_case(6)
        ids = torch.tensor(NUMBERS.token_ids)
        for mean in (False, True):
            for dtype in (torch.float64, torch.bfloat16):
                wanted = Wanted(ids, mean=mean)
                results = []
                for plainly in (True, False):
                    logits = case.logits(dtype).requires_grad_()
                    flat, labels = logits.flatten(0, -2), case.labels.flatten()
                    if plainly:
                        read_out = read.read_plainly(flat, labels, wanted)
                    else:
                        read_out = read.read(flat, labels, wanted)
                    parts = [read_out.row_max + read_out.shifted_lse, *read_out[2 : 5 if mean else 4]]
                    sum((part.square() * 0.01).sum() for part in parts).backward()
                    results.append([*parts, logits.grad])
                for plain, ours in zip(*results, strict=True):
                    assert plain.dtype == ours.dtype
                    assert_close(ours, plain)


class TestOperators:
    """The log-normalizer from the label's probability, or from the largest one."""

    @pytest.mark.parametrize("transform", [Transform(), Transform(1.0, 3.0)])
    @pytest.mark.parametrize("kept", ["not", "apart", "over the logits"])
    @pytest.mark.parametrize("accelerator", [False, True])
    def test_the_readout_equals_logsumexp(self, accelerator, kept, transform, monkeypatch):
        if accelerator:  # which does not use the label's probability
            monkeypatch.setattr(read, "SAFE_PROBABILITY", 2.0)
        logits = make_case(6).logits(torch.float32)
        labels = torch.arange(6)
        z = transform.apply(logits.double())
        wanted = Wanted(torch.tensor([3, 5]), True, transform)
        keep, overwrite = kept != "not", kept == "over the logits"
        found = read.Operators().read(logits, labels, wanted, keep, overwrite)
        assert_close(found.row_max + found.shifted_lse, z.logsumexp(-1))
        assert_close(found.label_logit, z.gather(-1, labels[:, None])[:, 0])
        assert_close(found.number_logits, z[:, [3, 5]])
        assert_close(found.mean_logit, z.mean(-1))
        assert (found.softmax is None) == (not keep or transform.softcap is not None)
        if found.softmax is not None:
            assert_close(found.softmax, z.softmax(-1))
            assert (found.softmax is logits) == overwrite
