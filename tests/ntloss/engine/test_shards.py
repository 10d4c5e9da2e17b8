"""A vocabulary sharded over 2 or 4 processes gives the results of one process, with few collectives."""

import re

import parallel_worker
import pytest
import torch
from combined_cases import HIDDEN, assert_gradients, make_case, run
from processes import run_job
from tolerances import (
    GRADIENT_TOLERANCE,
    HALF_PRECISION,
    HALF_PRECISION_GRADIENT,
    ONE_COMPUTATION,
    VALUE_TOLERANCE,
    approx,
    assert_close,
)

from ntloss.engine import shards
from ntloss.engine.read import Operators
from ntloss.engine.readout import Wanted

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(), reason="needs gloo"
)
WORLDS = (2, pytest.param(4, marks=pytest.mark.slow))
TRIALS = parallel_worker.trials()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What each rank of a number of processes has computed, by that number."""

    class Jobs(dict):
        def __missing__(self, world):
            folder = tmp_path_factory.mktemp(f"world{world}")
            run_job(parallel_worker.main, (world, str(folder)), world)
            ranks = range(world)
            self[world] = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in ranks]
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
    alone = run(trial.case, path, trial.dtype, **(trial.arguments or {}))
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
        chunk = (trial.arguments or {}).get("chunk_size", 64)
        labels = case.labels
        if (trial.arguments or {}).get("shift"):
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
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("whole logits with a group", r"ValueError: rank 0 of \d holds 23 tokens"),
        ("whole head with a group", r"ValueError: rank 0 of \d holds 23 tokens"),
        ("one column too few", r"ValueError: rank 0 of \d holds \d+ tokens"),
        ("logits sharded over positions", "ValueError: DTensor with placements .*expected the vocabulary"),
        (
            "head sharded over the hidden size",
            "ValueError: DTensor with placements .*expected the vocabulary",
        ),
        ("hidden states sharded", "ValueError: DTensor with placements .*expected replicated hidden states"),
        ("bias of the whole vocabulary", r"ValueError: bias of shape \[23\]: expected \[vocab\] = \[\d+\]"),
        ("sharded logits without a group", r"ValueError: logits of shape \[4, \d+\] .* size, 23"),
    ],
)
def test_invalid_shards_raise_on_every_rank(name, says, world, jobs):
    assert re.match(says, jobs[world][0]["errors"][name]), jobs[world][0]["errors"][name]
    # All ranks raise, so none waits for another.
    for rank in jobs[world]:
        assert rank["errors"][name].startswith("ValueError")


@pytest.mark.parametrize("world", WORLDS)
def test_a_replicated_head_is_not_sharded(world, jobs):
    wanted = make_case(4, bias=False).expected().loss
    assert jobs[world][0]["errors"]["replicated"] == approx(wanted, dtype=torch.float64)


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
