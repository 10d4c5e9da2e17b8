"""The losses of the published package `ntloss` 0.3.2, with its names, arguments and defaults.

`docs/differences.md` lists the intended differences.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss.criteria import Criterion, ntl_was, number_level
from ntloss.criteria.signature import reads_of
from ntloss.engine.read import read
from ntloss.engine.readout import Readout, Wanted
from ntloss.engine.targets import TINY, PreparedLabels, Reduction, check_choice, make_targets
from ntloss.engine.terms import NumberTerm
from ntloss.numbers.grammar import LARGEST, as_value, with_ascii_sign
from ntloss.numbers.vocabulary import (
    NumberToken,
    NumberVocabulary,
    missing_digits,
    texts_within,
    warn_once,
)

# What `float` reads of a token, but ASCII digits only, and no underscore.
_NUMBER = re.compile(r"[-+\u2212]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+\u2212]?[0-9]+)?")


def _published_vocabulary(
    tokenizer: Any, vocab_size: int | None, digit_level: bool, space_prefixed: bool
) -> NumberVocabulary:
    """Find number tokens by the published rule: a token has the value that `float` reads, with its sign.

    Warn once of number tokens that are not among the chosen ones. A `NumberVocabulary` is returned as it is;
    raise a ValueError if the other arguments contradict it.
    """
    if isinstance(tokenizer, NumberVocabulary):
        if vocab_size not in (None, tokenizer.vocab_size) or not digit_level or space_prefixed:
            raise ValueError(
                f"vocab_size={vocab_size}, digit_level={digit_level}, space_prefixed={space_prefixed}: "
                "a NumberVocabulary determines these. Pass them where you make the vocabulary."
            )
        return tokenizer
    texts = texts_within(tokenizer, vocab_size)
    kept: list[NumberToken] = []
    left_out: dict[str, list[NumberToken]] = {}
    for token_id, text in sorted(texts.decoded.items()):
        number = text.removeprefix(" ")
        if not _NUMBER.fullmatch(number) or abs(value := as_value(with_ascii_sign(number))) > LARGEST:
            continue
        token, chosen = NumberToken(token_id, text, value), kept
        if digit_level and not token.is_digit:
            chosen = left_out.setdefault("of several characters ({}; digit_level=False counts them)", [])
        elif not (texts.bare[token_id] or space_prefixed):
            chosen = left_out.setdefault(
                "with a marker of the tokenizer ({}; space_prefixed=True counts them)", []
            )
        chosen.append(token)
    ways = [f"{len(some):,} " + way.format(f"such as {some[0].text!r}") for way, some in left_out.items()]
    if digit_level and (missing := missing_digits(kept)):
        raise ValueError(
            f"the digits {', '.join(missing)} have no token in this vocabulary that counts; left out are "
            f"{' and '.join(ways) or 'none'}. Pass an option that counts those, or add the digits, "
            f"tokenizer.add_tokens({missing}), and resize the model to match, "
            "model.resize_token_embeddings(len(tokenizer))."
        )
    if ways:
        warn_once(f"{len(kept):,} tokens count as numbers; left out are {' and '.join(ways)}")
    return NumberVocabulary(texts.vocab_size, tuple(kept), _texts=texts)


def reweighed(criterion: Criterion, worst: float) -> Criterion:
    """Make a criterion cost more for probability on text than for the worst number.

    m loss + 1.01 worst (1 - m) with m the total probability of the number tokens, for a whole number at its
    first token. Nothing balances the penalty where the label ends a number, so it makes numbers too long
    (docs/differences.md). The published classes use it by default.

    Args:
        criterion: the criterion to reweigh, which sees only the distribution within the number tokens.
        worst: its largest loss.

    Source: the package ntloss since 0.1 (not in the paper).
    """
    made = partial(_reweighed, criterion=criterion, worst=worst)
    names = [*(name for name in reads_of(criterion) if name != "target_probs"), "log_mass"]
    parameters = [Parameter(name, Parameter.KEYWORD_ONLY) for name in names]
    if "decimals" in signature(criterion).parameters:
        parameters.append(signature(criterion).parameters["decimals"])
    made.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return made


def _reweighed(log_mass: Tensor, criterion: Criterion, worst: float, **read: Any) -> Tensor:
    mass = log_mass.exp()
    # 1 - mass loses precision where mass is near 1; the gradient of expm1 loses it where mass is far below 1.
    on_text = torch.where(log_mass > -1, -torch.expm1(log_mass), 1 - mass)
    loss = criterion(**read)
    # Another shape would be broadcast; the term refuses it as that of any criterion.
    if not isinstance(loss, Tensor) or loss.shape != mass.shape:
        return loss
    return mass * loss + (1.01 * worst) * on_text


class _PublishedLoss(nn.Module):
    """Base class of the published losses: made from a tokenizer, called on logits, with their attributes."""

    def __init__(
        self, vocabulary: NumberVocabulary, criterion: Criterion, worst: float, reweigh: bool
    ) -> None:
        super().__init__()
        self._reweigh, self._worst = reweigh, worst
        self.term = NumberTerm(vocabulary, reweighed(criterion, worst) if reweigh else criterion)

    def forward(
        self,
        logits: Tensor,
        labels: Tensor | PreparedLabels,
        loss_weights: Tensor | None = None,
        reduction: Reduction = "mean",
        ignore_index: int = -100,
    ) -> Tensor:
        """Compute the loss of the positions whose label is a number token.

        Args:
            logits: `[..., vocab]`, any float dtype. Softmax and sums are computed in float32 or float64.
            labels: `[...]`, token ids, or what `prepare` made of them, weights included.
            loss_weights: `[...]`, weight of each position, 0 or more. Default: 1.
            reduction: "mean" (default) divides by the total weight of the number labels; "sum"; "none".
            ignore_index: label of positions to ignore. Default: -100.

        Returns:
            A scalar, or `[...]` for "none" (0 where the label is not a number), in float32 or float64.
            Without number labels, a zero that supports `backward()`.

        Raises:
            TypeError: the logits are not floating-point, or the labels are not token ids.
            ValueError: shapes, devices, labels or weights do not fit, or the reduction is unknown.
        """
        check_choice("reduction", reduction, Reduction)
        if not isinstance(labels, PreparedLabels):
            labels = self.prepare(labels, loss_weights, ignore_index)
        of_each = "none" if reduction == "none" else "sum"
        targets = make_targets(self.term, labels, logits, of_each, are_logits=True)
        if reduction == "mean":  # the paper's mean, over numbers
            weights = targets.number_weights
            targets = targets._replace(number_weights=weights / weights.sum().clamp(min=TINY))
        flat = logits.reshape(-1, logits.shape[-1])
        if self.reweigh:
            readout = read(flat, targets.labels, Wanted(targets.token_ids))
        else:
            # The backward pass of index_select along the last dimension is three times slower than gather's.
            number_logits = flat.gather(-1, targets.token_ids.expand(len(flat), -1))
            unread = number_logits.new_zeros(len(flat))
            readout = Readout(unread, unread, unread, number_logits)
        term: Tensor = self.term(readout, targets)
        return term.reshape(targets.shape) if reduction == "none" else term

    def prepare(
        self,
        labels: Tensor,
        loss_weights: Tensor | None = None,
        ignore_index: int = -100,
        sequence_ids: Tensor | None = None,
    ) -> PreparedLabels:
        """Check labels, and find their numbers on the CPU; see `NTLCrossEntropyLoss.prepare`."""
        reader = self.term.reader._replace(ignore_index=ignore_index)
        return reader.prepare(labels, loss_weights, sequence_ids=sequence_ids)

    @property
    def vocabulary(self) -> NumberVocabulary:
        """The number tokens."""
        return self.term.tables.vocabulary

    @property
    def reweigh(self) -> bool:
        """Whether probability on text costs more than the worst number."""
        return self._reweigh

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.vocabulary.vocab_size

    @property
    def digit_level(self) -> bool:
        """Whether all number tokens are single digits."""
        return self.vocabulary.is_digits

    @property
    def is_number_token(self) -> Tensor:
        """`[vocab]`, bool, True for number tokens."""
        return self.term.tables.value_of_label[:-1] >= 0

    @property
    def number_token_ids(self) -> Tensor:
        """`[number tokens]`, token ids, ascending."""
        return self.term.tables.token_ids.sort().values

    @property
    def number_values(self) -> Tensor:
        """`[vocab]`, value of each token, NaN for text, float32."""
        values = self.term.tables.values.to(torch.float32)[self.term.tables.value_of_label[:-1]]
        return torch.where(self.is_number_token, values, torch.nan)

    @property
    def max_dist(self) -> Tensor:
        """Scalar, the criterion's worst cost."""
        return torch.tensor(self._worst, device=self.term.tables.values.device)


class NTLoss(_PublishedLoss):
    """NTL-WAS, the paper's default: the expected distance between the predicted and the true digit.

    A drop-in for the class of `ntloss` 0.3.2 (`docs/differences.md`).

    Args:
        tokenizer: a Hugging Face tokenizer (it is not changed), or a `NumberVocabulary`.
        vocab_size: width of the model's logits. Default: the tokenizer's.
        digit_level: whether the ten digits alone are numbers (default), or every token that is a number.
        reweigh: make probability on text cost more than the worst number. Default: True; False in the paper.
        squash_factor: see `squash` of `ntl_was`. Default: None.
        space_prefixed: include tokens such as `▁4` and `Ġ4`. Default: False, as published. A
            `NumberVocabulary` determines this itself.

    Raises:
        TypeError: `tokenizer` is neither a tokenizer nor a vocabulary.
        ValueError: a digit has no token; `squash_factor` is 1 or less; settings that contradict a given
            vocabulary.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> from torch.nn.functional import cross_entropy
        >>> from ntloss import NTLoss, NumberVocabulary
        >>> vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> ntl_fn = NTLoss(vocabulary)
        >>> logits, labels = torch.randn(2, 5, 12), torch.randint(12, (2, 5))
        >>> loss = cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.3 * ntl_fn(logits, labels)
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        squash_factor: float | None = None,
        *,
        space_prefixed: bool = False,
    ) -> None:
        vocabulary = _published_vocabulary(tokenizer, vocab_size, digit_level, space_prefixed)
        values = vocabulary.distinct_values
        worst = float(values[-1] - values[0] if squash_factor is None else squash_factor)
        super().__init__(vocabulary, partial(ntl_was, squash=squash_factor), worst, reweigh)
        self._squash_factor = squash_factor

    @property
    def squash_factor(self) -> float | None:
        """Ratio of the largest to the smallest cost of a wrong digit."""
        return self._squash_factor


def _of_expected_value(
    probs: Tensor, values: Tensor, target: Tensor, loss_function: Callable[..., Tensor]
) -> Tensor:
    return loss_function((probs * values).sum(-1), values[target])


class NTLossDotProduct(_PublishedLoss):
    """NTL-L_p: a regression loss between the expected and the true digit.

    A drop-in for the class of `ntloss` 0.3.2. The loss is zero wherever the mean is right (half the
    probability on 3, half on 5, label 4), so prefer `NTLoss`.

    Args:
        tokenizer, vocab_size, digit_level, reweigh, space_prefixed: see `NTLoss`.
        loss_function: `(prediction, target) -> loss`, element by element; it is called with
            `reduction="none"` if it has that parameter, or any. Default: squared error, NTL-MSE.

    Raises:
        TypeError, ValueError: see `NTLoss`.

    Source: "Regress, Don't Guess", ICML 2025.

    Example:
        >>> from ntloss import NTLossDotProduct, NumberVocabulary
        >>> vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> predictions, mass = NTLossDotProduct(vocabulary).predict_numbers(torch.zeros(1, 1, 12))
        >>> round(predictions.item(), 4), round(mass.item(), 4)
        (4.5, 0.8333)
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        loss_function: Callable[..., Tensor] = F.mse_loss,
        *,
        space_prefixed: bool = False,
    ) -> None:
        elementwise = loss_function
        parameters = signature(loss_function).parameters.values()
        if any(each.name == "reduction" or each.kind == each.VAR_KEYWORD for each in parameters):
            elementwise = partial(loss_function, reduction="none")
        vocabulary = _published_vocabulary(tokenizer, vocab_size, digit_level, space_prefixed)
        values = vocabulary.distinct_values  # the ends of which may be mistaken for each other
        ends = torch.tensor([values[0], values[-1]], dtype=torch.float64, device="cpu")
        worst = float(elementwise(ends, ends.flip(0)).abs().max())
        criterion = partial(_of_expected_value, loss_function=elementwise)
        super().__init__(vocabulary, criterion, worst, reweigh)
        self._loss_function = loss_function

    @property
    def loss_function(self) -> Callable[..., Tensor]:
        """Loss of the expected digit."""
        return self._loss_function

    def predict_numbers(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the expected value of the number at every position.

        Args:
            logits: `[..., vocab]`.

        Returns:
            yhat: `[...]`, mean of the distribution over the number tokens.
            nt_mass: `[...]`, total probability of the number tokens.
        """
        shape = logits.shape[:-1]
        unused = torch.zeros(shape, dtype=torch.int64, device=logits.device)  # in place of labels
        record = PreparedLabels(unused, made_for=self.term.reader.made_for)
        targets = make_targets(self.term, record, logits, "none", are_logits=True)
        readout = read(logits.reshape(-1, logits.shape[-1]), targets.labels, Wanted(targets.token_ids))
        # torch 2.7 does not compile a slice of a named tuple.
        normalizer = (readout.row_max, readout.shifted_lse)
        found = self.term.readable(readout.number_logits, normalizer, (), ("probs", "log_mass"))
        yhat = (found["probs"] * found["values"]).sum(-1)
        return yhat.reshape(shape), found["log_mass"].exp().reshape(shape)


class NumberLevelLoss(NTLossDotProduct):
    """Symmetric relative error of the expected number, one loss for each whole number (`number_level`).

    A drop-in for the class of `ntloss` 0.3.2 that is also right for numbers of more than 20 digits. It reads
    as many digits as the *label* has: cross-entropy beside it has to penalize a model that would stop after
    `12` or continue to `12345` where `1234` is right.

    Args:
        tokenizer, vocab_size, space_prefixed: see `NTLoss`.
        float_level: a single point between digits belongs to the number: `12.34` is one number instead of
            two. Default: False.
        reweigh: make probability on text, at the number's first token, cost more than the worst number.
            Default: True.
        max_number_length: no effect, since numbers may have any length; part of the published signature.

    Raises:
        TypeError, ValueError: see `NTLoss`.

    Source: the package ntloss since 0.2.

    Example:
        >>> from ntloss import NumberLevelLoss, NumberVocabulary
        >>> digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
        >>> logits = torch.full((1, 3, 12), -1e4)
        >>> logits[0, 0, 1] = logits[0, 1, 2] = logits[0, 2, 5] = 0.0  # certain of 125
        >>> labels = torch.tensor([[3, 6, 11]])  # 36 and some text
        >>> NumberLevelLoss(digits)(logits, labels, reduction="none")
        tensor([[0.5000, 0.0000, 0.0000]])
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int = 20,
        *,
        space_prefixed: bool = False,
    ) -> None:
        # In 0.3.2 this class extends NTLossDotProduct, for its predict_numbers, and has another criterion.
        vocabulary = _published_vocabulary(tokenizer, vocab_size, True, space_prefixed)
        criterion = partial(number_level, decimals=float_level)
        _PublishedLoss.__init__(self, vocabulary, criterion, 1.0, reweigh)  # the largest relative error
        self._float_level, self._loss_function = float_level, F.l1_loss
        self.max_number_length = max_number_length

    @property
    def float_level(self) -> bool:
        """Whether a single point between digits belongs to the number."""
        return self._float_level
