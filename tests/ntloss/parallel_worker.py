"""The program of each process of the vocabulary-parallel tests, which saves results for the tests.

One job runs all cases, because starting processes takes longer than running them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import combined_cases
import torch
import torch.distributed as dist
from combined_cases import NUMBERS, VOCAB, Case, leaves_of, make_case, numbers_case
from covering import covering
from processes import join
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from ntloss import NTLCrossEntropyLoss, NumberVocabulary

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
    arguments: Any = None


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
        chunk = {"chunk_size": 4} if kind.startswith("head") else None
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
            arguments = {"shift": True} if "shifted" in name else None
            made.append(Trial(f"{name}: {kind}", case, kind, arguments=arguments))
    return made


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
    changes = {"group": None if "DTensor" in trial.kind else group, **(trial.arguments or {})}
    with Collectives() as forward:
        terms = combined_cases.compute(case, path, leaves, **changes)
    loss = (terms.loss * torch.as_tensor(case.upstream)).sum()
    with Collectives() as backward:
        loss.backward()
    return {
        "terms": [term.detach() for term in terms[:3]],
        "gradients": {n: None if leaf is None else local_gradient(leaf) for n, leaf in leaves.items()},
        "forward": forward.sizes,
        "backward": backward.sizes,
    }


def errors(rank, world, group, mesh):
    """Collect the errors of invalid shards; every rank raises before any collective."""
    case, mine = make_case(4), columns(rank, world)
    logits, head = case.logits(), case.weight
    dense = NTLCrossEntropyLoss(NUMBERS, group=group)
    linear = dense.from_hidden
    whole = DTensor.from_local(case.hidden, mesh, [Replicate()])
    by_rows = DTensor.from_local(logits[:1], mesh, [Shard(0)])
    by_hidden = DTensor.from_local(head, mesh, [Shard(1)])
    hidden_by_rows = DTensor.from_local(case.hidden[:1], mesh, [Shard(0)])
    plain = NTLCrossEntropyLoss(NUMBERS).from_hidden
    attempts = {
        "whole logits with a group": lambda: dense(logits, case.labels),
        "whole head with a group": lambda: linear(case.hidden, head, case.labels),
        "one column too few": lambda: dense(logits[:, mine][:, 1:], case.labels),
        "logits sharded over positions": lambda: NTLCrossEntropyLoss(NUMBERS)(by_rows, case.labels),
        "head sharded over the hidden size": lambda: plain(case.hidden, by_hidden, case.labels),
        "hidden states sharded": lambda: plain(hidden_by_rows, head, case.labels),
        "bias of the whole vocabulary": lambda: linear(case.hidden, head[mine], case.labels, case.bias),
        "sharded logits without a group": lambda: NTLCrossEntropyLoss(NUMBERS)(logits[:, mine], case.labels),
    }
    messages = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            messages[name] = "no error"
        except Exception as error:
            messages[name] = f"{type(error).__name__}: {error}"
    # A replicated DTensor counts as a plain tensor.
    terms = plain(whole, DTensor.from_local(head, mesh, [Replicate()]), case.labels)
    messages["replicated"] = float(terms)
    return messages


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


def main(rank, world, folder):
    """Run all trials as one of `world` processes, and save the results in `folder`."""
    join(rank, folder, world, seconds=30)
    group = dist.group.WORLD
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tensor",))
    results: dict[str, Any] = {}
    try:
        results["different batches"] = different_batches(rank, world, group)
        for trial in trials():
            results[trial.name] = compute(trial, rank, world, group, mesh)
        if world == 4:
            results["groups of two"] = groups_of_two(rank, world)
        results["errors"] = errors(rank, world, group, mesh)
    finally:
        torch.save(results, Path(folder) / f"rank{rank}.pt")
        dist.destroy_process_group()
