"""A trained model to predict with, in Python: `ntl.load` loads it, and `ntl predict` uses it.

model = ntl.load("outputs/sentiment")
model.predict(["I love it"])  # a DataFrame: greedy, median, lower, upper, number_probability
"""

import math
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import transformers
from tqdm.auto import tqdm

from ntl.approaches import build_approach
from ntl.approaches.answer_format import writable_ends
from ntl.config import Data, Evaluation, LossSettings, ModelArgs, Tabular, read_config
from ntl.data import Example, load_task, single_number
from ntl.data.table_files import as_texts
from ntl.data.tasks.tabular import prompt_columns, with_targets, write_questions
from ntl.errors import UserError
from ntl.predictions_file import LARGEST
from ntl.protocol import last_number, numbers_of
from ntl.scores import interval_levels, reading_metric
from ntl.training.outline import is_long_tailed
from ntl.training.run_folder import CHECKPOINT, EvaluationFolder, RunFolder, check_table, read_trained
from ntl.training.start import find_own_evaluation
from ntloss.numbers import NumberFormat
from ntloss.reading import interval_margin

QUESTION = "question"  # the column of a plain text, unless a prompt names another one
FEW_ROWS = 50  # validation rows below which the margin that calibrates intervals is a rough estimate
PREDICTED = ("greedy", "median", "lower", "upper", "number_probability")
WRITTEN = "written"  # the column of the text, of models that were trained on whole texts


class Margin(NamedTuple):
    """How far the ends of intervals are moved outwards: by a distance or, of a long tail, by a factor.

    Example:
        >>> str(Margin(2.0)), str(Margin(-0.5, by_factor=True))
        ('widened by 2 at each end', 'narrowed by a factor of 1.649 at each end')
    """

    size: float = 0.0  # of a factor, its logarithm
    by_factor: bool = False
    floor: float = 0.0  # of a factor: smaller ends are raised to it first, because a factor keeps 0

    def move(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move the ends of intervals."""
        if self.by_factor:
            lower, upper = np.maximum(lower, self.floor), np.maximum(upper, self.floor)
            return lower * math.exp(-self.size), upper * math.exp(self.size)
        return lower - self.size, upper + self.size

    def __str__(self) -> str:
        size = f"a factor of {math.exp(abs(self.size)):.4g}" if self.by_factor else f"{abs(self.size):g}"
        return f"{'narrowed' if self.size < 0 else 'widened'} by {size} at each end"


class Predictor:
    """A trained model with everything that its answers depend on; `load` makes it.

    Args:
        name: What messages call the model.
        approach: The model, as an `ntl.approaches.Approach`.
        data: Settings of the dataset that it was trained on; of a model that is not a run, only its prompt.
        generation: How answers are decoded; see `ntl.config.Evaluation`.
        has_distribution: Whether a median and an interval can be read: not from a regression head.
        run: The run's folder, if the model is the last one of a run.
        table: Hash of the table that a run was trained on, if it is known.
    """

    def __init__(
        self,
        name: str,
        approach: Any,
        data: Data,
        generation: Evaluation,
        has_distribution: bool,
        run: RunFolder | None = None,
        table: str | None = None,
    ):
        self.name, self.approach, self.generation, self.run = name, approach, generation, run
        self.is_table, self._table_hash = isinstance(data, Tabular), table
        self.data = with_targets(data) if self.is_table else data
        self.targets = self.data.target if self.is_table and len(self.data.target) > 1 else []
        self.has_distribution = has_distribution and not self.targets
        in_prompt = [(name, "text") for name in prompt_columns(getattr(self.data, "prompt", None) or "")]
        ntl = approach.model.config.ntl
        self._columns: dict[str, str] = dict(ntl.get("columns", in_prompt))
        self.constant: float | None = ntl.get("constant")  # the median of the training answers

    @property
    def _asks_columns(self) -> bool:
        """Whether a text stands for the question's only column, and not for the whole question."""
        prompt, names = (getattr(self.data, key, None) for key in ("prompt", "names"))
        return prompt is not None or (bool(names) and len(self._columns) == 1)

    @property
    def report(self) -> pd.DataFrame:
        """The errors on held-out rows, by test set: of each reading and of a constant, and the intervals'.

        It is empty if the run was not evaluated on its own data, or since then on others.
        """
        held = self._own_evaluation()
        metrics = {} if held is None else held.metrics()
        names = {reading: reading_metric(reading, "mae") for reading in ("median", "greedy", "constant")}
        names |= {"coverage": "interval_coverage", "width": "interval_width", "rows": "count"}
        rows = {test: {name: m.get(key) for name, key in names.items()} for test, m in metrics.items()}
        return pd.DataFrame.from_dict(rows, orient="index").dropna(axis=1, how="all")

    def save(self, folder: str | Path) -> None:
        """Copy the run, without its checkpoints, to a folder that does not exist, which `ntl.load` loads."""
        folder = Path(folder).expanduser()
        if self.run is None or folder.exists():
            raise UserError(
                f"{self.name} cannot be saved in {folder}; expected a run, and a folder that does not exist. "
                "Choose another folder."
            )
        shutil.copytree(self.run.path, folder, ignore=shutil.ignore_patterns(f"{CHECKPOINT}*"))

    def predict(
        self, rows: Any, level: float | None = None, calibrate: bool | None = None, progress: bool = False
    ) -> pd.DataFrame:
        """Answer rows.

        Args:
            rows: A DataFrame, or a list of dicts, with the columns of the question; or a list of texts, which
                stand for the prompt's only column or, without a prompt, for the whole question.
            level: Share of the model's distribution between `lower` and `upper`, above 0 and below 1; 0 reads
                neither median nor interval. Default: `evaluation.interval` of the run.
            calibrate: Whether to correct the interval with `ntloss.reading.interval_margin`, by the run's
                validation data, so that it holds this share of answers; by a factor where these have a long
                tail. It keeps the median, and its ends are numbers that the answers' format can write.
                Default: True for runs on a table that read medians, as those of `ntl fit` do, if there are
                enough validation rows.
            progress: Whether to show a bar.

        Returns:
            One row for each, with the same index: `greedy` (the number that the model writes, NaN without
            one), `median`, `lower`, `upper` and `number_probability`; integers where all are whole and
            below 1e15. Where an answer is several numbers, a column for each of them in place of these.
            Models that were trained on whole texts have the column `written`, too.

        Raises:
            UserError: A column is missing, there are no rows, or the model has no distribution to read.
        """
        table, level = self.table(rows), self.level(level)
        margin = self.default_margin(level) if calibrate is None else Margin()
        margin = self.margin(level) if calibrate else margin
        parts, size = self.batches(self.questions(table), level, margin), self.generation.batch_size
        bar = tqdm(parts, total=math.ceil(len(table) / size), unit=" batches", disable=not progress)
        index = rows.index if isinstance(rows, pd.DataFrame) else table.index
        found = pd.concat(list(bar)).set_axis(index)
        numbers = found.select_dtypes("number")
        whole = [name for name in numbers if ((found[name] % 1 == 0) & (found[name].abs() < LARGEST)).all()]
        return found.astype(dict.fromkeys({*whole} - {PREDICTED[-1]}, "int64"))

    def table(self, rows: Any) -> pd.DataFrame:
        """Make a table of texts of rows, as `read_table` does; plain texts are put into one column."""
        if isinstance(rows, pd.DataFrame):
            return self._with_columns(as_texts(rows))
        rows = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, (str, Mapping)) else [None]
        if rows and all(isinstance(row, Mapping) for row in rows):
            table = as_texts(pd.DataFrame(rows, dtype=object))  # whole numbers beside gaps stay whole
            return self._with_columns(table)
        if not all(isinstance(row, str) for row in rows):
            raise UserError(
                "the rows are neither a DataFrame nor a list of only dicts or only texts; expected one of "
                "these. Put a single text or dict into a list."
            )
        columns = [*self._columns] if self._asks_columns else [QUESTION]
        if len(columns) > 1:
            raise UserError(
                f"the question has the columns {', '.join(columns)}; expected rows with all of them, not a "
                "text. Pass a table (data=FILE), or a list of dicts in Python."
            )
        return pd.DataFrame({columns[0]: rows})

    def _with_columns(self, table: pd.DataFrame) -> pd.DataFrame:
        """Check a table that `questions` would take for whole questions, which only plain texts may be."""
        if self.is_table and list(table.columns) == [QUESTION]:
            write_questions(table.head(0), self.data, self._columns)  # raises if another column is missing
        return table

    def batches(self, questions: Sequence[str], level: float, margin: Margin) -> Iterator[pd.DataFrame]:
        """Yield the predictions of questions, `generation.batch_size` at a time."""
        for start in range(0, len(questions), self.generation.batch_size):
            yield self.answer(questions[start : start + self.generation.batch_size], level, margin)

    def questions(self, table: pd.DataFrame) -> list[str]:
        """Write the rows of a table of texts as questions."""
        if not len(table):
            raise UserError("there are no rows to answer; expected at least one.")
        is_whole = not self._asks_columns and list(table.columns) == [QUESTION]
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
            raise UserError(
                f"level={asked:g} cannot be used; expected a number above 0 and below 1, or none (0 in "
                "Python). Correct it."
            )
        return (self.generation.interval if asked is None else asked) if self.has_distribution else 0.0

    def margin(self, level: float, labelled: tuple[pd.DataFrame, Sequence[float]] | None = None) -> Margin:
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
            found, truths = self._validation(level)
        else:
            truths = [*labelled[1]]
            found = pd.concat(self.batches(self.questions(labelled[0]), level, Margin()))
        margin = find_margin(found, truths, level)
        rows = f"{len(truths)} {'validation' if labelled is None else 'labelled'} rows"
        if math.isinf(margin.size):
            needed = math.ceil(round(level / (1 - level), 9))  # 0.9 / (1 - 0.9) exceeds 9 by rounding
            raise UserError(
                f"{rows} are too few to calibrate intervals of level={level:g}, or the model writes no "
                f"numbers; expected at least {needed} rows. Lower the level."
            )
        if len(truths) < FEW_ROWS:
            warnings.warn(f"{rows}: the margin is uncertain. Use {FEW_ROWS} or more.", stacklevel=2)
        return margin

    def default_margin(self, level: float) -> Margin:
        """Return the margin of a run on a table that read medians, and none of any other model.

        If it cannot be computed, such as from too few rows, a warning says so, and there is none.
        """
        if not level or not self.is_table or self.run is None or not self.generation.quantile_readings:
            return Margin()
        try:
            return self.margin(level)
        except UserError as error:
            warnings.warn(f"the intervals are not calibrated: {error}", stacklevel=3)
            return Margin()

    def _validation(self, level: float) -> tuple[pd.DataFrame, list[float]]:
        """Return the intervals of the validation rows, which the run may have answered, and their truths."""
        held = self._own_evaluation()
        examples = None if self.generation.samples is None else self._load_validation()
        if held is not None and level == read_config(held.record().config).evaluation.interval:
            known = [(p.lower, p.upper, p.true) for p in held.predictions("validation")]
            has_all = examples is None or len(known) == len(examples)  # evaluation.samples may leave some out
            if known and has_all and None not in [number for row in known for number in row]:
                table = pd.DataFrame(known, columns=["lower", "upper", "true"])
                return table, table["true"].tolist()
        examples = self._load_validation() if examples is None else examples
        truths = [single_number(example.answer, "calibrate=true", "omit calibrate") for example in examples]
        questions = [example.question for example in examples]
        return pd.concat(self.batches(questions, level, Margin())), truths

    def _own_evaluation(self) -> EvaluationFolder | None:
        """Return the evaluation of the run on its own data; see `find_own_evaluation`."""
        return None if self.run is None else find_own_evaluation(self.run, self.generation.name)

    def _load_validation(self) -> Sequence[Example]:
        """Load the run's validation rows; a UserError if its table has changed, and so their choice."""
        advice = "Restore it, pass calibrate=FILE with truth=COLUMN, or omit calibrate."
        check_table(self.data, self._table_hash, f"{self.name} was trained", advice)
        return load_task(self.data).validation

    def answer(self, questions: Sequence[str], level: float, margin: Margin) -> pd.DataFrame:
        """Answer one batch of questions; see `predict`."""
        asked, read = (self.approach.model, questions, self.generation), None
        if level:
            texts, read = self.approach.read(*asked, (*interval_levels(level), 0.5))
        else:
            texts = self.approach.answer(*asked)
        found: dict[str, Any] = {} if self.is_table else {WRITTEN: texts}
        if self.targets:
            numbers = [list(map(float, numbers_of(text))) for text in texts]
            none = [math.nan] * len(self.targets)
            columns = zip(*(row if len(row) == len(none) else none for row in numbers), strict=True)
            return pd.DataFrame(found | dict(zip(self.targets, columns, strict=True)))
        found["greedy"] = np.array([last_number(text) for text in texts], dtype=float)
        if read is not None:
            lower, median, upper = read.values.sort(-1).values.cpu().numpy().T
            found |= {"median": median, **moved(self.approach, lower, median, upper, margin)}
            found["number_probability"] = read.starts.cpu().numpy().round(4)
        return pd.DataFrame(found)


def find_margin(found: pd.DataFrame, truths: Sequence[float], level: float) -> Margin:
    """Compute the margin with which the intervals of a table, `lower` and `upper`, hold a share of truths."""
    by_factor, floor = is_long_tailed(truths), min(truths)
    ends = [found["lower"].to_numpy(float), found["upper"].to_numpy(float), np.array(truths, dtype=float)]
    if by_factor:
        ends = [np.log(np.maximum(end, floor)) for end in ends]
    return Margin(interval_margin(*(list(end) for end in ends), level), by_factor, floor)


def moved(approach: Any, lower: Any, median: Any, upper: Any, margin: Margin) -> dict[str, Any]:
    """Move the ends of intervals outwards, to numbers that the format writes and not past the median."""
    if margin.size:
        lower, upper = margin.move(lower, upper)
        lower, upper = np.minimum(lower, median), np.maximum(upper, median)
        if (form := approach.number_format) is not None:
            own = getattr(approach, "answer_format", None)
            lower, upper = writable_ends(form, lower, upper) if own is None else own.outwards(lower, upper)
    return {"lower": lower, "upper": upper}


def load(run: str | Path, prompt: str | None = None, format: int | str | None = None) -> Predictor:
    """Load a trained model to predict with.

    Args:
        run: Folder of a run, or of one of its checkpoints. With `prompt`, any model that transformers loads:
            a folder, a .gguf file or a name on the hub.
        prompt: The question of a model that is not a run, with names of columns in braces.
        format: How all answers of a model that is not a run are written: the number of digits, or as in
            `+00.0`, a sign, two digits and a decimal. Default: numbers of any length.

    Returns:
        The model, on the GPU if there is one.

    Raises:
        UserError: There is no such run, or its model cannot be loaded.
    """
    path = Path(run).expanduser()
    folder = RunFolder(path.parent if path.name.startswith(CHECKPOINT) else path)
    if folder.holds_run() == (prompt is not None):
        is_run = "is a run, which has its own prompt" if prompt else "holds no run (no run.json)"
        inside = sorted(record.parent for record in (*path.glob("*/run.json"), *path.glob("*/*/run.json")))
        hint = f" It contains runs, such as {inside[0]}." if inside else ""
        raise UserError(
            f"{run} {is_run}; expected a folder that `ntl fit`, `ntl train` or `ntl compare` wrote, or any "
            f"other model together with a prompt.{hint} Correct the folder, or pass (or omit) "
            'prompt="... {column} ...".'
        )
    if prompt is not None and not prompt_columns(prompt):
        raise UserError(
            f"prompt={prompt!r} names no column, so all rows would be the same question; expected a name in "
            "braces, such as {text}. Add one."
        )
    form = None if format is None else read_format(str(format), is_run=prompt is None)
    if prompt is not None:
        model = ModelArgs(family="pretrained", tokenizer_type="auto", model_name_or_path=str(run))
        if form is not None:
            written = {"number_width": form.digits, "number_places": form.decimals}
            model = replace(model, number_format="padded", **written)
        loss, generation, table = LossSettings(), Evaluation(beams=1, max_new_tokens=16), None
        data = Tabular(dataset_name="", prompt=prompt, target=[], significant_digits=None)
    else:
        trained = read_trained(path)
        assert trained is not None
        model, loss = trained.config.model_args, trained.config.loss
        generation, data = trained.config.evaluation, trained.config.dataset_args
        table = trained.record.table
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    approach = build_approach(model, loss)
    if form is not None:
        approach.fit(["-1" if form.signed else "1"])
    approach.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    own = folder if prompt is None and folder.path == path else None
    return Predictor(str(run), approach, data, generation, model.writes_digits, own, table)


def read_format(given: str, is_run: bool) -> NumberFormat:
    """Read how answers are written: a number of digits, or a form such as `+00.0`.

    Example:
        >>> read_format("3", False) == read_format("000", False), read_format("+00.0", False).signed
        (True, True)
    """
    form = re.fullmatch(r"([+-]?)(0+)(?:\.(0+))?", given)
    form = None if given == "0" else form  # no digits
    digits = int(given) if form is None and re.fullmatch("[0-9]{1,2}", given) else 0
    whole = len(form[2]) if form else digits
    if is_run or not 1 <= whole <= 18:
        raise UserError(
            f"digits or format={given} cannot be used; expected a number of digits from 1 to 18, or a form "
            "such as +00.0, of a model that is not a run of the lab. Correct or omit it."
        )
    return NumberFormat(whole, len(form[3] or "") if form else 0, bool(form and form[1]))
