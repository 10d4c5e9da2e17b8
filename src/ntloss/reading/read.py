"""Numbers read in one call: after a prompt, or at the place of each number of a written answer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import DIGITS, NumberReader, Written, find_numbers
from ntloss.numbers.vocabulary import NumberVocabulary
from ntloss.reading import any_length
from ntloss.reading.prompts import (
    NO_LIMITS,
    Limits,
    Question,
    check_before,
    number_forms,
    process,
    read_each,
    tokenizer_of,
    value_forms,
    vocabulary_of,
    write_questions,
)
from ntloss.reading.quantiles import as_levels, draw_shifts, read_quantiles, texts_of
from ntloss.reading.results import NumberQuantiles, NumberReading, WrittenNumber
from ntloss.reading.source import Continuations
from ntloss.reading.torch_model import TorchModel

_PLACES = 16  # of one answer that are read at once


def read_number(
    model: Any,
    tokenizer: Any,
    question: Any,
    *,
    format: NumberFormat | None = None,
    levels: Sequence[float] = (0.05, 0.5, 0.95),
    limits: Limits = NO_LIMITS,
    generator: torch.Generator | None = None,
    vocabulary: NumberVocabulary | None = None,
) -> Any:
    """Read the number with which a model answers a question, or each of several.

    A space at the end of the text before the number is kept only where every form of a number can follow its
    token: many tokenizers join the space of ` -5` with the sign.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode; a server of
            `ntloss.reading.served`; or an engine in this process (`from_function`).
        tokenizer: its tokenizer, or its processor for questions with images.
        question: a text or a `Question`, or several.
        format: the fixed width in which numbers are written. Default: none, numbers of any length.
        levels: levels of the quantiles, the lowest and the highest of which are the interval's ends; the
            median is always read. Default: a 90 % interval.
        limits: the range of the number, and how exactly it is read. Default: `Limits()`.
        generator: see `number_quantiles`.
        vocabulary: the number tokens, where tokens are values, such as coordinates: the number is then one of
            them. Default: those of the tokenizer.

    Returns:
        A `NumberReading` for one question, a list of them for several.

    Raises:
        TypeError: not a model or a tokenizer of transformers, or a question that is no text.
        ValueError: levels outside (0, 1), a prefill or a plain prompt that ends in a part of a number, a
            prefill that the chat template has no turn for; see `number_quantiles`.

    Warns:
        UnlikelyNumberWarning: see `number_quantiles`.

    Example:
        >>> from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM
        >>> tokenizer = ByT5Tokenizer()
        >>> config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8,
        ...                      num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> reading = read_number(model, tokenizer, "12+34=", format=NumberFormat(digits=2))
        >>> reading.low <= reading.median <= reading.high
        True
    """
    limits.check(format)
    with_median = tuple(sorted({*as_levels(levels), 0.5}))
    source, prompts, single = write_questions(model, tokenizer, question)
    readers = [NumberReader.at(prompt.before, len(prompt.before), limits.thousands) for prompt in prompts]
    values = () if format is not None or vocabulary is None else vocabulary.value_tokens
    known = vocabulary_of(tokenizer if vocabulary is None else vocabulary, source)
    if values:
        endings = [value_forms(values, tokenizer_of(tokenizer))] * len(prompts)
    else:
        endings = [number_forms(prompt.text, format) for prompt in prompts]
        for prompt, reader in zip(prompts, readers, strict=True):
            check_before(prompt, reader.thousands)

    def read(index: list[int], inputs: Any, prefix_ids: list[int], _: Any) -> list[NumberReading]:
        reader = readers[index[0]]
        found = read_quantiles(
            source, inputs, known, with_median, format, limits, reader, prefix_ids, generator
        )
        return [found.row(row) for row in range(len(index))]

    readings = read_each(source, tokenizer, prompts, endings, read, readers)
    return readings[0] if single else readings


@torch.no_grad()
def read_numbers(
    model: Any,
    tokenizer: Any,
    question: Question | str,
    answer: str,
    *,
    levels: Sequence[float] = (0.05, 0.5, 0.95),
    limits: Limits = NO_LIMITS,
    generator: torch.Generator | None = None,
) -> list[WrittenNumber]:
    """Read, for each number of an answer that was already written, what the model would write in its place.

    Prompt and answer are run once; in recurrent models, models whose sliding window is shorter, and those
    that take no positions (BART, BLOOM, MPT), once more for each number. Each number is read after all that
    stands before it in the answer, the earlier numbers as they are written. What a reading does not skip,
    such as the `US` of `US$5` or a bracket, belongs to what stands before. The answer may be any text, such
    as JSON.

    Args:
        model: a causal model of transformers, in evaluation mode; a server, or an engine.
        tokenizer: its tokenizer or processor, a fast one, which knows where in a text its tokens stand.
        question: a text or a `Question`, whose prefill stands before the answer.
        answer: the answer, whoever wrote it.
        levels, limits, generator: see `read_number`.

    Returns:
        The numbers of the answer in its order, each with its text, its probability, and a `NumberReading`.

    Raises:
        TypeError: a model or a tokenizer of another kind; see `read_number`.
        ValueError: the chat template changes the answer; see `read_number`.

    Example:
        >>> import torch
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789+=;")}, "0"))
        >>> characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)
        >>> config = LlamaConfig(vocab_size=13, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> found = read_numbers(LlamaForCausalLM(config).eval(), tokenizer, "1+1=", "2;14")
        >>> [(number.text, number.value) for number in found]
        [('2', 2.0), ('14', 14.0)]
    """
    if not isinstance(answer, str):
        raise TypeError(f"answer: expected the text of an answer, given {type(answer).__name__}")
    asked = question if isinstance(question, Question) else Question(question)
    asked = replace(asked, prefill=asked.prefill + answer)
    with_median = tuple(sorted({*as_levels(levels), 0.5}))
    source, (whole,), _ = write_questions(model, tokenizer, asked)
    processor, tokenizer = tokenizer, tokenizer_of(tokenizer)
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"tokenizer: expected a fast tokenizer of transformers, given {type(tokenizer).__name__}, which "
            "does not say where in a text its tokens stand"
        )
    if source.has_decoder:
        raise TypeError("model: expected a causal model, which reads prompt and answer as one text")
    if not whole.text.endswith(answer):
        raise ValueError("answer: the chat template changes it. Leave out the white space around it.")
    vocabulary = vocabulary_of(tokenizer, source)
    encoded = tokenizer(whole.text, add_special_tokens=whole.special, return_offsets_mapping=True)
    ids = encoded["input_ids"]
    ends = [0, *(end for _, end in encoded["offset_mapping"])]  # of the text before the first n tokens
    places = _places_of(answer, whole.text, ids, ends, vocabulary, limits.thousands)
    if not places:
        return []
    lengths = [place.length for place in places]
    if isinstance(source, TorchModel):
        inputs: dict[str, Any] = {"input_ids": torch.tensor([ids], device=source.inner.device)}
        if whole.images:
            inputs = process(source, processor, [whole], [ids])
            added = inputs["input_ids"].shape[-1] - len(ids)  # tokens of images, in front of the answer
            lengths = [length + added for length in lengths]
        roots: Iterable[Continuations] = source.prefixes(inputs, lengths, _PLACES)
    else:
        prompts = [whole.asked + whole.text[: ends[n]] if source.is_chat else ids[:n] for n in lengths]
        roots = [source.continuations(prompts, texts_of(vocabulary))]
    shifts, found = draw_shifts(generator), list[WrittenNumber]()
    for root in roots:
        some = places[len(found) : len(found) + len(root)]
        read: dict[int, tuple[float, NumberReading]] = {}
        for reader in dict.fromkeys(place.reader for place in some):
            index = [i for i, place in enumerate(some) if place.reader == reader]
            group, options = [some[i] for i in index], any_length.options_of(vocabulary, reader, root.device)
            chosen = root.select(torch.tensor(index, device=root.device))
            read |= zip(index, _read_at(chosen, group, options, with_median, limits, shifts), strict=True)
        for i, (number, *_) in enumerate(some):
            text = answer[number.start : number.end]
            found.append(WrittenNumber(text, number.start, number.value, *read[i]))
    return found


class _Place(NamedTuple):
    """Where a number of an answer is read."""

    number: Written
    length: int  # how many tokens stand before it
    text: str  # what is written from there to the end of the number
    reader: NumberReader

    @property
    def sign(self) -> int:
        """-1 if the minus of the number stands before the place, as that of `-US$5`; else 1."""
        return -1 if self.number.value < 0 < (self.reader.read(self.text).value or 0) else 1

    def is_read(self) -> bool:
        """Return whether the text is read, from its first character on, as the number or its opposite."""
        read = self.reader.read(self.text).value
        if read is None or abs(read) != abs(self.number.value):
            return False
        digit = next(i for i, character in enumerate(self.text) if character in DIGITS)
        return all(self.reader.read(self.text[:n]).open for n in range(1, digit))


def _places_of(
    answer: str,
    text: str,
    ids: list[int],
    ends: list[int],
    vocabulary: NumberVocabulary,
    thousands: str | None,
) -> list[_Place]:
    """Return where the numbers of an answer, with which a text ends, are read: between two of its tokens."""
    first = len(text) - len(answer)
    found = []
    for number in find_numbers(answer, thousands):
        reader = NumberReader.at(answer, number.start, thousands)
        length = next(n for n, end in enumerate(ends) if end > first + number.start) - 1
        while length > 1 and vocabulary.pieces.get(ids[length - 1]) == " ":  # ` -5` has no token of a space
            length -= 1
        last = first + number.end
        places = [
            _Place(
                number, n, text[end:last], reader._replace(money=NumberReader.at(text[first:end], end).money)
            )
            for n in range(length, len(ids) + 1)
            if (end := ends[n]) < last
        ]
        found.append(next((place for place in places if place.is_read()), places[0]))
    return found


def _read_at(
    root: Continuations,
    places: Sequence[_Place],
    options: any_length.Options,
    levels: tuple[float, ...],
    limits: Limits,
    shifts: Tensor,
) -> Iterator[tuple[float, NumberReading]]:
    """Read numbers at these places, the prompts of `root`: the probability of each, and the reading."""
    after = any_length.numbers_after(root, options, limits, shifts, [place.text for place in places])
    signs = torch.tensor([place.sign for place in places], device=root.device)[after.prompts]
    values = after.values * signs + 0.0  # with one zero
    points = torch.tensor(levels, dtype=torch.float64, device=root.device)
    fields = any_length.summarize(after._replace(values=values), points, limits)
    passes, rows = root.counts
    quantiles = NumberQuantiles(levels, **fields, passes=passes, rows=rows)
    for row, place in enumerate(places):
        reading = quantiles.row(row)
        share = reading.distribution.get(place.number.value, 0.0) if reading.distribution else math.nan
        yield share, reading
