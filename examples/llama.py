"""Train a decoder-only model with transformers' Trainer, made number-aware by one line.

    python examples/llama.py --steps 60 --accumulate 2
    python examples/llama.py --chunked

With `--chunked` the loss is computed from hidden states, and the logits of a training batch are never in
memory. A callback raises the weight of the number term over the first steps.
"""

import argparse
import tempfile
from typing import Any

from tiny import causal_batch, make_llama, make_texts, make_tokenizer, report
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from ntloss.trainers import NumberAware, make_number_aware


class WarmUp(TrainerCallback):
    """Raises the weight of the number term linearly over the first steps."""

    def __init__(self, handle: NumberAware, steps: int) -> None:
        self.loss, self.full, self.steps = handle.loss, float(handle.loss.weight), steps

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the weight before the micro-batches of a step."""
        self.loss.weight = self.full * min(state.global_step / self.steps, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--chunked", action="store_true", help="compute the loss from hidden states")
    arguments = parser.parse_args()

    set_seed(0)
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            max_steps=arguments.steps,
            gradient_accumulation_steps=arguments.accumulate,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            logging_steps=20,
            save_strategy="no",
            report_to="none",  # or "wandb", "tensorboard", ...
            remove_unused_columns=False,
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model,
            settings,
            train_dataset=make_texts(16 * arguments.steps * arguments.accumulate, seed=1),
            eval_dataset=make_texts(64, seed=0),
            data_collator=lambda rows: causal_batch(tokenizer, rows),
            processing_class=tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        # The one line; it returns a handle with the loss, and undo().
        handle = make_number_aware(trainer, weight=0.3, chunked=arguments.chunked)
        print(handle)
        trainer.add_callback(WarmUp(handle, max(arguments.steps // 4, 1)))

        def evaluate(when: str) -> None:
            metrics = trainer.evaluate()
            report(when, metrics["eval_loss"], metrics["eval_ce"], metrics["eval_ntl"])

        evaluate("before")
        trainer.train()
        evaluate("after")


if __name__ == "__main__":
    main()
