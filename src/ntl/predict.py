"""`ntl predict`: answers of a trained model to new rows, with intervals; the same in Python.

import ntl
model = ntl.load("outputs/sentiment")
model.predict(pd.read_csv("new.csv"))  # a DataFrame: greedy, median, lower, upper, number_probability
"""

from __future__ import annotations

import io
import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from tqdm.auto import tqdm

from ntl.approaches import build_approach
from ntl.config import Data, Evaluation, LossSettings, ModelArgs, Tabular
from ntl.data import load_task, single_number
from ntl.data.table_files import as_texts, read_table
from ntl.data.tasks.tabular import prompt_columns, with_targets, write_questions
from ntl.errors import UserError
from ntl.predictions_file import say, write_predictions
from ntl.program import HELP_OPTIONS, discard_output, run_program
from ntl.scores import interval_levels
from ntl.served import ServedApproach, is_address
from ntl.training.run_folder import CHECKPOINT, RunFolder, read_trained
from ntl.truths import describe_errors, read_truths
from ntloss.decoding import interval_margin
from ntloss.numbers.parsing import number_texts, parse_number

HELP = """\
usage: ntl predict RUN [key=value ...]

Answer new rows with a trained model, and write them as CSV with the columns
  written             what the model writes, unless all answers have one width
  greedy              the number that the model writes
  median              the number with the smallest expected error
  lower, upper        the interval that holds 90 % of the model's distribution
  number_probability  how likely the model is to write a number here at all

RUN is the folder of a run or of one of its checkpoints; or, with prompt=..., any causal or encoder-decoder
model: a folder, a .gguf file, a name on the hub, or the address of a server (vLLM, SGLang, llama.cpp, or any
with OpenAI's /v1/completions; its key is read from the environment variable NTLOSS_API_KEY).

  data=new.csv           rows to answer: CSV, TSV, Parquet or JSON lines; data=- reads CSV from standard input
  text="I love it"       one text to answer; text=- (or only -) reads one from each line of standard input
  output=answers.csv     where to write; without it, standard output. The same command continues an
                         interrupted one, and answers only the rows that are not in this file yet
  level=0.9              share of the distribution in the interval; level=none: neither median nor interval
  calibrate=true         widens or narrows the intervals to hold that share of the run's validation answers;
                         calibrate=labelled.csv: of the answers in a table's column truth=...
  truth=price            column with the true answers, to print the errors
  prompt="{text} ... "   the question, with names of columns in braces; for models that are not runs
  digits=3               how many digits all answers have; for servers. Without it, any length

examples:
  ntl predict outputs/demo/ce/seed0 text="What a wonderful surprise!"
  ntl predict outputs/sentiment data=new.csv output=answers.csv calibrate=true
"""
KEYS = ("data", "text", "output", "level", "calibrate", "prompt", "truth", "digits")
FEW_ROWS = 50  # validation rows below which the margin that calibrates intervals is a rough estimate
ADVICE = "With output=FILE, the same command continues."
QUESTION = "question"  # the column of a plain text, unless a prompt names another one
PREDICTED = ("written", "greedy", "median", "lower", "upper", "number_probability")


class Predictor:
    """A trained model with everything that its answers depend on; `load` makes it.

    Args:
        name: What messages call the model.
        approach: The model, as an `ntl.approaches.Approach`.
        data: Settings of the dataset that it was trained on; of a model that is not a run, only its prompt.
        generation: How answers are decoded; see `ntl.config.Evaluation`.
        has_distribution: Whether a median and an interval can be read: not from a regression head.
    """

    def __init__(self, name: str, approach: Any, data: Data, generation: Evaluation, has_distribution: bool):
        self.name, self.approach, self.generation = name, approach, generation
        self.is_table = isinstance(data, Tabular)
        self.data = with_targets(data) if self.is_table else data
        self.targets = self.data.target if self.is_table and len(self.data.target) > 1 else []
        self.has_distribution = has_distribution and not self.targets
        in_prompt = [(name, "text") for name in prompt_columns(getattr(self.data, "prompt", None) or "")]
        self._columns: dict[str, str] = dict(approach.model.config.ntl.get("columns", in_prompt))

    def predict(
        self, rows: Any, level: float | None = None, calibrate: bool = False, progress: bool = False
    ) -> pd.DataFrame:
        """Answer rows.

        Args:
            rows: A DataFrame, or a list of dicts, with the columns of the question; or a list of texts, which
                stand for the prompt's only column or, without a prompt, for the whole question.
            level: Share of the model's distribution between `lower` and `upper`, above 0 and below 1; 0 reads
                neither median nor interval. Default: `evaluation.interval` of the run.
            calibrate: Whether to correct the interval with `ntloss.decoding.interval_margin`, by the run's
                validation data, so that it holds this share of answers. It keeps the median, and padded
                answers bound it.
            progress: Whether to show a bar.

        Returns:
            One row for each, with the same index: `written` (the model's text, unless answers are padded),
            `greedy` (its number, NaN without one), `median`, `lower`, `upper` and `number_probability`. Where
            an answer is several numbers, a column for each of them in place of these.

        Raises:
            UserError: A column is missing, there are no rows, or the model has no distribution to read.
        """
        table, level = self.table(rows), self.level(level)
        margin = self.margin(level) if calibrate else 0.0
        parts, size = self.batches(self.questions(table), level, margin), self.generation.batch_size
        bar = tqdm(parts, total=math.ceil(len(table) / size), unit=" batches", disable=not progress)
        index = rows.index if isinstance(rows, pd.DataFrame) else table.index
        return pd.concat(list(bar)).set_axis(index)

    def table(self, rows: Any) -> pd.DataFrame:
        """Make a table of texts of rows, as `read_table` does; plain texts are put into one column."""
        if isinstance(rows, pd.DataFrame):
            return as_texts(rows)
        rows = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, (str, Mapping)) else [None]
        if rows and all(isinstance(row, Mapping) for row in rows):
            return as_texts(pd.DataFrame(rows, dtype=object))  # whole numbers beside gaps stay whole
        if not all(isinstance(row, str) for row in rows):
            raise UserError(
                "the rows are neither a DataFrame nor a list of only dicts or only texts; expected one of "
                "these. Put a single text or dict into a list."
            )
        columns = [*self._columns] if self.is_table and self.data.prompt is not None else [QUESTION]
        if len(columns) > 1:
            raise UserError(
                f"the question has the columns {', '.join(columns)}; expected rows with all of them, not a "
                "text. Pass a table (data=FILE), or a list of dicts in Python."
            )
        return pd.DataFrame({columns[0]: rows})

    def batches(self, questions: Sequence[str], level: float, margin: float) -> Iterator[pd.DataFrame]:
        """Yield the predictions of questions, `generation.batch_size` at a time."""
        for start in range(0, len(questions), self.generation.batch_size):
            yield self.answer(questions[start : start + self.generation.batch_size], level, margin)

    def questions(self, table: pd.DataFrame) -> list[str]:
        """Write the rows of a table of texts as questions."""
        if not len(table):
            raise UserError("there are no rows to answer; expected at least one.")
        is_whole = getattr(self.data, "prompt", None) is None and list(table.columns) == [QUESTION]
        if is_whole or not self.is_table:
            if QUESTION not in table.columns:
                raise UserError(
                    f"the table has no column {QUESTION!r}; expected one, because {self.name} was trained on "
                    f"whole questions; given {', '.join(table.columns)}. Rename the column."
                )
            return table[QUESTION].fillna("").tolist()
        return write_questions(table, self.data, self._columns)

    def level(self, asked: float | None) -> float:
        """Return the share of an interval, 0 for none; a UserError if there is no distribution to read."""
        if asked and not self.has_distribution:
            raise UserError(
                f"{self.name} has no distribution of one number (it has a regression head, or writes several "
                "numbers), so there is no interval; expected level=none. Omit level and calibrate."
            )
        if asked is not None and not 0 <= asked < 1:
            raise _unusable_level(asked)
        return (self.generation.interval if asked is None else asked) if self.has_distribution else 0.0

    def margin(self, level: float, labelled: tuple[pd.DataFrame, Sequence[float]] | None = None) -> float:
        """Compute the margin that calibrates intervals: on the run's validation data, or on labelled rows.

        A warning says so if there are fewer than `FEW_ROWS` rows.

        Raises:
            UserError: There are no intervals, no such data, or too few for this level.
        """
        if not level or (labelled is None and not self.data.dataset_name):
            raise UserError(
                f"calibrate needs intervals and the validation data of a run, and {self.name} lacks them or "
                "level=none was given; expected a run that writes numbers in digits, or calibrate=FILE with "
                "truth=COLUMN. Omit calibrate."
            )
        if labelled is None:
            examples = load_task(self.data).validation
            questions = [example.question for example in examples]
            truths = [
                single_number(example.answer, "calibrate=true", "omit calibrate") for example in examples
            ]
        else:
            questions, truths = self.questions(labelled[0]), [*labelled[1]]
        found = pd.concat(self.batches(questions, level, 0.0))
        margin = interval_margin(list(found["lower"]), list(found["upper"]), truths, level)
        rows = f"{len(truths)} {'validation' if labelled is None else 'labelled'} rows"
        if math.isinf(margin):
            raise UserError(
                f"{rows} are too few to calibrate intervals of level={level:g}, or the model writes no "
                f"numbers; expected at least {math.ceil(level / (1 - level))} rows. Lower the level."
            )
        if len(truths) < FEW_ROWS:
            warnings.warn(f"{rows}: the margin is uncertain. Use {FEW_ROWS} or more.", stacklevel=2)
        return margin

    def answer(self, questions: Sequence[str], level: float, margin: float) -> pd.DataFrame:
        """Answer one batch of questions; see `predict`."""
        asked, read = (self.approach.model, questions, self.generation), None
        if level:
            texts, read = self.approach.read(*asked, (*interval_levels(level), 0.5))
        else:
            texts = self.approach.answer(*asked)
        found: dict[str, Any] = {} if self.approach.number_format is not None else {"written": texts}
        if self.targets:
            numbers = [list(map(float, number_texts(text))) for text in texts]
            none = [math.nan] * len(self.targets)
            columns = zip(*(row if len(row) == len(none) else none for row in numbers), strict=True)
            return pd.DataFrame(found | dict(zip(self.targets, columns, strict=True)))
        found["greedy"] = np.array([parse_number(text) for text in texts], dtype=float)
        if read is not None:
            lower, median, upper = read.values.sort(-1).values.cpu().numpy().T
            found |= {"median": median, **self._moved(lower, median, upper, margin)}
            found["number_probability"] = read.starts.cpu().numpy().round(4)
        return pd.DataFrame(found)

    def _moved(self, lower: Any, median: Any, upper: Any, margin: float) -> dict[str, Any]:
        """Move the ends of intervals outwards, to where padded answers end and not past the median."""
        ends, form = (-math.inf, math.inf), self.approach.number_format
        if form is not None:
            most = float(f"{'9' * form.digits}.{'9' * form.decimals}")
            ends = (-most if form.signed else 0.0, most)
        return {
            "lower": np.minimum(lower - margin, median).clip(*ends),
            "upper": np.maximum(upper + margin, median).clip(*ends),
        }


def load(run: str | Path, prompt: str | None = None, digits: int | None = None) -> Predictor:
    """Load a trained model to predict with.

    Args:
        run: Folder of a run, or of one of its checkpoints. With `prompt`, any model that transformers loads:
            a folder, a .gguf file or a name on the hub; or the address of a server.
        prompt: The question of a model that is not a run, with names of columns in braces.
        digits: How many digits all answers of a served model have. Default: any length.

    Returns:
        The model, on the GPU if there is one.

    Raises:
        UserError: There is no such run, or its model cannot be loaded.
    """
    path = Path(run).expanduser()
    folder = RunFolder(path.parent if path.name.startswith(CHECKPOINT) else path)
    if folder.holds_run() == (prompt is not None):
        is_run = "is a run, which has its own prompt" if prompt else "holds no run (no run.json)"
        raise UserError(
            f"{run} {is_run}; expected a folder that `ntl train` or `ntl compare` wrote, or any other model "
            'together with a prompt. Correct the folder, or pass (or omit) prompt="... {column} ...".'
        )
    if prompt is not None and not prompt_columns(prompt):
        raise UserError(
            f"prompt={prompt!r} names no column, so all rows would be the same question; expected a name in "
            "braces, such as {text}. Add one."
        )
    if prompt is not None:
        model = ModelArgs(family="pretrained", tokenizer_type="auto", model_name_or_path=str(run))
        loss, generation = LossSettings(), Evaluation(beams=1, max_new_tokens=16)
        data = Tabular(dataset_name="", prompt=prompt, target=[], significant_digits=None)
        if is_address(run):
            served = ServedApproach(str(run), digits)
            generation = replace(generation, batch_size=served.batch_size)
            return Predictor(str(run), served, data, generation, True)
    else:
        trained = read_trained(path)
        assert trained is not None
        model, loss = trained.config.model_args, trained.config.loss
        generation, data = trained.config.evaluation, trained.config.dataset_args
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    approach = build_approach(model, loss)
    approach.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Predictor(str(run), approach, data, generation, model.writes_digits)


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
    predictor = load(arguments[0], options.get("prompt"), _digits(options.get("digits"), arguments[0]))
    table, asked = predictor.table(rows), _level(options.get("level"))
    if taken := {*PREDICTED, *predictor.targets} & {*table.columns}:
        raise UserError(
            f"the table has a column {min(taken)!r}, which predictions are written to; expected only the "
            "columns of the rows. Rename or remove it."
        )
    level, margin = predictor.level(asked), 0.0
    if asked is None and not level:
        say(f"{predictor.name} has no distribution of one number, so there is no interval")
    truths = read_truths(table, options["truth"]) if "truth" in options else []
    if (labelled := options.get("calibrate", "false")) != "false":
        known = None if labelled == "true" else read_table(labelled, "calibrate")
        with warnings.catch_warnings(record=True) as caught:
            margin = predictor.margin(
                level, None if known is None else (known, read_truths(known, options["truth"]))
            )
        for warning in caught:
            say(str(warning.message))
        say(f"the intervals are {'narrowed' if margin < 0 else 'widened'} by {abs(margin):g} at each end")
    path, parts = Path(options["output"]) if "output" in options else None, list[pd.DataFrame]()

    def answer(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        for part in predictor.batches(predictor.questions(rows), level, margin):
            parts.append(part)
            yield part

    try:
        write_predictions(table, answer, path)
    except BrokenPipeError:
        return discard_output()
    if truths:
        say(describe_errors(pd.concat(parts) if path is None else pd.read_csv(path), truths, level))
    return 0


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
    if options.get("calibrate", "true") not in ("true", "false") and "truth" not in options:
        raise UserError(
            f"calibrate={options['calibrate']} needs a column of true answers; expected true, false, or "
            "a table together with truth=COLUMN. Correct it, or add truth."
        )
    return options


def _digits(given: str | None, run: str) -> int | None:
    if given is None:
        return None
    if not is_address(run) or not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 18:
        raise UserError(
            f"digits={given} cannot be used with {run}; expected a number from 1 to 18, and the address of a "
            "server. Correct or omit it."
        )
    return int(given)


def _level(given: str | None) -> float | None:
    if given in (None, "none"):
        return None if given is None else 0.0
    try:
        level = float(given)
    except ValueError:
        level = math.nan
    if not 0 < level < 1:
        raise _unusable_level(given)
    return level


def _unusable_level(given: Any) -> UserError:
    return UserError(
        f"level={given} cannot be used; expected a number above 0 and below 1, or none (0 in Python). "
        "Correct it."
    )


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
