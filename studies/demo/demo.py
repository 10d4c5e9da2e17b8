"""The demo: a pretrained model learns to rate the sentiment of texts; a table, a picture and sentences.

It runs `ntl compare studies/demo/demo.yaml`, and then shows what only these texts can show: about 20 people
rated each text, so the model's distribution can be compared with that of the ratings. A row is printed as
soon as a run ends. `make demo` fetches the model and the texts, and runs it.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from statistics import mean
from threading import Event, Thread
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from hydra.core.override_parser.overrides_parser import OverridesParser
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from ntl.commands import compare
from ntl.data import Example, TaskData
from ntl.data.tabular import write_questions
from ntl.errors import UserError
from ntl.evaluate import Metrics, read_results
from ntl.layout import PREDICTIONS, RESULTS
from ntl.metrics.registry import reading_metric
from ntl.models import build
from ntl.report.figures import BLUE, FLOOR, GRAY, STYLE, save_figure, styles
from ntl.report.statistics import mean_and_interval
from ntl.run import as_trained
from ntl.settings import Config, compose_config, read_trained

STUDY = Path(__file__).with_name("demo.yaml")
SENTENCES = (
    "I love it, the best present ever!",
    "What a waste of time and money.",
    "The train leaves at nine.",
    "Not bad at all, actually.",
    "I laughed, then I cried, and I still don't know what to think.",
)
NOTICE = """\
A small language model learns to rate the sentiment of texts, from 0 (bad) to 80 (good), with several losses.
On two free cores this takes six to nine minutes, and the first row appears within three; a busy machine
needs longer. After Ctrl-C, the same command continues. The rows are mean absolute errors on texts that the
model has not seen:
"""
CHOICE = "HL-Gauss"  # whose run is shown in sentences and advised
RATINGS = "dataset_args.ratings=ratings"
# The regression head is another model, so it is a sweep of its own, into the same folder.
HEAD = ("model_args=pretrained_regression_head", "loss=ce")
NONE = "\N{EN DASH}"
READINGS = ("greedy", "median")
BARS, WIDTH = " ▁▂▃▄▅▆▇█", 41
LEVELS = tuple((k + 0.5) / 50 for k in range(50))


class Row(NamedTuple):
    """A row of the table: the metrics of each seed of one loss."""

    name: str
    seeds: Sequence[Metrics]

    def values(self, metric: str) -> list[float]:
        """Return a metric of each seed; empty if it was not measured."""
        found = [seed.get(metric) for seed in self.seeds]
        return [value for value in found if value is not None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo on overrides of `ntl compare studies/demo/demo.yaml`; return the exit code."""
    given = [RATINGS, *(sys.argv[1:] if arguments is None else arguments)]
    try:
        return _demo(given)
    except UserError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo: interrupted. The same command continues.", file=sys.stderr)
        return 130


def _demo(arguments: Sequence[str]) -> int:
    config = compose_fixed(arguments)
    needed = {"the model": config.model_args.model_name_or_path, "the texts": config.dataset_args.file}
    if missing := [f"{what} ({path})" for what, path in needed.items() if not Path(str(path)).exists()]:
        raise UserError(
            f"{' and '.join(missing)} of the demo are not here; expected what `make demo` fetches from the "
            "package index. Run it with a network, or `ntl compare`, which "
            "needs nothing."
        )
    code = 0
    with printing_rows(config), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        for more in ((), HEAD):
            code = code or compare([str(STUDY), *arguments, *more])
    if code:
        print(errors.getvalue(), file=sys.stderr)
    else:
        show(config)
    return code


def compose_fixed(arguments: Sequence[str]) -> Config:
    """Compose what all runs share: the configuration without what is swept."""
    overrides = OverridesParser.create().parse_overrides([*arguments])
    fixed = [each.input_line for each in overrides if not each.is_sweep_override()]
    fixed = [each for each in fixed if not each.startswith("hydra")]
    return compose_config(fixed, STUDY)


@contextmanager
def printing_rows(config: Config) -> Iterator[None]:
    """Print a row for each run that is finished, as soon as it is."""
    output, ended, seen = sys.stdout, Event(), set()
    print(NOTICE)
    print(f"| {'loss':17} | seed | greedy | median |\n| {'-' * 17} | ---: | -----: | -----: |", flush=True)

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(1.0)
            for folder, run in finished_runs(config):
                if folder not in seen:
                    seen.add(folder)
                    row = Row(name_of(run, config), [run["metrics"]["test"]])
                    errors = (row.values(reading_metric(reading, "mae")) for reading in READINGS)
                    cells = " | ".join(f"{error[0]:6.1f}" if error else f"{NONE:>6}" for error in errors)
                    tqdm.write(f"| {row.name:17} | {run['seed']:4} | {cells} |", file=output)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def finished_runs(config: Config) -> list[tuple[Path, dict[str, Any]]]:
    """List the folders of finished runs, and what their `metrics.json` says, in the order of the sweeps."""
    folder, name = Path(str(config.training_args.output_dir)), config.evaluation.name
    runs = [(path.parent.parent, read_results(path.parent)) for path in folder.glob(f"*/{name}/{RESULTS}")]
    found = [(run, results) for run, results in runs if results is not None]
    return sorted(found, key=lambda run: (run[1]["sweep"], run[1]["job"]))


def name_of(run: Mapping[str, Any], config: Config) -> str:
    """Return the name of a run's loss in tables."""
    label: str = run["label"]
    return label.removeprefix(config.label).strip().removeprefix("+ ") or "cross-entropy"


def chosen_run(config: Config) -> tuple[Path, dict[str, Any]]:
    """Return HL-Gauss's first run, or the first of all where HL-Gauss was not compared."""
    runs = finished_runs(config)
    return next((run for run in runs if name_of(run[1], config) == CHOICE), runs[0])


def show(config: Config) -> None:
    """Print the table, the contrasts and the sentences, and draw the picture, of finished runs."""
    rows, (chosen, run) = find_rows(config), chosen_run(config)
    name = name_of(run, config)
    ridge = ridge_error(config.dataset_args.read())
    constant = rows[0].values("constant_mae")[0]
    lines = describe_rows(rows, {"TF-IDF + ridge regression": ridge, "always the training median": constant})
    lines += ["", *describe_contrasts(rows, ridge), *describe_advice(rows)]
    print("\n" + "\n".join(lines) + "\n")
    picture = Path(config.training_args.output_dir, "demo.svg")
    with mpl.rc_context(STYLE):
        save_figure(draw(rows, ridge, spreads(config, chosen), name), picture.with_suffix(""))
    picture.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"Five sentences that nobody rated, and what the model trained with {name} says: its distribution")
    print("from 0 (bad) to 80 (good), and | its median:\n")
    for line in draw_sentences(*load(chosen, config), SENTENCES):
        print(line)
    print(f"\nThe table and the picture are {picture.with_suffix('.md')} and {picture}.")
    print("What to do next:\n")
    fit, program = (Path(os.path.relpath(sys.executable)).with_name(name) for name in ("ntloss", "ntl"))
    print("  # HL-Gauss and the median for a table of your own, with calibrated intervals:")
    print(f"  {fit} fit TABLE.csv --target COLUMN --model .models/smollm2")
    print("  # HL-Gauss in a Trainer of your own, in Python:")
    print("  make_number_aware(trainer, criterion=HLGauss.for_answers(answers))")
    print("  # other losses, on sums:")
    print(f"  {program} compare loss=ce,ntl_was,crps")


def find_rows(config: Config) -> list[Row]:
    """Read the test metrics of finished runs, by loss in their order, each with its seeds."""
    found: dict[str, list[Metrics]] = {}
    for _, run in finished_runs(config):
        found.setdefault(name_of(run, config), []).append(run["metrics"]["test"])
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
    return f"{center:.1f}" + (f" ± {width:.1f}" if not math.isnan(width) else "") + unit


def describe_contrasts(rows: Sequence[Row], ridge: float) -> list[str]:
    """Say of each contrast that was planned in advance whether it holds in every seed."""

    def errors(name: str, metric: str) -> list[float]:
        return next((row.values(metric) for row in rows if name in row.name), [])

    greedy, median = rows[0].values("mae"), rows[0].values("median_mae")
    pairs = {
        "greedy - median": (greedy, median),
        "greedy - regression head": (greedy, errors("regression head", "mae")),
        "ridge regression - median": ([ridge] * len(median), median),
        "median - HL-Gauss's median": (median, errors("HL-Gauss", "median_mae")),
    }
    lines = ["Planned in advance, of cross-entropy (positive in every seed if it holds):"]
    for name, (larger, smaller) in pairs.items():
        if smaller:
            differences = [a - b for a, b in zip(larger, smaller, strict=True)]
            holds = "holds" if min(differences) > 0 else "does not hold"
            lines.append(f"- {name}: {', '.join(f'{d:+.1f}' for d in differences)}: {holds}")
    return lines


def describe_advice(rows: Sequence[Row]) -> list[str]:
    """Say what HL-Gauss and the median gain together, and what the median alone does."""
    medians = next((row.values("median_mae") for row in rows if row.name == CHOICE), [])
    if not medians:
        return []
    greedy, median, both = (mean(v) for v in (rows[0].values("mae"), rows[0].values("median_mae"), medians))
    change, alone = (100 * (error / greedy - 1) for error in (both, median))
    verdict = "So train with HL-Gauss and predict the median." if both < min(greedy, median) else ""
    found = (
        f"With HL-Gauss and the median, the error changes by {change:+.0f} % against cross-entropy's greedy "
        f"answers; with the median alone, by {alone:+.0f} %."
    )
    return ["", f"{found} {verdict}".strip()]


def spreads(config: Config, folder: Path) -> np.ndarray:
    """Return the width of the raters' central 90 % and of the model's interval, `[test texts, 2]`."""
    lines = (folder / config.evaluation.name / PREDICTIONS).read_text(encoding="utf-8").splitlines()
    predictions = [row for row in map(json.loads, lines) if row["test"] == "test"]
    found = []
    for example, row in zip(config.dataset_args.read().tests["test"], predictions, strict=True):
        if example.ratings and None not in (row.get("lower"), row.get("upper")):
            low, high = np.quantile(example.ratings, [0.05, 0.95])
            found.append((high - low, row["upper"] - row["lower"]))
    return np.array(found).reshape(-1, 2)


def draw(rows: Sequence[Row], ridge: float, widths: np.ndarray, name: str) -> Figure:
    """Draw errors by loss and reading, the named loss's intervals against the raters, and their coverage."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    looks = styles([row.name for row in rows])
    for place, row in enumerate(rows):
        for shift, (reading, marker) in enumerate(zip(READINGS, "os", strict=True)):
            values = row.values(reading_metric(reading, "mae"))
            x = [place + 0.2 * (shift - 0.5)] * len(values)
            label = reading if place == 0 else None
            left.plot(x, values, marker, color=looks[row.name]["color"], alpha=0.7, label=label)
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
    middle.set_ylabel(f"width of the interval with {name}")
    for row in rows:
        percents = [p for p in range(5, 100, 10) if row.values(f"coverage_{p}")]
        covered = [100 * mean(row.values(f"coverage_{p}")) for p in percents]
        right.plot(
            percents,
            covered,
            "o-",
            ms=3,
            color=looks[row.name]["color"],
            label=row.name if percents else None,
        )
    right.plot([0, 100], [0, 100], **FLOOR)
    right.set_title("promised and found coverage")
    right.set_xlabel("share of the distribution, %")
    right.set_ylabel("answers inside, %")
    right.legend()
    return figure


def load(folder: Path, config: Config) -> tuple[Any, Callable[[Sequence[str]], list[str]]]:
    """Load a run's model, and the function that makes questions of texts."""
    trained = as_trained(config, folder, read_trained(folder) or {})
    disable_progress_bar()  # of loading the weights
    built = build(trained.model_args)
    built.model.eval()
    return built, lambda texts: write_questions(pd.DataFrame({"text": [*texts]}), config.dataset_args)


def draw_sentences(
    built: Any,
    ask: Callable[[Sequence[str]], list[str]],
    sentences: Sequence[str],
    largest: float = 80.0,
) -> list[str]:
    """Draw the distribution of each sentence's rating as a line of bars."""
    longest = max(map(len, sentences))
    read = built.quantiles(ask(sentences), LEVELS).values.cpu().numpy()
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
