"""Run by each process of the tests of training loops: the same three steps in every way."""

from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ntloss import NTLCrossEntropyLoss, NumberVocabulary

VOCAB, HIDDEN, LENGTH, STEPS, BATCH = 16, 6, 5, 3, 8
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=VOCAB)
Batch = dict[str, Tensor]


class Model(nn.Module):
    """An embedding, a layer and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.layer = nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB, bias=False)
        self.double()

    def forward(self, ids, chunked=False):
        """Logits, or with `chunked` hidden states."""
        hidden_states = torch.tanh(self.layer(self.embedding(ids)))
        return hidden_states if chunked else self.head(hidden_states)


def data():
    """All batches, `[steps * batch, seq]`: numbers are spread unevenly, and some labels are ignored."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCAB, (STEPS * BATCH, LENGTH), generator=generator)
    labels = torch.randint(10, VOCAB, (STEPS * BATCH, LENGTH), generator=generator)
    labels[::3, 1:4] = torch.randint(10, (STEPS * BATCH // 3, 3), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = -100
    # The first micro-batch has no numbers, the second is fully masked.
    labels[0:2], labels[2:4] = 12, -100
    return {"ids": ids, "labels": labels}


def micro_batches(rank, world, accumulate):
    """This rank's micro-batches: each is a part of a step's rows, and is split over the ranks."""
    size = BATCH // (world * accumulate)
    firsts = [(i * world + rank) * size for i in range(STEPS * accumulate)]
    return [{name: rows[first : first + size] for name, rows in data().items()} for first in firsts]


def batched(loader, accumulate):
    """Yield the micro-batches of each step."""
    batches = iter(loader)
    while step := list(islice(batches, accumulate)):
        yield step


def items_in_step(labels, world=1):
    """Count the labels of a step's micro-batches, over all ranks."""
    items = torch.stack([(own != -100).sum() for own in labels]).sum()
    if world > 1:
        dist.all_reduce(items)
    return items


def train(model, accumulate, chunked):
    """Train three steps in one process, each loss divided by the labels of its step."""
    loss_fn = NTLCrossEntropyLoss(DIGITS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for step in batched(micro_batches(0, 1, accumulate), accumulate):
        items = items_in_step([batch["labels"] for batch in step])
        for batch in step:
            output = model(batch["ids"], chunked)
            if chunked:
                loss = loss_fn.from_hidden(output, model.head.weight, batch["labels"], count=items)
            else:
                loss = loss_fn(output, batch["labels"], count=items)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_on_means(model, accumulate=1, **options):
    """Train three steps in one process on averaged means of micro-batches; return the weights."""
    loss_fn = NTLCrossEntropyLoss(DIGITS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    for i, batch in enumerate(micro_batches(0, 1, accumulate)):
        (loss_fn(model(batch["ids"]), batch["labels"]) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def weights(model):
    """Unsharded weights by name."""
    whole = {}
    for name, parameter in model.named_parameters():
        full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        whole[name.removeprefix("module.")] = full.detach().clone()
    return whole


def by_accelerate(accumulate, sharded):
    """Train with accelerate's loader, `no_sync` and `backward`, which divides by the accumulation steps."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()  # shared by all accelerators of a process
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    if sharded:
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
        # On the CPU, accelerate ignores the plugin and uses DDP.
        accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    rows = [dict(zip(data(), row, strict=True)) for row in zip(*data().values(), strict=True)]
    size = BATCH // (accelerator.num_processes * accumulate)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(rows, batch_size=size)
    )
    assert isinstance(model, FSDPModule if sharded else DistributedDataParallel)
    loss_fn = NTLCrossEntropyLoss(DIGITS)
    parts = accelerator.num_processes * accumulate  # over which accelerate averages
    for step in batched(loader, accumulate):
        items = items_in_step([batch["labels"] for batch in step], accelerator.num_processes)
        for batch in step:
            with nullcontext() if batch is step[-1] else accelerator.no_sync(model):
                loss = loss_fn(model(batch["ids"]), batch["labels"], count=items)
                accelerator.backward(loss * parts)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def main(rank, world):
    """Train in every way as one of `world` processes; return the weights of each."""
    return {
        (accumulate, sharded): by_accelerate(accumulate, sharded)
        for accumulate in (1, 4)
        for sharded in (False, True)
    }
