"""`ntl predict`: answers of a trained model to new rows, with intervals, as CSV; see `ntl.predictor`."""

import io
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ntl.data.table_files import read_table
from ntl.errors import UserError
from ntl.predictions_file import say, write_predictions
from ntl.predictor import PREDICTED, WRITTEN, Predictor, load, unusable_level
from ntl.program import HELP_OPTIONS, discard_output, run_program
from ntl.scores import describe_errors
from ntl.truths import Margin, advise, describe_answer, read_truths, score_predictions

HELP = """\
usage: ntl predict RUN [key=value ...]

Answer new rows with a trained model, and write them as CSV with the columns
  greedy              the number that the model writes (written: its text, if it was trained on texts)
  median              the number with the smallest expected error
  lower, upper        the interval that holds 90 % of the model's distribution
  number_probability  how likely the model is to write a number here at all
Where the rows have a column of this name, it is predicted_greedy, predicted_median, ...

RUN is the folder of a run or of one of its checkpoints; or, with prompt=..., any causal or encoder-decoder
model: a folder, a .gguf file, a name on the hub, or the address of a server (vLLM, SGLang, llama.cpp, or any
with OpenAI's /v1/completions; its key is read from the environment variable NTLOSS_API_KEY).

  data=new.csv           rows to answer: CSV, TSV, Parquet or JSON lines; data=- reads CSV from standard input
  text="I love it"       one text to answer, on one line; text=- (or only -) reads one from each line
                         of standard input, and writes CSV
  output=answers.csv     where to write; without it, standard output. The same command continues an
                         interrupted one, and answers only the rows that are not in this file yet
  level=0.9              share of the distribution in the interval; level=none: neither median nor interval
  calibrate=true         widens or narrows the intervals to hold that share of the run's validation answers;
                         calibrate=labelled.csv: of the answers in a table's column truth=... (by a factor
                         where these have a long tail)
  truth=price            column with the true answers, to print the errors
  prompt="{text} ... "   the question, with names of columns in braces; for models that are not runs
  digits=3               how many digits all answers have, or format=+00.0, a sign, two digits and a decimal;
                         for models that are not runs. Without it, numbers of any length

examples:
  ntl predict outputs/demo/ce/seed0 text="What a wonderful surprise!"
  ntl predict outputs/sentiment data=new.csv output=answers.csv calibrate=true
"""
KEYS = ("data", "text", "output", "level", "calibrate", "prompt", "truth", "digits", "format")
ADVICE = "With output=FILE, the same command continues."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl predict`; see `ntl.program.run_program`."""
    return run_program("ntl predict", _predict, arguments, ADVICE)


def _predict(arguments: Sequence[str]) -> int:
    if not arguments or HELP_OPTIONS & {*arguments}:
        print(HELP)
        return 0
    if arguments[0] == "-" or arguments[0].partition("=")[0] in KEYS:
        raise UserError(
            f"{arguments[0]!r} is given where the model is expected. Pass the folder of a run first: ntl "
            f"predict RUN {arguments[0]}."
        )
    options = _options(arguments[1:])
    rows = _rows(options)  # before the model is loaded, which takes seconds
    form = options.get("format", options.get("digits"))
    predictor = load(arguments[0], options.get("prompt"), form)
    table, asked = predictor.table(rows), _level(options.get("level"))
    written = [] if predictor.is_table else [WRITTEN]
    renamed = _rename({*PREDICTED, *predictor.targets, *written} & {*table.columns}, table)
    level = predictor.level(asked)
    if asked is None and not level:
        say(f"{predictor.name} has no distribution of one number, so there is no interval")
    is_scored = "truth" in options and not (_has_labels(options) and options["truth"] not in table)
    truths = read_truths(table, options["truth"]) if is_scored else []
    margin = _margin(predictor, level, options)
    path, parts = Path(options["output"]) if "output" in options else None, list[pd.DataFrame]()
    if path is None and options.get("text", "-") != "-":
        (only,) = predictor.batches(predictor.questions(table), level, margin)
        print(describe_answer(only.iloc[0], level))
        return 0

    def answer(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        for part in predictor.batches(predictor.questions(rows), level, margin):
            parts.append(part)
            yield part.rename(columns=renamed)

    try:
        write_predictions(table, answer, path)
    except BrokenPipeError:
        return discard_output()
    # A file holds the rows of an interrupted command, too; a device or a pipe cannot be read again.
    is_file = path is not None and path.is_file()
    found = _read_predictions(path, renamed) if is_file else pd.concat(parts)
    approach = predictor.approach
    is_log = getattr(getattr(approach, "answer_format", None), "is_log", False)
    for line in advise(found, approach.number_format, predictor.run is not None, is_log):
        say(line)
    if truths:
        say(_describe_scores(found, truths, predictor.constant, level))
    return 0


def _rename(taken: Iterable[str], table: pd.DataFrame) -> dict[str, str]:
    """Name the predictions whose column the table has already, such as `predicted_median`."""
    renamed = {name: f"predicted_{name}" for name in taken}
    if twice := {*renamed.values()} & {*table.columns}:
        name = min(twice)
        raise UserError(
            f"the table has the columns {name.removeprefix('predicted_')!r} and {name!r}, which predictions "
            "are written to; expected at most the first. Rename or remove one."
        )
    return renamed


def _read_predictions(path: Path, renamed: Mapping[str, str]) -> pd.DataFrame:
    """Read an output file, its predictions under the names that they have in other tables."""
    found = pd.read_csv(path).drop(columns=[*renamed])
    return found.rename(columns={written: name for name, written in renamed.items()})


def _describe_scores(
    found: pd.DataFrame, truths: Sequence[float], constant: float | None, level: float
) -> str:
    """Describe the errors of predictions, beside those of a constant: of the truths, unless one is given."""
    of = "these truths" if constant is None else "the training answers"
    constant = float(np.median(truths)) if constant is None else constant
    scores = score_predictions(found, truths, constant)
    errors = describe_errors(scores, level)
    return f"{len(truths):,} rows, {errors} (constant: {constant:g}, the median of {of})"


def _margin(predictor: Predictor, level: float, options: Mapping[str, str]) -> Margin:
    """Return the margin that `calibrate` asks for, and say what it is."""
    labelled = options.get("calibrate", "false")
    if labelled == "false":
        return Margin()
    known = read_table(labelled, "calibrate") if _has_labels(options) else None
    with warnings.catch_warnings(record=True) as caught:
        given = None if known is None else (known, read_truths(known, options["truth"]))
        margin = predictor.margin(level, given)
    for warning in caught:
        say(str(warning.message))
    say(f"the intervals are {margin}")
    return margin


def _has_labels(options: Mapping[str, str]) -> bool:
    """Return whether intervals are calibrated with a table of labelled rows."""
    return options.get("calibrate", "true") not in ("true", "false")


def _options(given: Sequence[str]) -> dict[str, str]:
    pairs = [("text", "=", "-") if each == "-" else each.partition("=") for each in given]
    if wrong := [
        each for each, (key, equals, _) in zip(given, pairs, strict=True) if not equals or key not in KEYS
    ]:
        known = ", ".join(f"{key}=" for key in KEYS)
        raise UserError(f"{wrong[0]!r} cannot be read; expected one of {known}. See `ntl predict --help`.")
    options = {key: value for key, _, value in pairs}
    if ("data" in options) == ("text" in options):
        count = "both" if "data" in options else "neither"
        raise UserError(f"data=FILE and text=TEXT say what to answer; expected one of them, given {count}.")
    if "digits" in options and "format" in options:
        raise UserError("digits=N and format=FORM both say how answers are written; expected one of them.")
    if _has_labels(options) and "truth" not in options:
        raise UserError(
            f"calibrate={options['calibrate']} needs a column of true answers; expected true, false, or "
            "a table together with truth=COLUMN. Correct it, or add truth."
        )
    return options


def _level(given: str | None) -> float | None:
    if given in (None, "none"):
        return None if given is None else 0.0
    try:
        level = float(given)
    except ValueError:
        level = math.nan
    if not 0 < level < 1:
        raise unusable_level(given)
    return level


def _rows(options: Mapping[str, str]) -> pd.DataFrame | list[str]:
    if options.get("data", "-") != "-":
        return read_table(options["data"], "data")
    if options.get("text", "-") != "-":
        return [options["text"]]
    try:
        given = sys.stdin.read().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"standard input cannot be read ({error}); expected UTF-8. Convert it.") from None
    if "data" in options:
        return read_table(io.StringIO(given), "data")
    if lines := [line for line in given.split("\n") if line.strip()]:
        return lines
    raise UserError("text=- found no lines on standard input; expected one text in each line.")
