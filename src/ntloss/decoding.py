r"""Read a number out of a distribution over number tokens, or out of generated candidates.

The best prediction depends on the cost of an error. The expected cost is smallest for

- the **mode** if all wrong numbers are equally wrong (0-1 loss, accuracy),
- the **median** if the cost is the distance (absolute error),
- the **mean** if the cost is the squared distance (squared error).

Decoding approximates the mode. For a model that is evaluated by its absolute or squared error, the median or
mean is better. Source: Lukasik et al., "Regression-aware inference with LLMs", 2024.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.engine.readout import check_logits, read_logits
from ntloss.engine.tables import NumberTables
from ntloss.parsing import Which, parse_number
from ntloss.vocabulary import NumberVocabulary, as_vocabulary

CHOICES = ("mode", "median", "mean")
Choice = str | Callable[[Tensor, Tensor], Tensor]


def bayes_choice(values: Tensor, log_weights: Tensor, choice: Choice = "median") -> Tensor:
    r"""Choose the number with the smallest expected cost under weighted candidates.

    $\arg\min_{\hat v} \sum_j w_j \, \ell(\hat v, v_j)$ with the weights $w$ normalised.

    Args:
        values: `[..., candidates]`, or `[candidates]` for all rows. NaN and infinite values are ignored;
            weights of equal values are added.
        log_weights: `[..., candidates]`, logarithms of the weights, up to a constant for each row: zeros for
            samples of the model, log-probabilities for distinct candidates. Candidates with -inf are ignored.
        choice: "mode", "median" (default; the smallest one if there are several), "mean", or an element-wise
            cost $\ell$ `(prediction, truth) -> cost`, which chooses the *candidate* with the smallest
            expected cost (memory: candidates squared, for each row).

    Returns:
        The numbers, `[...]`, in the wider of the dtypes; NaN if all candidates are ignored. Ties go to the
        smallest value.

    Raises:
        ValueError: an unknown `choice`, or shapes that do not match.

    Source: Lukasik et al., "Regression-aware inference with LLMs", 2024. With a custom cost, this is minimum
    Bayes risk decoding.

    Example:
        >>> import torch
        >>> candidates, weights = torch.tensor([1.0, 2.0, 9.0, 9.0]), torch.tensor([0.3, 0.3, 0.2, 0.2])
        >>> [round(bayes_choice(candidates, weights.log(), c).item(), 2) for c in ("mode", "median", "mean")]
        [9.0, 2.0, 4.5]
    """
    if values.shape not in (log_weights.shape, log_weights.shape[-1:]) or not log_weights.dim():
        raise ValueError(
            f"values of shape {list(values.shape)} do not match log_weights of shape "
            f"{list(log_weights.shape)}: expected the same shape, or [candidates] for all rows"
        )
    values, order = values.expand(log_weights.shape).sort(dim=-1)
    return _choose(values, log_weights.gather(-1, order), choice, distinct=False)


def _choose(values: Tensor, log_weights: Tensor, choice: Choice, distinct: bool) -> Tensor:
    """`bayes_choice` for sorted values, `[candidates]` or `[..., candidates]`."""
    if not callable(choice) and choice not in CHOICES:
        raise ValueError(
            f"choice={choice!r}: expected one of {', '.join(map(repr, CHOICES))}, or a cost "
            "(prediction, truth) -> cost"
        )
    dtype = torch.promote_types(values.dtype, log_weights.dtype)
    counted = values.isfinite() & (log_weights > -math.inf)
    logs = torch.where(counted, log_weights, -math.inf).to(dtype)
    # Softmax would give NaN, also in the gradient, for rows without candidates.
    weights = (logs - logs.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(dtype).min)).exp()
    total = weights.sum(-1, keepdim=True)
    weights = weights / torch.where(total > 0, total, 1)
    values = torch.where(counted, values.to(dtype), 0)
    if choice == "mean":
        number = (weights * values).sum(-1)
    else:
        if callable(choice):
            cost = choice(values.unsqueeze(-1), values.unsqueeze(-2))
            expected = (cost * weights.unsqueeze(-2)).sum(-1)
            index = torch.where(counted, expected, math.inf).argmin(-1)
        elif choice == "median":
            # Half of the last sum instead of 0.5, so that rounding cannot keep all sums below it.
            cumulated = weights.cumsum(-1)
            index = (cumulated < 0.5 * cumulated[..., -1:]).sum(-1)
        else:
            if not distinct:
                same = values.unsqueeze(-1) == values.unsqueeze(-2)
                weights = (weights.unsqueeze(-2) * same).sum(-1)
            index = torch.where(counted, weights, -1).argmax(-1)
        number = values.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return torch.where(counted.any(-1), number, math.nan)


class NumberDistribution(NamedTuple):
    """The distribution over the values of number tokens.

    Args:
        values: `[values]`, the vocabulary's distinct values, in ascending order.
        log_probs: `[..., values]`, log-probabilities of the values, given that the token is a number.
        log_mass: `[...]`, log of the total probability of the number tokens.
    """

    values: Tensor
    log_probs: Tensor
    log_mass: Tensor


class NumberReading(NamedTuple):
    """A number at each position.

    Args:
        value: `[...]`, float64 (float32 on devices without it).
        mass: `[...]`, total probability of the number tokens, from 0 to 1.
    """

    value: Tensor
    mass: Tensor


def number_distribution(logits: Tensor, vocabulary: NumberVocabulary | Any) -> NumberDistribution:
    r"""Compute the distribution over distinct values at every position. Differentiable.

    $p_j \propto \sum_{i: v_i = v_j} \exp z_i$ over the number tokens $i$: the forms of a value (`4`, `▁4`,
    `04`) are merged.

    Args:
        logits: `[..., vocab]`, any float dtype. Softmax and sums are computed in float32 at least.
        vocabulary: the number tokens (`loss.vocabulary`), or a tokenizer, whose default token set is used.

    Returns:
        The distribution. Tables are cached for each vocabulary and device.

    Raises:
        TypeError: logits are not floating-point.
        ValueError: the logits' width differs from the vocabulary's size.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> vocabulary = NumberVocabulary.from_mapping({0: "7", 1: " 7", 2: "9"}, vocab_size=4)
        >>> values, log_probs, log_mass = number_distribution(torch.zeros(1, 4), vocabulary)
        >>> values.tolist(), log_probs.exp(), log_mass.exp()
        ([7.0, 9.0], tensor([[0.6667, 0.3333]]), tensor([0.7500]))
    """
    vocabulary = as_vocabulary(vocabulary)
    check_logits(logits, vocabulary.vocab_size)
    tables = _tables(vocabulary, logits.device)
    leading = logits.shape[:-1]
    nothing = torch.zeros(leading.numel(), dtype=torch.int64, device=logits.device)  # labels are not used
    readout = read_logits(logits, nothing, tables.token_ids)
    x = tables.criterion_input(readout.number_logits, nothing, readout[:2])
    assert x.log_mass is not None, "it is computed if the log-normalizer is given"
    return NumberDistribution(tables.values, x.log_probs.reshape(*leading, -1), x.log_mass.reshape(leading))


def read_numbers(
    logits: Tensor, vocabulary: NumberVocabulary | Any, choice: Choice = "mean"
) -> NumberReading:
    """Read the value of a number token at every position, by the cost of an error.

    Each token is read by itself: with digit-level tokens, the result is a digit, not the number it belongs
    to. For whole numbers, see `read_generation`.

    Args:
        logits: `[..., vocab]`.
        vocabulary: see `number_distribution`.
        choice: "mode", "median", "mean" (default) or a cost; see `bayes_choice`.

    Returns:
        The numbers, and the probability that the token is a number. The mean is differentiable.

    Raises:
        TypeError, ValueError: see `number_distribution` and `bayes_choice`.

    Source: Lukasik et al., "Regression-aware inference with LLMs", 2024.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((12,), -torch.inf)
        >>> logits[[1, 2, 9]] = torch.tensor([0.4, 0.3, 0.3]).log()
        >>> [round(read_numbers(logits, digits, c).value.item(), 2) for c in ("mode", "median", "mean")]
        [1.0, 2.0, 3.7]
    """
    values, log_probs, log_mass = number_distribution(logits, vocabulary)
    return NumberReading(_choose(values, log_probs, choice, distinct=True), log_mass.exp())


@functools.lru_cache(maxsize=16)
def _tables(vocabulary: NumberVocabulary, device: torch.device) -> NumberTables:
    return NumberTables(vocabulary, device)


class GeneratedNumbers(NamedTuple):
    """One number for each prompt, and the candidates that it was chosen from; all on the CPU.

    Args:
        value: `[prompts]`, float64; NaN if no candidate has a number.
        candidates: `[prompts, candidates]`, float64, the number of each candidate; NaN if it has none.
        log_weights: `[prompts, candidates]`, float64, logarithms of their weights, up to a constant.
        invalid: `[prompts]`, number of candidates without a finite number.
        texts: the decoded candidates, in the order of the prompts.
    """

    value: Tensor
    candidates: Tensor
    log_weights: Tensor
    invalid: Tensor
    texts: list[str]


def read_generation(
    output: Any,
    decode: Any,
    choice: Choice = "median",
    num_return_sequences: int = 1,
    *,
    weights: str | Tensor = "auto",
    which: Which = "last",
    prompt_length: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
) -> GeneratedNumbers:
    r"""Read one number for each prompt from the output of transformers' `generate()`.

    Each candidate is decoded and parsed, and `bayes_choice` is applied to the numbers of a prompt. *Samples*
    all have weight 1, because their frequencies already follow the model's probabilities. *Beams* are
    distinct, so each is weighted with its probability $\exp \sum_t \log p_t$. Candidates without a number are
    ignored.

    Args:
        output: output of `generate(..., return_dict_in_generate=True, output_scores=True)`; or only its
            `sequences`, with `prompt_length`.
        decode: the tokenizer; or a function from a list of lists of token ids to texts; or a
            `NumberVocabulary`, which decodes numbers, signs, points and separators, and treats all other
            tokens as text.
        choice: "mode", "median" (default), "mean" or a cost; see `bayes_choice`.
        num_return_sequences: candidates per prompt, as passed to `generate()`. Default: 1.
        weights: "uniform"; "probability", which counts candidates with the same tokens once; log-weights,
            `[prompts * candidates]`; or "auto" (default): "probability" for beams, else "uniform".
            Probabilities are the model's own if `generate()` was called with `output_logits=True`; otherwise
            they are taken from `scores`, after the logits processors (temperature, top-k, ...).
        which: which number of a text to read; see `parse_number`. Default: "last".
        prompt_length: number of tokens before the generated ones. Default: inferred from `scores`.
        eos_token_id: token id, or ids, that end a text. Default: the tokenizer's.

    Returns:
        The numbers and their candidates.

    Raises:
        TypeError: `decode` cannot decode.
        ValueError: the number of sequences is not a multiple of `num_return_sequences`, `scores` or
            `eos_token_id` are required but missing, or an option is unknown.

    Source: Lukasik et al., "Regression-aware inference with LLMs", 2024.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> sequences = torch.tensor([[11, 1, 2], [11, 1, 4], [11, 9, 9], [11, 10, 10]])  # 10, 11: text
        >>> read = read_generation(sequences, digits, "median", 4, prompt_length=1)
        >>> read.candidates.tolist(), read.value.item(), read.invalid.item()
        ([[12.0, 14.0, 99.0, nan]], 14.0, 1)
    """
    sequences = output if isinstance(output, Tensor) else output.sequences
    if num_return_sequences < 1 or len(sequences) % num_return_sequences:
        raise ValueError(
            f"{len(sequences)} sequences are not a multiple of "
            f"num_return_sequences={num_return_sequences}: expected the number passed to generate()"
        )
    ends = _end_tokens(decode, eos_token_id)
    generated = _generated_part(output, sequences, prompt_length)
    tokens = [_until_end(row, ends) for row in generated.tolist()]
    texts = _make_decoder(decode)(tokens)
    numbers = [parse_number(text, which) for text in texts]
    shape = (-1, num_return_sequences)
    candidates = torch.tensor([math.nan if n is None else n for n in numbers], dtype=torch.float64)
    log_weights = _log_weights(output, generated, tokens, weights, ends, num_return_sequences)
    candidates, log_weights = candidates.reshape(shape), log_weights.reshape(shape)
    return GeneratedNumbers(
        bayes_choice(candidates, log_weights, choice),
        candidates,
        log_weights,
        (~candidates.isfinite()).sum(-1),
        texts,
    )


def _end_tokens(decode: Any, eos_token_id: int | Sequence[int] | None) -> frozenset[int]:
    given = getattr(decode, "eos_token_id", None) if eos_token_id is None else eos_token_id
    return frozenset(() if given is None else [given] if isinstance(given, int) else given)


def _generated_part(output: Any, sequences: Tensor, prompt_length: int | None) -> Tensor:
    """The generated tokens, `[sequences, new tokens]`."""
    if prompt_length is not None:
        return sequences[:, prompt_length:]
    beams = getattr(output, "beam_indices", None)
    steps = getattr(output, "scores", None) or getattr(output, "logits", None)
    if beams is not None:  # the search may have run for longer than its best beams
        count = int((beams >= 0).sum(-1).max())
    elif steps is not None:
        count = len(steps)
    else:
        raise ValueError(
            "cannot tell the prompt from the generated tokens: pass prompt_length=<tokens of the prompt>, or "
            "call generate(..., return_dict_in_generate=True, output_scores=True)"
        )
    return sequences[:, sequences.shape[-1] - count :]


def _until_end(row: list[int], ends: frozenset[int]) -> list[int]:
    return row[: next((i for i, token in enumerate(row) if token in ends), len(row))]


def _make_decoder(decode: Any) -> Callable[[list[list[int]]], list[str]]:
    """Return a function from rows of token ids to texts for the `decode` of `read_generation`."""
    if hasattr(decode, "batch_decode"):
        return lambda rows: list(decode.batch_decode(rows, skip_special_tokens=True))
    if isinstance(decode, NumberVocabulary):
        texts = {token.token_id: token.text for token in (*decode.tokens, *decode.left_out)}
        texts |= {i: "-" if factor < 0 else "+" for i, factor in decode.sign_ids.items()}
        texts |= dict.fromkeys(decode.point_ids, ".") | dict.fromkeys(decode.separator_ids, ",")
        return lambda rows: ["".join(texts.get(token, "\n") for token in row) for row in rows]
    if callable(decode):
        return lambda rows: list(decode(rows))
    raise TypeError(
        f"decode: expected a tokenizer with batch_decode, a function from token ids to texts, or a "
        f"NumberVocabulary; given {type(decode).__name__}"
    )


def _log_weights(
    output: Any,
    generated: Tensor,
    tokens: list[list[int]],
    weights: str | Tensor,
    ends: frozenset[int],
    num_return_sequences: int,
) -> Tensor:
    """Log-weight of each sequence, `[sequences]`, float64, CPU."""
    if isinstance(weights, Tensor):
        if weights.numel() != len(tokens):
            raise ValueError(
                f"weights of shape {list(weights.shape)}: expected one for each of {len(tokens)} sequences"
            )
        return weights.reshape(-1).to("cpu", torch.float64)
    if weights not in ("auto", "uniform", "probability"):
        raise ValueError(
            f"weights={weights!r}: expected 'auto', 'uniform', 'probability' or a tensor of log-weights"
        )
    beams = getattr(output, "beam_indices", None)
    uniform = weights == "uniform" or (weights == "auto" and beams is None) or num_return_sequences == 1
    if uniform:
        return torch.zeros(len(tokens), dtype=torch.float64)
    log_probs = _sequence_log_probs(output, generated, beams, ends)
    for i, row in enumerate(tokens):
        first = i - i % num_return_sequences
        if row in tokens[first:i]:
            log_probs[i] = -math.inf
    return log_probs


def _sequence_log_probs(output: Any, generated: Tensor, beams: Tensor | None, ends: frozenset[int]) -> Tensor:
    """Log-probability of each sequence up to its end token, `[sequences]`, float64, CPU."""
    logits = getattr(output, "logits", None)
    steps = logits or getattr(output, "scores", None)
    if steps is None or (beams is None and not ends):
        missing = "scores" if steps is None else "eos_token_id"
        raise ValueError(
            f"weights='probability' needs {missing}: call generate(..., return_dict_in_generate=True, "
            "output_scores=True), and pass eos_token_id=... if `decode` is not a tokenizer"
        )
    total = torch.zeros(len(generated), dtype=torch.float64)
    alive = torch.ones(len(generated), dtype=torch.bool)
    for t in range(generated.shape[-1]):
        token, step = generated[:, t].to(steps[t].device), steps[t]
        row = torch.arange(len(token), device=step.device) if beams is None else beams[:, t].to(step.device)
        # The scores of a beam search are log-probabilities already. Normalizing them again would redistribute
        # the probability of tokens that its processors ruled out.
        log_probs = step.double() if beams is not None and logits is None else step.double().log_softmax(-1)
        log_prob = log_probs[row.clamp(min=0), token].cpu()
        counted = alive if beams is None else (row >= 0).cpu()
        total += torch.where(counted, log_prob, 0)
        alive &= torch.tensor([int(i) not in ends for i in token.tolist()])
    return total
