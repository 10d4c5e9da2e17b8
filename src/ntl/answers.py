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
from ntl.predictor import PREDICTED, WRITTEN, Margin, Predictor, load
from ntl.program import discard_output
from ntl.scores import Scores, describe_errors, finite_or_none, short
from ntloss.numbers import NumberFormat
from ntloss.numbers.parsing import parse_number

TEN = 10.0  # an interval whose upper end is so many times its lower one spans a power of ten


def write_answers(model: str, options: Mapping[str, str]) -> int:
    """Answer the rows that the options name with a model, and write or print what `ntl predict` promises."""
    rows = _rows(options)  # before the model is loaded, which takes seconds
    form = options.get("format", options.get("digits"))
    predictor = load(model, options.get("prompt"), form)
    table, asked = predictor.table(rows), _level(options.get("level"))
    written = [] if predictor.is_table else [WRITTEN]
    renamed = _rename({*PREDICTED, *predictor.targets, *written} & {*table.columns}, table)
    level = predictor.level(asked)
    if predictor.targets and "truth" in options:
        raise UserError(
            f"truth={options['truth']} is one column, and {predictor.name} answers with several numbers: "
            f"{', '.join(predictor.targets)}; expected a model of one. Omit truth."
        )
    if asked is None and not level:
        say(f"{predictor.name} has no distribution of one number, so there is no interval")
    has_labels = options.get("calibrate", "true") not in (
        "true",
        "false",
    )  # in another table, whose column is `truth`
    is_scored = "truth" in options and (options["truth"] in table or not has_labels)
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
    found = pd.concat(parts) if parts else pd.DataFrame()
    if path is not None and path.is_file():  # it holds the rows of an interrupted command, too
        found = pd.read_csv(path).drop(columns=[*renamed])
        found = found.rename(columns={written: name for name, written in renamed.items()})
    _comment(predictor, found, truths, level)
    return 0


def _comment(predictor: Predictor, found: pd.DataFrame, truths: Sequence[float], level: float) -> None:
    """Print advice and, if there are true answers, the errors beside those of a constant."""
    approach, constant = predictor.approach, predictor.constant
    is_log = getattr(getattr(approach, "answer_format", None), "is_log", False)
    for line in advise(found, approach.number_format, predictor.run is not None, is_log):
        say(line)
    if truths:
        of = "these truths" if constant is None else "the training answers"
        constant = float(np.median(truths)) if constant is None else constant
        errors = describe_errors(score_predictions(found, truths, constant), level)
        say(f"{len(truths):,} rows, {errors} (constant: {constant:g}, the median of {of})")


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


def _margin(predictor: Predictor, level: float, options: Mapping[str, str]) -> Margin:
    """Return the margin that `calibrate` asks for, by default that of `ntl fit`, and say what it is."""
    asked, labelled = options.get("calibrate"), None
    if asked == "false":
        return Margin()
    if asked not in (None, "true"):
        table = read_table(asked, "calibrate")
        labelled = (table, read_truths(table, options["truth"]))
    with warnings.catch_warnings(record=True) as caught:
        margin = predictor.margin(level, labelled) if asked else predictor.default_margin(level)
    for warning in caught:
        say(str(warning.message))
    if asked or margin.size:
        say(f"the intervals are {margin}")
    return margin


def _level(given: str | None) -> float | None:
    try:
        return None if given is None else 0.0 if given == "none" else float(given)
    except ValueError:
        raise UserError(
            f"level={given} cannot be used; expected a number above 0 and below 1, or none. Correct it."
        ) from None


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


def read_truths(table: pd.DataFrame, column: str) -> list[float]:
    """Return the true answers of a table of texts; a UserError if one is missing or no number."""
    if column not in table.columns:
        raise UserError(
            f"truth={column}: the table has no such column; expected one of {', '.join(table.columns)}. "
            "Correct the name."
        )
    found = [parse_number(text if isinstance(text, str) else "", "whole") for text in table[column]]
    if None in found:
        row = found.index(None)
        raise UserError(
            f"truth={column}: row {row + 1} holds {table[column].iloc[row]!r}; expected a number in each. "
            "Correct or remove the row."
        )
    return [number for number in found if number is not None]


def score_predictions(predicted: pd.DataFrame, truths: Sequence[float], constant: float) -> Scores:
    """Score predictions with the metrics of `ntl.scores.describe_errors`; rows without a number are left out.

    Args:
        predicted: The columns of `ntl.predictor.PREDICTED`.
        truths: The true answers.
        constant: The answer whose error the others are compared with.
    """
    true, numbers = np.array(truths), predicted.reindex(columns=PREDICTED).astype(float)
    errors = numbers.sub(true, axis=0).abs().mean()
    scores = {
        "median_mae": errors["median"],
        "mae": errors["greedy"],
        "constant_mae": np.abs(true - constant).mean(),
        "invalid": numbers["greedy"].isna().sum() if "greedy" in predicted else 0.0,
    }
    if "lower" in predicted:
        scores["interval_coverage"] = ((numbers["lower"] <= true) & (true <= numbers["upper"])).mean()
        scores["interval_width"] = (numbers["upper"] - numbers["lower"]).mean()
    return {name: finite_or_none(float(value)) for name, value in scores.items()}


def describe_answer(row: pd.Series, level: float) -> str:
    """Describe the prediction of one text, for people.

    Example:
        >>> describe_answer(pd.Series({"greedy": 60.0, "median": 62.0, "lower": 51.0, "upper": 69.0}), 0.9)
        '62, 51 to 69 (90 %)'
    """
    numbers = {name: value for name, value in row.items() if isinstance(value, float)}
    if "median" in numbers:
        middle, lower, upper = (_number(numbers[name]) for name in ("median", "lower", "upper"))
        is_number = not math.isnan(numbers["median"])
        return f"{middle}, {lower} to {upper} ({100 * level:g} %)" if is_number else middle
    if "greedy" in numbers:
        return str(row["written"]) if "written" in row else _number(numbers["greedy"])
    return ", ".join(f"{name} {_number(value)}" for name, value in numbers.items())


def _number(value: float) -> str:
    return "no number" if math.isnan(value) else short(value)


def advise(
    found: pd.DataFrame, form: NumberFormat | None, is_run: bool, is_log: bool = False
) -> Iterator[str]:
    """Yield what a user may want to do about predictions, of a run whose answers may be logarithms."""
    if "greedy" in found and (missing := int(found["greedy"].isna().sum())):
        yield f"{missing:,} of {len(found):,} answers are no numbers; their cells are empty"
    is_settled = is_run and (is_log or (form is not None and form.signed))  # a log scale is no remedy
    if "lower" in found and not is_settled:
        wide = (found["lower"] > 0) & (found["upper"] >= TEN * found["lower"])
        if 2 * wide.sum() > len(found):
            remedy = "digits=N, or format=, gives all answers one length"
            if is_run:
                remedy = "with scale=log, `ntl fit` learns relative errors"
            elif form is not None:
                remedy = "fewer digits, or a prompt that names the unit, may help"
            yield f"{wide.sum():,} of {len(found):,} intervals span a power of ten or more: {remedy}"
