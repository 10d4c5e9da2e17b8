"""The demo: a pretrained model learns to rate the sentiment of texts; a table, a picture and sentences.

It is `ntl compare preset=demo`, and what only these texts can show: about 20 people rated each, so that the
model's distribution can be held against theirs. A row is printed as soon as a run ends, the first one after
about two minutes. `make demo` fetches the model and the texts, and runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, stdev
from threading import Event, Thread
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from tqdm import tqdm

from ntl.config.comparison import Comparison, load_comparison
from ntl.config.settings import RunSettings
from ntl.data import Example, TaskData, load_task
from ntl.data.table_files import read_table
from ntl.errors import UserError
from ntl.predict import Predictor, load
from ntl.program import run_program
from ntl.report.style import BLUE, STYLE, styles
from ntl.report.svg import save_svg
from ntl.runs.sweep import compare
from ntl.scores import reading_metric
from ntl.training.run_folder import Metrics, RunFolder

SENTENCES = (
    "I love it, the best present ever!",
    "What a waste of time and money.",
    "The train leaves at nine.",
    "Not bad at all, actually.",
    "I laughed, then I cried, and I still don't know what to think.",
)
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
    comparison = load_comparison(["preset=demo", *arguments])
    first = next(iter(comparison.runs.values()))
    needed = {"the model": first.model.checkpoint, "the texts": first.data["file"]}
    if missing := [f"{what} ({path})" for what, path in needed.items() if not Path(str(path)).exists()]:
        raise UserError(
            f"{' and '.join(missing)} of the demo are not here; expected what `make demo` fetches from the "
            "package index. Run it with a network, or `ntl compare preset=demo_sums`, which needs nothing."
        )
    with printing_rows(list(comparison.runs.values())):
        code = compare(comparison)
    if not code:
        show(comparison)
    return code


@contextmanager
def printing_rows(runs: Sequence[RunSettings]) -> Iterator[None]:
    """Print a row for each run that is finished, as soon as it is."""
    ended, waiting = Event(), list(runs)
    print(
        "Mean absolute error on the test texts; a row when a run ends, the first after about two minutes:\n"
    )
    print(f"| {'loss':17} | seed | greedy | median |\n| {'-' * 17} | ---: | -----: | -----: |", flush=True)

    def watch() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(1.0)
            for run in [run for run in waiting if is_finished(run)]:
                waiting.remove(run)
                row = Row(name_of(run, runs[0]), [RunFolder(run.output_dir).metrics()["test"]])
                errors = (row.values(reading_metric(reading, "mae")) for reading in READINGS)
                cells = " | ".join(f"{error[0]:6.1f}" if error else f"{'':6}" for error in errors)
                tqdm.write(f"| {row.name:17} | {run.seed:4} | {cells} |")

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def is_finished(run: RunSettings) -> bool:
    """Return whether a run is trained and evaluated."""
    folder = RunFolder(run.output_dir)
    return folder.holds_run() and folder.record().status == "finished"


def name_of(run: RunSettings, base: RunSettings) -> str:
    """Return the name of a run's loss in tables."""
    return run.objective.removeprefix(base.objective).strip() or "cross-entropy"


def show(comparison: Comparison) -> None:
    """Print the table, the contrasts and the sentences, and draw the picture, of finished runs."""
    runs = list(comparison.runs.values())
    settings, data = runs[0], load_task(runs[0].data)
    rows = find_rows(runs)
    ridge = ridge_error(data)
    constant = rows[0].values("constant_mae")[0]
    lines = describe_rows(rows, {"TF-IDF + ridge regression": ridge, "always the training median": constant})
    lines += ["", *describe_contrasts(rows, ridge)]
    print("\n" + "\n".join(lines) + "\n")
    picture = comparison.output_dir / "demo.svg"
    with mpl.rc_context(STYLE):
        save_svg(draw(rows, ridge, spreads(settings, data, RunFolder(runs[0].output_dir))), picture)
    (comparison.output_dir / "demo.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("Five sentences; the model's distribution from 0 (bad) to 80 (good), | its median:\n")
    for line in draw_sentences(load(settings.output_dir), SENTENCES):
        print(line)
    program = Path(os.path.relpath(sys.executable)).with_name("ntl")
    print(f"\nThe table and the picture are {picture.with_suffix('.md')} and {picture}.")
    print("What to type next:\n")
    print(f'  {program} predict {settings.output_dir} text="..."    # rate a sentence of your own')
    print(f"  {program} predict {settings.output_dir} data=new.csv    # or a table with a column `text`")
    print(f"  {program} compare preset=demo_sums    # other losses on sums, in four minutes")


def find_rows(runs: Sequence[RunSettings]) -> list[Row]:
    """Read the test metrics of finished runs, by objective in their order, each with its seeds."""
    by_folder: dict[Path, list[RunSettings]] = {}
    for run in runs:
        by_folder.setdefault(run.output_dir.parent, []).append(run)
    return [
        Row(
            name_of(group[0], runs[0]),
            [RunFolder(run.output_dir).metrics()["test"] for run in group],
        )
        for group in by_folder.values()
    ]


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
    """Write the table: errors of each reading, mean ± standard deviation over seeds, and the intervals."""
    seeds = len(rows[0].seeds)
    lines = [
        f"Mean absolute error on the test texts, mean ± standard deviation of {seeds} seeds:",
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
        return "-"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + unit


def describe_contrasts(rows: Sequence[Row], ridge: float) -> list[str]:
    """Say of each contrast that was declared beforehand whether it holds in every seed."""
    ce, head = rows[0], next((row for row in rows if "regression head" in row.name), None)
    greedy, median = ce.values("mae"), ce.values("median_mae")
    pairs = {
        "greedy - median": (greedy, median),
        "greedy - regression head": (greedy, head.values("mae") if head else []),
        "ridge regression - median": ([ridge] * len(median), median),
    }
    lines = ["Declared beforehand, of cross-entropy (positive in every seed if it holds):"]
    for name, (larger, smaller) in pairs.items():
        if smaller:
            differences = [a - b for a, b in zip(larger, smaller, strict=True)]
            holds = "holds" if min(differences) > 0 else "does not hold"
            lines.append(f"- {name}: {', '.join(f'{d:+.1f}' for d in differences)}: {holds}")
    return lines


def spreads(settings: RunSettings, data: TaskData, folder: RunFolder) -> np.ndarray:
    """Return the width of the raters' central 90 % and of the model's interval, `[test texts, 2]`."""
    table = read_table(settings.data["file"], "dataset_args.file")
    if "ratings" not in table or "text" not in table:
        return np.empty((0, 2))
    prompt = settings.data["prompt"].replace("\\n", "\n")
    ratings = dict(
        zip((prompt.replace("{text}", str(t)) for t in table["text"]), table["ratings"], strict=True)
    )
    found = []
    for prediction in folder.predictions("test"):
        if prediction.lower is not None and prediction.upper is not None:
            given = np.array(ratings[prediction.question].split(), float)
            low, high = np.quantile(given, [0.05, 0.95])
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
    left.axhline(ridge, color="#333333", lw=0.9, ls="--", label="TF-IDF + ridge")
    left.set_xticks(range(len(rows)), [row.name for row in rows])
    left.set_title("error by loss and reading (dots: seeds)")
    left.set_ylabel("mean absolute error")
    left.legend()
    if len(widths):
        order = widths[widths[:, 0].argsort()]
        middle.plot(*widths.T, ".", color="#999999", label="texts")
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
    right.plot([0, 100], [0, 100], color="#333333", lw=0.9, ls="--")
    right.set_title("promised and found coverage")
    right.set_xlabel("share of the distribution, %")
    right.set_ylabel("answers inside, %")
    right.legend()
    return figure


def draw_sentences(predictor: Predictor, sentences: Sequence[str], largest: float = 80.0) -> list[str]:
    """Draw the distribution of each sentence's rating as a line of bars."""
    longest = max(map(len, sentences))
    table = predictor.table(list(sentences))
    questions = predictor.questions(table)
    read = predictor.approach.quantiles(predictor.approach.model, questions, LEVELS).values.cpu().numpy()
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
