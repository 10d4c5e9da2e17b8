"""The demo: a pretrained model learns to rate the sentiment of texts; a table, a picture and sentences.

It is `ntl compare preset=demo`, and what only these texts can show: about 20 people rated each, so that the
model's distribution can be held against theirs. A row is printed as soon as a run ends, the first one after
about two minutes. `make demo` fetches the model and the texts, and runs it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from statistics import mean
from threading import Event, Thread
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from tqdm import tqdm

from ntl import compare
from ntl.approaches import Approach, build_approach
from ntl.config import Config, compose_config
from ntl.data import Example, TaskData, load_task
from ntl.data.tasks.tabular import with_targets, write_questions
from ntl.errors import UserError
from ntl.program import run_program
from ntl.report.groups import mean_and_interval
from ntl.report.style import BLUE, FLOOR, GRAY, STYLE, save_figure, styles
from ntl.scores import reading_metric
from ntl.training.run_folder import Metrics, RunFolder, RunRecord, read_trained

SENTENCES = (
    "I love it, the best present ever!",
    "What a waste of time and money.",
    "The train leaves at nine.",
    "Not bad at all, actually.",
    "I laughed, then I cried, and I still don't know what to think.",
)
PRESET = ("preset=demo", "dataset_args.ratings=ratings")
NONE = "\N{EN DASH}"
READINGS = ("greedy", "median")
BARS, WIDTH = " ▁▂▃▄▅▆▇█", 41
LEVELS = tuple((k + 0.5) / 50 for k in range(50))


class Row(NamedTuple):
    """A row of the table: the metrics of each seed of one objective."""

    name: str
    seeds: Sequence[Metrics]

    def values(self, metric: str) -> list[float]:
        """Return a metric of each seed; empty if it was not measured."""
        found = [seed.get(metric) for seed in self.seeds]
        return [value for value in found if value is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo on Hydra overrides of `ntl compare preset=demo`; see `ntl.program.run_program`."""
    return run_program("demo", _demo, arguments, "The same command continues.")


def _demo(arguments: Sequence[str]) -> int:
    config = compose_fixed(arguments)
    needed = {"the model": config.model_args.model_name_or_path, "the texts": config.dataset_args.file}
    if missing := [f"{what} ({path})" for what, path in needed.items() if not Path(str(path)).exists()]:
        raise UserError(
            f"{' and '.join(missing)} of the demo are not here; expected what `make demo` fetches from the "
            "package index. Run it with a network, or `ntl compare preset=demo_sums`, which needs nothing."
        )
    with printing_rows(config), redirect_stdout(io.StringIO()):  # the report is written, not printed
        code = compare.main([*PRESET, *arguments])
    if not code:
        show(config)
    return code


def compose_fixed(arguments: Sequence[str]) -> Config:
    """Compose what all runs share: the configuration without what is swept."""
    overrides = OverridesParser.create().parse_overrides([*PRESET, *arguments])
    fixed = [each.input_line for each in overrides if not each.is_sweep_override()]
    return compose_config(fixed, "compare")


@contextmanager
def printing_rows(config: Config) -> Iterator[None]:
    """Print a row for each run that is finished, as soon as it is."""
    output, ended, seen = sys.stdout, Event(), set()
    print("Mean absolute error on the test texts; a row when a run ends, the first after about two minutes:")
    print(f"\n| {'loss':17} | seed | greedy | median |\n| {'-' * 17} | ---: | -----: | -----: |", flush=True)

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(1.0)
            for folder, record in finished_runs(config):
                if folder.path not in seen:
                    seen.add(folder.path)
                    row = Row(name_of(record, config), [metrics_of(folder, config)])
                    errors = (row.values(reading_metric(reading, "mae")) for reading in READINGS)
                    cells = " | ".join(f"{error[0]:6.1f}" if error else f"{NONE:>6}" for error in errors)
                    tqdm.write(f"| {row.name:17} | {record.seed:4} | {cells} |", file=output)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def finished_runs(config: Config) -> list[tuple[RunFolder, RunRecord]]:
    """List the runs of the demo that are finished, in the order of the sweep."""
    paths = Path(config.training_args.output_dir).glob("*/run.json")
    runs = [(folder, folder.record()) for folder in map(RunFolder, (path.parent for path in paths))]
    return sorted(((f, r) for f, r in runs if r.status == "finished"), key=lambda run: run[1].job)


def metrics_of(folder: RunFolder, config: Config) -> Metrics:
    """Read the metrics of a finished run."""
    return folder.evaluation(config.evaluation.name).metrics()["test"]


def name_of(record: RunRecord, config: Config) -> str:
    """Return the name of a run's loss in tables."""
    return record.label.removeprefix(config.label).strip() or "cross-entropy"


def show(config: Config) -> None:
    """Print the table, the contrasts and the sentences, and draw the picture, of finished runs."""
    rows, (first, _) = find_rows(config), finished_runs(config)[0]
    ridge = ridge_error(load_task(config.dataset_args))
    constant = rows[0].values("constant_mae")[0]
    lines = describe_rows(rows, {"TF-IDF + ridge regression": ridge, "always the training median": constant})
    lines += ["", *describe_contrasts(rows, ridge)]
    print("\n" + "\n".join(lines) + "\n")
    picture = Path(config.training_args.output_dir, "demo.svg")
    with mpl.rc_context(STYLE):
        save_figure(draw(rows, ridge, spreads(config, first)), picture.with_suffix(""))
    picture.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("Five sentences; the model's distribution from 0 (bad) to 80 (good), | its median:\n")
    for line in draw_sentences(*load(first), SENTENCES):
        print(line)
    program = Path(os.path.relpath(sys.executable)).with_name("ntl")
    print(f"\nThe table and the picture are {picture.with_suffix('.md')} and {picture}.")
    print("What to type next:\n")
    fit = Path(os.path.relpath(sys.executable)).with_name("ntloss")
    print(f"  {fit} fit data/sentiment.csv --target sentiment --model .models/smollm2    # a model to keep")
    print(f"  {program} compare preset=demo_sums    # other losses on sums, in four minutes")


def find_rows(config: Config) -> list[Row]:
    """Read the test metrics of finished runs, by objective in their order, each with its seeds."""
    found: dict[str, list[Metrics]] = {}
    for folder, record in finished_runs(config):
        found.setdefault(name_of(record, config), []).append(metrics_of(folder, config))
    return [Row(name, seeds) for name, seeds in found.items()]


def ridge_error(data: TaskData) -> float:
    """Return the mean absolute error of ridge regression on TF-IDF of words and pairs of words."""
    weights = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    train, test = list(data.train), list(data.tests["test"])
    model = Ridge().fit(weights.fit_transform([e.question for e in train]), _numbers(train))
    predicted = model.predict(weights.transform([e.question for e in test]))
    return float(np.abs(predicted - _numbers(test)).mean())


def _numbers(examples: Sequence[Example]) -> np.ndarray:
    return np.array([float(example.answer) for example in examples])


def describe_rows(rows: Sequence[Row], references: Mapping[str, float]) -> list[str]:
    """Write the table: errors of each reading, with 95 % confidence intervals, and the model's intervals."""
    seeds = len(rows[0].seeds)
    intervals = f"with 95 % confidence intervals over {seeds} seeds" if seeds > 1 else "one seed"
    lines = [
        f"Mean absolute error on the test texts, {intervals}:",
        "",
        "| | greedy | median | 90 % interval covers | its width |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        errors = [_spread(row.values(reading_metric(reading, "mae"))) for reading in READINGS]
        covered = [100 * value for value in row.values("interval_coverage")]
        cells = [*errors, _spread(covered, " %"), _spread(row.values("interval_width"))]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    compared = ", ".join(f"{name} {error:.1f}" for name, error in references.items())
    return [*lines, "", f"Without a language model: {compared}."]


def _spread(values: Sequence[float], unit: str = "") -> str:
    if not values:
        return NONE
    center, width = mean_and_interval(values)
    return f"{center:.1f}" + (f" ± {width:.1f}" if width is not None else "") + unit


def describe_contrasts(rows: Sequence[Row], ridge: float) -> list[str]:
    """Say of each contrast that was declared beforehand whether it holds in every seed."""

    def errors(name: str, metric: str) -> list[float]:
        return next((row.values(metric) for row in rows if name in row.name), [])

    greedy, median = rows[0].values("mae"), rows[0].values("median_mae")
    pairs = {
        "greedy - median": (greedy, median),
        "greedy - regression head": (greedy, errors("regression head", "mae")),
        "ridge regression - median": ([ridge] * len(median), median),
        "median - HL-Gauss's median": (median, errors("HL-Gauss", "median_mae")),
    }
    lines = ["Declared beforehand, of cross-entropy (positive in every seed if it holds):"]
    for name, (larger, smaller) in pairs.items():
        if smaller:
            differences = [a - b for a, b in zip(larger, smaller, strict=True)]
            holds = "holds" if min(differences) > 0 else "does not hold"
            lines.append(f"- {name}: {', '.join(f'{d:+.1f}' for d in differences)}: {holds}")
    return lines


def spreads(config: Config, folder: RunFolder) -> np.ndarray:
    """Return the width of the raters' central 90 % and of the model's interval, `[test texts, 2]`."""
    examples = load_task(config.dataset_args).tests["test"]
    found = []
    for example, prediction in zip(
        examples, folder.evaluation(config.evaluation.name).predictions("test"), strict=True
    ):
        if example.ratings and prediction.lower is not None and prediction.upper is not None:
            low, high = np.quantile(example.ratings, [0.05, 0.95])
            found.append((high - low, prediction.upper - prediction.lower))
    return np.array(found).reshape(-1, 2)


def draw(rows: Sequence[Row], ridge: float, widths: np.ndarray) -> Figure:
    """Draw errors by loss and reading, the model's intervals against the raters, and their coverage."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    looks = styles([row.name for row in rows])
    for place, row in enumerate(rows):
        for shift, (reading, marker) in enumerate(zip(READINGS, "os", strict=True)):
            values = row.values(reading_metric(reading, "mae"))
            x = [place + 0.2 * (shift - 0.5)] * len(values)
            label = reading if place == 0 else None
            left.plot(x, values, marker, color=looks[row.name].color, alpha=0.7, label=label)
    left.axhline(ridge, **FLOOR, label="TF-IDF + ridge")
    left.set_xticks(range(len(rows)), [row.name for row in rows])
    left.set_title("error by loss and reading (dots: seeds)")
    left.set_ylabel("mean absolute error")
    left.legend()
    if len(widths):
        order = widths[widths[:, 0].argsort()]
        middle.plot(*widths.T, ".", color=GRAY, label="texts")
        fifths = np.array([part.mean(0) for part in np.array_split(order, min(5, len(order)))])
        middle.plot(*fifths.T, "o-", color=BLUE, label="means of fifths")
        middle.legend()
        ranks = np.argsort(np.argsort(widths, axis=0), axis=0)
        correlation = np.corrcoef(ranks.T)[0, 1]
        is_wider = "wider" if correlation > 0 else "not wider"
        middle.set_title(
            f"intervals are {is_wider} where people\ndisagree (rank correlation {correlation:.2f})"
        )
    middle.set_xlabel("central 90 % of the people's ratings")
    middle.set_ylabel("width of the model's interval")
    for row in rows:
        percents = [p for p in range(5, 100, 10) if row.values(f"coverage_{p}")]
        covered = [100 * mean(row.values(f"coverage_{p}")) for p in percents]
        right.plot(
            percents, covered, "o-", ms=3, color=looks[row.name].color, label=row.name if percents else None
        )
    right.plot([0, 100], [0, 100], **FLOOR)
    right.set_title("promised and found coverage")
    right.set_xlabel("share of the distribution, %")
    right.set_ylabel("answers inside, %")
    right.legend()
    return figure


def load(folder: RunFolder) -> tuple[Approach, Callable[[Sequence[str]], list[str]]]:
    """Load a run's model, and the function that makes questions of texts."""
    trained = read_trained(folder.path)
    assert trained is not None
    settings = with_targets(trained.config.dataset_args)
    approach = build_approach(trained.config.model_args, trained.config.loss)
    approach.model.eval()
    return approach, lambda texts: write_questions(pd.DataFrame({"text": texts}), settings, {"text": "text"})


def draw_sentences(
    approach: Approach,
    ask: Callable[[Sequence[str]], list[str]],
    sentences: Sequence[str],
    largest: float = 80.0,
) -> list[str]:
    """Draw the distribution of each sentence's rating as a line of bars."""
    longest = max(map(len, sentences))
    read = approach.quantiles(approach.model, ask(sentences), LEVELS).values.cpu().numpy()
    lines = []
    for sentence, values in zip(sentences, read, strict=True):
        counts, _ = np.histogram(values.clip(0, largest), WIDTH, (0, largest))
        heights = np.ceil(counts / max(counts.max(), 1) * (len(BARS) - 1)).astype(int)
        bars = [BARS[height] for height in heights]
        median = float(np.median(values))
        bars.insert(min(WIDTH - 1, int(median / largest * WIDTH)), "|")
        lines.append(f"{sentence:{longest}}  0 {''.join(bars)} {largest:.0f}  median {median:.0f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
