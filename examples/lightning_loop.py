"""Train with PyTorch Lightning, with gradient accumulation, a schedule and both terms logged.

    python examples/lightning_loop.py --steps 60 --accumulate 2

Lightning averages losses over micro-batches and processes, but only losses that are divided by the labels of
the whole step add up to that of one large batch. `tiny.StepItems` reads a step ahead to count them. With
several processes, give the `DataLoader` a `DistributedSampler` yourself: Lightning adds one to a bare loader.
"""

import argparse
import logging
from functools import partial
from typing import Any

import lightning
import torch
from tiny import StepItems, causal_batch, make_llama, make_texts, make_tokenizer, report
from torch import Tensor
from torch.utils.data import DataLoader

from ntloss import NTLCrossEntropyLoss, NumberVocabulary


class NumberAware(lightning.LightningModule):
    """A causal model trained with cross-entropy plus a number token loss."""

    def __init__(self, model: torch.nn.Module, loss_fn: NTLCrossEntropyLoss, warmup: int) -> None:
        super().__init__()
        self.model = model
        self.loss_fn = loss_fn
        self.warmup = max(warmup, 1)
        self.weight = loss_fn.weight

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        """Compute the loss of a micro-batch."""
        # `global_step` counts optimizer steps, also after a resume.
        self.loss_fn.weight = self.weight * min(self.global_step / self.warmup, 1.0)
        logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        terms = self.loss_fn.terms(logits, batch["labels"], count=batch["items"])
        metrics = {"train/ce": terms.ce, "train/ntl": terms.ntl, "train/weight": self.loss_fn.weight}
        self.log_dict(metrics, batch_size=len(logits))
        return terms.loss

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        """Both terms on the validation batch."""
        self.loss_fn.weight = self.weight  # the full weight, so that losses can be compared
        logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        terms = self.loss_fn.terms(logits, batch["labels"])
        self.log_dict({"loss": terms.loss, "ce": terms.ce, "ntl": terms.ntl}, batch_size=len(logits))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Use AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches per optimizer step")
    arguments = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, weight=0.3, shift=True)
    module = NumberAware(model, loss_fn, warmup=max(arguments.steps // 4, 1))

    collate = partial(causal_batch, tokenizer)
    texts = make_texts(8 * arguments.steps * arguments.accumulate, seed=1)
    training = DataLoader(texts, batch_size=8, shuffle=True, collate_fn=collate)
    validation = DataLoader(make_texts(64, seed=0), batch_size=64, collate_fn=collate)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_steps=arguments.steps,
        accumulate_grad_batches=arguments.accumulate,
        accelerator="cpu",
        devices=1,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        **options,
    )
    report("before", **trainer.validate(module, validation, verbose=False)[0])
    trainer.fit(module, DataLoader(StepItems(training, arguments.accumulate), batch_size=None))
    report("after", **trainer.validate(module, validation, verbose=False)[0])


if __name__ == "__main__":
    main()
