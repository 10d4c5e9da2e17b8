"""Mixed data: sums, whose answers are quantities, and multiple choice, whose answers such as (3) are names.

    python examples/multiple_choice.py --steps 60

That (2) lies between (1) and (3) says nothing about how wrong it is. The column `number_weights` keeps names
out of the number term; cross-entropy learns them as before. `make_number_aware` puts the column into
the batches.
"""

import argparse
import random
import re
import tempfile
from typing import Any

from tiny import make_llama, make_texts, make_tokenizer, report
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Trainer, TrainingArguments, set_seed

from ntloss.trainers import make_number_aware

NAMES = re.compile(r"\(\d+\)")


def make_choices(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draw questions for the largest number, such as `("(1)12 (2)47 (3)5=", "(2)")`."""
    draw, texts = random.Random(seed), []
    for _ in range(count):
        options = [draw.randrange(100) for _ in range(3)]
        question = " ".join(f"({i}){option}" for i, option in enumerate(options, 1))
        texts.append((f"{question}=", f"({1 + options.index(max(options))})"))
    return texts


def preprocess(row: dict[str, str], tokenizer: Any) -> dict[str, list[Any]]:
    """Tokenize a row; with the datasets library: `dataset.map(preprocess, fn_kwargs={...})`."""
    text = row["question"] + row["answer"] + tokenizer.eos_token
    encoded = tokenizer(text, return_offsets_mapping=True)
    tokens = list(zip(encoded["input_ids"], encoded["offset_mapping"], strict=True))
    names = [match.span() for match in NAMES.finditer(text)]
    return {
        "input_ids": encoded["input_ids"],
        "labels": [-100 if start < len(row["question"]) else token for token, (start, _) in tokens],
        # One weight per label: 0 for tokens of a name, 1 for all others; those of text are not read.
        "number_weights": [
            0.0 if any(first <= start and end <= last for first, last in names) else 1.0
            for _, (start, end) in tokens
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    arguments = parser.parse_args()

    set_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["(", ")"])

    def dataset(count: int, seed: int) -> list[dict[str, list[Any]]]:
        texts = make_texts(count // 2, seed) + make_choices(count // 2, seed)
        rows = [{"question": question, "answer": answer} for question, answer in texts]
        return [preprocess(row, tokenizer) for row in rows]

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            make_llama(tokenizer),
            settings,
            train_dataset=dataset(16 * arguments.steps, seed=1),
            eval_dataset=dataset(64, seed=0),
            data_collator=DataCollatorForSeq2Seq(tokenizer),  # fails on the column by itself
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
