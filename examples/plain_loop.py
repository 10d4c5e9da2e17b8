"""A plain PyTorch loop, with gradient accumulation and a schedule for the number term's weight.

    python examples/plain_loop.py --steps 60 --accumulate 4

Dividing by the labels of the whole step makes the result independent of `--accumulate`. Otherwise the loss of
each micro-batch would be a separate mean, and a label in a short one would weigh more than one in a long one.
"""

import argparse

import torch
from tiny import causal_batch, causal_batches, make_llama, make_texts, make_tokenizer, report

from ntloss import NTLCrossEntropyLoss, NumberVocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    # The model's vocabulary may be padded beyond the tokenizer's.
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    # A causal model predicts the next token: shift=True.
    loss_fn = NTLCrossEntropyLoss(vocabulary, weight=0.3, shift=True)
    warmup = max(arguments.steps // 4, 1)
    held_out = causal_batch(tokenizer, make_texts(64, seed=0))

    def evaluate(when: str) -> None:
        with torch.no_grad():
            logits = model(held_out["input_ids"], attention_mask=held_out["attention_mask"]).logits
            loss_fn.weight = 0.3  # the full weight, so that losses can be compared
            report(when, *loss_fn.terms(logits, held_out["labels"]))

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = causal_batches(tokenizer, arguments.steps * arguments.accumulate)
    evaluate("before")
    for step in range(arguments.steps):
        loss_fn.weight = 0.3 * min(step / warmup, 1.0)
        micro_batches = [next(loader) for _ in range(arguments.accumulate)]
        # The labels of the whole step; the first of each row is not predicted.
        items = sum((batch["labels"][:, 1:] != -100).sum() for batch in micro_batches)
        for batch in micro_batches:
            labels = batch.pop("labels")
            loss_fn(model(**batch).logits, labels, count=items).backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate("after")


if __name__ == "__main__":
    main()
