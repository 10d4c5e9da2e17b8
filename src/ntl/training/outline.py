"""Describe a run before its first step: its loss, rows, weights, steps, format of answers and time."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ntl.approaches import Approach
from ntl.approaches.batches import encoded_rows, evaluation_mode
from ntl.config import Config, Mode
from ntl.data import TaskData, evenly_spaced
from ntloss.numbers.parsing import parse_number

TIMED = 8  # rows whose answers are timed
WIDTH = 200  # characters of an example, of which the middle is left out


def describe_run(config: Config, approach: Approach, data: TaskData, arguments: Any) -> str:
    """Return the lines that are printed before the first step.

    Args:
        config: The configuration.
        approach: The model, which knows the training answers.
        data: The task.
        arguments: transformers' arguments, with the number of steps if it is known.
    """
    example = data.train[0]
    question, (answer,) = example.question, _written(approach, [example.answer])
    if len(question) > WIDTH:
        question = f"{question[: WIDTH // 2]} ... {question[-WIDTH // 2 :]}"
    tests = ", ".join(
        f"{len(part):,} {name}" for name, part in {"validation": data.validation, **data.tests}.items()
    )
    rows = f"{len(data.train):,} for training, {tests}" + (f"; {data.note}" if data.note else "")
    lines = {
        "loss": _describe_loss(config, approach),
        "rows": rows,
        "weights": _describe_weights(config, approach),
        "steps": _describe_steps(arguments),
        "numbers": _describe_numbers(config, approach, data),
        "example": f"{question!r} -> {answer!r}",
    }
    if data.columns and arguments.world_size == 1 and arguments.max_steps > 0:
        lines["time"] = _estimate(config, approach, data, arguments)
    return "\n".join(f"{name:<8} {line}" for name, line in lines.items() if line)


def is_long_tailed(numbers: Sequence[float]) -> bool:
    """Return whether numbers, all above 0, are skewed to the right, and less so on a log scale.

    Example:
        >>> is_long_tailed([1, 2, 3, 4, 5, 100]), is_long_tailed([1, 2, 3]), is_long_tailed([-1, 2, 300])
        (True, False, False)
    """
    values = pd.Series(numbers, dtype=float)
    return bool((values > 0).all() and values.skew() > 1 and abs(np.log(values).skew()) < values.skew())


def _written(approach: Approach, answers: Sequence[str]) -> list[str]:
    form = getattr(approach, "answer_format", None)
    return [*answers] if form is None else form.write(answers)


def _describe_loss(config: Config, approach: Approach) -> str:
    loss = config.loss
    if config.model_args.head == "regression":
        return f"{config.model_args.head_loss} error of a regression head"
    if config.model_args.encoding == "xval":
        return "cross-entropy + squared error of xVal's number head"
    if loss.criterion is None:
        return "cross-entropy alone"
    sigma = approach.model.config.ntl.get("sigma")
    falls = f", sigma {sigma[0]:,.4g} falling to {sigma[1]:,.4g}" if sigma else ""
    if loss.mode == Mode.replace:
        weight = "" if loss.weight == 1 else f"{loss.weight:g} · "
        return f"{weight}{loss.title} in place of cross-entropy at numbers{falls}"
    return f"cross-entropy + {loss.weight:g} · {loss.title}{falls}"


def _describe_weights(config: Config, approach: Approach) -> str:
    trained, total = (count / 1e6 for count in _count_weights(approach))
    name = config.model_args.model_name_or_path or f"{config.model_args.config_name} from scratch"
    layers = config.weights.trained_layers
    part = f"the upper {layers} layers of " if layers else "LoRA on " if config.weights.lora else ""
    return f"{part}{name}: {trained:,.3g} of {total:,.3g} million are trained"


def _count_weights(approach: Approach) -> tuple[int, int]:
    """Count the weights that are trained, and all."""
    parameters = [*approach.model.parameters()]
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)


def _step_size(arguments: Any) -> int:
    size: int = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    return size


def _describe_steps(arguments: Any) -> str:
    if arguments.max_steps == 0:
        return "none, the model is evaluated as it is"
    many = f"{arguments.max_steps:,}" if arguments.max_steps > 0 else f"{arguments.num_train_epochs:g} epochs"
    kind = str(getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type))
    return f"{many} of {_step_size(arguments)} rows, learning rate {arguments.learning_rate:g} ({kind})"


def _describe_numbers(config: Config, approach: Approach, data: TaskData) -> str:
    form = approach.number_format
    if form is None:
        return "of any length" if config.model_args.writes_digits else ""
    kind = "logarithms to base 10, " if config.model_args.number_scale == "log" else ""
    digits = f"{form.digits} digits" + (f" and {form.decimals} decimals" if form.decimals else "")
    line = f"{kind}{'a sign, ' if form.signed else ''}{digits}"
    answers = [parse_number(e.answer, "whole") for e in evenly_spaced(data.train, 10_000)]
    if data.columns and not kind and None not in answers and is_long_tailed(answers):
        line += (
            "; the answers have a long tail: model_args.number_scale=log (ntl fit: scale=log) may be better"
        )
    return line


def _estimate(config: Config, approach: Approach, data: TaskData, arguments: Any) -> str:
    """Estimate the time of a run from a few forward passes and answers."""
    rows = evenly_spaced(data.train, TIMED)
    questions, answers = [e.question for e in rows], [e.answer for e in rows]
    batch = approach.collate(encoded_rows(approach, questions, answers))
    batch = {key: value.to(arguments.device) for key, value in batch.items()}
    levels = [[(i + 0.5) / 23 for i in range(23)]] if config.evaluation.quantile_readings else []
    ask: Any = approach.read if levels else approach.answer
    with evaluation_mode(approach.model):
        times = [time.monotonic()]
        approach.loss(approach.model, batch, approach.count(batch).to(arguments.device))
        times.append(time.monotonic())
        ask(approach.model, questions, config.evaluation, *levels)
        times.append(time.monotonic())
    forward, answer = ((end - start) / len(rows) for start, end in pairwise(times))
    trained, total = _count_weights(approach)
    share, seen = trained / total, arguments.max_steps * _step_size(arguments)
    cached = approach.frozen is not None and approach.frozen.can_be_cached and config.weights.state_cache_gb
    # A backward pass costs about two forward passes of what is trained.
    steps = seen * forward * 3 * share + (len(data.train) if cached else seen) * forward * (1 - share)
    parts = (data.validation, *data.tests.values())
    asked = answer * sum(len(evenly_spaced(part, config.evaluation.samples)) for part in parts)
    where = f"the {arguments.device.type.upper()}" if arguments.device.type != "cpu" else "this CPU"
    return f"about {_duration(steps + asked)} on {where}, {_duration(asked)} of it to answer"


def _duration(seconds: float) -> str:
    """Write a duration in its largest unit.

    Example:
        >>> _duration(20), _duration(200), _duration(7000)
        ('20 s', '3 min', '1.9 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
