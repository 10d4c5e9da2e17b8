"""Train a small Llama from scratch to write prices, with cross-entropy and two kinds of HL-Gauss's widths.

    python -m studies.prices.train --seeds 0 1 2

Each run writes one file, at its end, and runs that have one are skipped.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from ntl.data.files import write_atomically
from ntloss import HLGauss
from ntloss.numbers import NumberFormat
from ntloss.reading import compare_answers
from ntloss.trainers import make_number_aware

ARMS = ("ce", "one_width", "relative")
DATA, MODEL = "data/diamonds.csv", "examples/characters"
PROMPT = "{carat} carat, {cut}, {color}, {clarity}: $"
DIGITS = 5
TRAIN, TEST, STEPS, BATCH = 1800, 500, 300, 32


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--outputs", type=Path, default=Path("outputs/prices"))
    given = parser.parse_args(arguments)
    for seed in given.seeds:
        for arm in given.arms:
            path = given.outputs / f"{arm}-{seed}.json"
            if path.is_file():
                continue
            start = time.process_time()
            found = run(arm, seed, given.steps, given.outputs)
            found["seconds"] = time.process_time() - start
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(found))
            print(f"{path.stem}: {found['seconds']:.0f} s of processor time", flush=True)


def run(arm: str, seed: int, steps: int, outputs: Path) -> dict[str, Any]:
    """Train and read one model."""
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
    asked, truths = prompts[TRAIN:], prices[TRAIN:]
    width = NumberFormat(digits=DIGITS)
    found = compare_answers({arm: model.eval()}, tokenizer, asked, truths, format=width, template=None)
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
    }


if __name__ == "__main__":
    main()
