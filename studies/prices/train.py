"""Train a small Llama from scratch to write prices, with cross-entropy and two kinds of HL-Gauss's widths.

    python -m studies.prices.train --seeds 0 1 2

Each run writes one file, at its end, and runs that have one are skipped.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from ntloss import HLGauss
from ntloss.numbers import NumberFormat
from ntloss.reading import Question, compare_answers
from ntloss.trainers import make_number_aware
from studies.packs import make_runs

ARMS = ("ce", "one_width", "relative")
DATA, MODEL = "data/diamonds.csv", "examples/characters"
PROMPT = "{carat} carat, {cut}, {color}, {clarity}: $"
DIGITS = 5
TRAIN, TEST, STEPS, BATCH = 1800, 500, 300, 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    make_runs(arguments, __doc__, ARMS, STEPS, Path("outputs/prices"), make_run)


def make_run(arm: str, seed: int, steps: int, outputs: Path) -> dict[str, Any]:
    """Train and read one model."""
    start = time.process_time()
    rows = Dataset.from_csv(DATA).shuffle(seed=seed).select(range(TRAIN + TEST))
    prompts, prices = [PROMPT.format(**row) for row in rows], list(rows["price"])
    answers = [f"{price:0{DIGITS}d}" for price in prices[:TRAIN]]
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(MODEL))
    settings = SFTConfig(
        str(outputs / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    train = Dataset.from_dict({"prompt": prompts[:TRAIN], "completion": answers})
    trainer = SFTTrainer(model, args=settings, train_dataset=train, processing_class=tokenizer)
    if arm == "one_width":
        make_number_aware(trainer, HLGauss.for_answers(prices[:TRAIN], leading_zeros=True))
    elif arm == "relative":
        make_number_aware(trainer, HLGauss(0.0, relative=0.1, leading_zeros=True))
    trainer.train()
    asked = [Question(prompt, template=None) for prompt in prompts[TRAIN:]]
    truths = prices[TRAIN:]
    width = NumberFormat(digits=DIGITS)
    found = compare_answers({arm: model.eval()}, tokenizer, asked, truths, format=width)
    errors = found.models[arm]
    return {
        "arm": arm,
        "seed": seed,
        "steps": steps,
        "truths": truths,
        "median_errors": errors.median_errors.tolist(),
        "greedy": errors.greedy,
        "answered": errors.answered,
        "coverage": errors.coverage,
        "cross_entropy": errors.cross_entropy,
        "seconds": time.process_time() - start,
    }


if __name__ == "__main__":
    main()
