"""`NumberRegressor`: texts or rows of a table in, a number and its interval out, as in scikit-learn."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from tqdm.auto import tqdm

from ntloss.numbers import NumberFormat
from ntloss.reading.intervals import Calibration
from ntloss.regression.answers import AnswerFormat
from ntloss.regression.baselines import Baseline, fit_simple_models
from ntloss.regression.calibration import calibrate
from ntloss.regression.plots import plot_predictions
from ntloss.regression.printing import say
from ntloss.regression.questions import FEWEST, Numbers, Questions, as_answers, as_table, divide
from ntloss.regression.report import (
    SELF,
    describe_rows,
    describe_simple_models,
    describe_training,
    evaluate,
    show,
)
from ntloss.regression.training import BAR, RATES, as_json, best_epoch, train
from ntloss.writing import LONGEST, Writer, digest_of_weights

RECORD = "regressor.json"
CHECKPOINT, REFIT = "checkpoint.pt", "checkpoint_refit.pt"
_READ = 200  # held-out rows whose median is read for the report
_SILENT = 50  # rows up to which reading shows no bar


class NumberRegressor(RegressorMixin, BaseEstimator):
    """Predict a number from texts, or from rows of a table, with intervals, by training a language model.

    The model reads a row as a question and writes the number digit by digit, so it has a whole distribution:
    `predict` returns the median. A quarter of the rows (at least 50, at most 1,000) is held out. A third of
    them chooses the number of epochs, by the error of the medians; the others, which have chosen nothing,
    calibrate the intervals by split conformal prediction: of new rows from the same source, intervals of
    level 0.9 hold 90 % of the answers in the mean over fits. `report_` compares the model with simple ones on
    these rows.

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
        epochs: largest number of epochs; training ends after four without a smaller error. Default: 10.
        train: the weights that are trained: "upper_layers" (default), the last four layers and the norm after
            them; "lora", LoRA on all layers, which takes longer and needs peft; "all", which takes longer
            still.
        refit: at the end, train once more on all rows, those that were held out among them, for the chosen
            number of epochs. The intervals keep the calibration of the first training, which is then no
            longer exact: what it promises holds only as far as the two models are alike. `report_` and
            `history_` are of the first training, too, whose model stays if this one is interrupted. It takes
            about twice the time. Default: False.
        learning_rate: Default: 2e-3 for upper layers, 5e-4 for LoRA, 3e-4 for all.
        batch_size: rows of a training step. Default: 16.
        max_rows: rows that are used, 20 or more, a random choice of them. Default: 6,000.
        shuffle: hold out random rows (default). False holds out the last ones, for rows in order of time.
        compare: fit simple models, too (default), among them a support vector machine on the vectors of a
            sentence encoder in the format of sentence-transformers (which is not needed): that of a folder or
            name, by default one in the cache of the Hugging Face hub. False: fit none.
        checkpoint: a folder in which an interrupted `fit` leaves its state, and from which the next `fit`
            with the same rows, parameters and pretrained weights goes on. Default: none.
        verbose: print what is done, and show a bar. Default: True.
        random_state: seed of the split and the order of the rows; None or a generator of numpy draws one, so
            that an interrupted fit cannot go on. Default: 0.

    Attributes:
        report_: a DataFrame with a row for each model, from the smallest `mae`, its mean absolute error on
            held-out rows, with the mean `width` of its calibrated intervals and the `seconds` that it took.
            Where logarithms are written, `factor` stands for `mae`: ten to the mean absolute error of
            logarithms; and `width` is the factor between the ends.
        held_out_: a DataFrame with these rows: `answer`, `lower`, `prediction` and `upper`.
        summary_: what the report says, in a sentence.
        format_: how answers are written.
        history_: mean absolute error of the medians (or of their logarithms) of the rows that choose, after
            each epoch; of fewer than 15 such rows none choose, and the last epoch is kept.
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

    report_: pd.DataFrame
    summary_: str
    _parameter_constraints: ClassVar = {
        "interval": [Interval(Real, 0, 1, closed="neither")],
        "epochs": [Interval(Integral, 1, None, closed="left")],
        "train": [StrOptions({*RATES})],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_rows": [Interval(Integral, FEWEST, None, closed="left")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        model: str | Path = "HuggingFaceTB/SmolLM2-135M-Instruct",
        *,
        prompt: str | None = None,
        scale: str | None = None,
        loss: Any = "hl_gauss",
        interval: float = 0.9,
        epochs: int = 10,
        train: str = "upper_layers",
        refit: bool = False,
        learning_rate: float | None = None,
        batch_size: int = 16,
        max_rows: int = 6000,
        shuffle: bool = True,
        compare: bool | str | Path = True,
        checkpoint: str | Path | None = None,
        verbose: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.prompt = prompt
        self.scale = scale
        self.loss = loss
        self.interval = interval
        self.epochs = epochs
        self.train = train
        self.refit = refit
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_rows = max_rows
        self.shuffle = shuffle
        self.compare = compare
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NumberRegressor:  # noqa: N803
        """Train the model, choose its best epoch, and calibrate its intervals.

        Args:
            X: `[rows]` texts as a list, array or Series; or a DataFrame or list of dicts, whose columns the
                question is made from. Rows in which all of these are empty are left out.
            y: `[rows]`, finite numbers. The name of a Series ends the question.
            sample_weight: `[rows]`, how much each row counts in the loss and in the choice of the epoch, 0 or
                more. The simple models and the calibration count each row once. Default: 1.

        Returns:
            The estimator.
        """
        self._validate_params()
        if self.train == "lora" and find_spec("peft") is None:
            raise ImportError("train='lora' needs peft: pip install peft")
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        table, is_named = as_table(X)
        answers = as_answers(y)
        check_consistent_length(table, answers)
        weights = _check_sample_weight(sample_weight, answers[:, None], dtype=float, ensure_non_negative=True)
        # If training fails, what was fitted before would read numbers in another format.
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.n_features_in_ = len(table.columns)
        self.feature_names_in_ = np.array(table.columns, dtype=object)
        answer = None if hasattr(y, "columns") else getattr(y, "name", None)  # a column may be called name
        self.questions_ = Questions.choose(table, answers, answer, self.prompt, is_named)
        given = np.flatnonzero(~self.questions_.find_empty(table))
        if len(given) < FEWEST:
            raise ValueError(
                f"X has {len(given)} rows in which something is given: expected at least {FEWEST}"
            )
        chosen, (training, choosing, calibrating) = divide(len(given), self.max_rows, self.shuffle, seed)
        if self.verbose and len(chosen) < len(table):
            say(
                f"left out        {len(table) - len(given):,} rows in which nothing is given, and "
                f"{len(given) - len(chosen):,} beyond max_rows={self.max_rows:,}"
            )
        used = given[chosen]
        table, answers, weights = table.iloc[used].reset_index(drop=True), answers[used], weights[used]
        self.format_ = AnswerFormat.choose(answers, self.scale)
        scaled, texts = self.format_.scaled(answers), self.questions_.write(table)
        if np.ptp(scaled[training]) == 0:
            raise ValueError(
                f"y: all {len(answers[training])} training rows have the answer {answers[0]:g}; expected "
                "more rows with other answers"
            )
        asked = slice(calibrating.start, min(calibrating.start + _READ, len(texts)))
        models: dict[str, Baseline] = {}
        if self.compare:
            encoder = None if self.compare is True else str(self.compare)
            models, failed = fit_simple_models(
                self.questions_, table, answers, self.format_, training, asked, encoder, seed
            )
            if self.verbose:
                say(describe_simple_models(models, failed, answers[asked], self.format_))
        start = time.perf_counter()
        self.writer_ = writer = Writer.from_pretrained(self.model, self.format_.numbers)
        writer.adapt(self.train, seed)
        written = self.format_.write(answers)
        rows = writer.encode(writer.prompts(texts), written)
        if self.verbose:
            parts = (training, choosing, calibrating)
            say(describe_rows(table, answers, parts, self.questions_, self.format_))
            if cut := sum(len(row["input_ids"]) - len(row["labels"]) == LONGEST for row in rows):
                say(f"shortened       {cut:,} questions of {LONGEST} tokens or more, in their middle")
        if writer.upper is not None:
            bar = partial(tqdm, desc="frozen layers", unit=" batches", disable=not self.verbose, **BAR)
            writer.upper.keep_states(rows, writer.collate, bar)
        rate = RATES[self.train] if self.learning_rate is None else self.learning_rate
        options = {name: getattr(self, name) for name in ("loss", "epochs", "batch_size", "verbose")}
        options |= {"seed": seed, "learning_rate": rate}
        file, depends = None, list[Any]()
        if self.checkpoint is not None:
            file = Path(self.checkpoint).expanduser() / CHECKPOINT
            weights_of = digest_of_weights(self.model)
            depends = [str(self.model), weights_of, self.train, texts, written, weights.tolist()]
        error = partial(self._error, texts[choosing], answers[choosing], weights[choosing])
        validate = error if weights[choosing].any() else None
        learned = rows[training], scaled[training], weights[training]
        self.history_ = train(writer, *learned, validate, file, depends, **options)
        self.calibration_ = calibrate(writer, rows[calibrating])
        writer.finish()
        predicted = self._read_ends(texts[asked], self.interval)
        self.held_out_ = pd.DataFrame(predicted, columns=["lower", "prediction", "upper"])
        self.held_out_.insert(0, "answer", answers[asked])
        models[SELF] = Baseline(predicted[:, 1], time.perf_counter() - start)
        # With the report, the model is fitted.
        self.report_, self.summary_ = evaluate(models, self.held_out_, self.format_, self.interval)
        if self.verbose:
            say(describe_training(self.history_, self.calibration_, self.interval, self.refit))
            say(f"\n{show(self.report_, self.summary_)}")
        if self.refit:
            last = best_epoch(self.history_) or self.epochs
            if self.verbose:
                say(f"\nrefit           {len(rows):,} rows, {last} epochs")
            writer = Writer.from_pretrained(self.model, self.format_.numbers)
            writer.adapt(self.train, seed)
            file = file and file.with_name(REFIT)
            train(writer, rows, scaled, weights, None, file, depends, **options, last=last)
            writer.finish()
            self.writer_ = writer  # until here, an interruption leaves the first model
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
        return self._read(X, [(i + 0.5) / points for i in range(points)])

    def plot(self, X: Any, y: Any, level: float | None = None, axes: Any = None) -> Any:  # noqa: N803
        """Draw predictions with their intervals over true answers; this needs matplotlib.

        Args:
            X: as in `fit`.
            y: `[rows]`, the true answers.
            level: of the intervals. Default: `interval`.
            axes: axes of matplotlib. Default: those of a new figure, `plot(X, y).figure`.

        Returns:
            The axes.
        """
        check_is_fitted(self)
        answers, level = as_answers(y), self.interval if level is None else level
        check_level("level", level)
        texts = self._write(X)
        check_consistent_length(texts, answers)
        return plot_predictions(
            answers, self._read_ends(texts, level), self.format_.log, self.questions_.answer, axes
        )

    def save(self, folder: str | Path) -> None:
        """Save the fitted model in a folder, which is created, and from which `load` reads it.

        A function as `loss` is saved as `module:function`. One that cannot be imported, such as a lambda, is
        saved as its description: the loaded model predicts, and needs `set_params(loss=...)` before `fit`.

        Raises:
            ValueError: the folder holds the pretrained model, which would be replaced.
        """
        check_is_fitted(self)
        path, pretrained = Path(folder).expanduser(), Path(self.model)
        if pretrained.is_dir() and path.resolve() == pretrained.resolve():
            raise ValueError(
                f"{folder} holds the pretrained model, which would be replaced; save into another folder"
            )
        path.mkdir(parents=True, exist_ok=True)
        self.writer_.save_pretrained(path)
        record = {
            "parameters": {**self.get_params(), "model": str(self.model), "checkpoint": None},
            "questions": asdict(self.questions_),
            "format": asdict(self.format_),
            "calibration": [self.calibration_.below.tolist(), self.calibration_.upto.tolist()],
            "report": self.report_.to_dict("split"),
            "summary": self.summary_,
            "history": self.history_,
            "held_out": self.held_out_.to_dict("split"),
            "feature_names_in": self.feature_names_in_.tolist(),
        }
        (path / RECORD).write_text(json.dumps(record, indent=1, default=as_json) + "\n", "utf-8")

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
            self, form = cls(**record["parameters"]), record["format"]
            self.questions_ = Questions.from_dict(record["questions"])
            self.format_ = AnswerFormat(NumberFormat(**form["numbers"]), form["log"], form["whole"])
            self.calibration_ = Calibration(
                *(torch.tensor(each, dtype=torch.float64) for each in record["calibration"])
            )
            self.held_out_, self.report_ = (
                pd.DataFrame(record[each]["data"], record[each]["index"], record[each]["columns"])
                for each in ("held_out", "report")
            )
            self.summary_, self.history_ = record["summary"], record["history"]
            self.feature_names_in_ = np.array(record["feature_names_in"], dtype=object)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged, so the model has to be fitted again: {error!r}") from error
        self.n_features_in_ = len(self.feature_names_in_)
        self.writer_ = Writer.from_pretrained(file.parent, self.format_.numbers)
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

    def _error(self, texts: Sequence[str], answers: Numbers, weights: Numbers) -> float:
        """Return the mean error of the medians, weighted."""
        errors = self.format_.errors(self._read_texts(texts, [0.5])[:, 0], answers)
        return float(np.average(errors, weights=weights))

    def _read(self, X: Any, levels: Sequence[float]) -> Numbers:  # noqa: N803
        """Read quantiles of the model's own distribution, `[rows, levels]`."""
        check_is_fitted(self)
        texts = self._write(X)
        return self._read_texts(texts, levels, self.verbose)

    def _write(self, X: Any) -> list[str]:  # noqa: N803
        """Write rows as questions, and warn of cells that are not read as those that were fitted."""
        table = self.questions_.table(X)
        for note in self.questions_.notes(table):
            warnings.warn(note, stacklevel=4)
        return self.questions_.write(table)

    def _read_ends(self, texts: Sequence[str], level: float) -> Numbers:
        """Read lower ends, medians and upper ends, `[rows, 3]`; too few rows that calibrate make ends NaN."""
        quantiles = [(1 - level) / 2, 0.5, (1 + level) / 2]
        known = slice(None) if self.calibration_.covers(level) else slice(1, 2)
        read = np.full((len(texts), 3), np.nan)
        levels = [self.calibration_.level(each) for each in quantiles[known]]
        read[:, known] = np.sort(self._read_texts(texts, levels, self.verbose), 1)
        return read

    def _read_texts(self, texts: Sequence[str], levels: Sequence[float], verbose: bool = False) -> Numbers:
        prompts, asked = self.writer_.prompts(texts), sorted({*levels})
        read = np.zeros((len(texts), len(asked)))
        is_silent = not verbose or len(texts) <= _SILENT
        batches = self.writer_.batches(prompts, len(asked))
        for index in tqdm(batches, desc="reading", unit=" batches", disable=is_silent, **BAR):
            read[index] = self.writer_.quantiles([prompts[i] for i in index], asked)
        return self.format_.unscaled(read[:, [asked.index(level) for level in levels]])


def check_level(name: str, level: float) -> None:
    """Raise a ValueError that names the argument if a level is not between 0 and 1."""
    if not isinstance(level, Real) or not 0 < level < 1:
        raise ValueError(f"{name}={level!r}: expected a number above 0 and below 1")
