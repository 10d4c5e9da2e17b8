"""Target distributions, distances from them, and HL-Gauss: what criteria are made of.

Most losses on numbers are a target distribution q over the values and a distance between q and the predicted
distribution p: cross-entropy with a Gaussian target is the paper's label smoothing, the Kullback-Leibler
divergence from an exponential target is DIST2Loss. `HLGauss` has a Gaussian around the label's number, split
over its digits. `facts` says which of these a criterion is.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ntloss.callers import warn_caller
from ntloss.numbers.fields import Finder
from ntloss.numbers.labels import LabelNumbers
from ntloss.numbers.parsing import as_float, parse_number
from ntloss.numbers.vocabulary import VALUE

# Replaces logits of -inf among the number tokens: the probability is still 0, and the difference of two of
# them is not NaN, in value or gradient.
MINUS_INFINITY = -1e30
_IMPOSSIBLE = MINUS_INFINITY / 10  # what only their log-probabilities are below
_MOST_TABLES = 8  # of one function and one tensor of values; a width that falls makes more than it needs
# In widths of a cell; beyond the widest, the target is uniform to rounding, and the narrowest has a scale
# that float32 can hold.
_WIDEST, _NARROWEST = 1e12, 1e-37
# Of the answers' standard deviation, where sigma starts; and of that start, where it ends.
START, END = 0.55, 1 / 8
_MANY_CALLS = 100  # with a gradient, without `anneal`
_PADDED = re.compile(r"[^0-9.,]*0[0-9]")
_OF_FORMULA = ("fixed_target", "expected_cost", "spread")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def facts(
    title: str,
    *,
    replaces: bool = False,
    in_units: bool = False,
    fixed_target: bool = False,
    expected_cost: bool = False,
    spread: bool = False,
) -> Callable[[_Function], _Function]:
    """Say what is known of a criterion: `facts` sets these as attributes of the function.

    Args:
        title: its name in tables, such as "NTL-WAS".
        replaces: its source uses it in place of cross-entropy at number labels. Default: False, beside it.
        in_units: its loss is in the unit of the values, so that it outweighs cross-entropy where these reach
            hundreds. Default: False.
        fixed_target: it is a cross-entropy with a target that depends on the label alone: minus the sum of
            weights times `log_probs` or `vocab_log_probs`. Default: False.
        expected_cost: it is the expected cost of a value drawn from `probs`. Default: False.
        spread: half the expected distance of two such values is subtracted from that. Default: False.

    Example:
        >>> @facts("wide Gaussian", fixed_target=True)
        ... def wide(vocab_log_probs, values, target):
        ...     return cross_entropy(gaussian(values, 2.0)[target], vocab_log_probs)
        >>> fact(wide, "fixed_target")
        True
    """
    known = {"title": title, "replaces": replaces, "in_units": in_units, "fixed_target": fixed_target}
    known |= {"expected_cost": expected_cost, "spread": spread}

    def tell(function: _Function) -> _Function:
        for name, value in known.items():
            setattr(function, name, value)
        return function

    return tell


def fact(criterion: Any, name: str) -> Any:
    """Return what is known of a criterion, or of the function behind its options and wrappers; else None.

    Facts of an object, such as an `HLGauss`, are those of its `__call__`. A wrapper, such as one of
    `functools.wraps`, may compute anything from a cross-entropy, so nothing is known of how it is computed.
    """
    while isinstance(criterion, partial):
        criterion = criterion.func
    if not hasattr(criterion, "__code__"):
        criterion = (criterion if isinstance(criterion, type) else type(criterion)).__call__
    if not hasattr(criterion, "__wrapped__"):
        return getattr(criterion, name, None)
    return None if name in _OF_FORMULA else fact(criterion.__wrapped__, name)


def made_once(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function of `values` and hyperparameters compute its table once, not at each call.

    The table is computed in float64 and returned in the dtype and on the device of `values`, the tensor that
    a loss passes to its criterion at each call. Under `torch.compile` and `torch.func` the table is part of
    the graph. Of each `values`, the tables of the last eight options are kept. With a tensor or a list among
    the options, which may be filled in place, the table is computed at each call.

    Args:
        function: computes a table from the distinct values (`[values]`, ascending) and options.

    Example:
        >>> from ntloss.criteria import made_once
        >>> @made_once
        ... def distances(values, power):
        ...     return (values - values.unsqueeze(-1)).abs() ** power
        >>> def squared_error(probs, values, target):
        ...     return (probs * distances(values, 2)[target]).sum(-1)
        >>> squared_error(torch.tensor([[0.5, 0.5]]), torch.tensor([0.0, 3.0]), torch.tensor([1]))
        tensor([4.5000])
    """
    tables_of = WeakIdKeyDictionary()
    signature = inspect.signature(function)

    @functools.wraps(function)
    def table(values: Tensor, *args: object, **options: object) -> Tensor:
        in_graph = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        if in_graph or values.device.type == "meta":
            return function(values.double(), *args, **options).to(values)
        given = signature.bind(values, *args, **options)
        given.apply_defaults()
        key = tuple(given.arguments.items())[1:]
        if any(isinstance(option, (Tensor, list, dict, set)) for _, option in key):
            return function(values.double(), *args, **options).to(values)
        tables: dict[object, Tensor] = tables_of.setdefault(values, {})  # type: ignore[no-untyped-call]
        if key not in tables:
            with torch.inference_mode(False), torch.no_grad():
                # A copy, because a loss that was made in inference mode has values that autograd cannot save.
                made = function(values.cpu().double().clone(), *args, **options).to(values)
            while len(tables) >= _MOST_TABLES:
                del tables[next(iter(tables))]
            tables[key] = made
        return tables[key]

    return table


@made_once
def gaussian(values: Tensor, sigma: float) -> Tensor:
    """Compute Gaussian targets: in row k, q_j is proportional to exp(-(v_j - v_k)^2 / (2 sigma^2)).

    Args:
        values: `[values]`, the distinct values, ascending.
        sigma: standard deviation, in the unit of the values, above 0.

    Returns:
        `[values, values]`; index it with the criterion's `target`.
    """
    check_positive("sigma", sigma)
    return torch.softmax(-(values - values.unsqueeze(-1)).square() / (2 * sigma**2), -1)


@made_once
def exponential(values: Tensor, tau: float) -> Tensor:
    """Compute the targets of DIST2Loss: in row k, q_j is proportional to exp(-(v_j - v_k)^2 / tau).

    `tau` is a temperature, above 0; a higher one spreads the target. Otherwise as `gaussian`.
    """
    check_positive("tau", tau)
    return torch.softmax(-(values - values.unsqueeze(-1)).square() / tau, -1)


def mixture(table: Tensor, target: Tensor, target_probs: Tensor | None = None) -> Tensor:
    """Compute the target of each position from a table with one target for each value.

    Args:
        table: `[values, values]`, such as `gaussian(values, sigma)`; row k is the target of a label k.
        target: `[positions]`, index of the label's value.
        target_probs: `[positions, values]`, the distribution of a soft label, whose values' targets are
            mixed. Default: None, the target of `target` alone.

    Returns:
        `[positions, values]`.
    """
    return table[target] if target_probs is None else target_probs @ table


def cross_entropy(target_probs: Tensor, log_probs: Tensor) -> Tensor:
    """Compute -sum_j q_j log p_j, in nats; infinite if a value with q_j > 0 has the probability 0.

    Args:
        target_probs: `[positions, values]`, the target q.
        log_probs: `[positions, values]`, log of the probabilities p: among the number tokens (`log_probs`),
            or in the whole vocabulary (`vocab_log_probs`), so that probability on text costs, too.

    Returns:
        `[positions]`.
    """
    impossible = (target_probs > 0) & (log_probs < _IMPOSSIBLE)
    # The target changes its sign, not the loss, whose gradient would need another operator.
    return (-target_probs * log_probs).masked_fill(impossible, torch.inf).sum(-1)


def kl_divergence(target_probs: Tensor, log_probs: Tensor) -> Tensor:
    """Compute the Kullback-Leibler divergence, sum_j q_j (log q_j - log p_j), in nats: `[positions]`.

    Args:
        target_probs: `[positions, values]`, the target q.
        log_probs: `[positions, values]`, log of the probabilities p among the number tokens.
    """
    return torch.xlogy(target_probs, target_probs).sum(-1) + cross_entropy(target_probs, log_probs)


def wasserstein_distance(target_probs: Tensor, probs: Tensor, values: Tensor) -> Tensor:
    """Compute the Wasserstein-1 distance, sum_i |P_i - Q_i| (v_{i+1} - v_i): `[positions]`.

    Args:
        target_probs: `[positions, values]`, the target q, with cumulative probabilities Q.
        probs: `[positions, values]`, the probabilities p, with cumulative probabilities P.
        values: `[values]`, the distinct values, ascending.
    """
    apart = (probs - target_probs).cumsum(-1)[:, :-1]
    return (apart.abs() * values.diff()).sum(-1)


def cramer_distance(target_probs: Tensor, probs: Tensor, values: Tensor) -> Tensor:
    """Compute the Cramér distance, sum_i (P_i - Q_i)^2 (v_{i+1} - v_i): `[positions]`.

    Args:
        target_probs, probs, values: see `wasserstein_distance`.
    """
    apart = (probs - target_probs).cumsum(-1)[:, :-1]
    return (apart.square() * values.diff()).sum(-1)


def check_positive(name: str, value: float) -> None:
    """Raise a ValueError unless an option is a finite number above 0."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")


class HLGauss:
    """Cross-entropy with Gaussian targets on whole numbers, digit by digit, in nats.

    `HLGauss.for_answers(answers)` chooses the width. The loss takes the place of cross-entropy at number
    labels. Use it where near misses are acceptable, not where answers are right or wrong. It knows place and
    carry: the first digit of 39 is expected to be 3 or 4, because 39 and 40 are neighbors.

    The first 3 of 39 stands for the numbers from 30 to 39. Given the true digits before it, the target of a
    digit is q_v, the share of N(y, sigma^2) in the cell of v: the numbers that begin with these digits and v,
    with half a unit of their last digit on either side. The loss is -sum_v q_v log(m p_v) with p the
    distribution over the values and m the probability of all number tokens. It is smallest, the entropy of q,
    if m p is q. As sigma decreases it approaches cross-entropy; as sigma grows the target becomes uniform.

    The targets are smoothed, so the learned distribution is wider than that of the labels, by about the final
    sigma. Digits after a wrong prefix are not trained, because each target is conditioned on the label's own
    digits. The target covers numbers with the label's length and sign; a first digit of 0 is left out of
    numbers above 9, unless the label itself begins with one. A token with a point or an exponent of its own
    (`3.14`, `1e3`) keeps cross-entropy. A token that is given by value (`NumberVocabulary.from_mapping`) is a
    number of its own, with the target of `gaussian_smoothing` over all tokens that are given by value.

    Single numbers may have a standard deviation of their own, where those of several units stand in a row:
    `sigma` of `NTLCrossEntropyLoss.prepare`, or the column `number_sigma` in trainers. It takes the place of
    `sigma` and `relative`, and falls in proportion to `sigma` with `anneal`.

    Args:
        sigma: standard deviation of the target, in the unit of the numbers: a float, a scalar tensor, or the
            first and last value of `anneal`. It may be set at any time, `criterion.sigma = 2.0`, which fills
            a tensor in place: nothing is compiled again, and a captured CUDA graph replays with the new
            value. A loss moves the tensor to its device.
        relative: standard deviation as a share of the label's magnitude, for long tails, which adds to sigma
            as an independent error: the variance is sigma^2 + (relative y)^2. Default: 0.
        leading_zeros: answers are padded to one width, so the first digit may be 0. Default: False.
        decimals: a point between two digits belongs to their number. Default: True.

    Raises:
        TypeError: `sigma` is not a number, a scalar tensor or a pair of numbers.
        ValueError: `sigma` or `relative` is negative or not finite.

    Source: HL-Gauss, "Improving Regression Performance with Distributional Losses", ICML 2018, and "Stop
    Regressing", ICML 2024, which have one classifier over all bins; here each digit has its own.

    Example:
        >>> from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
        >>> loss_fn, labels = NTLCrossEntropyLoss(digits, HLGauss(sigma=2.0)), torch.tensor([[3, 9]])
        >>> logits = torch.zeros(2, 1, 2, 16)
        >>> logits[0, 0, 0, 4] = logits[1, 0, 0, 2] = 5.0  # expects 4 or 2 as the first digit of 39
        >>> [round(loss_fn(some, labels).item(), 2) for some in logits]
        [2.93, 3.93]
    """

    def __init__(
        self,
        sigma: float | Tensor | tuple[float, float],
        relative: float = 0.0,
        *,
        leading_zeros: bool = False,
        decimals: bool = True,
    ) -> None:
        self.schedule: tuple[float, float] | None = None
        self.fields: dict[str, float] = {}  # see `for_fields`
        self.by: Finder = "name"
        if isinstance(sigma, (tuple, list)) and len(sigma) == 2:
            first, last = (float(_as_sigma(end)) for end in sigma)
            self.schedule, sigma = (first, last), first
        self._sigma = _as_sigma(sigma)
        self._calls_at_start: int | None = None if self.schedule is None else 0  # None after `anneal`
        if isinstance(relative, bool) or not 0 <= relative < math.inf:
            raise ValueError(f"relative={relative!r}: expected a share of the number, 0 or more")
        self.relative = float(relative)
        self.leading_zeros = leading_zeros
        self.decimals = decimals

    @classmethod
    def for_answers(
        cls,
        answers: Iterable[float | str],
        *,
        relative: float = 0.0,
        leading_zeros: bool | None = None,
        decimals: bool = True,
    ) -> HLGauss:
        """Make the criterion with the sigma that suits training answers and falls during training.

        It falls from 0.55 of their standard deviation to an eighth of that, with `anneal`.

        Args:
            answers: the answers of the training data, two or more that differ: numbers, or texts such as
                `"$1,234.50"` that are one number by `parse_number(text, "whole")`.
            relative, decimals: see the class.
            leading_zeros: see the class. Default: whether a text begins with a 0 before another digit, as in
                `["00326", "00400"]`.

        Raises:
            TypeError: a single text or number.
            ValueError: fewer than two different numbers, or one that is no finite number.

        Warns:
            UserWarning: the answers are above 0 and spread over two orders of magnitude, and half of them are
                smaller than the first sigma.

        Example:
            >>> criterion = HLGauss.for_answers([10, 20, 30, 40])
            >>> criterion
            HLGauss(sigma=(6.15, 0.769))
            >>> for step in range(3):
            ...     sigma = criterion.anneal(step / 2)
            >>> round(sigma, 3)
            0.769
        """
        numbers, padded = _numbers_of(answers, "answers")
        start = START * statistics.pstdev(numbers)
        low, half, high = min(numbers), statistics.median(numbers), max(numbers)
        if 0 < 100 * low <= high and half < start:
            warn_caller(
                f"The answers range from {low:g} to {high:g}, and half of them are below {half:g}, for which "
                f"one sigma, {start:.3g} at first and {END * start:.3g} at last, is too wide. Train on "
                "logarithms, as NumberRegressor does for such answers, or make the width a share of each "
                "number: HLGauss(0.0, relative=0.1).",
                UserWarning,
            )
        padded = padded if leading_zeros is None else leading_zeros
        return cls((start, END * start), relative, leading_zeros=padded, decimals=decimals)

    @classmethod
    def for_fields(
        cls,
        answers: Mapping[str, Iterable[float | str]],
        by: Finder = "name",
        *,
        leading_zeros: bool | None = None,
        decimals: bool = True,
    ) -> HLGauss:
        """Make the criterion for answers with several numbers, each of which has a standard deviation.

        The loss finds the field of each number in the text of the labels (`ntloss.numbers.find_fields`). The
        standard deviation of a field falls as that of `for_answers` does. Numbers of no field have
        cross-entropy.

        Args:
            answers: field to its answers in the training data, numbers or texts, two or more that differ.
            by: how fields are found; see `ntloss.numbers.find_fields`.
            leading_zeros, decimals: see `for_answers`.

        Raises:
            TypeError: a single text or number as the answers of a field.
            ValueError: no field, or one with fewer than two different numbers, or with one that is no finite
                number.

        Example:
            >>> HLGauss.for_fields({"room_size": [0.2, 0.4], "threshold_db": [-30, -10]})
            HLGauss(fields=(room_size: 0.055, threshold_db: 5.5))
        """
        if not answers:
            raise ValueError("answers: expected the numbers of at least one field, {'room_size': [0.2, 0.4]}")
        found = {name: _numbers_of(given, f"answers of {name}") for name, given in answers.items()}
        padded = any(is_padded for _, is_padded in found.values()) if leading_zeros is None else leading_zeros
        made = cls((1.0, END), leading_zeros=padded, decimals=decimals)  # a share of those of the fields
        made.by = by
        made.fields = {name: START * statistics.pstdev(numbers) for name, (numbers, _) in found.items()}
        return made

    @property
    def sigma(self) -> Tensor:
        """The current standard deviation, a scalar tensor."""
        return self._sigma

    @sigma.setter
    def sigma(self, value: float | Tensor) -> None:
        self._sigma.fill_(_as_sigma(value))

    def to(self, device: torch.device) -> HLGauss:
        """Move sigma to a device, and return the criterion; losses do this when they are moved.

        Args:
            device: where losses are computed. On `meta`, which keeps no values, sigma stays where it is.
        """
        if device != self._sigma.device and device.type != "meta":
            dtype = torch.float32 if device.type == "mps" else self._sigma.dtype  # which has no float64
            self._sigma = self._sigma.to(device, dtype)
        return self

    def anneal(self, progress: float) -> float:
        """Set sigma for a share of training, linearly between its first and last value.

        Args:
            progress: steps done / all steps, from 0 to 1. More counts as 1.

        Returns:
            The new sigma; with fields, its share of the first one.

        Raises:
            ValueError: sigma is not a pair, or `progress` is negative or not a number.
        """
        if self.schedule is None:
            raise ValueError(
                "sigma has no schedule: expected HLGauss((first, last)) or HLGauss.for_answers(answers). Set "
                "a fixed one with criterion.sigma = 2.0."
            )
        if not progress >= 0:
            raise ValueError(f"progress={progress!r}: expected a share of training, from 0 to 1")
        self._calls_at_start = None
        first, last = self.schedule
        sigma = first + (last - first) * min(float(progress), 1.0)
        self._sigma.fill_(sigma)
        return sigma

    @facts("HL-Gauss", replaces=True, fixed_target=True)
    def __call__(
        self,
        vocab_log_probs: Tensor,
        values: Tensor,
        target: Tensor,
        digits: LabelNumbers,
        cells: Tensor | None,
        number_sigma: Tensor | None = None,
        own_values: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of each position: `[positions]`; see `ntloss.criteria.READABLE`."""
        learns = vocab_log_probs.requires_grad and not torch.compiler.is_compiling()
        if self._calls_at_start is not None and learns:
            self._calls_at_start += 1
            if self._calls_at_start == _MANY_CALLS:
                warn_caller(
                    f"sigma stays {float(self._sigma):.3g}, where it starts, because anneal was not called: "
                    "call loss_fn.anneal(steps done / all steps) before each step, or pass a single sigma.",
                    UserWarning,
                )
        targets = self.targets(values, target, digits, cells, number_sigma, own_values)
        return cross_entropy(targets, vocab_log_probs)

    def targets(
        self,
        values: Tensor,
        target: Tensor,
        digits: LabelNumbers,
        cells: Tensor | None,
        number_sigma: Tensor | None = None,
        own_values: Tensor | None = None,
    ) -> Tensor:
        """Compute the target of each position, given the true digits before it: `[positions, values]`."""
        scale = self._inverse_width(digits, number_sigma).to(values).unsqueeze(-1)
        if cells is None:  # all tokens are given by value
            return _gaussian_targets(values, target, scale)
        magnitudes = values.abs()
        steps = magnitudes - magnitudes[target].unsqueeze(-1)  # in units of the token's last digit, as below
        below, above = digits.below.to(steps).unsqueeze(-1), digits.above.to(steps).unsqueeze(-1)
        # From y to the near and the far edge of each cell, the label's own cell below and above y. The edges
        # next to y are sums of the digits after it, which are precise in numbers of any length; all other
        # edges are whole steps away from these two. The mass below y is that of the mirror image above it.
        apart, side = steps.abs(), torch.where(steps > 0, above, below)
        near, far = torch.where(apart == 0, -above, (apart - 1) + side), apart + side
        # Differences of erf are precise around 0, those of erfc in the tail, those of the distribution
        # function nowhere. All masses are twice as large. An infinite scale would make NaN of an edge at 0,
        # the largest one puts all mass there.
        near, far = near * scale, far * scale
        around, tail = torch.erf(far) - torch.erf(near), torch.erfc(near) - torch.erfc(far)
        masses = torch.where(near > 0.5, tail, around)
        # Other values have another length or sign, or begin with a 0.
        masses = masses * (cells[0, digits.kind] if self.leading_zeros else cells[digits.leads, digits.kind])
        # If every cell has mass 0, the target is the label; so it is for a token with a point of its own,
        # which has no neighbors.
        least = torch.finfo(masses.dtype).tiny
        masses = masses.scatter(-1, target.unsqueeze(-1), least, reduce="add")
        of_digits = masses / masses.sum(-1, keepdim=True)
        if own_values is None:
            return of_digits
        of_values = _gaussian_targets(values, target, scale, own_values)
        return torch.where((digits.kind == VALUE).unsqueeze(-1), of_values, of_digits)

    def _inverse_width(self, digits: LabelNumbers, number_sigma: Tensor | None) -> Tensor:
        """Compute 1 / (sqrt(2) sigma) of each target, in units of the token's last digit, float64."""
        sigma = self._sigma.detach().to(digits.unit)
        if self.relative:
            sigma = torch.hypot(sigma, self.relative * digits.magnitude)
        if number_sigma is not None:
            # Standard deviations that are given fall as the criterion's own does.
            first = self.schedule[0] if self.schedule else 0.0
            share = self._sigma.detach().to(digits.unit) / first if first else 1.0
            given = number_sigma.to(digits.unit) * share
            sigma = torch.where(given > 0, given, 0.0 if self.fields else sigma)  # NaN is none, too
        return (digits.unit / (sigma * math.sqrt(2))).clamp(1 / _WIDEST, 1 / _NARROWEST)

    def __repr__(self) -> str:
        if self.fields:
            named = ", ".join(f"{name}: {sigma:.3g}" for name, sigma in self.fields.items())
            return f"HLGauss(fields=({named}))"
        sigma = self.schedule or (float(self._sigma),)
        shown = ", ".join(f"{value:.3g}" for value in sigma)
        options = [f"sigma=({shown})" if self.schedule else f"sigma={shown}"]
        options += [f"relative={self.relative:g}"] * bool(self.relative)
        options += ["leading_zeros=True"] * self.leading_zeros + ["decimals=False"] * (not self.decimals)
        return f"HLGauss({', '.join(options)})"


def _gaussian_targets(values: Tensor, target: Tensor, scale: Tensor, among: Tensor | None = None) -> Tensor:
    """Compute Gaussians over all values, or among some, `[positions, values]`, of 1 / (sqrt(2) sigma)."""
    exponents = -((values - values[target].unsqueeze(-1)) * scale).square()
    return torch.softmax(exponents if among is None else exponents.masked_fill(~among, -math.inf), -1)


def _numbers_of(answers: Iterable[float | str], name: str) -> tuple[list[float], bool]:
    """Return the numbers of training answers, two or more that differ, and whether zeros pad their texts."""
    if isinstance(answers, str) or not isinstance(answers, Iterable):
        raise TypeError(f"{name}: expected numbers, such as [12, 7.5], given {answers!r}")
    numbers, padded = [], False
    for row, answer in enumerate(answers):
        found = parse_number(answer, "whole") if isinstance(answer, str) else as_float(answer)
        if found is None or not math.isfinite(found):
            raise ValueError(
                f"{name}: number {row} is {answer!r}: expected a finite one, such as 12.5, or a text that is "
                "one for parse_number(text, 'whole'), such as '$1,234.50'"
            )
        numbers.append(found)
        padded |= isinstance(answer, str) and _PADDED.match(answer) is not None
    if len({*numbers}) < 2:
        raise ValueError(
            f"{name}: expected at least two different numbers, given {len(numbers)}: "
            f"{', '.join(map(str, numbers[:5]))}. Pass sigma yourself: HLGauss(sigma=1.0)."
        )
    return numbers, padded


def _as_sigma(sigma: Any) -> Tensor:
    """Return a standard deviation as a scalar tensor; raise a TypeError or ValueError for anything else."""
    is_tensor = isinstance(sigma, Tensor) and sigma.dim() == 0 and sigma.is_floating_point()
    if not is_tensor and (not isinstance(sigma, Real) or isinstance(sigma, bool)):
        raise TypeError(
            f"sigma={sigma!r}: expected a number, a scalar tensor, or two numbers, first and last"
        )
    is_read = not is_tensor or (sigma.device.type == "cpu" and not torch.compiler.is_compiling())
    if is_read and not 0 <= float(sigma) < math.inf:
        raise ValueError(f"sigma={float(sigma)}: expected a finite standard deviation, 0 or more")
    return sigma if is_tensor else torch.tensor(float(sigma), dtype=torch.float64, device="cpu")
