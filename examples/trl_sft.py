"""TRL's SFTTrainer, trained on completions only, optionally packed or with an adapter.

    python examples/trl_sft.py --steps 60
    python examples/trl_sft.py --packing
    python examples/trl_sft.py --lora

It needs TRL 1.15 or newer and Python 3.11 or newer. The loss is computed without logits, as the trainer's
own.
"""

import argparse
import tempfile

from datasets import Dataset, disable_progress_bars
from tiny import make_llama, make_texts, make_tokenizer, report
from transformers import PrinterCallback, set_seed
from trl import SFTConfig, SFTTrainer

from ntloss.trainers import make_number_aware


def dataset(count: int, seed: int) -> Dataset:
    """Prompts and completions in TRL's format."""
    return Dataset.from_list(
        [{"prompt": question, "completion": answer} for question, answer in make_texts(count, seed)]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--packing", action="store_true", help="pack several examples into a row")
    parser.add_argument("--lora", action="store_true", help="train only an adapter")
    arguments = parser.parse_args()

    set_seed(0)
    disable_progress_bars()
    tokenizer = make_tokenizer()
    adapter = None
    if arguments.lora:
        from peft import LoraConfig

        adapter = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear")
    with tempfile.TemporaryDirectory() as folder:
        settings = SFTConfig(
            folder,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            packing=arguments.packing,
            max_length=64,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = SFTTrainer(
            make_llama(tokenizer),
            settings,
            train_dataset=dataset(16 * arguments.steps, seed=1),
            eval_dataset=dataset(64, seed=0),
            processing_class=tokenizer,
            peft_config=adapter,
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
