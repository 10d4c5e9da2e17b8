"""Reading numbers out of a model: `python benchmarks/reading.py`.

Three quantiles of three digits for 250 questions of a T5 of the lab's shape, timed against greedy `generate`
of the same answers. With `--model`, quantiles of the numbers that a causal language model in a folder writes
after prompts about well-known ones, and their spread over seeds, beside the quantiles of sampled texts; the
times of a batch of that model, and of `read_number`; and the processor time and memory of signed decimals.

    python benchmarks/reading.py --quick              few rounds and repeats, to see that everything runs
    python benchmarks/reading.py --model FOLDER       also read an instruct model

Tables are printed, and written with all figures to `<output>/reading.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import measure
import torch
from report import markdown

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat, parse_number
from ntloss.reading import Question, number_quantiles, read_number

QUESTIONS, QUESTION_LENGTH, DIGITS = 250, 12, 3
LEVELS, SAMPLES = (0.05, 0.5, 0.95), 160
BATCH, EGG = 50, "How many minutes does it take to boil an egg?"
PROMPTS = (
    "The price of a new compact car in the United States is about $",
    "The number of people who live in Norway is about",
    "The value of pi is",
    "The height of Mount Everest, in meters, is",
)


def time_walk(rounds: int) -> dict[str, Any]:
    """Time three quantiles and greedy generation, in seconds, and return the ratio of the medians too."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=100, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).eval()
    vocabulary = NumberVocabulary.from_mapping({10 + d: str(d) for d in range(10)}, vocab_size=100)
    question = torch.randint(10, 100, (QUESTIONS, QUESTION_LENGTH))
    inputs = {"input_ids": question, "attention_mask": torch.ones_like(question)}
    length, width = DIGITS + 1, NumberFormat(DIGITS)  # the digits and the end token
    contenders = {
        "greedy": measure.Contender(lambda: model.generate(**inputs, max_new_tokens=length, do_sample=False)),
        "quantiles": measure.Contender(lambda: number_quantiles(model, inputs, vocabulary, format=width)),
    }
    for contender in contenders.values():
        contender.run()
    times = measure.time_interleaved(contenders, "cpu", rounds, 60)
    ratio = times["quantiles"].median / times["greedy"].median
    return {name: asdict(timing) for name, timing in times.items()} | {"ratio": ratio}


def time_model(folder: str, rounds: int) -> dict[str, Any]:
    """Time three quantiles of three digits of a batch of a pretrained model, and one prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = [f"Review {i}: It broke after {7 * i} days.\nScore from 000 to 999: " for i in range(BATCH)]
    inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    length, width = DIGITS + 1, NumberFormat(DIGITS)
    forced = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    contenders = {
        "greedy": measure.Contender(lambda: model.generate(**inputs, **forced)),
        "quantiles": measure.Contender(lambda: number_quantiles(model, inputs, tokenizer, format=width)),
        "read_number": measure.Contender(
            lambda: read_number(model, tokenizer, Question(EGG, prefill="It takes "))
        ),
    }
    for contender in contenders.values():
        contender.run()
    times = measure.time_interleaved(contenders, "cpu", rounds, 60)
    ratio = times["quantiles"].median / times["greedy"].median
    return {name: asdict(timing) for name, timing in times.items()} | {"ratio": ratio}


def read_signed_decimals(folder: str) -> dict[str, float]:
    """Read 16 signed decimals, in seconds of processor time a row, and with the peak memory in bytes."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    texts = [
        f"Day {i} of {7 * i}: the temperature of the sea changes by how many degrees?" for i in range(16)
    ]

    def run(count: int) -> list[Any]:
        return read_number(model, tokenizer, texts[:count], format=NumberFormat(2, 2, signed=True))

    run(1)
    start = time.process_time()
    found = run(16)
    seconds = time.process_time() - start
    peak = measure.peak_memory(measure.Contender(lambda: run(16)), "cpu")
    return {
        "seconds a row": seconds / 16,
        "nodes a row": found[0].details.rows / 16,
        "peak": math.nan if peak is None else peak,
    }


def read_model(folder: str, repeats: int) -> list[dict[str, Any]]:
    """Read quantiles of a pretrained model's numbers after each prompt."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    results = []
    for text in PROMPTS:
        inputs = tokenizer(text, return_tensors="pt")
        generator = torch.Generator().manual_seed(0)  # each repeat draws on
        reads = [
            number_quantiles(model, inputs, vocabulary, LEVELS, generator=generator) for _ in range(repeats)
        ]
        torch.manual_seed(0)
        written = model.generate(
            **inputs, do_sample=True, top_k=0, max_new_tokens=12, num_return_sequences=SAMPLES
        )[:, inputs["input_ids"].shape[-1] :]
        texts = [text.strip() for text in tokenizer.batch_decode(written)]
        starting = [text.removeprefix("$") for text in texts if text[:1] in "0123456789$-+."]
        kept = sorted(x for text in starting if (x := parse_number(text, "first")) is not None)
        values = torch.cat([read.values for read in reads])
        results.append(
            {
                "prompt": text,
                "values": values.mean(0).tolist(),
                "spread": values.std(0).tolist(),
                "samples": [kept[math.ceil(q * len(kept)) - 1] for q in LEVELS],
                "starts": float(reads[0].starts),
                "share of samples": len(kept) / len(texts),
            }
        )
    return results


def render(results: dict[str, Any]) -> str:
    """Render the results as tables."""
    parts = []
    for timed in (results["walk"], *results["batch"]):
        names = [name for name in timed if name != "ratio"]
        times = [[name, *(f"{1e3 * timed[name][key]:.1f}" for key in ("median", "least"))] for name in names]
        parts += [
            markdown(["", "ms, median", "ms, least"], times),
            f"quantiles / greedy: {timed['ratio']:.2f}",
        ]
    for signed in results["signed"]:
        parts.append(
            f"16 signed decimals: {signed['seconds a row']:.3f} s of processor time a row, "
            f"{signed['nodes a row']:.0f} tokens of numbers a row, {signed['peak'] / 1e6:.0f} MB at most"
        )
    rows = [
        [
            row["prompt"],
            *(f"{x:,.4g} ± {s:,.2g}" for x, s in zip(row["values"], row["spread"], strict=True)),
            ", ".join(f"{x:,.4g}" for x in row["samples"]),
            f"{row['starts']:.2f}",
            f"{row['share of samples']:.2f}",
        ]
        for row in results["model"]
    ]
    heading = ["prompt", *map(str, LEVELS), "samples", "starts", "samples with a number"]
    return "\n\n".join([*parts, markdown(heading, rows)] if rows else parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds and repeats")
    parser.add_argument("--model", help="folder of a causal language model to read numbers from")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench"), help="folder of the JSON file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    results = {
        "machine": measure.machine("cpu"),
        "walk": time_walk(3 if options.quick else 25),
        "batch": [time_model(options.model, 2 if options.quick else 9)] if options.model else [],
        "signed": [read_signed_decimals(options.model)] if options.model else [],
        "model": read_model(options.model, 2 if options.quick else 5) if options.model else [],
    }
    print(render(results))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "reading.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
