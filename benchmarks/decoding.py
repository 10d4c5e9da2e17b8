"""Reading numbers out: time of the walk, and walks against samples. `python benchmarks/decoding.py`.

Time: three quantiles of three digits for 250 questions of a T5 of the lab's shape, over greedy `generate`
of the same answers. Walks: errors of quantiles of numbers of any length, beside those of as many independent
samples. The models are the true distributions; with `--model`, a causal language model in a folder is read
too, after prompts about well-known numbers.

    python benchmarks/decoding.py --quick              few rounds and repeats, to see that everything runs
    python benchmarks/decoding.py --output outputs/bench --model <folder of an instruct model>

Tables are printed, and written with all figures to `<output>/decoding.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measure
import torch
from torch import Tensor

from ntloss import NumberVocabulary
from ntloss.decoding import number_quantiles
from ntloss.numbers import NumberFormat

QUESTIONS, QUESTION_LENGTH, LIMIT = 250, 12, 1.5
DIGITS, END, START, VOCAB = range(10), 10, 11, 12
VOCABULARY = NumberVocabulary.from_mapping({d: str(d) for d in DIGITS}, vocab_size=VOCAB)
LARGEST = 40_000
QUANTILES, WALKS = (0.05, 0.5, 0.95), 80
PROMPTS = (
    "The price of a new compact car in the United States is about $",
    "The number of people who live in Norway is about",
    "The value of pi is",
    "The height of Mount Everest, in meters, is",
)


def time_walk(rounds: int) -> dict[str, Any]:
    """Seconds of three quantiles and of greedy generation, and their ratio."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=100, d_model=64, d_kv=16, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).eval()
    vocabulary = NumberVocabulary.from_mapping({10 + d: str(d) for d in DIGITS}, vocab_size=100)
    question = torch.randint(10, 100, (QUESTIONS, QUESTION_LENGTH))
    inputs = {"input_ids": question, "attention_mask": torch.ones_like(question)}
    contenders = {
        # Three digits and the end token.
        "greedy": measure.Contender(lambda: model.generate(**inputs, max_new_tokens=4, do_sample=False)),
        "quantiles": measure.Contender(
            lambda: number_quantiles(model, inputs, vocabulary, format=NumberFormat(3))
        ),
    }
    for contender in contenders.values():
        contender.run()
    times = measure.time_interleaved(contenders, "cpu", rounds, 60)
    ratio = times["quantiles"].median / times["greedy"].median
    return {name: asdict(timing) for name, timing in times.items()} | {
        "ratio": ratio,
        "ratio_of_least": times["quantiles"].least / times["greedy"].least,
        "met": ratio <= LIMIT,
    }


class TextLayer:
    """Stands for keys and values: the tokens that a row has read, `[rows, seq]`."""

    def __init__(self, keys: Tensor):
        self.keys = keys


class TextCache:
    def __init__(self, keys: Tensor):
        self.layers = [TextLayer(keys)]


@dataclass
class TrueModel:
    """A causal model whose next token is that of a known distribution over whole numbers.

    Args:
        mass: `[numbers]`, float64, probability of 0, 1, 2, ...
    """

    mass: Tensor
    training: bool = False
    tokens: int = 0  # that it was fed behind the prompt
    config: Any = field(default_factory=lambda: SimpleNamespace(is_encoder_decoder=False, eos_token_id=END))

    def __post_init__(self) -> None:
        self.mass = self.mass / self.mass.sum()
        self.below = [0.0, *self.mass.cumsum(0).tolist()]
        self.known: dict[tuple[int, ...], list[float]] = {}

    def __call__(self, **inputs: Any) -> Any:
        return self.forward(**inputs)

    def named_modules(self) -> tuple[()]:
        """It has none."""
        return ()

    def get_output_embeddings(self) -> None:
        """It has no head."""

    def forward(self, input_ids: Tensor, past_key_values: Any = None, **unused: Any) -> Any:
        texts = input_ids
        if past_key_values is not None:
            self.tokens += input_ids.numel()
            texts = torch.cat([past_key_values.layers[0].keys, input_ids], dim=-1)
        steps = range(texts.shape[-1] - input_ids.shape[-1] + 1, texts.shape[-1] + 1)
        masses = [[self.behind(tuple(row[1:n])) for n in steps] for row in texts.tolist()]
        logits = torch.tensor(masses, dtype=torch.float64).log()
        return SimpleNamespace(logits=logits, past_key_values=TextCache(texts))

    def behind(self, digits: tuple[int, ...]) -> list[float]:
        """Probabilities of the texts that are one token longer, `[vocab]`."""
        if digits not in self.known:
            masses = [0.0] * VOCAB
            number = int("".join(map(str, digits)) or 0)
            if digits:
                masses[END] = self.between(number, number + 1)
            if number or not digits:  # nothing follows a leading zero
                for digit in DIGITS:
                    first, last = 10 * number + digit, 10 * number + digit + 1
                    while first < len(self.mass):
                        masses[digit] += self.between(first, last)
                        if not first:
                            break
                        first, last = 10 * first, 10 * last
            self.known[digits] = masses
        return self.known[digits]

    def between(self, first: int, last: int) -> float:
        """Probability of the numbers from `first` on, below `last`."""
        count = len(self.mass)
        return self.below[min(last, count)] - self.below[min(first, count)]

    def length(self) -> float:
        """Mean count of digits, the tokens that a sample costs behind its prompt."""
        lengths = torch.tensor([len(str(n)) for n in range(len(self.mass))], dtype=torch.float64)
        return float((lengths * self.mass).sum())


def distributions() -> dict[str, Tensor]:
    """The answers of the lab's tasks: rounded normal and log-normal numbers."""
    edges = torch.arange(LARGEST + 1, dtype=torch.float64) - 0.5
    normal = torch.special.ndtr

    def of(z: Tensor) -> Tensor:
        return normal(z).diff().clamp(min=0)

    return {
        "normal, sigma 25": of((edges - 500) / 25),
        "normal, sigma 80": of((edges - 500) / 80),
        "log-normal, 0.4": of((edges.clamp(min=1e-9) / 2500).log() / 0.4),
        "log-normal, 1.5": of((edges.clamp(min=1e-9) / 300).log() / 1.5),
    }


def quantiles_of_samples(mass: Tensor, samples: int) -> list[float]:
    """Quantiles of independent samples: the smallest with at least a share q at or below."""
    drawn = torch.multinomial(mass, samples, replacement=True).sort().values
    return [float(drawn[math.ceil(q * samples) - 1]) for q in QUANTILES]


def compare_with_samples(mass: Tensor, repeats: int) -> dict[str, Any]:
    """Errors of the median, and the mass at or below the outer quantiles, of walks and of samples."""
    model = TrueModel(mass)
    prompt, generator = {"input_ids": torch.tensor([[START]])}, torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"walks": WALKS, "generator": generator}
    reads = [number_quantiles(model, prompt, VOCABULARY, QUANTILES, **options) for _ in range(repeats)]
    true = float((model.mass.cumsum(0) < 0.5).sum())
    below = torch.tensor(model.below, dtype=torch.float64)
    found = {
        "walks": torch.cat([read.values for read in reads]),
        "samples": torch.tensor([quantiles_of_samples(mass, WALKS) for _ in range(repeats)]),
    }
    bounds = torch.stack([torch.cat([read.lower, read.upper]) for read in reads])[..., 1]
    results: dict[str, Any] = {
        "median": true,
        "rows": sum(read.rows - 1 for read in reads) / repeats,  # the prompt's aside
        "tokens of samples": WALKS * model.length(),
        "bounds hold": float(((bounds[:, 0] <= true) & (true <= bounds[:, 1])).double().mean()),
    }
    for name, values in found.items():
        values = values.double()
        # The middle of the step at the number.
        levels = (below[values.long()] + below[values.long() + 1]) / 2
        results[name] = {
            "error": float((values[:, 1] - true).square().mean().sqrt()),
            **{
                f"at {q}": [float(levels[:, i].mean()), float(levels[:, i].std())]
                for i, q in enumerate(QUANTILES)
            },
        }
    return results


def read_model(folder: str, repeats: int) -> list[dict[str, Any]]:
    """Quantiles of a pretrained model's numbers, and their spread over seeds, beside samples of texts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ntloss.numbers import parse_number

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    results = []
    for text in PROMPTS:
        inputs = tokenizer(text, return_tensors="pt")
        options: dict[str, Any] = {"walks": WALKS, "generator": torch.Generator().manual_seed(0)}
        reads = [number_quantiles(model, inputs, vocabulary, QUANTILES, **options) for _ in range(repeats)]
        torch.manual_seed(0)
        written = model.generate(
            **inputs, do_sample=True, top_k=0, max_new_tokens=12, num_return_sequences=2 * WALKS
        )[:, inputs["input_ids"].shape[-1] :]
        numbers = [
            parse_number(t.strip().removeprefix("$"), "first") if t.strip()[:1] in "0123456789$-+." else None
            for t in tokenizer.batch_decode(written)
        ]
        kept = torch.tensor(sorted(x for x in numbers if x is not None), dtype=torch.float64)
        values = torch.cat([read.values for read in reads])
        results.append(
            {
                "prompt": text,
                "walks": values.mean(0).tolist(),
                "spread": values.std(0).tolist(),
                "samples": [float(kept[math.ceil(q * len(kept)) - 1]) for q in QUANTILES],
                "starts": float(reads[0].starts),
                "share of samples": len(kept) / len(numbers),
                "examples": tokenizer.batch_decode(written[:3]),
            }
        )
    return results


def table(heading: list[str], rows: list[list[Any]]) -> str:
    def cell(value: Any) -> str:
        return f"{value:,.1f}" if isinstance(value, float) else str(value)

    lines = [heading, ["---"] * len(heading), *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def render(results: dict[str, Any]) -> str:
    walk = results["walk"]
    parts = [
        table(
            ["", "ms, median", "ms, least"],
            [
                [name, 1e3 * walk[name]["median"], 1e3 * walk[name]["least"]]
                for name in ("greedy", "quantiles")
            ],
        ),
        f"quantiles / greedy: {walk['ratio']:.2f} (least: {walk['ratio_of_least']:.2f}), at most {LIMIT}: "
        f"{'met' if walk['met'] else 'missed'}\n",
    ]
    rows = []
    for name, found in results["walks"].items():
        for kind in ("walks", "samples"):
            levels = [f"{found[kind][f'at {q}'][0]:.3f} ± {found[kind][f'at {q}'][1]:.3f}" for q in QUANTILES]
            rows.append([f"{name}, {found['median']:.0f}", kind, found[kind]["error"], *levels])
    heading = ["distribution, median", "", "error of the median", *(f"mass below, {q}" for q in QUANTILES)]
    parts.append(table(heading, rows))
    heading = ["prompt", *map(str, QUANTILES), "samples", "starts", "samples with a number"]
    parts.append(
        table(
            heading,
            [
                [
                    row["prompt"],
                    *(f"{x:,.4g} ± {s:,.2g}" for x, s in zip(row["walks"], row["spread"], strict=True)),
                    ", ".join(f"{x:,.4g}" for x in row["samples"]),
                    f"{row['starts']:.2f}",
                    f"{row['share of samples']:.2f}",
                ]
                for row in results["model"]
            ],
        )
    )
    return "\n".join(parts)


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
    torch.manual_seed(0)
    results = {
        "machine": measure.machine("cpu"),
        "walk": time_walk(3 if options.quick else 25),
        "walks": {
            name: compare_with_samples(mass, 5 if options.quick else 200)
            for name, mass in distributions().items()
            if not options.quick or name.endswith("25")
        },
        "model": read_model(options.model, 5) if options.model else [],
    }
    print(render(results))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "decoding.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
