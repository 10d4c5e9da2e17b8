"""Train a decoder-only model with transformers' Trainer, made number-aware by one line.

    python examples/llama.py --steps 60 --accumulate 2
    python examples/llama.py --chunked

With `--chunked` the loss is computed from hidden states, and the logits of a training batch are never in
memory. The callback logs how well numbers are predicted, to all trackers of the trainer.
"""

import argparse
import tempfile

from tiny import causal_batch, make_llama, make_texts, make_tokenizer, report
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

from ntloss.integrations.callback import NumberMetricsCallback
from ntloss.integrations.transformers import WeightScheduleCallback, make_trainer_number_aware


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
        handle = make_trainer_number_aware(trainer, weight=0.3, chunked=arguments.chunked)
        # Optional: a schedule for the weight, and metrics of numbers in the logs.
        warmup = max(arguments.steps // 4, 1)
        trainer.add_callback(WeightScheduleCallback(handle.loss, lambda step: min(step / warmup, 1.0)))
        NumberMetricsCallback().attach(trainer)

        def evaluate(when: str) -> None:
            metrics = trainer.evaluate()
            report(when, metrics["eval_loss"], metrics["eval_ce"], metrics["eval_ntl"])
            print(f"        error per digit {metrics['eval_number_error']:.3f},", end=" ")
            print(f"of units {metrics['eval_number_error_place_0']:.3f},", end=" ")
            print(f"of tens {metrics['eval_number_error_place_1']:.3f}")

        evaluate("before")
        trainer.train()
        evaluate("after")


if __name__ == "__main__":
    main()
