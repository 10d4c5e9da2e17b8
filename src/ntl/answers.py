"""What `ntl predict` does once its model is known to exist; see `ntl.predict` and `ntl.predictor`."""

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
from ntl.program import discard_output
from ntl.scores import describe_errors
from ntl.truths import Margin, advise, describe_answer, read_truths, score_predictions


def write_answers(model: str, options: Mapping[str, str]) -> int:
    """Answer the rows that the options name with a model, and write or print what `ntl predict` promises."""
    rows = _rows(options)  # before the model is loaded, which takes seconds
    form = options.get("format", options.get("digits"))
    predictor = load(model, options.get("prompt"), form)
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
