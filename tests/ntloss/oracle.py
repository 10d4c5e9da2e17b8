"""The oracle: every loss from its published definition, in float64, one position at a time.

It imports nothing from the library. Numbers are read from the tokens' texts one after the other, every
formula uses plain PyTorch operations, and autograd computes the gradients.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

EPSILON = float(np.finfo(np.float32).eps)
# Replaces a logit of -inf among the number tokens, because formulas multiply with logarithms.
NEVER = -1e30


# --- numbers in texts -----------------------------------------------------------------------------


class Reader:
    """One row's numbers: `spans` is a list of lists of (position, text)."""

    def __init__(self, texts, sequence, decimals):
        self.spans, self.points = [], []
        current, points = None, None

        def plain(text):
            return text is not None and text.strip(" +-").isdigit()

        def joins(text):
            return plain(text) and text[0].isdigit()

        for t, here in enumerate(texts):
            same = t > 0 and sequence[t] == sequence[t - 1]
            if current is not None and same and joins(here):
                current.append((t, here))
                continue
            next_same = t + 1 < len(texts) and sequence[t + 1] == sequence[t]
            next_joins = next_same and joins(texts[t + 1])
            inside = current is not None and same and next_joins
            if decimals and here == "." and inside and texts[t - 1] != "." and not points:
                points.append(sum(len(s.strip(" +-")) for _, s in current))
                continue
            current = points = None
            if here is not None and any(c.isdigit() for c in here):
                span, its_points = [(t, here)], []
                self.spans.append(span)
                self.points.append(its_points)
                if plain(here):
                    current, points = span, its_points

    def numbers(self):
        """For each number: list of (position, place of the token's last digit, number of digits after it)."""
        result = []
        for span, points in zip(self.spans, self.points, strict=True):
            lengths = [len(s.strip(" +-")) if s.strip(" +-").isdigit() else 1 for _, s in span]
            total = sum(lengths)
            whole = points[0] if points else total
            read, numbers = 0, []
            for (t, _), length in zip(span, lengths, strict=True):
                read += length
                numbers.append((t, whole - read, total - read))
            result.append(numbers)
        return result


# --- one loss per token ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Position:
    """The prediction at a token of a number.

    Args:
        z: logit of each distinct value, with its forms merged.
        lse: log-normalizer of the whole vocabulary.
        values: the distinct values, ascending.
        k: index of the label's value.
        place, behind: decimal place of the token's last digit and number of digits after it; see
            `Reader.numbers`.
        own, tail, whole: digits of the label's token, of its number behind it, and of its whole number.
        form: logit of the label's own token, if the term replaces cross-entropy.
        forms: how many digits the tokens of each value have, without those with a point or an exponent.
    """

    z: Tensor
    lse: Tensor
    values: Tensor
    k: int
    place: int = 0
    behind: int = 0
    own: str = ""
    tail: str = ""
    whole: str = ""
    forms: Mapping[float, set[int]] = field(default_factory=dict)
    form: Tensor | None = None

    @functools.cached_property
    def log_p(self):
        return self.z.log_softmax(-1)

    @functools.cached_property
    def p(self):
        return self.log_p.exp()

    @property
    def label(self):
        return self.values[self.k]

    @property
    def mass(self):
        return (self.z.logsumexp(-1) - self.lse).exp()


def squashed(distance, values, factor):
    gaps = (values[:, None] - values).abs()
    low, high = gaps[gaps > 0].min(), gaps.max()
    return torch.where(distance == 0, 0.0, 1 + (distance - low) * (factor - 1) / (high - low))


def wasserstein(x, squash=None):
    cost = (x.values - x.label).abs()
    return x.p @ (cost if squash is None else squashed(cost, x.values, squash))


def crps(x):
    """E|X - v_k| - E|X - X'| / 2, by the double sum."""
    return wasserstein(x) - 0.5 * x.p @ (x.values[:, None] - x.values).abs() @ x.p


def huber(error):
    return torch.where(error.abs() <= 1, 0.5 * error**2, error.abs() - 0.5)


REGRESSION: dict[str, Callable[[Tensor], Tensor]] = {
    "squared": lambda error: error**2,
    "absolute": lambda error: error.abs(),
    "huber": huber,
    # Asymmetric, so that the larger of both ends decides the worst cost.
    "pinball": lambda error: torch.maximum(-0.9 * error, 0.1 * error),
}


def expected_value(x, loss="squared"):
    return REGRESSION[loss](x.p @ x.values - x.label)


def raft(x):
    return (x.mass * x.p @ x.values - x.label) ** 2


def squared_distance(x):
    return x.p @ (x.values - x.label) ** 2


def gaussian(values, k, sigma=1.0):
    return (-((values - values[k]) ** 2) / (2 * sigma**2)).softmax(-1)


def gaussian_cross_entropy(x, sigma=1.0):
    loss = -(gaussian(x.values, x.k, sigma) * (x.z - x.lse)).sum()
    return loss if x.form is None else loss + x.z[x.k] - x.form


def hl_gauss_target(x, sigma, relative=0.0, leading_zeros=False):
    """Integrate the Gaussian over the numbers that each value stands for, in units of the last digit."""
    if not x.own or len(x.own) not in x.forms[float(x.label)]:
        return [float(j == x.k) for j in range(len(x.values))]
    unit = Fraction(10) ** (x.place - x.behind)
    y, first = int(x.own + x.tail), len(x.whole) == len(x.own + x.tail)
    masses = []
    for v in x.values.tolist():
        digits = f"{int(abs(v)):0{len(x.own)}d}"
        allowed = len(x.own) in x.forms.get(v, ()) and (v >= 0 if x.label >= 0 else v <= 0)
        if first and not leading_zeros and x.own[0] != "0" and len(digits) + x.place > 1:
            allowed = allowed and digits[0] != "0"
        low = int(digits) * 10 ** len(x.tail) - Fraction(1, 2)
        high = low + 10 ** len(x.tail)
        width = math.hypot(sigma / unit, relative * int(x.whole)) * math.sqrt(2) or 1e-300
        a, b = (float(edge - y) / width for edge in (low, high))
        mass = math.erfc(a) - math.erfc(b) if a > 0 else math.erf(b) - math.erf(a)
        masses.append(mass if allowed else 0.0)
    return [mass / math.fsum(masses) for mass in masses]


def hl_gauss(x, **options):
    q = torch.tensor(hl_gauss_target(x, **options), dtype=torch.float64)
    loss = -(q * (x.z - x.lse)).sum()
    return loss if x.form is None else loss + x.z[x.k] - x.form


def smoothed_wasserstein(x, sigma=1.0):
    q = gaussian(x.values, x.k, sigma)
    steps = [abs(x.p[: i + 1].sum() - q[: i + 1].sum()) for i in range(len(q) - 1)]
    return sum(step * gap for step, gap in zip(steps, x.values.diff(), strict=True))


def dist2_target(values, k, tau=1.0):
    return (-((values - values[k]) ** 2) / tau).softmax(-1)


def dist2(x, tau=1.0):
    q = dist2_target(x.values, x.k, tau)
    return torch.xlogy(q, q).sum() - (q * x.log_p).sum()


def del_loss(x):
    terms = [
        x.p[j] * (torch.logaddexp(z, torch.zeros_like(z)) - (z if j == x.k else 0)) for j, z in enumerate(x.z)
    ]
    return 0.01 * torch.stack(terms).mean()


def smmd(x, sigma=2.0, squash=9.0):
    distance = (x.values[:, None] - x.values).abs()
    distance = distance if squash is None else squashed(distance, x.values, squash)
    matrix = torch.exp(-(distance**2) / (2 * sigma**2))
    smoothness = (torch.diag(matrix.sum(1)) - matrix) / (2 * matrix.sum(1).mean())
    error = x.p - torch.eye(len(x.values), dtype=torch.float64)[x.k]
    return error @ matrix @ error + error @ smoothness @ error


def weighted_by_digits_after(x, base=1.2):
    return base**x.behind * wasserstein(x)


def del_loss_by_place(x):
    return (2 * (x.place + 1) if x.place >= 0 else 1.02 ** (x.place - 1)) * del_loss(x)


# --- one loss per number --------------------------------------------------------------------------

Number = Sequence[Position]


def number_level(span):
    predicted = sum(x.p @ x.values.abs() * 10.0**x.behind for x in span)
    true = sum(x.label.abs() * 10.0**x.behind for x in span)
    return (predicted - true).abs() / (predicted + true + EPSILON)


def read_number(span, temperature):
    """Read the predicted number, the argmax with the gradient of a softmax, and the true one."""
    digits = []
    for x in span:
        soft = (x.log_p / temperature).softmax(-1) @ x.values.abs()
        digits.append(x.values.abs()[x.log_p.argmax()] + soft - soft.detach())
    read = sum(digit * 10.0**x.place for digit, x in zip(digits, span, strict=True))
    return read, sum(x.label.abs() * 10.0**x.place for x in span)


def ntil(span, base=1.2, relative=0.2, magnitude=0.2, temperature=0.1):
    read, true = read_number(span, temperature)
    error = (read - true).abs() / (torch.maximum(read, true) + 1)
    ratio = torch.log((torch.maximum(read, true) + 1) / (torch.minimum(read, true) + 1))
    of_digits = torch.stack([weighted_by_digits_after(x, base) for x in span]).mean()
    return of_digits + relative * error + magnitude * ratio


PER_NUMBER = {number_level, ntil}


# --- combined losses ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """A number term.

    Args:
        formula: a function of a `Position`, or of the positions of a number.
        reweigh: text costs 1.01 times the worst number.
        decimals: points belong to numbers.
        options: options of the formula.
    """

    formula: Callable[..., Tensor] = wasserstein
    reweigh: bool = False
    decimals: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, span):
        given = span if self.formula in PER_NUMBER else span[0]
        return self.formula(given, **dict(self.options))

    @functools.cache  # noqa: B019  # a few terms, for as long as the tests run
    def worst(self, values):
        """The largest loss of a certain prediction; 1 for relative errors of numbers of any length."""
        if self.formula is number_level:
            return 1.0
        columns = range(len(values))
        return max(float(self([certain_of(values, j, k)])) for j in columns for k in columns)


def certain_of(values, j, k):
    """Put all probability on the j-th value; the label is the k-th."""
    z = torch.full((len(values),), -1e4, dtype=torch.float64)
    z[j] = 0.0
    return Position(z, z.logsumexp(-1), torch.tensor(values, dtype=torch.float64), k)


@dataclass(frozen=True)
class Combined:
    """The options of a combined loss, with the library's defaults.

    Args:
        cross_entropy: factor of cross-entropy, 0 for a number term alone.
        texts: texts of the number tokens and points, for numbers of several tokens. Default: each token is a
            number.
    """

    number: Term = field(default_factory=Term)
    weight: float = 0.3
    mode: str = "add"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    softcap: float | None = None
    logit_scale: float = 1.0
    reduction: str = "mean"
    normalize_by: str = "items"
    cross_entropy: float = 1.0
    texts: Mapping[int, str] | None = None


class Expected(NamedTuple):
    """Terms (scalars, or one per position for "none"), and the gradient of `loss` times `upstream`."""

    loss: np.ndarray
    ce: np.ndarray
    ntl: np.ndarray
    gradient: np.ndarray


def combined(
    logits,
    labels,
    number_values,
    options,
    *,
    weights=None,
    num_items=None,
    sequence_ids=None,
    number_weights=None,
    upstream=1.0,
):
    """Compute the combined loss of logits `[..., vocab]` and its gradient."""
    leaf = torch.tensor(np.asarray(logits, dtype=np.float64), requires_grad=True)
    labels = np.asarray(labels)
    shape, flat = labels.shape, torch.from_numpy(labels.reshape(-1))
    weight = torch.ones(shape) if weights is None else torch.tensor(np.asarray(weights, dtype=np.float64))
    weight = weight.double().reshape(-1) * (flat != options.ignore_index)
    is_number = (weight > 0) & torch.tensor([y in number_values for y in flat.tolist()], dtype=torch.bool)
    numbers = numbers_of(labels, number_values, options, sequence_ids)
    starts = torch.zeros(len(flat), dtype=torch.bool)
    starts[[number[0][0] for number in numbers]] = True

    # The share of each number label that is the number term's: that of its number's first token.
    share = torch.ones(len(flat), dtype=torch.float64)
    if number_weights is not None:
        given = torch.tensor(number_weights, dtype=torch.float64).reshape(-1)
        for number in numbers:
            share[[i for i, *_ in number]] = given[number[0][0]]

    per_item = per_number = 1.0
    if options.reduction == "mean":
        items = float(weight.sum()) if num_items is None else num_items
        count = float((weight * share * starts).sum())
        per_item, per_number = (1 / n if n > 0 else 0.0 for n in (items, count))
        if options.normalize_by == "items":
            per_number = per_item
        elif num_items is not None:
            per_number *= float(weight.sum()) * per_item
    item_weights = weight * per_item
    ce_weights, term_weights = options.cross_entropy * item_weights, weight * share * per_number
    if options.mode == "replace":
        ce_weights = torch.where(is_number, (1 - share) * item_weights, item_weights)
        term_weights = share * item_weights

    z = transform(torch.where(weight[:, None] > 0, leaf.reshape(-1, logits.shape[-1]), 0), options)
    if numbers:  # a number's digits count, whatever their weights
        inside = sorted({i for number in numbers for i, *_ in number})
        z = z.index_copy(0, torch.tensor(inside), transform(leaf.reshape(z.shape)[inside], options))
    lse = z.logsumexp(-1)
    asked = z.gather(-1, torch.where(weight > 0, flat, 0)[:, None])[:, 0]
    ce = (1 - options.label_smoothing) * (lse - asked)
    if options.label_smoothing:
        ce = ce + options.label_smoothing * (lse - z.mean(-1))
    ce = torch.where(ce_weights > 0, ce, 0) * ce_weights
    ntl = torch.zeros(len(flat), dtype=torch.float64)
    for number in numbers:
        first = number[0][0]
        if term_weights[first] > 0:
            loss = number_term(number, z, lse, flat.tolist(), number_values, options)
            ntl = ntl + torch.eye(len(flat), dtype=torch.float64)[first] * term_weights[first] * loss
    loss = ce + options.weight * ntl
    up = torch.tensor(np.asarray(upstream, dtype=np.float64)).reshape(-1)
    (gradient,) = torch.autograd.grad((loss * up).sum(), leaf)
    terms = [term.detach().numpy() for term in (loss, ce, ntl)]
    if options.reduction == "none":
        return Expected(*(term.reshape(shape) for term in terms), gradient.numpy())
    return Expected(*(term.sum() for term in terms), gradient.numpy())


def transform(logits, options):
    logits = logits * options.logit_scale
    return logits if options.softcap is None else options.softcap * torch.tanh(logits / options.softcap)


def numbers_of(labels, number_values, options, sequence_ids=None):
    """Find the numbers of each term: lists of (position, place, digits after it, own, tail, whole)."""
    if not labels.size:
        return []
    rows = labels.reshape(-1, labels.shape[-1] if labels.ndim else 1)
    sequences = np.zeros_like(rows) if sequence_ids is None else sequence_ids
    found = []
    for b, row in enumerate(rows.tolist()):
        if options.texts is None:
            texts: list[str | None] = [None] * len(row)
            numbers = [[(t, 0, 0)] for t, y in enumerate(row) if y in number_values]
            numbers = [number for number in numbers if row[number[0][0]] != options.ignore_index]
        else:
            texts = [None if y == options.ignore_index else options.texts.get(y, "text") for y in row]
            numbers = Reader(texts, sequences[b], options.number.decimals).numbers()
        for number in numbers:
            own = [digits_of(texts[t]) for t, *_ in number]
            entries = [
                (b * len(row) + t, place, behind, own[i], "".join(own[i + 1 :]), "".join(own))
                for i, (t, place, behind) in enumerate(number)
            ]
            found.extend([entries] if options.number.formula in PER_NUMBER else [[e] for e in entries])
    return found


def digits_of(text):
    """The digits of a token without a point or an exponent of its own, else nothing."""
    digits = (text or "").strip(" +-")
    return digits if digits.isdigit() else ""


def number_term(number, z, lse, labels, number_values, options):
    """Compute the loss of a number, or of one of its tokens, reweighed if requested."""
    term, texts = options.number, options.texts or {}
    widths: dict[float, set[int]] = {}
    for i, value in number_values.items():
        if digits := digits_of(texts.get(i)):
            widths.setdefault(value, set()).add(len(digits))
    values = sorted(set(number_values.values()))
    ids = sorted(number_values)
    forms = torch.tensor([[0.0 if number_values[i] == v else -math.inf for i in ids] for v in values])
    span = []
    for i, place, behind, *written in number:
        merged = (z[i, ids].clamp(min=NEVER) + forms).logsumexp(-1)
        k = values.index(number_values[labels[i]])
        table = torch.tensor(values, dtype=torch.float64)
        form = z[i, labels[i]] if options.cross_entropy and options.mode == "replace" else None
        span.append(Position(merged, lse[i], table, k, place, behind, *written, forms=widths, form=form))
    loss = term(span)
    if term.reweigh:
        mass = span[0].mass
        loss = mass * loss + 1.01 * term.worst(tuple(values)) * (1 - mass)
    return loss


def through_head(hidden, weight, gradient):
    """Compute the gradients of hidden states, head and bias from the gradient of the logits."""
    rows, states = gradient.reshape(-1, gradient.shape[-1]), hidden.reshape(-1, hidden.shape[-1])
    return gradient @ weight, rows.T @ states, rows.sum(0)


def known(name, formula, of_formula=(), **options):
    """A criterion of the library by its name and options, and its term; `of_formula` has the term alone."""
    shared = {option: value for option, value in options.items() if option != "decimals"}
    decimals = options.get("decimals", name == "hl_gauss")
    return name, options, Term(formula, decimals=decimals, options=(*shared.items(), *of_formula))


# What the tests try of each criterion that ships: label -> `known`.
CRITERIA = {
    "ntl_was": known("ntl_was", wasserstein),
    "ntl_was squashed": known("ntl_was", wasserstein, squash=3.0),
    "crps": known("crps", crps),
    "ntl_mse": known("ntl_mse", expected_value),
    "ntl_mae": known("ntl_mae", expected_value, [("loss", "absolute")]),
    "ntl_huber": known("ntl_huber", expected_value, [("loss", "huber")]),
    "raft": known("raft", raft),
    "gaussian": known("gaussian_smoothing", gaussian_cross_entropy),
    "gaussian 2.5": known("gaussian_smoothing", gaussian_cross_entropy, sigma=2.5),
    "gaussian 0.05": known("gaussian_smoothing", gaussian_cross_entropy, sigma=0.05),
    "hl_gauss": known("hl_gauss", hl_gauss, sigma=1.5),
    "hl_gauss narrow": known("hl_gauss", hl_gauss, sigma=0.05, decimals=False),
    "hl_gauss relative": known("hl_gauss", hl_gauss, sigma=0.2, relative=0.3, leading_zeros=True),
    "smoothed": known("smoothed_wasserstein", smoothed_wasserstein),
    "smoothed 0.6": known("smoothed_wasserstein", smoothed_wasserstein, sigma=0.6),
    "dist2": known("dist2", dist2),
    "dist2 0.001": known("dist2", dist2, tau=1e-3),
    "del_loss": known("del_loss", del_loss),
    "smmd": known("smmd", smmd),
    "smmd squashed": known("smmd", smmd, sigma=1.0, squash=4.0),
    "smmd unsquashed": known("smmd", smmd, squash=None),
    "number_level": known("number_level", number_level),
    "number_level decimals": known("number_level", number_level, decimals=True),
    "ntil": known("ntil", ntil),
    "ntil decimals": known("ntil", ntil, base=1.5, relative=0.5, temperature=0.4, decimals=True),
}
