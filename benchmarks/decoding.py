"""Reading numbers out: time of the walk, and the search against sampling. `python benchmarks/decoding.py`.

Walk: three quantiles of three digits for 250 questions of a T5 of the lab's shape, over greedy `generate`
of the same answers. Search: width of the median's bracket at a budget of tokens, beside that of the 95 %
interval of the median from samples that cost as many tokens. Its models are the true distributions.

    python benchmarks/decoding.py --quick              few rounds and budgets, to see that everything runs
    python benchmarks/decoding.py --output outputs/bench

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

QUESTIONS, QUESTION_LENGTH, LIMIT = 250, 12, 1.5
DIGITS, END, START, VOCAB = range(10), 10, 11, 12
VOCABULARY = NumberVocabulary.from_mapping({d: str(d) for d in DIGITS}, vocab_size=VOCAB)
LARGEST = 40_000
FEW = 8  # rows of a pass, of which few are wasted on what a better order would leave out


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
        "quantiles": measure.Contender(lambda: number_quantiles(model, inputs, vocabulary, digits=3)),
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
    }


def sampled_width(mass: Tensor, samples: int, repeats: int) -> float:
    """Mean width of the 95 % interval of the median between order statistics; inf where there is none."""
    below = torch.distributions.Binomial(samples, torch.tensor(0.5, dtype=torch.float64))
    shares = below.log_prob(torch.arange(samples + 1, dtype=torch.float64)).exp().cumsum(0)
    rank = int((shares <= 0.025).sum())  # P(fewer than `rank` samples below the median) <= 2.5 %
    if samples < 1 or rank < 1:
        return math.inf
    drawn = torch.multinomial(mass, samples * repeats, replacement=True).reshape(repeats, samples)
    ordered = drawn.sort(-1).values.double()
    return float((ordered[:, samples - rank] - ordered[:, rank - 1]).mean())


def search(model: TrueModel, rows_per_pass: int, **options: Any) -> dict[str, Any]:
    """One search for the median: its bracket and what it cost."""
    model.tokens = 0
    prompt = {"input_ids": torch.tensor([[START]])}
    found = number_quantiles(model, prompt, VOCABULARY, (0.5,), rows_per_pass=rows_per_pass, **options)
    return {
        "rows": found.rows - 1,  # the prompt's aside
        "passes": found.passes - 1,
        "tokens": model.tokens,
        "median": found.values.item(),
        "width": (found.upper - found.lower).item(),
    }


def compare_with_samples(mass: Tensor, budgets: list[int], repeats: int) -> dict[str, Any]:
    """Brackets and intervals where the search ends, and over a range of budgets."""
    model = TrueModel(mass)
    length = model.length()

    def beside(entry: dict[str, Any]) -> dict[str, Any]:
        """Samples for as many tokens as were fed, or as rows, which a cache of every prefix would feed."""
        for name, tokens in (("sampled", entry["tokens"]), ("sampled_by_rows", entry["rows"])):
            entry[name] = sampled_width(mass, int(tokens / length), repeats)
        return entry

    ends = {
        f"{goal}, {rows} rows a pass": beside(search(model, rows, **options))
        for rows in (FEW, 256)
        for goal, options in (("1 %", {"rtol": 0.01}), ("to the number", {}))
    }
    curve = [beside(search(model, FEW, max_rows=budget + 1)) for budget in budgets]
    return {"tokens_per_sample": length, "ends": ends, "curve": curve}


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
    columns = ["rows", "tokens", "median", "width", "sampled", "sampled_by_rows"]
    for name, found in results["search"].items():
        ends = [[goal, *(entry[c] for c in columns)] for goal, entry in found["ends"].items()]
        curve = [["stopped", *(entry[c] for c in columns)] for entry in found["curve"]]
        parts.append(table([name, *columns], ends + curve))
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds and budgets")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench"), help="folder of the JSON file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    budgets = [8, 64] if options.quick else [2**k for k in range(2, 13)]
    results = {
        "machine": measure.machine("cpu"),
        "walk": time_walk(3 if options.quick else 25),
        "search": {
            name: compare_with_samples(mass, budgets, 20 if options.quick else 200)
            for name, mass in distributions().items()
            if not options.quick or name.endswith("25")
        },
    }
    print(render(results))
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "decoding.json").write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
