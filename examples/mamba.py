"""Train a Mamba model from hidden states, so that the logits of all tokens are never materialised.

    python examples/mamba.py --steps 60

Nothing here is specific to Mamba: a number token loss takes logits, or hidden states and a head, of any
model.
"""

import argparse

import torch
from tiny import causal_batch, causal_batches, make_texts, make_tokenizer, report
from torch import Tensor
from transformers import MambaConfig, MambaForCausalLM

from ntloss import LossTerms, NTLCrossEntropyLoss, NumberVocabulary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = MambaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        state_size=8,
        num_hidden_layers=2,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = MambaForCausalLM(config)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=config.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, weight=0.3, shift=True)

    def compute(batch: dict[str, Tensor]) -> LossTerms:
        hidden_states = model.backbone(batch["input_ids"], attention_mask=batch["attention_mask"])[0]
        return loss_fn.terms(hidden_states, batch["labels"], model.lm_head.weight)

    held_out = causal_batch(tokenizer, make_texts(64, seed=0))
    with torch.no_grad():
        report("before", *compute(held_out))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for batch in causal_batches(tokenizer, arguments.steps, batch_size=16):
        compute(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        report("after", *compute(held_out))


if __name__ == "__main__":
    main()
