"""Measure time and memory of our and other losses: `make bench`, or `python benchmarks/losses.py`.

    python benchmarks/losses.py --tables dense,linear  only some tables
    python benchmarks/losses.py --quick                tiny shapes, to check that everything runs
    python benchmarks/losses.py --device cuda          bfloat16 on a GPU, without the table `criteria`
    python benchmarks/losses.py --markdown benchmarks/results/losses.md  also insert the tables into it

The tables are also written to `--output` as Markdown and JSON:

    dense          losses of about 32 million logits; 1, 10 and 50 % of the labels are numbers
    linear         losses of hidden states and a head
    on_off         ours with the number term and without, at 10 and at 1,110 number tokens
    integrations   training steps of a small T5 and Llama
    criteria       each criterion
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import contenders as c
import measure
import torch
import training
from contenders import COMPILED, OFF, OURS, OURS_HIDDEN, Case
from report import insert, render

DENSE = [c.CE, c.CE + COMPILED, OURS, OURS + COMPILED, OURS + OFF, c.OLD, c.OLD_PLAIN]
DENSE_ON_CUDA = [*DENSE[:-2], c.LIGER]
LINEAR = [c.HEAD, OURS_HIDDEN, OURS_HIDDEN + OFF, c.TORCH_LINEAR, c.TORCH_CHUNKED]
LINEAR_ON_CUDA = [*LINEAR, c.HEAD + COMPILED, c.LIGER_LINEAR, c.CUT]
PATHS = [OURS, OURS + COMPILED]
SHARES = (0.01, 0.1, 0.5)

# (tokens, V) and (tokens, hidden, V). On the CPU, the logits have about 32 million elements; on a GPU, the
# vocabularies are those of Llama 2, Llama 3 and Gemma.
LOGITS = {
    "cpu": [(3277, 10_000), (1024, 32_000), (256, 128_000)],
    "cuda": [(8192, 32_000), (8192, 128_256), (4096, 262_144)],
    "quick": [(64, 2_000)],
}
HEADS = {
    "cpu": [(1024, 512, 32_000), (2048, 1024, 10_000), (4096, 256, 32_000), (8192, 256, 32_000)],
    "cuda": [(8192, 2048, 32_000), (8192, 4096, 128_256), (8192, 2048, 128_256)],
    "quick": [(128, 16, 2_000)],
}


@dataclass(frozen=True)
class Comparison:
    """Contenders on one case; a table is a list of these.

    Args:
        table: Name of the table.
        case: Inputs.
        names: Contenders, the baseline first.
        memory: Whether to measure memory too.
        criteria: Criteria to measure `NTLCrossEntropyLoss` with, in addition to `names`.
    """

    table: str
    case: Case
    names: Sequence[str]
    memory: bool = False
    criteria: Sequence[str] = ()


@dataclass
class Results:
    """The results, which are written as JSON."""

    machine: dict[str, Any]
    options: dict[str, Any]
    measurements: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)

    def skip(self, what: str, reason: str) -> None:
        entry = {"what": what, "reason": reason}
        if entry not in self.skipped:
            self.skipped.append(entry)
            print(f"skipped: {what}: {reason}", file=sys.stderr)


def dense(like: Case, size: str) -> Iterator[Comparison]:
    """Losses of logits, for three vocabularies and three shares of number labels."""
    names = DENSE_ON_CUDA if like.device == "cuda" else DENSE
    for tokens, vocab_size in LOGITS[size]:
        # Only the CPU computes the number term of number labels alone.
        for share in SHARES if like.device == "cpu" else SHARES[-1:]:
            case = replace(like, tokens=tokens, vocab_size=vocab_size, share=share)
            # Of all contenders, only the published package's memory depends on the share.
            yield Comparison("dense", case, names, memory=share == SHARES[-1])


def linear(like: Case, size: str) -> Iterator[Comparison]:
    """Losses of hidden states and a head."""
    names = LINEAR_ON_CUDA if like.device == "cuda" else LINEAR
    for tokens, hidden, vocab_size in HEADS[size]:
        case = replace(like, tokens=tokens, hidden=hidden, vocab_size=vocab_size)
        yield Comparison("linear", case, names, memory=True)


def on_off(like: Case, size: str) -> Iterator[Comparison]:
    """The cost of the number term: our paths with and without it, for few and many number tokens."""
    for numbers in (10, 1110):
        for tokens, vocab_size in LOGITS[size][-2:]:
            case = replace(like, tokens=tokens, vocab_size=vocab_size, numbers=numbers)
            yield Comparison("on_off", case, [name for path in PATHS for name in (path + OFF, path)])
        for tokens, hidden, vocab_size in HEADS[size][:3:2]:
            case = replace(like, tokens=tokens, hidden=hidden, vocab_size=vocab_size, numbers=numbers)
            yield Comparison("on_off", case, [OURS_HIDDEN + OFF, OURS_HIDDEN])


def criteria(like: Case, size: str) -> Iterator[Comparison]:
    """Every criterion relative to cross-entropy alone."""
    tokens, vocab_size = LOGITS[size][min(1, len(LOGITS[size]) - 1)]
    for numbers in (10, 1110):
        case = replace(like, tokens=tokens, vocab_size=vocab_size, numbers=numbers)
        names = tuple(c.criteria(numbers))
        yield Comparison("criteria", case, [c.CE, OURS + OFF], memory=True, criteria=names)


TABLES = {"dense": dense, "linear": linear, "on_off": on_off, "criteria": criteria}
TRAINING = "integrations"  # a table of another kind, which measures whole training steps


def compare(comparison: Comparison, results: Results, arguments: argparse.Namespace) -> None:
    """Run a comparison and add its measurements to the results."""
    torch.compiler.reset()
    case = comparison.case
    inputs = c.Inputs(case)
    ready: dict[tuple[str, str | None], measure.Contender] = {}
    for entry in [*product(comparison.names, [None]), *product([OURS], comparison.criteria)]:
        name = ", ".join(filter(None, entry))
        if arguments.no_compile and COMPILED in name:
            results.skip(name, "--no-compile")
            continue
        try:
            contender = c.build(entry[0], inputs, entry[1])
            contender.prepare()
            contender.run()
        except c.UnavailableError as error:
            results.skip(name, str(error))
            continue
        except Exception as error:
            if name.startswith((OURS, OURS_HIDDEN)):
                raise
            results.skip(f"{name} at {case}", f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        ready[entry] = contender
    seconds = arguments.seconds * (2 if comparison.table == "on_off" else 1)
    repeats = arguments.repeats * (3 if comparison.table == "on_off" else 1)
    timings = measure.time_interleaved(ready, case.device, repeats, seconds)
    memory: dict[tuple[str, str | None], int | None] = {}
    if comparison.memory and not arguments.no_memory:
        if case.device == "cuda":
            memory = {entry: measure.peak_memory(contender, "cuda") for entry, contender in ready.items()}
        else:
            builders = {entry: partial(build_and_warm_up, case, *entry) for entry in ready}
            memory = measure.peaks_in_fresh_processes(builders)
    for (name, criterion), timing in timings.items():
        peak = memory.get((name, criterion))
        buffers = None if peak is None else (peak - case.gradient_bytes) / case.logits_bytes
        results.measurements.append(
            {
                "table": comparison.table,
                "case": asdict(case),
                "contender": name,
                "criterion": criterion,
                "median_ms": timing.median * 1e3,
                "least_ms": timing.least * 1e3,
                "rounds": timing.rounds,
                "memory_buffers": buffers,
            }
        )
    del inputs, ready
    gc.collect()


def build_and_warm_up(case: Case, name: str, criterion: str | None) -> measure.Contender:
    """Build a contender and run it once."""
    contender = c.build(name, c.Inputs(case), criterion)
    contender.prepare()
    contender.run()
    return contender


def measure_training(results: Results, arguments: argparse.Namespace) -> None:
    """Add the training steps, which need transformers and accelerate, to the results."""
    if not all(map(importlib.util.find_spec, ("accelerate", "transformers"))):
        results.skip(TRAINING, "it needs ntloss[transformers]")
        return
    results.measurements += training.measurements(arguments)


def write(text: str, results: Results, arguments: argparse.Namespace) -> None:
    """Print the report, and write it to the output folder together with the measurements."""
    print(text)
    page = arguments.output / f"losses-{arguments.device}{'-quick' if arguments.quick else ''}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
    page.with_suffix(".json").write_text(json.dumps(asdict(results), indent=1) + "\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = (*TABLES, TRAINING)
    parser.add_argument(
        "--tables", help=f"some of {', '.join(every)}; default: all, on cuda all but criteria"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32, bfloat16 on cuda")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch's threads on the CPU; default: 2")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each comparison; default: 9")
    parser.add_argument("--seconds", type=float, help="time limit of a comparison, which has at least three "
                        "rounds; default: 20, on cuda 4")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny shapes; the figures mean nothing")
    parser.add_argument("--no-compile", action="store_true", help="skip compiled contenders")
    parser.add_argument("--no-memory", action="store_true", help="do not measure memory")
    parser.add_argument("--output", type=Path, default=Path("outputs/bench"), help="folder of the report")
    parser.add_argument("--markdown", type=Path, help="page to insert the tables into, between its markers")
    parsed = parser.parse_args(arguments)
    on_cuda = parsed.device == "cuda"
    default = [name for name in every if not on_cuda or name != "criteria"]
    parsed.tables = parsed.tables.split(",") if parsed.tables else default
    parsed.seconds = parsed.seconds or (4.0 if on_cuda else 20.0)
    if unknown := set(parsed.tables) - set(every):
        parser.error(
            f"--tables: {', '.join(sorted(unknown))} is unknown; expected some of {', '.join(every)}"
        )
    parsed.dtype = parsed.dtype or ("bfloat16" if on_cuda else "float32")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("skipped: no CUDA device, or PyTorch without CUDA", file=sys.stderr)
        return 0
    torch.set_num_threads(options.threads)
    size = "quick" if options.quick else options.device
    results = Results(
        measure.machine(options.device) | c.versions(),
        {"quick": options.quick, "device": options.device, "dtype": options.dtype, "tables": options.tables},
    )
    like = Case(1, 1, dtype=options.dtype, device=options.device)
    # Beyond its recompilation limit, PyTorch would silently run compiled contenders eagerly.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for table in options.tables:
            if table == TRAINING:
                measure_training(results, options)
                continue
            for comparison in TABLES[table](like, size):
                print(f"{table}: {comparison.case}", file=sys.stderr)
                compare(comparison, results, options)
    text = render(asdict(results))
    write(text, results, options)
    if options.markdown:
        insert(text, options.markdown, options.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
