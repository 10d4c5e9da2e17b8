"""What a fit says: rows, example and time before it, errors and intervals after it, in words and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from ntloss.reading.intervals import Calibration
from ntloss.regression.baselines import Baseline
from ntloss.regression.columns import Numbers
from ntloss.regression.evaluation import in_words, short
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.printing import say
from ntloss.regression.suspects import find_errors
from ntloss.writing.writer import LONGEST, Row

FEW_ROWS = 50  # calibration rows below which intervals are a rough estimate
_SHOWN = 160  # characters of the example


class Report:
    """Prints what a fit does, or nothing.

    Args:
        verbose: whether something is printed, and bars are shown.
    """

    def __init__(self, verbose: bool) -> None:
        self.verbose = verbose

    def say(self, text: str) -> None:
        """Print a text, if anything is printed."""
        if self.verbose:
            say(text)

    def bar(self, items: Any = None, **options: Any) -> Any:
        """Return a bar of tqdm."""
        return tqdm(items, disable=not self.verbose, leave=False, mininterval=1, **options)

    def simple_models(
        self, found: dict[str, Baseline], failed: dict[str, str], truths: Numbers, form: AnswerFormat
    ) -> None:
        """Say which errors the simple models have, and which ones cannot be fitted."""
        errors = {name: form.errors(each.predicted, truths).mean() for name, each in found.items()}
        shown = " · ".join(f"{name} {short(in_words(form, error))}" for name, error in errors.items())
        what = "mean factor between prediction and answer" if form.log else "mean absolute error"
        self.say(f"simple models   {what} on {len(truths)} held-out rows: {shown}")
        for name, why in failed.items():
            self.say(f"left out        {name}: {why}")

    def plan(
        self,
        texts: Sequence[str],
        parts: Sequence[slice],
        rows: Sequence[Row],
        answers: Numbers,
        form: AnswerFormat,
        left_out: Mapping[str, str],
        leaks: Sequence[str],
    ) -> None:
        """Say what rows are used for, what is left out or looks wrong, and how answers are written."""
        training, choosing, calibrating = (texts[part] for part in parts)
        both = f"{len(calibrating):,} that calibrate the intervals"
        if len(choosing):
            both = f"{len(choosing):,} that choose the epoch, {both}"
        self.say(f"rows            {len(training):,} for training, {both}")
        known = {*training}
        if repeated := sum(text in known for text in (*choosing, *calibrating)):
            self.say(f"repeated        {repeated:,} held-out rows ask what a training row asks, too")
        shortened = sum(len(row["input_ids"]) - len(row["labels"]) == LONGEST for row in rows)
        if shortened:
            self.say(f"shortened       {shortened:,} questions of {LONGEST} tokens or more, in their middle")
        for name, why in left_out.items():
            self.say(f"left out        the column {name!r}: {why}")
        for each in leaks:
            self.say(f"leak?           {each}")
        question = texts[0]
        if len(question) > _SHOWN:
            question = f"{question[: _SHOWN // 2]} ... {question[-_SHOWN // 2 :]}"
        self.say(f"example         {question!r} -> {form.write(answers[:1])[0]!r}")
        self.say(f"answers         {form.describe()}")
        if (is_far := find_errors(answers)).any():
            others, far = answers[~is_far], answers[is_far]
            shown = ", ".join(f"{number:.15g}" for number in dict.fromkeys(far[:3]))
            self.say(
                f"far out         {len(far):,} answer{'s' * (len(far) > 1)}, such as {shown}, where others "
                f"are {others.min():g} to {others.max():g}: errors, or marks of gaps? Then pass "
                f"--missing={far[0]:.15g}, in Python leave these rows out"
            )

    def weights(self, name: Any, model: Any) -> None:
        """Say how many weights of a model are trained."""
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
        total = sum(p.numel() for p in model.parameters()) / 1e6
        self.say(f"model           {name}, of which {trained:.3g} of {total:.3g} million weights are trained")

    def epochs(self, history: Sequence[float]) -> None:
        """Say which epoch was best."""
        if history:
            best = best_epoch(history)
            self.say(f"epochs          {len(history)}, of which number {best} was best on held-out rows")

    def intervals(self, calibration: Calibration, level: float, refit: bool) -> None:
        """Say how many new answers intervals of a level hold, before a refit if there is one."""
        rows = len(calibration)
        if not calibration.covers(level):
            self.say(f"intervals       none of {level:.0%}: {rows} rows cannot calibrate them")
            return
        low, high = calibration.expected_coverage(level)
        few = f", because only {rows} rows calibrate them" if rows < FEW_ROWS else ""
        first = "; this is of the model before it is trained again on all rows" if refit else ""
        self.say(
            f"intervals       of {level:.0%} hold {low:.0%} to {high:.0%} of new answers from the same "
            f"source in 19 of 20 fits{few}{first}"
        )


def best_epoch(history: Sequence[float]) -> int:
    """Return the number of the epoch with the smallest error, from 1; 0 before the first."""
    return 1 + history.index(min(history)) if history else 0
