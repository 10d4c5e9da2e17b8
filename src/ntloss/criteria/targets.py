"""Target distributions around the label, and distances from them: what criteria are made of.

Most losses on numbers are a target distribution q over the values and a distance between q and the predicted
distribution p: cross-entropy with a Gaussian target is the paper's label smoothing, the Kullback-Leibler
divergence from an exponential target is DIST2Loss.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

# Replaces logits of -inf among the number tokens: the probability is still 0, and the difference of two of
# them is not NaN, in value or gradient.
MINUS_INFINITY = -1e30
_IMPOSSIBLE = MINUS_INFINITY / 10  # what only their log-probabilities are below
_MOST_TABLES = 8  # of one function and one tensor of values; a width that falls makes more than it needs


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
