"""Which number of a text belongs to which field: JSON keys, tags, names before a number, or the order."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # unlike torch.compiler.disable, imports no compiler yet

from ntloss.numbers.grammar import find_numbers
from ntloss.numbers.vocabulary import NumberVocabulary

_GAP = r"\s*(?:null|None|NaN|nan)\s*"  # in a list
# A unit or a scale after a name: `length (m): 5`, `"clarity [1-5]": 4`. In `clarity (4): 2 typos` and
# `clarity (4/5): fine`, the brackets hold the value.
_UNIT = (
    r"""[\s"'`*_]*[(\[\uff08](?!\s*[-+\u2212]?[0-9.,/\s%]+[)\]\uff09])[^()\[\]\uff08\uff09\n]*[)\]\uff09]"""
    r"""(?=[\s"'`*_]*[:=\uff1a\uff1d])"""
)
# What may stand between a name and its number, such as `": `, `>` or ` = [`. Not what ends a clause: in "I
# like its clarity. 3 of 4 ...", the 3 is no clarity. \u2010 to \u201e are dashes and quotation marks; from
# \u3008 on, brackets of Chinese and Japanese, and marks of full width.
_AFTER_NAME = re.compile(
    r"""(?:[\s"'`:=()\[\]{}<>|*_/\\~≈≤≥+$€£¥#→«»\u2010-\u201e\u3008-\u3011\uff1a\uff1d\uff08\uff09"""
    rf"""\uff3b\uff3d\uff5b-\uff5e\uffe5-]|(?<=[\[(])(?:{_GAP},)+)*"""
)
_BETWEEN = re.compile(rf"[\s,()\[\]]*(?:,{_GAP}[\s,()\[\]]*)*")  # two numbers of a list
_EDGE = r"(?:(?<!\w)|(?!\w))"  # of a name
_COLUMNS = re.compile(r"[^:=]*[,;][^:=]*:?|.*[|\t].*")  # names above the columns of a table


class FieldNumber(NamedTuple):
    """A number of a field: its name, and the characters `text[start:end]` of the number."""

    field: str
    start: int
    end: int


Finder = str | Callable[[str], Iterable[tuple[str, int, int]]]


def find_fields(
    text: str, fields: Iterable[str], by: Finder = "name", thousands: str | None = None
) -> list[FieldNumber]:
    """Find the numbers of a text that belong to fields.

    Args:
        text: the text, such as an answer in JSON.
        fields: names of the fields, as they stand in the text.
        by: "name" (default): a number belongs to the field whose name stands before it with nothing but marks
            and spaces between them (`"room_size": 0.35`, `<qed>0.123`, `Clarity: 4`), or a unit or a scale in
            brackets (`size (m): 4`), and so do the further numbers of a list in brackets
            (`"scores": [4, 5, 3]`, `"boxes": [[1, 2], [3, 4]]`). "order": the first number belongs to the
            first field, the second to the second, and so on. Or a function of the text that returns the name,
            start and end of each number.
        thousands: see `ntloss.numbers.parse_numbers`. Default: the text decides.

    Returns:
        The numbers of fields, from left to right.

    Raises:
        ValueError: `by` is neither, no field is given, or the function returns a field that is none of them.

    Example:
        >>> answer = '{"room": 0.35, "threshold": -18.5, "note": "3 of 4"}'
        >>> find_fields(answer, ["room", "threshold"])
        [FieldNumber(field='room', start=9, end=13), FieldNumber(field='threshold', start=28, end=33)]
        >>> [(n.field, n.start) for n in find_fields("0.5 and 12", ["qed", "weight"], by="order")]
        [('qed', 0), ('weight', 8)]
    """
    names = _checked(fields)
    if callable(by):
        found = [FieldNumber(*each) for each in by(text)]
        if unknown := sorted({each.field for each in found} - {*names}):
            raise ValueError(
                f"by: found the fields {', '.join(unknown)}: expected some of {', '.join(names)}"
            )
        return sorted(found, key=lambda each: each.start)
    numbers = [(number.start, number.end) for number in find_numbers(text, thousands)]
    if by == "order":
        return [FieldNumber(name, *place) for name, place in zip(names, numbers, strict=False)]
    if by != "name":
        raise ValueError(f"by={by!r}: expected 'name', 'order', or a function of the text")
    return _behind_names(text, names, numbers)


def _behind_names(text: str, names: Sequence[str], numbers: Iterable[tuple[int, int]]) -> list[FieldNumber]:
    # Longer names first, so that "size" is not found in "size of the room".
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    written = [*re.finditer(f"{_EDGE}({either}){_EDGE}(?:{_UNIT})?", text)]
    ends = [name.end() for name in written]
    found: list[FieldNumber] = []
    depth = 0  # brackets that are open since the name of the last field
    for start, end in numbers:
        name = written[last] if (last := bisect_right(ends, start) - 1) >= 0 else None
        if name and _AFTER_NAME.fullmatch(text, name.end(), start) and not _is_above(text, name.end(), start):
            found.append(FieldNumber(name[1], start, end))
            depth = _depth(text[name.end() : start])
        elif depth and _BETWEEN.fullmatch(text, found[-1].end, start):
            depth = _depth(text[found[-1].end : start], depth)
            found += [FieldNumber(found[-1].field, start, end)] if depth else []
        else:
            depth = 0
    return found


def _is_above(text: str, end: int, start: int) -> bool:
    """Return whether a name that ends before a number is one of those above the columns of a table."""
    line_ends = text.find("\n", end, start)
    line = text[text.rfind("\n", 0, end) + 1 : max(line_ends, 0)]
    return line_ends >= 0 and _COLUMNS.fullmatch(line.strip()) is not None


def _depth(text: str, before: int = 0) -> int:
    """Return how many brackets are open after a text; 0 if it ends those that were open before."""
    depth = before
    for bracket in re.findall(r"[()\[\]]", text):
        depth = depth + 1 if bracket in "([" else max(depth - 1, 0)
        if before and not depth:
            return 0
    return depth


def by_field(
    text: str,
    offsets: Sequence[tuple[int, int]],
    values: Mapping[str, float],
    default: float = 0.0,
    *,
    by: Finder = "name",
    start: int = 0,
    thousands: str | None = None,
) -> list[float]:
    """Make a column of a dataset, one entry for each token, from a value for each field.

    It makes `number_sigma` from standard deviations, and `number_weights` or `loss_weights` from weights.

    Args:
        text: the text that was tokenized: of a chat, what the template made of it.
        offsets: the characters of each token, as a fast tokenizer of transformers returns them
            (`return_offsets_mapping=True`).
        values: field to its value, for all tokens of a number of the field.
        default: for all other tokens. Default: 0.
        by, thousands: see `find_fields`.
        start: where the answer begins in the text; fields are looked for from there on. Default: 0.

    Returns:
        A list as long as `offsets`.

    Raises:
        ValueError: see `find_fields`.

    Example:
        >>> text = "Clarity: 4, because 2 of 3 readers liked it."
        >>> of_characters = [(i, i + 1) for i in range(len(text))]
        >>> weights = by_field(text, of_characters, {"Clarity": 1.0})
        >>> [text[i] for i, weight in enumerate(weights) if weight]
        ['4']
    """
    column = [default] * len(offsets)
    for field, begins, ends in find_fields(text[start:], values, by, thousands):
        for i, (first, last) in enumerate(offsets):
            if first < start + ends and start + begins < last:
                column[i] = values[field]
    return column


@_disable_dynamo
def fields_of_labels(
    labels: Tensor,
    vocabulary: NumberVocabulary,
    fields: Iterable[str],
    by: Finder = "name",
    sequence_ids: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """Find the field of each label's number, on the CPU.

    An answer is a run of labels that are not ignored, in one sequence; fields are looked for in its text.

    Args:
        labels: `[..., seq]`, token ids.
        vocabulary: made from a tokenizer, whose texts it knows.
        fields, by: see `find_fields`.
        sequence_ids: `[..., seq]`; adjacent positions with one id belong to one sequence. Default: each row
            is one sequence.
        ignore_index: label of positions to ignore. Default: -100.

    Returns:
        `[..., seq]`, index of the field at each token of its numbers, -1 elsewhere.
    """
    index = {name: i for i, name in enumerate(_checked(fields))}
    rows = labels.cpu().reshape(-1, labels.shape[-1] if labels.dim() else 1)
    found = torch.full(rows.shape, -1)
    ids_of = torch.zeros_like(rows) if sequence_ids is None else sequence_ids.cpu().reshape(rows.shape)
    for row, ids, sequences in zip(found, rows.tolist(), ids_of.tolist(), strict=True):
        keys = [(label == ignore_index, sequence) for label, sequence in zip(ids, sequences, strict=True)]
        for (ignored, _), run in itertools.groupby(range(len(ids)), key=keys.__getitem__):
            if ignored:
                continue
            places = list(run)
            pieces = vocabulary.spelling.pieces(ids[i] for i in places)
            text = b"".join(pieces).decode(errors="surrogateescape")
            # A token may be a part of a character, to all of which it belongs then.
            ends = [*itertools.accumulate(len(c.encode(errors="surrogateescape")) for c in text)]
            edges = itertools.pairwise([0, *itertools.accumulate(map(len, pieces))])
            offsets = [(bisect_right(ends, first), bisect_left(ends, last) + 1) for first, last in edges]
            column = by_field(text, offsets, index, -1, by=by, thousands=vocabulary.thousands)
            row[places] = torch.tensor(column, dtype=row.dtype)
    return found.reshape(labels.shape)


def sigma_of_labels(
    labels: Tensor, vocabulary: NumberVocabulary, fields: Mapping[str, float], *options: Any
) -> Tensor:
    """Find the standard deviation of each label's number by its field: `[..., seq]`, float32, 0 for none.

    `fields` are names with standard deviations, and `options` the further arguments of `fields_of_labels`.
    """
    return torch.tensor([*fields.values(), 0.0])[fields_of_labels(labels, vocabulary, fields, *options)]


def _checked(fields: Iterable[str]) -> list[str]:
    names = list(fields)
    are_names = all(isinstance(name, str) and name.strip() for name in names)
    if isinstance(fields, str) or not names or not are_names:
        raise ValueError(
            f"fields={fields!r}: expected names of fields, such as ['room_size', 'threshold_db']"
        )
    return names
