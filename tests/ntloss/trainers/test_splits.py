"""The same weights are trained however a batch is split: by accumulation, over processes, and over shards."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
import trainer_cases as cases
from processes import results_of
from tolerances import TRAINED, assert_close
from torch.distributed.fsdp import fully_shard
from torch.torch_version import TorchVersion
from trainer_cases import MODELS, ROWS, STEPS, WAYS, Trained, number_aware_trainer, train_with

from ntloss import HLGauss

# Over gloo, torch 2.7 sums FSDP2's gradients instead of averaging them.
AVERAGES_SHARDS = torch.__version__ >= TorchVersion("2.8")
LAYERS = {"llama": "model.layers", "t5": "decoder.block"}


class Setting(NamedTuple):
    """How a model is trained, always on the same rows.

    Args:
        way: "logits" or "chunked".
        accumulate: micro-batches of a step, on each rank.
        ranks: processes.
        sharded: "no", in a Trainer; otherwise in a plain loop: "model" or "head" (a group by itself) with
            FSDP2; "tensor" with transformers' tensor parallelism, whose ranks share a batch.
    """

    way: str
    accumulate: int
    ranks: int = 1
    sharded: str = "no"


ALONE = [Setting(way, accumulate) for way in WAYS for accumulate in (1, 4)]
TOGETHER = [Setting(way, accumulate, 2) for way in WAYS for accumulate in (1, 2)]
TOGETHER += [
    Setting(way, accumulate, 2, sharded)
    for way, accumulate in zip(WAYS, (1, 2), strict=True)
    for sharded in ("model", "head", "tensor")
]


def possible(name, setting):
    """Whether a model supports a setting: T5's head is its embedding and is sharded with it."""
    if name == "t5" and setting.sharded not in ("no", "model"):
        return False
    return AVERAGES_SHARDS or setting.sharded not in ("model", "head")


TRAININGS = [(name, setting) for setting in TOGETHER for name in MODELS if possible(name, setting)]


def train(name, setting, folder):
    model = MODELS[name]()
    if setting.sharded != "no":
        return train_sharded(name, model, setting, folder)
    options = cases.split(setting.accumulate, setting.ranks)
    options |= {"ddp_backend": "gloo"} if setting.ranks > 1 else {}
    return train_with(number_aware_trainer(model, folder, setting.way, **options))


def shard(name, model, setting, folder):
    if setting.sharded == "tensor":
        model.save_pretrained(folder)  # only the first rank saves
        dist.barrier()
        return type(model).from_pretrained(folder, tp_plan="auto").train()
    for layer in model.get_submodule(LAYERS[name]):
        fully_shard(layer)
    if setting.sharded == "head":
        fully_shard(model.lm_head)
    return fully_shard(model)


def train_sharded(name, model, setting, folder):
    # Only its loss is used: on the CPU, accelerate shards no models, and a Trainer refuses sharded ones.
    trainer = number_aware_trainer(model, folder, setting.way, ddp_backend="gloo")
    data_ranks = 1 if setting.sharded == "tensor" else setting.ranks
    trainer.args.average_tokens_across_devices = data_ranks > 1  # multiplies by the ranks
    model = shard(name, model, setting, folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=cases.RATE)
    size, data_rank = ROWS // setting.accumulate // data_ranks, dist.get_rank() % data_ranks
    rows, losses = cases.samples(), []
    for step in range(STEPS):
        mine = []
        for micro in range(setting.accumulate):
            first = step * ROWS + (micro * data_ranks + data_rank) * size
            mine.append(cases.stack(rows[first : first + size]))
        items = sum((cases.count_items(inputs["labels"], model) for inputs in mine), torch.zeros(()))
        if data_ranks > 1:
            dist.all_reduce(items)
        total = torch.zeros(())
        for inputs in mine:
            loss = trainer.compute_loss(model, inputs, num_items_in_batch=items)
            loss.backward()  # FSDP averages over the ranks
            total += loss.detach() / data_ranks
        if data_ranks > 1:
            dist.all_reduce(total)
        losses.append(total.item())
        optimizer.step()
        optimizer.zero_grad()
    weights = {
        key: w.full_tensor() if hasattr(w, "full_tensor") else w for key, w in model.state_dict().items()
    }
    return Trained(losses, {key: weight.detach().clone() for key, weight in weights.items()})


@pytest.fixture(scope="module")
def one():
    """A plain loop over batches of 8."""
    return {name: cases.train_plainly(name) for name in MODELS}


@pytest.mark.parametrize("setting", ALONE, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_trainer_trains_the_weights_of_a_plain_loop(name, setting, one, tmp_path):
    # Some micro-batches have no numbers, some no label at all.
    cases.assert_same_training(train(name, setting, tmp_path), one[name])


def train_together(_rank, folder):
    return {training: train(*training, folder) for training in TRAININGS}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """All training runs of two processes, in one job: starting it takes longer than they do."""
    folder = tmp_path_factory.mktemp("two")
    return results_of(train_together, (folder,), folder)[0]


@pytest.mark.parametrize(("name", "setting"), TRAININGS, ids=str)
def test_two_processes_train_the_weights_of_a_plain_loop(name, setting, one, two):
    cases.assert_same_training(two[name, setting], one[name])


# How accelerate divides batches over ranks, and the rows of a batch: of one rank, or of both.
LOADERS = {
    "each rank reads": ({"dispatch_batches": False}, ROWS // 2),
    "each rank reads, batches are split": ({"dispatch_batches": False, "split_batches": True}, ROWS),
    "one rank reads": ({"dispatch_batches": True}, ROWS // 2),
    "one rank reads, batches are split": ({"dispatch_batches": True, "split_batches": True}, ROWS),
}


def train_with_loaders(_rank, folder):
    """Train on whole numbers, which travel with the batches, by each of the loaders."""
    trained = {}
    for how, (loader, size) in LOADERS.items():
        options = {"per_device_train_batch_size": size, "accelerator_config": loader, "ddp_backend": "gloo"}
        trainer = number_aware_trainer(cases.llama(), folder, loss={"criterion": HLGauss(2.0)}, **options)
        trained[how] = train_with(trainer)
    return trained


def test_numbers_travel_with_batches_that_accelerate_dispatches_or_splits(tmp_path):
    together = results_of(train_with_loaders, (tmp_path,), tmp_path)[0]
    one = cases.train_plainly("llama", HLGauss(2.0))
    for how in LOADERS:
        assert_close(together[how].weights, one.weights, TRAINED, how)
