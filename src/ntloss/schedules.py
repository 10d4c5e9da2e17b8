r"""How much the number term counts at each step: schedules for $\lambda$.

A model that starts from random weights can be slowed by a number loss before it has learnt what digits look
like. A schedule is a factor from 0 to 1, or beyond, of the weight $\lambda$ that the loss was made with; it
depends on the step alone, so a resumed run needs no state:

    scheduler = WeightScheduler(loss_fn, LinearWarmup(steps=1_000))
    for step, batch in enumerate(batches):
        scheduler.set_step(step)
        loss_fn(model(batch), labels).backward()
        ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ntloss.engine.targets import check_weight


class Schedule(Protocol):
    """Anything that gives a factor for a step: any function of one int serves."""

    def __call__(self, step: int, /) -> float:
        """Factor of the weight at `step`, counted in optimizer steps from 0."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same factor at every step.

    Args:
        factor: 0 or more. Default: 1.

    Raises:
        ValueError: `factor` is negative or not finite.

    Example:
        >>> Constant(0.5)(0), Constant(0.5)(10_000)
        (0.5, 0.5)
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_factors(factor=self.factor)

    def __call__(self, step: int) -> float:
        """Factor at `step`."""
        _check_step(step)
        return float(self.factor)


@dataclass(frozen=True)
class LinearWarmup:
    r"""A straight line from `start` to `end` over `steps` steps, and `end` from then on.

    $start + (end - start) \cdot \min(step / steps, 1)$.

    Args:
        steps: length, 0 or more. Step 0 has `start`, step `steps` is the first with `end`.
        start: factor at step 0. Default: 0.
        end: factor at the end. Default: 1; below `start` the term fades out.

    Raises:
        ValueError: `steps` is negative, or a factor is negative or not finite.

    Example:
        >>> [LinearWarmup(steps=4)(step) for step in (0, 1, 4, 9)]
        [0.0, 0.25, 1.0, 1.0]
    """

    steps: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        _check_count(steps=self.steps)
        _check_factors(start=self.start, end=self.end)

    def __call__(self, step: int) -> float:
        """Factor at `step`."""
        return _between(self.start, self.end, _progress(step, self.steps))


@dataclass(frozen=True)
class Cosine:
    r"""Half a cosine wave from `start` to `end` over `steps` steps, and `end` from then on.

    $start + (end - start) \cdot (1 - \cos(\pi \cdot \min(step / steps, 1))) / 2$: slow at both ends.

    Args:
        steps: length, 0 or more.
        start: factor at step 0. Default: 0.
        end: factor at the end. Default: 1; `start=1, end=0` anneals.

    Raises:
        ValueError: `steps` is negative, or a factor is negative or not finite.

    Source: the shape of "SGDR", ICLR 2017, equation 5.

    Example:
        >>> [round(Cosine(steps=4)(step), 3) for step in (0, 1, 2, 4, 9)]
        [0.0, 0.146, 0.5, 1.0, 1.0]
    """

    steps: int
    start: float = 0.0
    end: float = 1.0

    def __post_init__(self) -> None:
        _check_count(steps=self.steps)
        _check_factors(start=self.start, end=self.end)

    def __call__(self, step: int) -> float:
        """Factor at `step`."""
        progress = _progress(step, self.steps)
        return _between(self.start, self.end, (1 - math.cos(math.pi * progress)) / 2)


@dataclass(frozen=True)
class After:
    """Nothing for `steps` steps, then another schedule from its own step 0.

    Args:
        steps: how many steps the factor is 0.
        then: the schedule that follows, or its configuration, `{"name": "linear", "steps": 500}`. Default:
            `Constant()`, the full weight at once.

    Raises:
        ValueError: `steps` is negative; see `get_schedule` for a configuration.
        TypeError: `then` is neither a schedule nor a configuration.

    Example:
        >>> schedule = After(100, LinearWarmup(steps=4))
        >>> [schedule(step) for step in (0, 99, 100, 101, 104)]
        [0.0, 0.0, 0.0, 0.25, 1.0]
    """

    steps: int
    then: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        _check_count(steps=self.steps)
        if isinstance(self.then, Mapping):
            object.__setattr__(self, "then", get_schedule(**self.then))
        elif not callable(self.then):
            raise TypeError(
                f"then={self.then!r}: expected a schedule, such as LinearWarmup(steps=500), or its "
                "configuration, such as {'name': 'linear', 'steps': 500}"
            )

    def __call__(self, step: int) -> float:
        """Factor at `step`."""
        _check_step(step)
        return float(self.then(step - self.steps)) if step >= self.steps else 0.0


_SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "linear": LinearWarmup,
    "cosine": Cosine,
    "after": After,
}


def get_schedule(name: str, **options: Any) -> Schedule:
    """Make a schedule by name, for configuration files.

    Args:
        name: "constant", "linear", "cosine", "after", or what `register_schedule` was given.
        options: the schedule's arguments.

    Returns:
        The schedule.

    Raises:
        ValueError: an unknown name, or an option outside of its range.
        TypeError: an option that the schedule does not have, or lacks.

    Example:
        >>> get_schedule("after", steps=100, then={"name": "linear", "steps": 50})
        After(steps=100, then=LinearWarmup(steps=50, start=0.0, end=1.0))
    """
    if name not in _SCHEDULES:
        raise ValueError(
            f"no schedule {name!r}: expected one of {', '.join(map(repr, sorted(_SCHEDULES)))}. "
            "register_schedule(name, factory) adds one."
        )
    return _SCHEDULES[name](**options)


def register_schedule(name: str, factory: Callable[..., Schedule]) -> None:
    """Let `get_schedule` know a schedule of your own.

    Args:
        name: a name that is not taken.
        factory: called with the options; returns a function of the step.

    Raises:
        ValueError: the name is taken.

    Example:
        >>> register_schedule("every_other", lambda period=2: lambda step: float(step % period == 0))
        >>> get_schedule("every_other", period=3)(3)
        1.0
    """
    if name in _SCHEDULES and _SCHEDULES[name] is not factory:
        raise ValueError(f"the name {name!r} is taken by {_SCHEDULES[name]!r}: choose another")
    _SCHEDULES[name] = factory


class WeightScheduler:
    r"""Sets a loss's `.weight` to $\lambda \cdot$ schedule(step).

    It keeps no count of its own: after a resume, `set_step` with the step reached is all. A weight that is a
    tensor is written in place: that recompiles nothing under `torch.compile`, while a float that changes at
    each step recompiles until the compiler gives up. So for compiled training steps make the loss with
    `weight=torch.tensor(0.3)`.

    Args:
        loss: anything with a `weight` attribute, a float or a scalar tensor, such as `NTLCrossEntropyLoss`.
        schedule: factor of the weight at each step.
        weight: $\lambda$, the full weight. Default: what the loss has now.

    Raises:
        TypeError: `loss` has no such `weight`, or `schedule` is not callable.

    Example:
        >>> from ntloss import NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> loss_fn = NTLCrossEntropyLoss(digits, weight=0.5)
        >>> scheduler = WeightScheduler(loss_fn, LinearWarmup(steps=10))
        >>> scheduler.set_step(4)
        0.2
        >>> loss_fn.weight
        0.2
    """

    def __init__(self, loss: Any, schedule: Schedule, weight: float | None = None) -> None:
        current: Any = getattr(loss, "weight", None)
        is_scalar = isinstance(current, Tensor) and current.numel() == 1
        if not (is_scalar or isinstance(current, (int, float))):
            raise TypeError(
                f"{type(loss).__name__}.weight is {type(current).__name__}: expected a float or a scalar "
                "tensor. NTLCrossEntropyLoss and NTLLinearCrossEntropyLoss have one, such as a handle's "
                ".loss; with a number loss of its own, multiply it with weight * schedule(step) yourself."
            )
        if not callable(schedule):
            raise TypeError(
                f"schedule={schedule!r}: expected a function of the step. get_schedule(name, **options) "
                "makes one from a configuration."
            )
        self.loss = loss
        self.schedule = schedule
        # Read once: later the attribute holds what the schedule made of it.
        full = current if weight is None else weight
        self.weight = float(full.item() if isinstance(full, Tensor) else full)

    def set_step(self, step: int) -> float:
        """Set the loss's weight for a step.

        Args:
            step: the optimizer step that comes, counted from 0: the same for all of its micro-batches.

        Returns:
            The weight that was set.

        Raises:
            ValueError: `step` is negative, or the schedule's factor is negative or not finite.
        """
        weight = self.weight * self.schedule(step)
        check_weight(weight)
        if isinstance(self.loss.weight, Tensor):
            self.loss.weight.data.fill_(weight)
        else:
            self.loss.weight = weight
        return weight


def _progress(step: int, steps: int) -> float:
    _check_step(step)
    return min(step / steps, 1.0) if steps else 1.0


def _between(start: float, end: float, share: float) -> float:
    # In this form both ends are met exactly.
    return (1 - share) * start + share * end


def _check_step(step: int) -> None:
    if step < 0:
        raise ValueError(f"step={step}: expected the number of optimizer steps done, 0 or more")


def _check_count(**counts: int) -> None:
    for name, count in counts.items():
        if isinstance(count, bool) or count != int(count) or count < 0:
            raise ValueError(f"{name}={count!r}: expected a whole number of steps, 0 or more")


def _check_factors(**factors: float) -> None:
    for name, factor in factors.items():
        if not 0 <= factor < math.inf:  # NaN fails too
            raise ValueError(f"{name}={factor!r}: expected a finite factor, 0 or more")
