"""Did training help? Answers of two or more models to the same prompts, with the true numbers beside them.

The loss of an evaluation cannot tell: under `HLGauss` it falls because the width of the targets falls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import NumberReader
from ntloss.numbers.parsing import as_float, parse_number
from ntloss.reading.intervals import interval_coverage
from ntloss.reading.prompts import (
    NO_LIMITS,
    Limits,
    Prompt,
    Question,
    encode_after,
    number_forms,
    read_each,
    tokenizer_of,
    write_questions,
)
from ntloss.reading.read import read_number
from ntloss.reading.torch_model import Prompts, TorchModel
from ntloss.results import Result, axes

_RESAMPLES = 10_000


class Change(NamedTuple):
    """By how much an error differs from that of the first model, as a share of the latter; -0.1 is 10 % less.

    The interval is a 95 % interval for new prompts of the same kind, by the bootstrap over prompts. It says
    nothing of another run of the training, whose seed changes a model, too.

    Args:
        share: the difference of the mean errors, divided by the first model's.
        low: the interval's lower end.
        high: the interval's upper end.
    """

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:+.0%} ({self.low:+.0%} to {self.high:+.0%})"


@dataclass(frozen=True)
class AnswerErrors:
    """The errors of one model's answers, means over the prompts.

    Args:
        greedy: mean absolute error of the number that greedy decoding writes, over the prompts where it
            writes one; NaN if it writes none. A model's own settings of `generate`, such as a penalty for
            repetitions, have no effect.
        answered: share of the prompts to which greedy decoding writes a number.
        median: mean absolute error of the median.
        mean: mean absolute error of the mean; NaN for a fixed width, whose mean is not read.
        coverage: share of the true numbers inside of the interval between the outermost levels.
        cross_entropy: mean negative log-likelihood of the true answers, in nats for each answer. It does not
            depend on the loss that the model was trained with.
        median_errors: `[prompts]`, absolute errors of the medians, float64.
    """

    greedy: float
    answered: float
    median: float
    mean: float
    coverage: float
    cross_entropy: float
    median_errors: Tensor = field(repr=False)


@dataclass(frozen=True, repr=False)
class AnswerComparison(Result):
    """The errors of several models on the same prompts; printed as a table.

    Args:
        models: the errors of each model, by its name.
        changes: for each model but the first, by how much the error of its median differs from that of the
            first model's median.
    """

    models: dict[str, AnswerErrors]
    changes: dict[str, Change]

    def __str__(self) -> str:
        head = ["", "greedy", "median", "mean", "inside", "cross-entropy", "median's error, 95 % interval"]
        rows = [
            [
                name,
                _short(errors.greedy)
                + ("" if errors.answered == 1 else f" ({errors.answered:.0%} answered)"),
                _short(errors.median),
                _short(errors.mean),
                f"{errors.coverage:.0%}",
                f"{errors.cross_entropy:.2f}",
                str(self.changes.get(name, "")),
            ]
            for name, errors in self.models.items()
        ]
        lines = [head, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    def _rows(self) -> dict[str, dict[str, Any]]:
        rows = {}
        for name, errors in self.models.items():
            measured = {key: value for key, value in vars(errors).items() if key != "median_errors"}
            change = self.changes[name]._asdict() if name in self.changes else {}
            rows[name] = measured | {f"change_{key}": value for key, value in change.items()}
        return rows

    def plot(self, ax: Any = None) -> Any:
        """Draw the mean absolute errors, on axes of matplotlib or new ones; return them."""
        errors = self.to_frame()[["greedy", "median", "mean"]].dropna(axis="columns", how="all")
        return errors.plot.bar(ax=axes(ax), rot=0, ylabel="mean absolute error")


def compare_answers(
    models: Mapping[str, Any],
    tokenizer: Any,
    questions: Sequence[Any],
    truths: Sequence[Any],
    *,
    format: NumberFormat | None = None,
    levels: tuple[float, float] = (0.05, 0.95),
    max_new_tokens: int = 16,
    limits: Limits = NO_LIMITS,
) -> AnswerComparison:
    """Compare what two or more models answer to the same questions with the true numbers.

    Each model is asked for its greedy answer, for the median and an interval of the number that it is about
    to write (`read_number`), and for the probability of the true answer. Use questions that no model was
    trained on, a hundred or more.

    Args:
        models: models of transformers in evaluation mode, or folders of saved ones, by name, such as
            `{"cross-entropy": "outputs/ce", "HL-Gauss": model}`. The first is what the others are compared
            with. Folders are loaded one after another, so that one of them is in memory at a time.
        tokenizer: the models' tokenizer.
        questions: texts, or each a `Question`.
        truths: the true answer to each question, as a text such as `"$1,234.50"` or as a number. A text is
            the answer whose cross-entropy is measured; a number is written with the format, or as Python
            does.
        format: the fixed width in which numbers are written. Default: none, numbers of any length.
        levels: levels of the interval's ends. Default: a 90 % interval.
        max_new_tokens: most tokens of a greedy answer, whose first number counts; with a format, the first
            characters of its width. Default: 16.
        limits: see `read_number`.

    Returns:
        The errors of each model and their differences from those of the first, for `print`.

    Raises:
        TypeError: a server or questions with images, whose greedy answers and likelihoods are not read here,
            or no mapping of models.
        ValueError: as many truths as questions are expected, at least two, each one number.

    Example:
        >>> from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM
        >>> tokenizer = ByT5Tokenizer()
        >>> config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8,
        ...                      num_hidden_layers=1, num_attention_heads=2)
        >>> before, after = (LlamaForCausalLM(config).eval() for _ in range(2))
        >>> found = compare_answers({"before": before, "after": after}, tokenizer, ["1+1=", "2+3="], [2, 5],
        ...                         format=NumberFormat(digits=1))
        >>> sorted(found.models), found.models["after"].answered <= 1
        (['after', 'before'], True)
    """
    if not isinstance(models, Mapping) or not models:
        raise TypeError(f"models: expected models by their names, given {type(models).__name__}")
    limits.check(format)
    answers, numbers = _true_answers(questions, truths, format, limits.thousands)
    found = {}
    for name, given in models.items():
        model = _load(given) if isinstance(given, str | Path) else given
        source, prompts, _ = write_questions(model, tokenizer, questions)
        if not isinstance(source, TorchModel):
            raise TypeError(f"{name}: expected a model of transformers, given {type(model).__name__}")
        if any(prompt.images for prompt in prompts):
            raise TypeError(
                "images: expected none, because greedy answers and cross-entropies are those of texts. Read "
                "the medians of questions with images with read_number."
            )
        read = read_number(model, tokenizer, questions, format=format, levels=levels, limits=limits)
        greedy, losses = _answer(
            source, tokenizer, prompts, answers, format, max_new_tokens, limits.thousands
        )
        medians, means, low, high = (
            torch.tensor(column, dtype=torch.float64)
            for column in zip(
                *[(each.median, float(each.details.mean), each.low, each.high) for each in read], strict=True
            )
        )
        known = ~greedy.isnan()
        errors = (medians - numbers).abs()
        found[name] = AnswerErrors(
            (greedy - numbers)[known].abs().mean().item(),
            known.double().mean().item(),
            errors.mean().item(),
            (means - numbers).abs().mean().item(),
            interval_coverage(low, high, numbers),
            losses.mean().item(),
            errors,
        )
    first, *further = found
    changes = {name: _change(found[first].median_errors, found[name].median_errors) for name in further}
    return AnswerComparison(found, changes)


def _true_answers(
    questions: Sequence[Any], truths: Sequence[Any], format: NumberFormat | None, thousands: str | None
) -> tuple[list[str], Tensor]:
    """Return the true answers as texts and as numbers `[prompts]`."""
    given = list(truths)
    if isinstance(questions, str | Question) or len(given) != len(questions) or len(given) < 2:
        count = 1 if isinstance(questions, str | Question) else len(questions)
        raise ValueError(f"{count} questions and {len(given)} truths: expected as many, two or more")
    texts, numbers = [], []
    for row, truth in enumerate(given):
        is_text = isinstance(truth, str)
        number = parse_number(truth, "whole", thousands) if is_text else as_float(truth)
        if number is None or not math.isfinite(number):
            raise ValueError(f"truths: row {row} is {truth!r}: expected one number, such as 12.5 or '$1,234'")
        numbers.append(number)
        if is_text or format is None:
            texts.append(f"{truth:.15g}" if isinstance(truth, float) else str(truth))
        else:
            texts.append(format.write(float(f"{number:.15g}")))
    return texts, torch.tensor(numbers, dtype=torch.float64)


@torch.no_grad()
def _answer(
    source: TorchModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    answers: Sequence[str],
    format: NumberFormat | None,
    max_new_tokens: int,
    thousands: str | None,
) -> tuple[Tensor, Tensor]:
    """Return greedy answers, NaN where there is no number, and losses of the true ones: `[prompts]`."""
    tokenizer = tokenizer_of(tokenizer)

    def read(
        index: list[int], inputs: Any, prefix_ids: list[int], kept: list[list[int]]
    ) -> list[tuple[float, float]]:
        root = source.continuations(inputs, {}, prefix_ids)
        pairs = zip(index, kept, strict=True)
        losses = _losses(root, [encode_after(tokenizer, prompts[i], row, answers[i]) for i, row in pairs])
        written = _greedy(root, max_new_tokens, source.inner.generation_config.eos_token_id)
        texts = zip(index, tokenizer.batch_decode(written, skip_special_tokens=True), strict=True)
        greedy = [_number_of(text, prompts[i].before, format, thousands) for i, text in texts]
        return [*zip(greedy, losses, strict=True)]

    endings = [number_forms(prompt.text, format) for prompt in prompts]
    found = read_each(source, tokenizer, prompts, endings, read)
    greedy, losses = torch.tensor(found, dtype=torch.float64).unbind(-1)
    return greedy, losses


def _greedy(root: Prompts, most: int, end: Any) -> list[list[int]]:
    """Return the tokens of greedy answers up to the end, `most` or fewer for each prompt."""
    ends = {*end} if isinstance(end, list | tuple) else {end}
    every = torch.arange(root.logits.shape[-1], device=root.device)
    answers: list[list[int]] = [[] for _ in range(len(root))]
    for _ in range(most):
        open_rows = [row for row, tokens in enumerate(answers) if not tokens or tokens[-1] not in ends]
        if not open_rows:
            break
        likeliest = root.next_tokens([(row, tuple(answers[row])) for row in open_rows], every).argmax(-1)
        for row, token in zip(open_rows, likeliest.tolist(), strict=True):
            answers[row].append(token)
    return answers


def _number_of(text: str, before: str, format: NumberFormat | None, thousands: str | None) -> float:
    """Return the first number of an answer, or of its first characters of a fixed width; NaN if none."""
    if format is not None:
        text = text.lstrip()[: len(format.slots)]
    else:  # as `read_number` reads it after this text
        thousands, money = NumberReader.at(before, len(before), thousands)
        text = f"${text}" if money else text
    number = parse_number(text, "first", thousands)
    return math.nan if number is None else number


def _losses(root: Prompts, answers: Sequence[list[int]]) -> list[float]:
    """Return the negative log-likelihood of each answer's tokens after its prompt, in nats."""
    losses = [0.0] * len(answers)
    for step in range(max(map(len, answers))):
        rows = [row for row, tokens in enumerate(answers) if len(tokens) > step]
        asked = torch.tensor([answers[row][step] for row in rows], device=root.device)
        after = root.next_tokens([(row, tuple(answers[row][:step])) for row in rows], asked)
        for row, log_prob in zip(rows, after.diagonal().tolist(), strict=True):
            losses[row] -= log_prob
    return losses


def _load(folder: str | Path) -> Any:
    """Load a saved model in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    is_encoder_decoder = AutoConfig.from_pretrained(folder).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if is_encoder_decoder else AutoModelForCausalLM
    return kind.from_pretrained(folder).eval()


def _change(first: Tensor, other: Tensor) -> Change:
    """Compare mean errors over the same prompts by the bootstrap, with seed 0."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(len(first), (_RESAMPLES, len(first)), generator=generator)
    shares = other[rows].mean(-1) / first[rows].mean(-1) - 1
    low, high = torch.quantile(shares, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Change((other.mean() / first.mean() - 1).item(), low, high)


def _short(error: float) -> str:
    """Return three digits, or all digits before the point: `3.98e+03` dollars cannot be read."""
    return "-" if math.isnan(error) else f"{error:.0f}" if 1e3 <= error < 1e9 else f"{error:.3g}"
