"""Train T5, an encoder-decoder that computes its loss inline, with transformers' Seq2SeqTrainer.

    python examples/t5.py --steps 60

The tokenizer made here has single digits. T5's own writes most numbers with tokens of several digits: train
with HLGauss there, or split digits when tokenizing. `ntloss inspect google-t5/t5-small` says so.
"""

import argparse
import tempfile

import torch
from tiny import make_texts, make_tokenizer, report
from torch import Tensor
from transformers import (
    PrinterCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

from ntloss.trainers import make_number_aware


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    arguments = parser.parse_args()

    set_seed(0)
    tokenizer = make_tokenizer()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model = T5ForConditionalGeneration(config)

    def collate(texts: list[tuple[str, str]]) -> dict[str, Tensor]:
        questions = tokenizer([question for question, _ in texts], padding=True, return_tensors="pt")
        answers = tokenizer(
            [answer + tokenizer.eos_token for _, answer in texts], padding=True, return_tensors="pt"
        )
        labels = torch.where(answers["attention_mask"] == 1, answers["input_ids"], -100)
        return {
            "input_ids": questions["input_ids"],
            "attention_mask": questions["attention_mask"],
            "labels": labels,
        }

    with tempfile.TemporaryDirectory() as folder:
        settings = Seq2SeqTrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Seq2SeqTrainer(
            model,
            settings,
            train_dataset=make_texts(16 * arguments.steps, seed=1),
            eval_dataset=make_texts(64, seed=0),
            data_collator=collate,
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        make_number_aware(trainer, weight=0.3)  # the one line
        for when in ("before", "after"):
            metrics = trainer.evaluate()
            report(when, metrics["eval_loss"], metrics["eval_ce"], metrics["eval_ntl"])
            if when == "before":
                trainer.train()


if __name__ == "__main__":
    main()
