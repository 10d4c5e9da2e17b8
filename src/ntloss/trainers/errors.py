"""The errors of a model's answers, logged at each evaluation of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from ntloss.numbers import NumberFormat
from ntloss.reading.compare import compare_answers
from ntloss.reading.prompts import Question


class NumberErrors(TrainerCallback):
    """Logs the errors of a model's answers at each evaluation: `eval_mae_median` and others.

        trainer.add_callback(NumberErrors(trainer, questions, truths))

    - `eval_mae_greedy`: mean absolute error of greedy answers, NaN if none has a number,
    - `eval_mae_median`: mean absolute error of the median of the number that the model is about to write,
    - `eval_inside`: share of the true numbers inside of the 90 % interval,
    - `eval_invalid`: share of greedy answers without a number.

    They reach all that the trainer reports to, and each may be its `metric_for_best_model`, with
    `greater_is_better=False` but for `eval_inside`. The losses that a trainer logs do not tell whether
    answers get better: under `HLGauss` they fall as its width does.

    An evaluation takes one greedy generation of up to 16 tokens for each question, and the reading of a
    median by `read_number`: with a format, a batch of texts for each digit, without one, walks of sampled
    texts.

    Args:
        trainer: the trainer that the callback is added to, number-aware or not.
        questions: texts, or each a `ntloss.reading.Question`, that the model is not trained on, written as
            those of the training.
        truths: the true answers, as texts of one number or as numbers.
        format: the fixed width in which answers are written. Default: none, numbers of any length.
        most: number of questions that are asked, the first ones. Default: 64, with which a standard error is
            about an eighth of the errors' standard deviation.
        options: of `ntloss.reading.compare_answers`: `levels`, `max_new_tokens` and `limits`.

    Raises:
        ValueError: there are not as many truths as questions, or fewer than two; at the first evaluation, a
            truth that is not one number.
    """

    def __init__(
        self,
        trainer: Any,
        questions: Sequence[Any],
        truths: Sequence[Any],
        *,
        format: NumberFormat | None = None,
        most: int = 64,
        **options: Any,
    ) -> None:
        asked = [questions] if isinstance(questions, str | Question) else list(questions)
        if len(asked) != len(truths) or len(asked) < 2:
            raise ValueError(
                f"{len(asked)} questions and {len(truths)} truths: expected as many, two or more"
            )
        self.trainer, self.options = trainer, {**options, "format": format}
        self.questions, self.truths = asked[:most], list(truths)[:most]

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **given: Any
    ) -> None:
        """Ask the questions, and add the errors to the metrics of the evaluation and to the log."""
        model = self.trainer.model
        was_training = model.training
        model.eval()
        try:
            asked = {"model": model}, self.trainer.processing_class, self.questions, self.truths
            errors = compare_answers(*asked, **self.options).models["model"]
        finally:
            model.train(was_training)
        found = {
            "eval_mae_greedy": errors.greedy,
            "eval_mae_median": errors.median,
            "eval_inside": errors.coverage,
            "eval_invalid": 1 - errors.answered,
        }
        if metrics is not None:
            metrics.update(found)
        self.trainer.log(found)
