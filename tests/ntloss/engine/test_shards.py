"""A vocabulary sharded over 2 or 4 processes gives the results of one process, with few collectives."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from combined_cases import (
    HIDDEN,
    NUMBERS,
    VOCAB,
    Case,
    assert_gradients,
    covering,
    leaves_of,
    make_case,
    numbers_case,
    run,
)
from combined_cases import compute as compute_terms
from processes import results_of
from tolerances import (
    GRADIENT_TOLERANCE,
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    ONE_COMPUTATION,
    VALUE_TOLERANCE,
    approx,
    assert_close,
)
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.engine import shards
from ntloss.engine.read import Operators
from ntloss.engine.readout import Wanted

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
WORLDS = (2, pytest.param(4, marks=pytest.mark.slow))
LAYOUTS = {
    "spread": NUMBERS,
    "on the first rank": NumberVocabulary.from_mapping({0: "4", 2: "7", 3: " 4", 4: "0"}, VOCAB),
    "on the last rank": NumberVocabulary.from_mapping({19: "4", 20: "7", 21: " 4", 22: "0"}, VOCAB),
}
KINDS = ("logits", "logits as DTensor", "head", "head as DTensor", "head and hidden states as DTensor")


@dataclass(frozen=True)
class Trial:
    name: str
    case: Case
    kind: str
    dtype: torch.dtype = torch.float64
    arguments: dict[str, Any] = field(default_factory=dict)


def trials():
    made = []
    drawn_cases = covering(
        {
            "kind": KINDS,
            "layout": list(LAYOUTS),
            "dtype": [torch.float64, torch.float32, torch.bfloat16],
            "reduction": ["mean", "sum", "none"],
            "transform": [(None, 1.0), (2.0, 1.0), (3.0, 0.5)],
            "label_smoothing": [0.0, 0.1],
            "gone": [False, True],
            "mode": ["add", "replace"],
            "weighted": [False, True],
            "criterion": ["ntl_was", "ntl_mse", "raft", "user's own"],
            "bias": [True, False],
        }
    )
    for drawn in drawn_cases:
        name = "-".join(str(value) for value in drawn.values())
        kind, dtype, layout = drawn.pop("kind"), drawn.pop("dtype"), drawn.pop("layout")
        drawn["softcap"], drawn["logit_scale"] = drawn.pop("transform")
        if drawn["softcap"] is None and drawn["label_smoothing"]:
            drawn["gone"] = False
        chunk = {"chunk_size": 4} if kind.startswith("head") else {}
        case = make_case(9, seed=len(made), vocabulary=LAYOUTS[layout], **drawn)
        made.append(Trial(name, case, kind, dtype, chunk))
    special = {
        "2-D, shifted": make_case(2, 5),
        "no tokens": make_case(0),
        "no numbers": make_case(5, share_of_text=1.0),
        "all ignored": replace(make_case(5), labels=torch.full((5,), -100)),
        "count of items": make_case(7, num_items=20.0),
    }
    for mode in ("add", "replace"):
        weights = torch.arange(24) % 5 / 4
        weighted = replace(make_case(8, mode=mode), number_weights=weights[:8])
        special[f"number weights, {mode}"] = weighted
        for criterion in ("number_level", "ntil"):
            of_numbers = numbers_case(criterion, mode=mode, reduction="none")
            of_numbers = replace(of_numbers, number_weights=weights.view_as(of_numbers.labels))
            special[f"number weights, {criterion}, {mode}"] = of_numbers
    for criterion in ("gaussian", "smmd", "del_loss by place", "number_level", "ntil"):
        # Criteria on whole numbers keep the graph of all positions, as "none" does.
        reduction = "none" if criterion in ("number_level", "ntil") else "mean"
        special[criterion] = numbers_case(criterion, reduction=reduction, softcap=4.0)
    for i, (name, case) in enumerate(special.items()):
        for kind in (KINDS[i % 2], KINDS[2 + i % 3]):  # of logits, and of a head
            arguments = {"shift": True} if "shifted" in name else {}
            made.append(Trial(f"{name}: {kind}", case, kind, arguments=arguments))
    return made


TRIALS = trials()


class Collectives(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in ("c10d", "_c10d_functional"):
            first = args[0][0] if isinstance(args[0], (list, tuple)) else args[0]
            self.sizes.append(first.numel())
        return func(*args, **(kwargs or {}))


def columns(rank, world):
    each = -(-VOCAB // world)
    return slice(rank * each, min((rank + 1) * each, VOCAB))


def local_gradient(leaf):
    """Return this rank's part of the gradient; torch 2.7 makes whole gradients of uneven shards."""
    if not isinstance(leaf.grad, DTensor):
        return leaf.grad
    return leaf.grad.redistribute(placements=leaf.placements).to_local()


def of_shard(shard, mesh, placements):
    """Make a DTensor from this rank's shard, which may be smaller than the others'."""
    shape = list(shard.shape)
    shape[placements[-1].dim] = VOCAB
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(shard, mesh, placements, shape=torch.Size(shape), stride=strides)


def compute(trial, rank, world, group, mesh):
    """Compute the trial's terms, this rank's gradients, and the collectives of both passes."""
    case, mine = trial.case, columns(rank, world)
    path = "logits" if trial.kind.startswith("logits") else "hidden"
    whole = leaves_of(case, path, trial.dtype)
    leaves: dict[str, Tensor | None] = {}
    for name, leaf in whole.items():
        if leaf is not None and name != "hidden":
            leaf = (leaf[..., mine] if name == "logits" else leaf[mine]).contiguous()
            if "DTensor" in trial.kind:
                leaf = of_shard(leaf, mesh, [Shard(leaf.dim() - 1 if name == "logits" else 0)])
        elif name == "hidden" and "hidden" in trial.kind:
            leaf = DTensor.from_local(leaf, mesh, [Replicate()])
        leaves[name] = None if leaf is None else leaf.detach().requires_grad_()
    changes = {"group": None if "DTensor" in trial.kind else group, **trial.arguments}
    with Collectives() as forward:
        terms = compute_terms(case, path, leaves, **changes)
    loss = (terms.loss * torch.as_tensor(case.upstream)).sum()
    with Collectives() as backward:
        loss.backward()
    return {
        "terms": [term.detach() for term in terms[:3]],
        "gradients": {n: None if leaf is None else local_gradient(leaf) for n, leaf in leaves.items()},
        "forward": forward.sizes,
        "backward": backward.sizes,
    }


def invalid_shards(case, rank, world, group, mesh):
    mine, logits, head = columns(rank, world), case.logits(), case.weight
    dense, plain = NTLCrossEntropyLoss(NUMBERS, group=group), NTLCrossEntropyLoss(NUMBERS)
    by_rows = DTensor.from_local(logits[:1], mesh, [Shard(0)])
    by_hidden = DTensor.from_local(head, mesh, [Shard(1)])
    hidden_by_rows = DTensor.from_local(case.hidden[:1], mesh, [Shard(0)])
    return {
        "whole logits with a group": lambda: dense(logits, case.labels),
        "whole head with a group": lambda: dense.from_hidden(case.hidden, head, case.labels),
        "one column too few": lambda: dense(logits[:, mine][:, 1:], case.labels),
        "logits sharded over positions": lambda: plain(by_rows, case.labels),
        "head sharded over the hidden size": lambda: plain.from_hidden(case.hidden, by_hidden, case.labels),
        "hidden states sharded": lambda: plain.from_hidden(hidden_by_rows, head, case.labels),
        "bias of the whole vocabulary": lambda: dense.from_hidden(
            case.hidden, head[mine], case.labels, case.bias
        ),
        "sharded logits without a group": lambda: plain(logits[:, mine], case.labels),
    }


def errors(rank, world, group, mesh):
    """Try invalid shards, which every rank refuses before any collective, and a head that is whole."""
    case, refused = make_case(4), []
    for name, attempt in invalid_shards(case, rank, world, group, mesh).items():
        try:
            attempt()
        except ValueError:
            refused.append(name)
    replicated = (DTensor.from_local(each, mesh, [Replicate()]) for each in (case.hidden, case.weight))
    return refused, float(NTLCrossEntropyLoss(NUMBERS).from_hidden(*replicated, case.labels))


def different_batches(rank, world, group):
    """Collect the errors of a head that is sharded over ranks with different batches, as by FSDP."""
    vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=4 * world + 8)
    each = -(-vocabulary.vocab_size // world)
    held = min(each, vocabulary.vocab_size - rank * each)
    loss_fn = NTLCrossEntropyLoss(vocabulary, group=group).from_hidden
    messages = []
    # Other labels, then another number of labels, on each rank.
    for labels in (torch.full((4,), rank), torch.zeros(1 + rank, dtype=torch.int64)):
        try:
            loss_fn(torch.zeros(len(labels), 6), torch.zeros(held, 6), labels)
        except ValueError as error:
            messages.append(str(error))
    # Once the labels agree, the group is not checked again.
    loss_fn(torch.zeros(4, 6), torch.zeros(held, 6), torch.arange(4))
    return messages


def groups_of_two(rank, world):
    """Shard the vocabulary over pairs of four ranks, by process group and by a two-dimensional mesh."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    pair, rank_in_pair = divmod(rank, 2)
    case, mine = make_case(6, seed=pair), columns(rank_in_pair, 2)
    head = case.weight[mine].contiguous()
    by_group = head.clone().requires_grad_()
    hidden = case.hidden.clone().requires_grad_()
    NTLCrossEntropyLoss(NUMBERS, group=pairs[pair]).from_hidden(hidden, by_group, case.labels).backward()
    by_mesh = of_shard(head, mesh, [Replicate(), Shard(0)]).requires_grad_()
    NTLCrossEntropyLoss(NUMBERS).from_hidden(case.hidden, by_mesh, case.labels).backward()
    return {"seed": pair, "hidden": hidden.grad, "group": by_group.grad, "mesh": local_gradient(by_mesh)}


def work(rank, world):
    """Run all trials as one of `world` processes: starting them takes longer than the trials."""
    group = dist.group.WORLD
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    results: dict[str, Any] = {"different batches": different_batches(rank, world, group)}
    for trial in TRIALS:
        results[trial.name] = compute(trial, rank, world, group, mesh)
    if world == 4:
        results["groups of two"] = groups_of_two(rank, world)
    return {**results, "errors": errors(rank, world, group, mesh)}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What each rank of a number of processes has computed, by that number."""

    class Jobs(dict):
        def __missing__(self, world):
            folder = tmp_path_factory.mktemp(f"world{world}")
            self[world] = results_of(work, (world,), folder, world, seconds=30)
            return self[world]

    return Jobs()


def whole(name, parts):
    """Merge the gradients of all ranks; that of hidden states is the same on each."""
    if name == "hidden":
        for part in parts[1:]:
            assert_close(part, parts[0], ONE_COMPUTATION)
        return parts[0]
    return torch.cat(parts, -1 if name == "logits" else 0)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
@pytest.mark.parametrize("world", WORLDS)
def test_loss_and_gradients_equal_those_of_one_process(trial, world, jobs):
    ranks = [rank[trial.name] for rank in jobs[world]]
    path = "logits" if trial.kind.startswith("logits") else "hidden"
    alone = run(trial.case, path, trial.dtype, **trial.arguments)
    terms = [alone.loss, alone.ce, alone.ntl]
    # Heads that multiply in bfloat16 round logits differently.
    rounded = trial.dtype == torch.bfloat16 and path == "hidden"
    value = HALF_PRECISION if rounded else 2 * VALUE_TOLERANCE[trial.dtype]
    for rank in ranks:
        for name, got, wanted_term in zip(("loss", "ce", "ntl"), rank["terms"], terms, strict=True):
            assert_close(got, wanted_term, value, name)
    tolerance = HALF_PRECISION_GRADIENT if rounded else 2 * GRADIENT_TOLERANCE[trial.dtype]
    held = {name for name, gradient in ranks[0]["gradients"].items() if gradient is not None}
    together = {name: whole(name, [rank["gradients"][name] for rank in ranks]) for name in held}
    assert_gradients(together, alone.gradients, tolerance)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
@pytest.mark.parametrize("world", WORLDS)
def test_collectives_are_few_and_smaller_than_the_vocabulary(trial, world, jobs):
    case = trial.case
    tokens = len(case.vocabulary.tokens)
    columns = 2 + (case.options.label_smoothing > 0) + tokens
    positions = case.labels.numel()
    for rank in jobs[world]:
        forward, backward = rank[trial.name]["forward"], rank[trial.name]["backward"]
        if trial.kind.startswith("logits"):
            assert forward == [positions, positions * columns]
            assert backward == []
            continue
        chunk = trial.arguments.get("chunk_size", 64)
        labels = case.labels
        if trial.arguments.get("shift"):
            labels = labels[:, 1:]
        kept = int((labels != case.options.ignore_index).sum())
        blocks = [min(chunk, kept - start) for start in range(0, max(kept, 1), chunk)]
        of_blocks = [size for block in blocks for size in (block, block * columns)]
        of_hidden = [kept * HIDDEN]
        if case.options.reduction == "none" or case.criterion == "raft":
            assert (forward, backward) == (of_blocks, of_hidden)
        else:
            # The number tokens' logits first, at all positions with a number.
            assert (forward[1:], backward) == (of_blocks + of_hidden, [])
            assert forward[0] in range(0, kept * tokens + 1, tokens)


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_with_different_batches_raise_an_error(world, jobs):
    for rank in jobs[world]:
        assert len(rank["different batches"]) == 2
        for message in rank["different batches"]:
            assert "hold different labels" in message
            assert "weight.full_tensor()" in message


@pytest.mark.slow
def test_process_groups_and_two_dimensional_meshes_are_supported(jobs):
    ranks = [rank["groups of two"] for rank in jobs[4]]
    for first in (0, 2):
        pair = ranks[first : first + 2]
        alone = run(
            make_case(6, seed=pair[0]["seed"], bias=False), "hidden"
        ).gradients  # with an upstream gradient of 1.5
        for name in ("group", "mesh"):
            assert_close(1.5 * torch.cat([rank[name] for rank in pair]), alone["weight"])
        for rank in pair:
            assert_close(1.5 * rank["hidden"], alone["hidden"])


@pytest.mark.parametrize("world", WORLDS)
def test_invalid_shards_raise_on_every_rank_and_a_replicated_head_is_not_sharded(world, jobs):
    # All ranks raise, so none waits for another.
    wanted = make_case(4, bias=False).expected().loss
    for rank in jobs[world]:
        refused, of_replicated = rank["errors"]
        assert len(refused) == 8, refused
        assert of_replicated == approx(wanted, dtype=torch.float64)


@pytest.mark.parametrize(("vocab_size", "world"), [(9, 4), (5, 4), (2, 4)])
def test_a_vocabulary_too_small_for_its_ranks_raises_on_all_of_them_or_none(vocab_size, world, monkeypatch):
    # With ceil(9 / 4) = 3 columns each, the last of four ranks has none. If it alone raised, the others would
    # wait for it.
    monkeypatch.setattr(shards.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(shards.dist, "get_world_size", lambda _: world)
    each = -(-vocab_size // world)
    outcomes = []
    for rank in range(world):
        monkeypatch.setattr(shards.dist, "get_rank", lambda _, rank=rank: rank)
        size = max(0, min(each, vocab_size - rank * each))
        logits = torch.zeros(3, size)
        labels, ids = torch.tensor([0, 1, 1]), torch.tensor([0, 1])
        try:
            shard = shards.Shard.of(size, vocab_size, None)
        except ValueError:
            outcomes.append("error")
            continue
        backend, wanted = shards.Sharded(Operators(), shard), Wanted(ids, mean=True)
        read = backend.read(logits, labels, wanted)
        backend.write(logits, logits, labels, wanted, read, list(map(torch.ones_like, read[1:5])))
        outcomes.append("worked")
    assert len(set(outcomes)) == 1
