"""Shared by the examples: a tokenizer, a model, sums to learn, and a line of results.

Everything is built locally and nothing is downloaded. Replace `make_tokenizer` with
`AutoTokenizer.from_pretrained(...)`, `make_llama` with `AutoModelForCausalLM.from_pretrained(...)`, and
`make_texts` with your data.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
import torch.distributed as dist
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = "0123456789+= "


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a character tokenizer, which splits numbers into digits like that of Llama 2 or Qwen."""
    vocab = {text: i for i, text in enumerate(["<pad>", "</s>", "<unk>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def make_llama(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A decoder-only model of about 80,000 weights."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def make_texts(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draw questions and answers such as `("27+45=", "72")`."""
    draw = random.Random(seed)
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(count)]
    return [(f"{a}+{b}=", str(a + b)) for a, b in pairs]


def causal_batch(tokenizer: PreTrainedTokenizerFast, texts: list[tuple[str, str]]) -> dict[str, Tensor]:
    """A batch for a decoder-only model; questions and padding are ignored by the loss."""
    rows = []
    for question, answer in texts:
        question_ids = tokenizer.encode(question, add_special_tokens=False)
        answer_ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        rows.append((question_ids + answer_ids, [-100] * len(question_ids) + answer_ids))
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in rows]),
    }


def causal_batches(
    tokenizer: PreTrainedTokenizerFast, count: int, batch_size: int = 8, seed: int = 0
) -> Iterator[dict[str, Tensor]]:
    """Yield `count` training batches."""
    for i in range(count):
        yield causal_batch(tokenizer, make_texts(batch_size, seed=1 + i + 1_000 * seed))


def report(when: str, loss: Tensor, ce: Tensor, ntl: Tensor) -> None:
    """Print one line, which the tests of the examples read."""
    print(f"{when:>6}: loss {float(loss):.4f}, CE {float(ce):.4f}, NTL {float(ntl):.4f}")


class StepItems(IterableDataset):
    """Batches with `items`: the mean count of labels in the step's parts, micro-batches and processes."""

    def __init__(self, batches: Iterable[dict[str, Tensor]], accumulate: int) -> None:
        self.batches, self.accumulate = batches, accumulate

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        batches = iter(self.batches)
        while step := list(islice(batches, self.accumulate)):
            # The first label of each row is not predicted.
            items = torch.stack([(batch["labels"][:, 1:] != -100).sum() for batch in step]).sum()
            parts = self.accumulate
            if dist.is_initialized():  # several processes; NCCL needs `items` on the GPU
                dist.all_reduce(items)
                parts *= dist.get_world_size()
            yield from ({**batch, "items": items / parts} for batch in step)
