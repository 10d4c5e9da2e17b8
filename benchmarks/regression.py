"""Fit `NumberRegressor` to rows of a table, and measure its error, its intervals, its time and memory.

    python benchmarks/regression.py data/places.csv degrees --prompt "{name}, {city}, {country}" --train lora

A random choice of rows is fitted and another one predicted, with one thread. Seconds are processor time, so
that other programs on the machine hardly change them.

    python benchmarks/regression.py data/places.csv degrees --prompt "{name}, {country}" --encoder FOLDER

fine-tunes a sentence encoder on the same rows instead.
"""

from __future__ import annotations

import argparse
import resource
import time

import pandas as pd
import torch
from transformers import AutoModel, AutoTokenizer, get_linear_schedule_with_warmup

from ntloss.regression import NumberRegressor
from ntloss.regression.questions import Questions
from ntloss.regression.training import best_epoch
from ntloss.writing import LONGEST

BATCH = 16  # of a fine-tuned encoder


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", help="a CSV file, such as one of `make data`")
    parser.add_argument("target", help="the column of numbers")
    parser.add_argument("--prompt", required=True, help="the question, with columns in braces")
    parser.add_argument("--train", default="upper_layers", help="upper_layers (default), lora or all")
    parser.add_argument("--refit", action="store_true", help="train again on all rows for the chosen time")
    parser.add_argument(
        "--learning-rate", type=float, help="default: that of the estimator; of an encoder, 1e-4"
    )
    parser.add_argument("--rows", type=int, default=400, help="that are fitted (default: 400)")
    parser.add_argument("--new", type=int, default=300, help="rows that are predicted (default: 300)")
    parser.add_argument("--epochs", type=int, default=4, help="largest number of epochs (default: 4)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the choice of rows and the model (default: 0)"
    )
    parser.add_argument("--encoder", help="folder of a sentence encoder, which is fine-tuned instead")
    parser.add_argument("--model", default=".models/smollm2", help="default: .models/smollm2 of `make model`")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table = pd.read_csv(options.table).sample(options.rows + options.new, random_state=options.seed)
    prompt = options.prompt.replace("\\n", "\n")
    rows, new = table[: options.rows], table[options.rows :]
    if options.encoder:
        if options.refit or options.train != "upper_layers":
            parser.error("--encoder: expected neither --train nor --refit, which are of NumberRegressor")
        print(fine_tune(rows, new, prompt, options))
        return 0
    model = NumberRegressor(
        options.model,
        prompt=prompt,
        train=options.train,
        refit=options.refit,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        random_state=options.seed,
        verbose=False,
    )
    start = time.process_time()
    model.fit(rows.drop(columns=options.target), rows[options.target])
    fitted = time.process_time()
    answers = new[options.target].to_numpy()
    lengths = map(len, model.writer_.tokenizer(model.questions_.write(rows))["input_ids"])
    low, median, high = model.predict_quantiles(new, [0.05, 0.5, 0.95]).T
    read = time.process_time()
    best = best_epoch(model.history_) or options.epochs
    print(
        f"{options.train}, {options.rows} rows, seed {options.seed}, epoch "
        f"{best} of {len(model.history_) or options.epochs} is kept: "
        f"{sum(length > LONGEST for length in lengths)} questions are shortened; "
        f"fitted in {fitted - start:.0f} s, {(read - fitted) / len(new):.3f} s a new row; "
        f"at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB; "
        f"{len(new)} new rows: mean absolute error {abs(median - answers).mean():.2f}, intervals of 90% hold "
        f"{((low <= answers) & (answers <= high)).mean():.0%}, mean width {(high - low).mean():.1f}"
    )
    print(f"held-out rows, with conformal intervals of simple models:\n{model.report_.to_string()}")
    return 0


def fine_tune(rows: pd.DataFrame, new: pd.DataFrame, prompt: str, options: argparse.Namespace) -> str:
    """Fine-tune a sentence encoder on three quarters of the rows, by the absolute error, and say how it errs.

    A linear head reads the mean of the encoder's last states, and the other quarter of the rows chooses the
    epoch.
    """
    target, epochs = options.target, options.epochs
    asked = Questions.choose(rows.drop(columns=target), rows[target].to_numpy(float), prompt=prompt)
    parts = (rows[: -len(rows) // 4], rows[-len(rows) // 4 :], new)
    texts = [asked.write(part) for part in parts]
    answers = [torch.from_numpy(part[target].to_numpy(float)) for part in parts]
    torch.manual_seed(options.seed)
    start = time.process_time()
    tokenizer = AutoTokenizer.from_pretrained(options.encoder)
    model = AutoModel.from_pretrained(options.encoder)
    head = torch.nn.Linear(model.config.hidden_size, 1)
    center, scale = answers[0].mean(), answers[0].std(correction=0)

    def predict(asked: list[str]) -> torch.Tensor:
        batch = tokenizer(asked, padding=True, truncation=True, return_tensors="pt")
        kept = batch["attention_mask"].unsqueeze(-1)
        states = (model(**batch).last_hidden_state * kept).sum(1) / kept.sum(1)
        return center + scale * head(states).squeeze(-1)

    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, options.learning_rate or 1e-4, weight_decay=0.01)
    steps = epochs * -(-len(texts[0]) // BATCH)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    errors = []
    for _ in range(epochs):
        model.train()
        for chosen in torch.randperm(len(texts[0])).split(BATCH):
            loss = (predict([texts[0][i] for i in chosen]) - answers[0][chosen]).abs().mean() / scale
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        with torch.no_grad():
            found = [
                torch.cat([predict(part[i : i + BATCH]) for i in range(0, len(part), BATCH)])
                for part in texts[1:]
            ]
        errors.append([float((p - a).abs().mean()) for p, a in zip(found, answers[1:], strict=True)])
    best = min(range(epochs), key=lambda epoch: errors[epoch])
    return (
        f"{options.encoder}, {len(rows)} rows, seed {options.seed}, epoch {best + 1} of {epochs} is kept: "
        f"fitted and read in {time.process_time() - start:.0f} s; {len(new)} new rows: mean absolute error "
        f"{errors[best][1]:.2f}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
