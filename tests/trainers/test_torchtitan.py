"""torchtitan: `make test-trainers TRAINER=torchtitan`."""

from pathlib import Path

import pytest
import torch
from tiny_model import save_model

pytest.importorskip("torchtitan", reason="torchtitan is not installed: make test-trainers TRAINER=torchtitan")

SIZE, COUNT, WEIGHT = 272, 50, 0.3
TOLERANCE = 1e-5
RUNS = Path(__file__).parents[2] / "examples" / "trainers" / "torchtitan_runs.py"


def inputs():
    made = torch.Generator().manual_seed(0)
    labels = torch.randint(5, 25, (2, 8), generator=made)  # digits are 15 to 24
    labels[0, :3] = -100
    return torch.randn(2, 8, SIZE, generator=made), labels


def build(folder, chunked=False, **options):
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.llama3 import config_registry

    from ntloss.trainers.torchtitan import with_number_loss

    config = config_registry.llama3_debugmodel()
    config.hf_assets_path = str(folder)
    config.loss.num_chunks = 4
    config.loss.loss_fn.global_vocab_size = SIZE
    if not chunked:
        config.loss = CrossEntropyLoss.Config(global_vocab_size=SIZE)
    return with_number_loss(config, **options).loss.build()


def expected(folder):
    """Compute the loss and the gradient from the formulas."""
    from tokenizers import Tokenizer

    logits, labels = inputs()
    logits.requires_grad_()
    ids = torch.tensor(
        [Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(d) for d in "0123456789"]
    )
    kept = labels != -100
    is_digit = kept & (labels[..., None] == ids).any(-1)
    assert 0 < is_digit.sum() < kept.sum()
    truth = (labels[is_digit][:, None] == ids).double().argmax(1)
    distances = (torch.arange(10)[None] - truth[:, None]).abs()
    number = (logits[is_digit][:, ids].softmax(-1) * distances).sum()
    entropy = torch.nn.functional.cross_entropy(logits[kept], labels[kept], reduction="sum")
    loss = (entropy + WEIGHT * number) / COUNT
    loss.backward()
    return loss.detach(), logits.grad


def close(found, true):
    return bool((found - true).abs().max() < TOLERANCE)


def test_whole_logits_get_the_loss_and_gradient_of_the_formula(tmp_path):
    loss_fn = build(save_model(tmp_path), weight=WEIGHT)
    logits, labels = inputs()
    logits.requires_grad_()
    loss, metrics = loss_fn(logits, labels, torch.tensor(COUNT))
    loss.backward()
    loss_of_formula, gradient = expected(tmp_path)
    assert metrics == {}
    assert close(loss, loss_of_formula)
    assert close(logits.grad, gradient)


def test_torchtitans_chunks_give_the_same_loss_and_gradients(tmp_path):
    wrapper = build(save_model(tmp_path), chunked=True, weight=WEIGHT)
    logits, labels = inputs()
    head = torch.nn.Linear(SIZE, SIZE, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(SIZE))
    wrapper.set_lm_head(head)
    logits.requires_grad_()  # as hidden states
    loss, _ = wrapper(logits, labels, torch.tensor(COUNT))
    loss.backward()
    loss_of_formula, gradient = expected(tmp_path)
    assert close(loss, loss_of_formula)
    assert close(logits.grad, gradient)


@pytest.mark.parametrize("backend", ["partial_dtensor", "spmd_types"])
def test_two_ranks_with_half_of_the_vocabulary_each_agree(tmp_path, backend):
    save_model(tmp_path)
    torch.multiprocessing.spawn(run_rank, (tmp_path, backend), nprocs=2)


def run_rank(rank, folder, backend):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torchtitan.distributed import spmd_types, utils

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    utils.set_spmd_backend(backend)
    loss_fn = build(folder, weight=WEIGHT)
    logits, labels = inputs()
    loss_of_formula, gradient = expected(folder)
    if backend == "partial_dtensor":
        sharded = distribute_tensor(logits, mesh, [Shard(2)]).requires_grad_()
        loss, _ = loss_fn(sharded, labels, torch.tensor(COUNT))
        loss.backward()
        found = sharded.grad.full_tensor()
        assert close(found, gradient)
    else:
        local = logits.chunk(2, -1)[rank].clone().requires_grad_()
        with spmd_types.set_current_spmd_mesh(mesh):
            loss, _ = loss_fn(local, labels, torch.tensor(COUNT))
        loss.backward()
        assert close(local.grad, gradient.chunk(2, -1)[rank])
    assert close(loss, loss_of_formula)
    dist.destroy_process_group()


def test_a_criterion_on_whole_numbers_is_refused_in_chunks(tmp_path):
    with pytest.raises(ValueError, match="number_level"):
        build(save_model(tmp_path), chunked=True, criterion="number_level")
    assert build(tmp_path, criterion="number_level") is not None


def test_the_example_is_found_by_torchtitans_command_line(monkeypatch):
    from torchtitan.config import ConfigManager

    monkeypatch.syspath_prepend(str(RUNS.parent))
    config = ConfigManager().parse_args(["--module", "torchtitan_runs", "--config", "llama3_8b_ntl"])
    inner = config.loss.loss_fn
    assert (inner.options.weight, inner.options.criterion, inner.global_vocab_size) == (0.3, "dist2", 128_256)
