"""The numbers in rows of labels, found in the characters that the tokens write.

A language model writes `2019` as several tokens. Losses on whole numbers, and losses that weight a digit by
its place, need to know where a number starts and ends and where its decimal point is. A row of labels is read
as the text that its tokens make, by the grammar of `ntloss.numbers.grammar`: `1,234` is one number, and so
are `1 234`, `1.234,5` and `67 million`. What differs:

- A token that begins with a space (` 12`) starts a new number, because many tokenizers put one before each.
- Signs are ignored: the number of `-3`, and of `-`, `3`, is its magnitude.
- Without `decimals`, a decimal point or comma ends a number: `12.5` is 12 and 5.
- What stands before a number is known only where it is a token of numbers, too: a decimal comma or a point
  before the first digit needs that.
- Of `12.3.4`, the first point is decimal: 12.3 and 4. An exponent is a number of its own, unless it is in
  the token of its number.
- A number ends at positions with `ignore_index`, at the end of a row, and at the end of a packed sequence. A
  truncated number is the number that its remaining digits form.

All tensors have fixed shapes: no loop over positions, no synchronization. Each token is a short row of codes.
The codes of a row of labels stand side by side, as its text would, and runs of digits are joined to numbers
by the separators between them, each of which is *grouping* (thousands) or *decimal*.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ntloss.numbers.grammar import APOSTROPHES, DIGITS, POWERS, SIGNS, SPACES
from ntloss.numbers.vocabulary import NumberVocabulary

# Codes: nothing; digits, 1 to 10 in number tokens, and 11 to 20 in others, where a loss does not see them;
# separators; what stands beside numbers; and magnitudes, from _POWER on.
_NOTHING, _DIGIT, _UNSEEN = 0, 1, 11
_POINT, _COMMA, _SPACE, _APOSTROPHE = 21, 22, 23, 24
_WORD, _LETTER, _OPEN, _CLOSE, _MINUS, _OTHER, _POWER = 25, 26, 27, 28, 29, 30, 31
_CODES = {
    **{digit: _DIGIT + i for i, digit in enumerate(DIGITS)},
    **{sign: _MINUS if factor < 0 else _OTHER for sign, factor in SIGNS.items()},
    **dict.fromkeys(SPACES, _SPACE),
    **dict.fromkeys(APOSTROPHES, _APOSTROPHE),
    **dict.fromkeys("([{", _OPEN),
    **dict.fromkeys(")]}", _CLOSE),
    **{".": _POINT, ",": _COMMA},
}
_BEHIND = 4  # characters after the last one of the longest row, more than any rule looks ahead
_LONGEST = 8  # characters of a token that is no number: what is further inside stands beside no other token
_EDGE = rf"[{DIGITS}.,{re.escape(SPACES + APOSTROPHES)}]*"
_MIDDLE = re.compile(rf"({_EDGE})(.*?)({_EDGE})", re.DOTALL)


class NumberSpans(NamedTuple):
    """The whole number that each position belongs to; all tensors have the labels' shape or `[positions]`.

    Args:
        number: index of the number in the batch, from 0; also 0 where `digits` is 0.
        digits: number of digits of the label's token, 0 if it has none.
        place: decimal place of the token's last digit: 0 for units, 1 for tens, -1 for tenths. Of a token
            with a point of its own (`3.14`), that of its units.
        place_from_end: number of digits after this token in its number.
        starts: bool, True at the first token of a number, unless it has digits in tokens that are no numbers.
        value: the number that the token's digits are, in its place, float64.
        behind_point: number of digits after a point of the token's own.
    """

    number: Tensor
    digits: Tensor
    place: Tensor
    place_from_end: Tensor
    starts: Tensor
    value: Tensor
    behind_point: Tensor

    def select(self, rows: Tensor | slice) -> NumberSpans:
        """The spans of some positions."""
        return NumberSpans(*[column[rows] for column in self])

    def flatten(self) -> NumberSpans:
        """Flatten all tensors to `[positions]`."""
        return NumberSpans(*[column.reshape(-1) for column in self])


def token_kinds(vocabulary: NumberVocabulary) -> Tensor:
    """Encode what `find_numbers` needs to know about each token, its characters: `[vocab, longest]`, int8."""
    numbers = {token.token_id: token.text for token in vocabulary.tokens}
    rows = {i: _codes(text, i in numbers) for i, text in {**vocabulary.texts, **numbers}.items()}
    longest = max(map(len, rows.values()))
    codes = torch.full((vocabulary.vocab_size, longest), _NOTHING, dtype=torch.int8, device="cpu")
    codes[:, 0] = _WORD
    letters = [i for i in vocabulary.letter_ids if i < vocabulary.vocab_size]
    codes[letters, 0] = _LETTER
    for token_id, row in rows.items():
        if 0 <= token_id < vocabulary.vocab_size:
            codes[token_id, : len(row)] = torch.tensor(row, dtype=torch.int8)
    return codes


def _codes(text: str, is_number: bool) -> list[int]:
    """Encode the characters of a token's text; at least one."""
    word = text.lstrip(" -").lower()
    if text in ("k", "K", "M"):
        return [_POWER + POWERS[word]]
    if len(word) > 1 and (word in POWERS or word.removesuffix("s") in POWERS) and len(text) <= len(word) + 1:
        return [_POWER + POWERS.get(word, POWERS.get(word.removesuffix("s"), 0))]
    text = text.replace("{,}", ",").replace("\\,", "\u2009")
    # A space before other characters begins a number, because many tokenizers put one before each.
    begins = [_OTHER] if len(text) > 1 and text[0] in SPACES else []
    if is_number:
        text = re.split("[eE]", text)[0] + ("e" if re.search("[eE]", text) else "")
    else:  # only its ends stand beside other tokens
        text = text.lstrip(SPACES) if begins else text
        match = _MIDDLE.fullmatch(text)
        assert match is not None
        text = match[1] + match[2][:1] + match[2][1:][-1:] + match[3]
        if len(text) > _LONGEST or not any(c in DIGITS for c in text):
            text = text[: _LONGEST // 2] + text[_LONGEST // 2 :][-_LONGEST // 2 :]
    codes = [
        _CODES.get(c, _LETTER if c.isalpha() else _OTHER) for c in (text.lstrip(" ") if begins else text)
    ]
    if not is_number:
        codes = [code - _DIGIT + _UNSEEN if _DIGIT <= code < _UNSEEN else code for code in codes]
    return [*begins, *codes] or [_SPACE]


def find_numbers(
    labels: Tensor,
    kinds: Tensor,
    sequence_ids: Tensor | None = None,
    decimals: bool = False,
    ignore_index: int = -100,
) -> NumberSpans:
    """Find the whole numbers in labels, without a loop or a synchronization with the device.

    Args:
        labels: `[..., seq]`, token ids.
        kinds: `[vocab, longest]`, `token_kinds` of the vocabulary, on the labels' device.
        sequence_ids: `[..., seq]`, int; adjacent positions with the same id belong to one sequence. Default:
            each row is one sequence.
        decimals: whether a single point between two digits belongs to the number.
        ignore_index: label of positions to ignore.

    Returns:
        The spans, in the labels' shape.

    Example:
        >>> import torch
        >>> from ntloss import NumberVocabulary
        >>> from ntloss.numbers.characters import find_numbers, token_kinds
        >>> vocabulary = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "."}, vocab_size=12)
        >>> spans = find_numbers(torch.tensor([[1, 2, 10, 5, 11, 7]]), token_kinds(vocabulary), decimals=True)
        >>> spans.place  # of 12.5 and 7
        tensor([[ 1,  0,  0, -1,  0,  0]])
        >>> spans.starts.int()
        tensor([[1, 0, 0, 0, 0, 1]], dtype=torch.int32)
    """
    shape = labels.shape
    if not labels.numel():
        zeros, no = torch.zeros_like(labels), torch.zeros_like(labels, dtype=torch.bool)
        return NumberSpans(zeros, zeros, zeros, zeros, no, zeros.to(torch.float64), zeros)
    labels = labels.reshape(-1, shape[-1])
    counted = labels != ignore_index
    of_tokens = kinds[torch.where(counted, labels, 0)].to(torch.int64)
    ignored = F.pad(of_tokens.new_full((1,), _WORD), (0, kinds.shape[-1] - 1))
    of_tokens = torch.where(counted.unsqueeze(-1), of_tokens, ignored)
    if sequence_ids is not None:  # a mark between sequences
        sequence_ids = sequence_ids.reshape(labels.shape)
        other = F.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0), value=False)
        of_tokens = torch.cat([(other * _WORD).unsqueeze(-1), of_tokens], dim=-1)
    # Side by side: characters `[rows, all]`, and where each of a token's stands, `[rows, seq, longest]`.
    chars, at = _side_by_side(of_tokens.flatten(1), of_tokens.flatten(1) != _NOTHING)
    # Without the braces of LaTeX's {,}.
    comma = chars == _COMMA
    opens = (chars == _OPEN) & _after(comma) & _after(_after(chars == _CLOSE))
    chars, again = _side_by_side(chars, ~opens & ~_before(_before(opens)))
    at = again.gather(-1, at).reshape(of_tokens.shape)
    number, place, after, begins, hidden = _numbers(chars, decimals)

    def of(column: Tensor, index: Tensor) -> Tensor:
        return column.gather(-1, index.flatten(1)).reshape(index.shape)

    is_digit = (of_tokens >= _DIGIT) & (of_tokens < _POINT)
    last = torch.where(is_digit, at, 0).amax(-1, keepdim=True)
    has_digit = is_digit.any(-1)
    own = is_digit & (of(number, at) == of(number, last))
    # In the unit of the value: that of the last digit or, with a point in the token, of the last whole one.
    behind_point = own & ((of_tokens == _POINT).cumsum(-1) > 0) & decimals
    unit = of(place, last) + behind_point.sum(-1, keepdim=True)
    power = torch.where(own, of(place, at) - unit, 0).to(torch.float64)
    digit = ((of_tokens - _DIGIT) % 10).to(torch.float64)
    value = torch.where(own, digit * torch.pow(10.0, power), 0).sum(-1)
    starts = (own & of(begins & ~hidden, at)).any(-1)
    number, after, unit = (
        torch.where(has_digit, column.squeeze(-1), 0) for column in (of(number, last), of(after, last), unit)
    )
    # A token may hold more than one number (`1/2`), and belongs to the last one. Its other numbers have no
    # token, so they are not counted: there are at most as many numbers as positions.
    tokens = number.new_zeros(chars.numel()).scatter_add(0, number.flatten(), has_digit.flatten().long())
    number = torch.where(has_digit, ((tokens > 0).cumsum(0) - 1)[number], 0)
    columns = [number, own.sum(-1), unit, after, starts, value, behind_point.sum(-1)]
    return NumberSpans(*[column.reshape(shape) for column in columns])


def _side_by_side(chars: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Move the characters that are used next to each other; return them, and where each is now."""
    at = used.cumsum(-1) - 1
    moved = torch.full_like(F.pad(chars, (0, 1)), _WORD)
    moved = moved.scatter(-1, torch.where(used, at, chars.shape[-1]), torch.where(used, chars, _WORD))
    moved = moved[:, :-1]
    if chars.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to be waited for
        moved = moved[:, : int(at.max()) + 1 + _BEHIND]
    return moved, at.clamp(min=0)


def _numbers(chars: Tensor, decimals: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return, for each digit of `[rows, all]` characters, what number it belongs to.

    The number's index in the batch, the digit's place, the digits after it, whether it is the number's first,
    and whether some digit of the number is in a token that is no number.
    """
    rows, length = chars.shape
    digit = (chars >= _DIGIT) & (chars < _POINT)
    # A decimal point before the first digit stands after nothing that could be a part of a word or a number.
    word = (chars == _WORD) | (chars == _LETTER) | (chars == _POINT) | (chars >= _POWER) | digit
    leading = digit & _before((chars == _POINT) & F.pad(~word[:, :-1], (1, 0), value=False)) & decimals
    joins, is_decimal = _separators(chars, digit, leading, decimals)
    begins = digit & ~_before(digit) & ~_before(joins)

    # Over the whole batch from here on, with a bin more than there may be numbers.
    flat_digit, flat_begins = digit.reshape(-1), begins.reshape(-1)
    bins = rows * length + 1
    number = torch.where(flat_digit | joins.reshape(-1), flat_begins.cumsum(0) - 1, bins - 1)
    count = flat_digit.cumsum(0)
    empty = count.new_zeros(bins)
    first = empty.scatter_add(0, number, torch.where(flat_begins, count, 0))
    total = empty.scatter_add(0, number, flat_digit.long())
    from_start = count - first[number]  # 0 at the first digit, and at a separator that of the digit before
    whole = total.scatter_reduce(
        0, number, torch.where(is_decimal.reshape(-1), from_start + 1, total[number]), "amin"
    )
    whole = torch.where(empty.scatter_add(0, number, leading.reshape(-1).long()) > 0, 0, whole)
    goes_on = (chars == _LETTER) | (chars >= _POWER) | digit
    power = torch.where(_after(chars >= _POWER) & ~_after(_after(goes_on)), _after(chars) - _POWER, 0)
    power = empty.scatter_add(0, number, torch.where(flat_digit, power.reshape(-1), 0))
    hidden = empty.scatter_add(0, number, (flat_digit & (chars.reshape(-1) >= _UNSEEN)).long()) > 0
    place = whole[number] - from_start - 1 + power[number]
    after = total[number] - from_start - 1
    columns = (torch.where(flat_digit, number, 0), place, after, hidden[number])
    number, place, after, hidden = (column.reshape(rows, length) for column in columns)
    return number, place, after, begins, hidden


def _separators(chars: Tensor, digit: Tensor, leading: Tensor, decimals: bool) -> tuple[Tensor, Tensor]:
    """Return which separators join the digits around them to one number, and which of these are decimal.

    `leading` are the first digits after a decimal point of their own.
    """
    rows, length = chars.shape
    index = torch.arange(length, device=chars.device).expand(rows, -1)
    starts, ends = digit & ~_before(digit), digit & ~_after(digit)
    run_start = torch.where(starts, index, 0).cummax(-1).values
    run_end = torch.where(ends, index, length).flip(-1).cummin(-1).values.flip(-1)
    run = torch.where(digit, run_end - run_start + 1, 0)
    is_separator = (chars >= _POINT) & (chars <= _APOSTROPHE)
    joint = is_separator & _before(digit) & _after(digit)
    kind = torch.where(joint, chars, 0)
    # The separators around the two runs of digits beside a separator: their places, or the ends of the row.
    left = (_before(run_start) - 1).clamp(min=0)
    right = (_after(run_end) + 1).clamp(max=max(length - 1, 0))
    kind_left = torch.where(_before(run_start) > 0, kind.gather(-1, left), 0)
    kind_right = torch.where(_after(run_end) < length - 1, kind.gather(-1, right), 0)
    # Separators of one kind in a row, with runs of digits between them, are a chain.
    opens, closes = joint & (kind_left != kind), joint & (kind_right != kind)
    nonzero = torch.where(joint, chars.gather(-1, _before(run_start)), 0)
    nonzero = (nonzero != _DIGIT) & (nonzero != _UNSEEN)
    left_run, right_run = _before(run), _after(run)
    by_three = (right_run == 3) & (~opens | ((left_run <= 3) & nonzero))
    by_two = torch.where(closes, right_run == 3, right_run == 2) & (~opens | ((left_run <= 2) & nonzero))
    chain = torch.where(joint, opens.cumsum(-1), 0)
    counts = chars.new_zeros(rows, length + 1)

    def in_chain(flags: Tensor) -> Tensor:
        """The number of separators with a property in each separator's chain."""
        return counts.scatter_add(-1, chain, (flags & joint).long()).gather(-1, chain)

    of_chain = in_chain(joint)
    threes = (in_chain(~by_three) == 0) & joint
    indian = (in_chain(~by_two) == 0) & joint & (kind == _COMMA) & (of_chain > 1)
    comma, point, other = kind == _COMMA, kind == _POINT, joint & (kind != _COMMA) & (kind != _POINT)
    # A comma that may be a decimal comma: alone, and nothing goes on after its digits.
    closing = comma & (of_chain == 1) & (kind_right != _COMMA) & (kind_right != _POINT)
    before_closing = in_chain(closes & closing.gather(-1, right) & (kind_right == _COMMA)) > 0
    before_comma = in_chain(closes & (kind_right == _COMMA)) > 0
    # A chain does not begin with digits that a separator of another kind joins to those before.
    binds = point | (comma & (threes | indian | (of_chain == 1))) | (other & threes)
    fraction = leading.gather(-1, _before(run_start))  # digits after a decimal point of their own
    free = in_chain(opens & ((binds.gather(-1, left) & (kind_left != 0)) | fraction)) == 0
    grouping = (
        (comma & (threes | indian))
        | (other & threes & (before_closing | ~before_comma))
        | (point & threes & (before_closing | ((of_chain > 1) & ~before_comma)))
    ) & free
    if not decimals:
        return grouping, torch.zeros_like(grouping)
    # Of points in a row, the first one is decimal, the next one ends the number, and so on.
    nth = joint.long().cumsum(-1)
    nth = nth - torch.where(opens, nth, 0).cummax(-1).values
    decimal = point & ~grouping & (nth % 2 == 0) & ~fraction
    before_run = chars.gather(-1, left)
    signed = before_run == _MINUS
    before_sign = chars.gather(-1, (left - 1).clamp(min=0))
    opened = (before_run == _OPEN) | (signed & (before_sign == _OPEN))
    is_pair = opened & (chars.gather(-1, right) == _CLOSE)
    known = (before_run != _WORD) & (_before(run_start) > 0) & ~is_pair
    after_group = grouping.gather(-1, left) & (kind_left != 0)
    alone = known & ~threes & ~fraction & (kind_left != _POINT) & (kind_left != _COMMA)
    decimal = decimal | (closing & ~grouping & (after_group | alone))
    return grouping | decimal, decimal


def _before(column: Tensor) -> Tensor:
    """What stands one character before; 0 or False at the beginning of a row."""
    return F.pad(column[:, :-1], (1, 0))


def _after(column: Tensor) -> Tensor:
    """What stands one character later; 0 or False at the end of a row."""
    return F.pad(column[:, 1:], (0, 1))
