"""`NumberRegressor`: texts or rows of a table in, a number and its interval out, as in scikit-learn."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.regression.answers import AnswerFormat, far_out
from ntloss.regression.baselines import Baseline, compare
from ntloss.regression.intervals import Calibration
from ntloss.regression.questions import Questions, as_floats, as_table
from ntloss.regression.training import RATES, load_checkpoint, train
from ntloss.regression.writer import LONGEST, Rows, Writer

Numbers = NDArray[np.float64]
SELF = "NumberRegressor"
RECORD = "regressor.json"
FEW_ROWS = 50  # held-out rows below which intervals are a rough estimate
APART = 200  # held-out rows from which those that choose the step do not calibrate
_HELD_OUT = 0.25  # share of the rows
_MOST_HELD_OUT = 1000
_FEWEST = 20  # rows
_READ = 200  # held-out rows whose median is read for the report
CHECKPOINT = "checkpoint.pt"
_SILENT = 50  # rows up to which reading shows no bar
_SHOWN = 160  # characters of the example
# Parameters that a checkpoint does not depend on.
_NOT_IN_KEY = ("interval", "compare", "checkpoint", "verbose")


class NumberRegressor(RegressorMixin, BaseEstimator):
    """Predict a number from texts, or from rows of a table, with intervals, by training a language model.

    The model reads a row as a question and writes the number digit by digit, so it has a whole distribution:
    `predict` returns the median. A quarter of the rows (at least 50, at most 1,000) is held out. They choose
    the number of epochs, by the continuous ranked probability score, and calibrate the intervals by split
    conformal prediction: of new rows from the same source, intervals of level 0.9 hold 90 % of the answers.
    `report_` compares the model with simple ones on the held-out rows.

    Args:
        model: folder or name on the Hugging Face hub of a causal language model that has a token for each
            digit. Default: SmolLM2-135M-Instruct (Apache 2.0).
        prompt: the question, with names of columns in braces, such as `"{text}\\nStars: "`; `{text}` stands
            for plain texts. Default: a text and the name of y, or all columns with their names.
        scale: "plain", or "log" to write logarithms. Default: "log" for answers above 0 that have a long tail
            and spread over two orders of magnitude or more.
        loss: the criterion at the digits: "hl_gauss" (default), whose sigma falls from 0.55 of the answers'
            standard deviation to an eighth of that; or any other criterion of `NTLCrossEntropyLoss`.
        interval: level of the intervals in `report_`, and default of `predict_interval`. Default: 0.9.
        epochs: largest number of epochs. Default: 10.
        adapt: the weights that are trained: "upper_layers" (default), the last four layers; "lora", LoRA on
            all layers, which takes longer and needs peft; "all".
        learning_rate: Default: 2e-3 for upper layers, 5e-4 for LoRA, 5e-5 for all.
        batch_size: rows of a training step. Default: 16.
        max_rows: rows that are used, 20 or more, a random choice of them. Default: 6,000.
        shuffle: hold out random rows (default). False holds out the last ones, for rows in order of time.
        compare: fit simple models, too (default). A folder or name of a sentence encoder, in the format of
            sentence-transformers (which is not needed), adds it with a support vector machine.
        checkpoint: a folder in which an interrupted `fit` leaves its state, and from which the next `fit`
            with the same rows and parameters goes on. Default: none.
        verbose: print what is done, and show a bar. Default: True.
        random_state: seed of the split and the order of the rows. Default: 0.

    Attributes:
        report_: a DataFrame with a row for each model, from the smallest `mae`, its mean absolute error on
            held-out rows, with the mean `width` of its calibrated intervals and the `seconds` that it took.
        summary_: what the report says, in a sentence.
        format_: how answers are written.
        history_: validation CRPS after each epoch.
        n_features_in_, feature_names_in_: the columns of X, as in scikit-learn.

    Raises:
        ValueError: a parameter, X or y cannot be used.

    Source: HL-Gauss targets, Imani and White, ICML 2018; intervals from calibrated levels, "Distributional
    conformal prediction", Chernozhukov, Wüthrich and Zhu, PNAS 2021.

    Example:
        >>> from ntloss.regression import NumberRegressor
        >>> model = NumberRegressor(prompt="{text}\\nStars: ", epochs=3)
        >>> model.fit(texts, stars).predict_interval(new_texts)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | Path = "HuggingFaceTB/SmolLM2-135M-Instruct",
        *,
        prompt: str | None = None,
        scale: str | None = None,
        loss: Any = "hl_gauss",
        interval: float = 0.9,
        epochs: int = 10,
        adapt: str = "upper_layers",
        learning_rate: float | None = None,
        batch_size: int = 16,
        max_rows: int = 6000,
        shuffle: bool = True,
        compare: bool | str | Path = True,
        checkpoint: str | Path | None = None,
        verbose: bool = True,
        random_state: int = 0,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.scale = scale
        self.loss = loss
        self.interval = interval
        self.epochs = epochs
        self.adapt = adapt
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_rows = max_rows
        self.shuffle = shuffle
        self.compare = compare
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> NumberRegressor:  # noqa: N803
        """Train the model, choose its best epoch, and calibrate its intervals.

        Args:
            X: `[rows]` texts as a list, array or Series; or a DataFrame or list of dicts, whose columns the
                question is made from.
            y: `[rows]`, finite numbers. The name of a Series ends the question.

        Returns:
            The estimator.
        """
        self._check_parameters()
        table, plain = as_table(X)
        answers = _as_numbers(column_or_1d(y, warn=True))
        self._check_rows(table, answers)
        # If training fails, what was fitted before would read numbers in another format.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.n_features_in_ = len(table.columns)
        self.feature_names_in_ = np.array(table.columns, dtype=object)
        self.questions_ = Questions.choose(
            table["text"].tolist() if plain else table, y, answers, self.prompt
        )
        given = np.flatnonzero(~self.questions_.find_empty(table))
        if len(given) < len(table):
            self._print(f"left out        {len(table) - len(given):,} rows in which nothing is given")
            self._check_rows(table.iloc[given], answers[given])
        chosen = given[self._choose_rows(len(given))]
        answers = answers[chosen]
        kept = table.iloc[chosen].reset_index(drop=True)
        self.format_ = AnswerFormat.choose(answers, self.scale)
        texts = self.questions_.write(kept)
        training, validation, calibration = self._split(len(texts))
        found = self._compare(kept, answers, training, calibration)
        start = time.perf_counter()
        self._load(self.model)
        writer = self._writer()
        rows = writer.encode(texts, self.format_.write(answers))
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            writer.adapt(self.adapt)
        self._describe(writer, rows, texts, answers, (training, validation, calibration), len(given))
        rows = writer.with_states(rows, partial(self._bar, desc="frozen layers", unit=" batches"))
        self._train(writer, rows, texts, answers, (training, validation))
        believed = writer.beliefs(rows.take(calibration))
        self.model_ = writer.finish()
        self.calibration_ = Calibration.of(believed.below.numpy(), believed.upto.numpy())
        self._report(found, texts, answers, calibration, start)
        return self

    def predict(self, X: Any) -> Numbers:  # noqa: N803
        """Return the median for each row, `[rows]`."""
        return self.predict_quantiles(X, [0.5])[:, 0]

    def predict_interval(self, X: Any, level: float | None = None) -> Numbers:  # noqa: N803
        """Return the ends of intervals that hold a share of the answers, `[rows, 2]`.

        Args:
            X: as in `fit`.
            level: the share, above 0 and below 1. Default: `interval`.

        Raises:
            ValueError: the level is out of range, or there were too few held-out rows to calibrate it.
        """
        level = self.interval if level is None else level
        check_level("level", level)
        return self.predict_quantiles(X, [(1 - level) / 2, (1 + level) / 2])

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Numbers:  # noqa: N803
        """Return calibrated quantiles, `[rows, quantiles]`.

        Of new rows from the same source, at least a share q of the answers is at most the quantile of level
        q, for q above 0.5; and at most a share q is below it, for q below 0.5.

        Args:
            X: as in `fit`.
            quantiles: levels above 0 and below 1.

        Raises:
            ValueError: a level is out of range, or there were too few held-out rows to calibrate it.
        """
        check_is_fitted(self)
        if not len(quantiles):
            raise ValueError("quantiles: expected one or more numbers above 0 and below 1")
        for each in quantiles:
            check_level("quantiles", each)
        order = np.argsort(quantiles)
        read = self._read(X, [self.calibration_.level(quantiles[i]) for i in order])
        found = np.empty_like(read)
        found[:, order] = np.sort(read, axis=1)
        return found

    def predict_distribution(self, X: Any, points: int = 99) -> Numbers:  # noqa: N803
        """Return equally likely values of the model's own distribution, `[rows, points]`, in ascending order.

        Args:
            X: as in `fit`.
            points: number of values, at the levels (i + 0.5) / points. Default: 99.
        """
        if points < 1:
            raise ValueError(f"points={points}: expected 1 or more")
        return self._read(X, [(i + 0.5) / points for i in range(points)])

    def save(self, folder: str | Path) -> None:
        """Save the fitted model in a folder, which is created, and from which `load` reads it.

        A function as `loss` is saved as `module:function`. One that cannot be imported, such as a lambda, is
        saved as its description: the loaded model predicts, and needs `set_params(loss=...)` before `fit`.
        """
        check_is_fitted(self)
        path = Path(folder).expanduser()
        path.mkdir(parents=True, exist_ok=True)
        with _quiet():
            self.model_.save_pretrained(path)
            self.tokenizer_.save_pretrained(path)
        record = {
            "parameters": {**self.get_params(), "model": str(self.model), "checkpoint": None},
            "questions": asdict(self.questions_),
            "format": asdict(self.format_),
            "calibration": self.calibration_.to_lists(),
            "report": self.report_.to_dict("split"),
            "summary": self.summary_,
            "history": self.history_,
            "feature_names_in": self.feature_names_in_.tolist(),
        }
        (path / RECORD).write_text(json.dumps(record, indent=1, default=_as_json) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> NumberRegressor:
        """Load a fitted model from the folder that `save` wrote.

        Raises:
            FileNotFoundError: the folder holds no such model.
            ValueError: its record is damaged.
        """
        file = Path(folder).expanduser() / RECORD
        if not file.is_file():
            raise FileNotFoundError(
                f"{file.parent} holds no {RECORD}: expected the folder that ntloss fit or "
                "NumberRegressor.save wrote"
            )
        try:
            record = json.loads(file.read_text("utf-8"))
            self = cls(**record["parameters"])
            self.questions_ = Questions.from_dict(record["questions"])
            self.format_ = AnswerFormat(**record["format"])
            self.calibration_ = Calibration.from_lists(record["calibration"])
            self.report_ = pd.DataFrame(**{k: record["report"][k] for k in ("index", "columns", "data")})
            self.summary_, self.history_ = record["summary"], record["history"]
            self.feature_names_in_ = np.array(record["feature_names_in"], dtype=object)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged, so the model has to be fitted again: {error!r}") from error
        self.n_features_in_ = len(self.feature_names_in_)
        self._load(file.parent)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Tell scikit-learn whether `fit` has ended."""
        return hasattr(self, "report_")

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that X may hold texts, and gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.no_validation = True
        tags.regressor_tags.poor_score = True  # on the few rows of scikit-learn's checks
        return tags

    def _check_parameters(self) -> None:
        if self.adapt not in RATES:
            raise ValueError(f"adapt={self.adapt!r}: expected one of {', '.join(RATES)}")
        if self.adapt == "lora" and find_spec("peft") is None:
            raise ImportError("adapt='lora' needs peft: pip install peft")
        check_level("interval", self.interval)
        if not isinstance(self.random_state, int | np.integer):
            raise ValueError(f"random_state={self.random_state!r}: expected a whole number")
        for name, least in (("epochs", 1), ("batch_size", 1), ("max_rows", _FEWEST)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name}={value!r}: expected a whole number, {least} or more")

    def _check_rows(self, table: pd.DataFrame, answers: Numbers) -> None:
        if len(table) != len(answers):
            raise ValueError(f"X has {len(table)} rows, y {len(answers)}: expected as many")
        if table.columns.has_duplicates:
            twice = table.columns[table.columns.duplicated()][0]
            raise ValueError(f"X: several columns are called {twice!r}; rename all but one")
        if not len(table.columns):
            raise ValueError("X has no columns: expected texts, or a DataFrame with at least one column")
        if len(answers) < _FEWEST:
            raise ValueError(f"X has {len(answers)} rows: expected at least {_FEWEST}")

    def _choose_rows(self, count: int) -> NDArray[np.int64]:
        """Return the rows that are used, in the order from whose end rows are held out."""
        if not self.shuffle:
            return np.arange(max(0, count - self.max_rows), count)
        return np.random.default_rng(self.random_state).permutation(count)[: self.max_rows]

    def _split(self, count: int) -> tuple[list[int], list[int], list[int]]:
        """Divide rows into those for training, for choosing the epoch, and for calibration."""
        size = min(_MOST_HELD_OUT, max(round(_HELD_OUT * count), min(FEW_ROWS, count // 3)))
        held_out = [*range(count - size, count)]
        apart = size >= APART
        validation = held_out[: size // 2] if apart else held_out
        calibration = held_out[size // 2 :] if apart else held_out
        return [*range(count - size)], validation, calibration

    def _compare(
        self, table: pd.DataFrame, answers: Numbers, training: list[int], calibration: list[int]
    ) -> dict[str, Baseline]:
        if not self.compare:
            return {}
        encoder = None if self.compare is True else str(self.compare)
        asked = calibration[:_READ]  # as in the report
        found, failed = compare(self.questions_, table, answers, training, asked, encoder, self.random_state)
        errors = {name: _mae(each.predicted, answers[asked]) for name, each in found.items()}
        shown = " · ".join(f"{name} {_short(error)}" for name, error in errors.items())
        self._print(f"simple models   mean absolute error on {len(asked)} held-out rows: {shown}")
        for name, why in failed.items():
            self._print(f"left out        {name}: {why}")
        return found

    def _load(self, folder: str | Path) -> None:
        with _quiet():
            try:
                self.tokenizer_ = AutoTokenizer.from_pretrained(folder)
                self.model_ = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            except OSError as error:
                raise OSError(f"the model {folder} cannot be loaded: {error}") from None
        self.model_.to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def _writer(self) -> Writer:
        return Writer(self.model_, self.tokenizer_, self.format_)

    def _train(
        self,
        writer: Writer,
        rows: Rows,
        texts: Sequence[str],
        answers: Numbers,
        parts: tuple[list[int], list[int]],
    ) -> None:
        training, validation = parts
        rate = RATES[self.adapt] if self.learning_rate is None else self.learning_rate
        steps = -(-len(training) // self.batch_size) * self.epochs
        file, key = None, ""
        if self.checkpoint is not None:
            file = Path(self.checkpoint).expanduser() / CHECKPOINT
            file.parent.mkdir(parents=True, exist_ok=True)
            used = {**self.get_params(), **dict.fromkeys(_NOT_IN_KEY)}
            key = hashlib.sha256(repr((used, [*texts], answers.tolist())).encode()).hexdigest()
        held = load_checkpoint(file, key)
        if held is not None:
            self._print(f"continued       at step {held['step']} of {steps}, from {file}")
        elif file is not None and file.exists():
            self._print(f"started anew    {file} was left by other rows or parameters")
        with self._bar(
            desc="training", total=steps, unit=" steps", initial=held["step"] if held else 0
        ) as bar:

            def report(step: int, loss: float) -> None:
                bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                bar.update()

            self.history_ = train(
                writer,
                self._loss(writer, answers[training]),
                rows.take(training),
                rows.take(validation),
                epochs=self.epochs,
                batch_size=self.batch_size,
                learning_rate=rate,
                seed=self.random_state,
                checkpoint=file,
                key=key,
                held=held,
                report=report,
            )
        best = 1 + self.history_.index(min(self.history_))
        self._print(f"epochs          {len(self.history_)}, of which number {best} was best on held-out rows")

    def _loss(self, writer: Writer, answers: Numbers) -> NTLCrossEntropyLoss:
        if self.loss == "hl_gauss":
            criterion = HLGauss.for_answers(self.format_.scaled(answers).tolist(), leading_zeros=True)
            return NTLCrossEntropyLoss(writer.vocabulary, criterion)
        return NTLCrossEntropyLoss(writer.vocabulary, self.loss)

    def _read(self, X: Any, levels: Sequence[float]) -> Numbers:  # noqa: N803
        """Read quantiles of the model's own distribution, `[rows, levels]`."""
        check_is_fitted(self)
        texts = self.questions_.write(X)
        bar = partial(self._bar, desc="reading", unit=" batches") if len(texts) > _SILENT else iter
        return self._read_texts(texts, levels, bar)

    def _read_texts(self, texts: Sequence[str], levels: Sequence[float], progress: Any = iter) -> Numbers:
        writer = self._writer()
        prompts, asked = writer.prompts(texts), sorted({*levels})
        read = np.zeros((len(texts), len(asked)))
        for index in progress(writer.batches(prompts, len(asked))):
            read[index] = writer.quantiles([prompts[i] for i in index], asked)
        return self.format_.unscaled(read[:, [asked.index(level) for level in levels]])

    def _describe(
        self,
        writer: Writer,
        rows: Rows,
        texts: Sequence[str],
        answers: Numbers,
        parts: tuple[list[int], list[int], list[int]],
        given: int,
    ) -> None:
        if not self.verbose:
            return
        training, validation, calibration = parts
        both = f"{len(validation):,} held out, which choose the epoch and calibrate the intervals"
        if validation is not calibration:
            both = (
                f"{len(validation):,} that choose the epoch, "
                f"{len(calibration):,} that calibrate the intervals"
            )
        lines = [f"rows            {len(training):,} for training, {both}"]
        known = {texts[i] for i in training}
        if repeated := sum(texts[i] in known for i in range(len(training), len(texts))):
            lines.append(f"repeated        {repeated:,} held-out rows ask what a training row asks, too")
        if long := sum(len(question) == LONGEST for question in rows.questions):
            lines.append(f"shortened       {long:,} questions of {LONGEST} tokens or more, in their middle")
        if given > len(texts):
            lines.append(f"left out        {given - len(texts):,} rows beyond max_rows={self.max_rows:,}")
        lines += [
            f"left out        the column {name!r}: {why}" for name, why in self.questions_.left_out.items()
        ]
        question = texts[training[0]]
        if len(question) > _SHOWN:
            question = f"{question[: _SHOWN // 2]} ... {question[-_SHOWN // 2 :]}"
        lines.append(f"example         {question!r} -> {self.format_.write(answers[training[:1]])[0]!r}")
        lines.append(f"answers         {self.format_}")
        if (is_far := far_out(answers)).any():
            others = answers[~is_far]
            shown = ", ".join(f"{number:.15g}" for number in dict.fromkeys(answers[is_far][:3]))
            lines.append(
                f"far out         {is_far.sum():,} answers, such as {shown}, where others are "
                f"{others.min():g} to {others.max():g}: errors, or marks of gaps?"
            )
        trained = sum(p.numel() for p in self.model_.parameters() if p.requires_grad) / 1e6
        total = sum(p.numel() for p in self.model_.parameters()) / 1e6
        lines.append(
            f"model           {self.model}, of which {trained:.3g} of {total:.3g} million weights are trained"
        )
        seconds = writer.estimate(texts, self.format_.write(answers), len(training) * self.epochs)
        lines.append(f"time            at most {_duration(seconds)}, in up to {self.epochs} epochs")
        for line in lines:
            self._print(line)

    def _report(
        self,
        found: dict[str, Baseline],
        texts: Sequence[str],
        answers: Numbers,
        calibration: list[int],
        start: float,
    ) -> None:
        """Compare the model with simple ones on held-out rows."""
        asked = calibration[:_READ]
        truths = answers[asked]
        ends = [(1 - self.interval) / 2, (1 + self.interval) / 2]
        calibrated = self.calibration_.covers(self.interval)
        levels = [self.calibration_.level(each) for each in ([0.5, *ends] if calibrated else [0.5])]
        read = self._read_texts([texts[i] for i in asked], levels)
        seconds = time.perf_counter() - start
        own = Baseline(read[:, 0], seconds)
        width = float((read[:, 2] - read[:, 1]).mean()) if calibrated else math.nan
        models = {**found, SELF: own}
        errors = {name: abs(each.predicted - truths) for name, each in models.items()}
        rows = {}
        for name, each in models.items():
            margin = width / 2 if name == SELF else _margin(errors[name], self.interval)
            rows[name] = {"mae": errors[name].mean(), "width": 2 * margin, "seconds": round(each.seconds, 1)}
        self.report_ = pd.DataFrame.from_dict(rows, orient="index").sort_values("mae")
        self.summary_ = _summarize(errors)
        if calibrated:
            low, high = self.calibration_.expected_coverage(self.interval)
            few = f", because only {len(calibration)} rows calibrate them" * (len(calibration) < FEW_ROWS)
            self._print(
                f"intervals       of {self.interval:.0%} will hold {low:.0%} to {high:.0%} of new answers "
                f"from the same source{few}"
            )
        else:
            self._print(
                f"intervals       none of {self.interval:.0%}: {len(calibration)} rows cannot calibrate them"
            )
        self._print(f"\n{self.report_.to_string(float_format=_short)}\n\n{self.summary_}")

    def _bar(self, items: Any = None, **options: Any) -> Any:
        return tqdm(items, disable=not self.verbose, leave=False, mininterval=1, **options)

    def _print(self, line: str) -> None:
        if self.verbose:
            say(line)


def _as_numbers(answers: NDArray[Any]) -> Numbers:
    """Return answers as numbers; a ValueError that shows the rows without a finite one."""
    numbers = as_floats(pd.Series(answers))
    if len(rows := np.flatnonzero(~np.isfinite(numbers))):
        shown = ", ".join(f"{answers[row]!s:.20} in row {row}" for row in rows[:3])
        raise ValueError(
            f"y holds no finite number in {len(rows):,} of {len(answers):,} rows: {shown}. Leave such rows "
            "out of X and y."
        )
    return numbers


def _as_json(value: Any) -> Any:
    """Return what is saved for a parameter that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    is_importable = getattr(sys.modules.get(module), name, None) is value
    return f"{module}:{name}" if is_importable else str(value)


def check_level(name: str, level: float) -> None:
    """Raise a ValueError that names the argument if a level is not between 0 and 1."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"{name}={level!r}: expected a number above 0 and below 1")


def say(text: str, end: str = "\n") -> None:
    """Print a text; if nobody reads standard output any more, as after `| head`, what follows is dropped."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _mae(predicted: Numbers, truths: Numbers) -> float:
    return float(abs(predicted - truths).mean())


def _margin(errors: Numbers, level: float) -> float:
    """Return half the width of a simple model's interval, by split conformal prediction."""
    rank = math.ceil(round((len(errors) + 1) * level, 9))
    return float(np.sort(errors)[rank - 1]) if rank <= len(errors) else math.nan


def _summarize(errors: dict[str, Numbers]) -> str:
    """Say which model has the smallest error, and whether the difference is more than chance.

    Example:
        >>> print(_summarize({"boosted trees": np.ones(100), SELF: np.linspace(2, 3, 100)}))
        ... # doctest: +NORMALIZE_WHITESPACE
        Mean absolute error on 100 held-out rows: NumberRegressor 2.5, boosted trees 1:
        60 % lower (95 % interval: 59 to 61 %). Use boosted trees.
    """
    own = errors[SELF]
    others = {name: each for name, each in errors.items() if name != SELF}
    if not others:
        return f"Mean absolute error on {len(own)} held-out rows: {SELF} {_short(own.mean())}."
    name = min(others, key=lambda name: others[name].mean())
    other = others[name]
    pair = sorted([(other.mean(), name), (own.mean(), SELF)], reverse=True)
    errors_of = ", ".join(f"{name} {_short(error)}" for error, name in pair)
    text = f"Mean absolute error on {len(own)} held-out rows: {errors_of}"
    worse, better = (own, other) if own.mean() > other.mean() else (other, own)
    low, high = _bootstrapped_gain(better, worse)
    if not low > 0:
        return f"{text}: no significant difference."
    percents = [f"{100 * share:.0f}" for share in (1 - better.mean() / worse.mean(), low, high)]
    text += ": {} % lower (95 % interval: {} to {} %).".format(*percents)
    return f"{text} Use {name}." if worse is own else text


def _bootstrapped_gain(better: Numbers, worse: Numbers) -> tuple[float, float]:
    """Return the 95 % interval of the share by which a mean error is lower, by bootstrap of the rows."""
    chosen = np.random.default_rng(0).integers(0, len(better), (2000, len(better)))
    sums = worse[chosen].sum(1)
    gains = 1 - np.divide(better[chosen].sum(1), sums, out=np.ones_like(sums), where=sums > 0)
    low, high = np.quantile(gains, [0.025, 0.975])
    return float(low), float(high)


def _short(number: float) -> str:
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def _duration(seconds: float) -> str:
    """Write a duration in its largest unit.

    Example:
        >>> _duration(20), _duration(200), _duration(7000)
        ('20 seconds', '3 minutes', '1.9 hours')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{round(seconds / 60)} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


@contextmanager
def _quiet() -> Iterator[None]:
    """Load and save models without transformers' bars and advice."""
    level, shown = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if shown:
            transformers.logging.enable_progress_bar()
