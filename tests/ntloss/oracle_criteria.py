"""The field's criteria in plain NumPy and Python, float64, from their published definitions.

Written without the library: numbers are read from the tokens' texts one after the other, whole numbers are
Python integers or floats, and every sum is written out.
"""

from __future__ import annotations

import math

import numpy as np

EPSILON = float(np.finfo(np.float32).eps)


def softmax(z):
    e = np.exp(z - z.max())
    return e / e.sum()


class Reader:
    """One row's numbers, read from the texts: `spans` is a list of lists of (position, text)."""

    def __init__(self, texts, sequence, decimals):
        self.spans, self.points, self.behind = [], [], []
        current, points = None, None

        def text(t):
            return texts[t] if 0 <= t < len(texts) else None

        def plain(t):
            return t is not None and t.strip(" +-").isdigit()

        def number(t):
            return t is not None and any(c.isdigit() for c in t)

        for t, here in enumerate(texts):
            same = t > 0 and sequence[t] == sequence[t - 1]
            joins = plain(here) and here[0].isdigit()
            if current is not None and same and joins:
                current.append((t, here))
                continue
            next_joins = (
                t + 1 < len(texts)
                and sequence[t + 1] == sequence[t]
                and plain(text(t + 1))
                and text(t + 1)[0].isdigit()
            )
            if (
                decimals
                and here == "."
                and current is not None
                and same
                and next_joins
                and texts[t - 1] != "."
                and not points
            ):
                points.append(sum(len(s.strip(" +-")) for _, s in current))
                continue
            if current is not None and same and here is not None:
                self.behind.append(t)
            current = points = None
            if number(here):
                span, its_points = [(t, here)], []
                self.spans.append(span)
                self.points.append(its_points)
                if plain(here):
                    current, points = span, its_points

    def places(self):
        """For each number: list of (position, place of the token's last digit, digits behind it)."""
        result = []
        for span, points in zip(self.spans, self.points, strict=True):
            lengths = [len(s.strip(" +-")) if s.strip(" +-").isdigit() else 1 for _, s in span]
            total = sum(lengths)
            whole = points[0] if points else total
            read, places = 0, []
            for (t, _), length in zip(span, lengths, strict=True):
                read += length
                places.append((t, whole - read, total - read))
            result.append(places)
        return result


def squashed(d, values, factor):
    gaps = np.abs(values[:, None] - values[None])
    low, high = gaps[gaps > 0].min(), gaps.max()
    return np.where(d == 0, 0.0, 1 + (d - low) * (factor - 1) / (high - low))


def gaussian(values, k, sigma):
    q = np.exp(-((values - values[k]) ** 2) / (2 * sigma**2))
    return q / q.sum()


def place_weight(kind, place, behind, base=1.2):
    if kind == "exponential":
        return base**behind
    if kind == "linear":
        return behind + 1
    return 2 * (place + 1) if place >= 0 else 1.02 ** (place - 1)


def smmd_matrix(values, sigma=(2.0,), kernel="gaussian", form="both", alpha=None, factor=9.0):
    n = len(values)
    kernel_matrix = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            d = abs(values[i] - values[j])
            d = d if factor is None else float(squashed(np.array(d), values, factor))
            for s in sigma:
                kernel_matrix[i, j] += (
                    math.exp(-(d**2) / (2 * s**2)) if kernel == "gaussian" else math.exp(-d / s)
                ) / len(sigma)
    degrees = np.diag(kernel_matrix.sum(1))
    a = 1 / (2 * kernel_matrix.sum(1).mean()) if alpha is None else alpha
    return {
        "mmd": kernel_matrix,
        "smoothness": a * (degrees - kernel_matrix),
        "both": kernel_matrix + a * (degrees - kernel_matrix),
    }[form]


class Position:
    """One position: distribution over the distinct values, raw logits of them, log of the mass, target."""

    def __init__(self, z, ids_of_value, values, k):
        lse = np.logaddexp.reduce(z)
        self.z = np.array([np.logaddexp.reduce(z[ids]) for ids in ids_of_value])
        self.p = softmax(self.z)
        self.log_p = self.z - np.logaddexp.reduce(self.z)
        self.log_mass = np.logaddexp.reduce(self.z) - lse
        self.lse, self.values, self.k = lse, values, k


# --- one loss per token: (position, place, behind) -> float ---------------------------------------


def wasserstein(x, place, behind):
    return sum(x.p[j] * abs(v - x.values[x.k]) for j, v in enumerate(x.values))


def gaussian_cross_entropy(x, place, behind, sigma=1.0):
    q = gaussian(x.values, x.k, sigma)
    return -sum(q[j] * (x.z[j] - x.lse) for j in range(len(q)))


def smoothed_wasserstein(x, place, behind, sigma=1.0):
    q = gaussian(x.values, x.k, sigma)
    total = 0.0
    for i in range(len(q) - 1):
        total += abs(x.p[: i + 1].sum() - q[: i + 1].sum()) * (x.values[i + 1] - x.values[i])
    return total


def dist2(x, place, behind, tau=1.0, distance="squared", place_weighted=False):
    d = np.abs(x.values - x.values[x.k])
    d = d**2 if distance == "squared" else d
    q = softmax(-d / tau)
    kl = sum(q[j] * (math.log(q[j]) - x.log_p[j]) for j in range(len(q)) if q[j] > 0)
    return kl * ((behind + 1) if place_weighted else 1)


def digit_entropy(x, place, behind, place_weighted=False):
    terms = [x.p[j] * (np.logaddexp(0, x.z[j]) - (x.z[j] if j == x.k else 0)) for j in range(len(x.values))]
    return 0.01 * np.mean(terms) * (place_weight("decimal", place, behind) if place_weighted else 1)


def smmd(x, place, behind, **options):
    r = x.p.copy()
    r[x.k] -= 1
    return r @ smmd_matrix(x.values, **options) @ r


def place_weighted(x, place, behind, weighting="exponential", base=1.2):
    return place_weight(weighting, place, behind, base) * wasserstein(x, place, behind)


# --- one loss per number: list of (position, place, behind) -> float ------------------------------


def number_level(span):
    predicted = math.fsum(float(x.p @ np.abs(x.values)) * 10.0**behind for x, _, behind in span)
    true = math.fsum(abs(x.values[x.k]) * 10.0**behind for x, _, behind in span)
    return abs(predicted - true) / (predicted + true + EPSILON)


def read_digits(span, temperature, hard, around):
    """`around` is None, or the span at which the argmax is taken: straight-through, as a function of z."""
    read = []
    for i, (x, place, _) in enumerate(span):
        soft = softmax(x.log_p / temperature) @ np.abs(x.values)
        if hard:
            centre = (around or span)[i][0]
            soft += np.abs(x.values)[centre.log_p.argmax()]
            soft -= softmax(centre.log_p / temperature) @ np.abs(x.values)
        read.append(soft * 10.0**place)
    return math.fsum(read), math.fsum(abs(x.values[x.k]) * 10.0**place for x, place, _ in span)


def relative_error(span, temperature=0.1, hard=True, around=None):
    read, true = read_digits(span, temperature, hard, around)
    return abs(read - true) / (max(read, true) + 1)


def magnitude(span, temperature=0.1, hard=True, around=None):
    read, true = read_digits(span, temperature, hard, around)
    return math.log((max(read, true) + 1) / (min(read, true) + 1))


def ntil(span, hard=True, around=None):
    token = np.mean([1.2**behind * wasserstein(x, place, behind) for x, place, behind in span])
    return (
        token
        + 0.2 * relative_error(span, hard=hard, around=around)
        + 0.2 * magnitude(span, hard=hard, around=around)
    )


PER_NUMBER = {number_level, relative_error, magnitude, ntil}


class Oracle:
    """Losses of a batch.

    Args:
        texts: text of each token id, None where it is no number, point or the like.
        decimals: points belong to numbers.
    """

    def __init__(self, texts, decimals=False, ignore_index=-100):
        self.texts, self.decimals, self.ignore_index = texts, decimals, ignore_index
        self.value = {
            i: float(t) for i, t in enumerate(texts) if t is not None and any(c.isdigit() for c in t)
        }
        self.values = np.array(sorted(set(self.value.values())))
        self.ids = [[i for i, v in self.value.items() if v == value] for value in self.values]

    def spans(self, logits, labels, sequence_ids=None):
        """Lists of (row, position in row, Position, place, behind), one list per number."""
        found = []
        for b, row in enumerate(labels):
            texts = [None if y == self.ignore_index else self.texts[y] or "text" for y in row]
            sequence = [0] * len(row) if sequence_ids is None else list(sequence_ids[b])
            for places in Reader(texts, sequence, self.decimals).places():
                span = []
                for t, place, behind in places:
                    k = int(np.where(self.values == self.value[row[t]])[0][0])
                    x = Position(logits[b, t], self.ids, self.values, k)
                    span.append((b, t, x, place, behind))
                found.append(span)
        return found

    def losses(self, criterion, logits, labels, sequence_ids=None, around=None, **options):
        """`[batch, seq]`, not reweighed."""
        result = np.zeros(labels.shape)
        centre = None if around is None else self.spans(around, labels, sequence_ids)
        for i, span in enumerate(self.spans(logits, labels, sequence_ids)):
            if criterion in PER_NUMBER:
                given = [entry[2:] for entry in span]
                extra = {} if centre is None else {"around": [entry[2:] for entry in centre[i]]}
                result[span[0][0], span[0][1]] = criterion(given, **options, **extra)
            else:
                for b, t, x, place, behind in span:
                    result[b, t] = criterion(x, place, behind, **options)
        return result
