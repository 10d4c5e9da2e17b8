"""Tensor parallelism as in torchtitan: each process holds a part of the head and of the logits.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py --steps 60
    torchrun --nproc-per-node 2 examples/tensor_parallel.py --chunked

The head is a `ColwiseParallel` that leaves its logits sharded over the vocabulary. The loss takes sharded
logits, as `torch.distributed.tensor.parallel.loss_parallel` does for cross-entropy: the logits are never
gathered, and only a few numbers per token are exchanged. All processes see the same batch.
"""

import argparse

import torch
import torch.distributed as dist
from tiny import causal_batch, causal_batches, make_llama, make_texts, make_tokenizer, report
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ntloss import LossTerms, NTLCrossEntropyLoss, NumberVocabulary

PLAN = {
    "model.layers.*.self_attn.q_proj": ColwiseParallel(),
    "model.layers.*.self_attn.k_proj": ColwiseParallel(),
    "model.layers.*.self_attn.v_proj": ColwiseParallel(),
    "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    "model.layers.*.mlp.gate_proj": ColwiseParallel(),
    "model.layers.*.mlp.up_proj": ColwiseParallel(),
    "model.layers.*.mlp.down_proj": RowwiseParallel(),
    "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--chunked", action="store_true", help="compute the loss from hidden states")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)  # the same weights and batches in every process
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
    parallelize_module(model, mesh, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)

    # vocab_size is the width of all shards together.
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, weight=0.3, shift=True)

    def compute(batch: dict[str, Tensor]) -> LossTerms:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        if arguments.chunked:
            return loss_fn.terms(model.model(**inputs)[0], batch["labels"], model.lm_head.weight)
        return loss_fn.terms(model(**inputs).logits, batch["labels"])

    def evaluate(when: str) -> None:
        with torch.no_grad():
            terms = compute(causal_batch(tokenizer, make_texts(64, seed=0)))
        if dist.get_rank() == 0:
            report(when, *terms)

    evaluate("before")
    for batch in causal_batches(tokenizer, arguments.steps, batch_size=16):
        compute(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate("after")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
