"""A model sharded over two processes with FSDP2, `fully_shard`.

    torchrun --nproc-per-node 2 examples/fsdp.py --steps 60 --accumulate 2
    torchrun --nproc-per-node 2 examples/fsdp.py --chunked

Every loss is divided by the labels of all micro-batches and processes of a step, so that the trained weights
are those of one process with all the data. With `--chunked` the logits are never in memory.

The loop is the same with accelerate, which calls `fully_shard` itself (on the CPU it uses DDP instead), but
also divides by the number of micro-batches. There, too, control the synchronization of gradients yourself,
with `accelerator.no_sync(model)`: `accelerator.accumulate` depends on whether the loader is at its end, and
this loop reads a step ahead.
"""

import argparse
from itertools import islice

import torch
import torch.distributed as dist
from tiny import causal_batch, make_llama, make_texts, make_tokenizer, report
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from ntloss import LossTerms, NTLCrossEntropyLoss, NumberVocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
    parser.add_argument("--chunked", action="store_true", help="compute the loss from hidden states")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights in every process
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, weight=0.3, shift=True)

    def compute(batch: dict[str, Tensor], items: Tensor | None = None) -> LossTerms:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if not arguments.chunked:
            return loss_fn.terms(model(**inputs).logits, batch["labels"], count=items)
        # The model's own head computes the logits of one position only.
        hidden_states = model(**inputs, output_hidden_states=True, logits_to_keep=1).hidden_states[-1]
        # The root's own parameters, including the head, stay gathered until they have their gradients.
        return loss_fn.terms(hidden_states, batch["labels"], model.lm_head.weight, count=items)

    def evaluate(when: str) -> None:
        with torch.no_grad():
            terms = compute(causal_batch(tokenizer, make_texts(64, seed=0)))
        if dist.get_rank() == 0:
            report(when, *terms)

    texts = make_texts(8 * dist.get_world_size() * arguments.accumulate * arguments.steps, seed=1)
    collate = lambda rows: causal_batch(tokenizer, rows)  # noqa: E731
    loader = DataLoader(texts, 8, sampler=DistributedSampler(texts, seed=1), collate_fn=collate)
    evaluate("before")
    batches = iter(loader)
    while micro_batches := list(islice(batches, arguments.accumulate)):
        # The labels of the whole step; the first of each row is not predicted.
        items = torch.stack([(batch["labels"][:, 1:] != -100).sum() for batch in micro_batches]).sum()
        dist.all_reduce(items)
        for batch in micro_batches:
            model.set_requires_gradient_sync(batch is micro_batches[-1])
            # FSDP averages gradients over the processes, but these losses are shares, to be summed.
            (compute(batch, items).loss * dist.get_world_size()).backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate("after")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
