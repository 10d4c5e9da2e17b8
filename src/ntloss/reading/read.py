"""Numbers read in one call: after a prompt, or at the place of each number of a written answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ntloss.numbers.alphabet import DIGITS
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import ends_in_currency, find_in_text
from ntloss.numbers.lists import thousands_at
from ntloss.reading import any_length
from ntloss.reading.images import tokenizer_of
from ntloss.reading.prompts import (
    AUTO,
    Messages,
    check_before,
    check_tokenizer,
    encode_prompts,
    for_images,
    in_batches,
    number_forms,
    process_prompts,
    write_prompts,
)
from ntloss.reading.quantiles import (
    MAX_DIGITS,
    MOST_TEXTS,
    Limits,
    as_levels,
    as_readable,
    as_vocabulary,
    check_answer_format,
    draw_shifts,
    read_quantiles,
    texts_of,
    within,
)
from ntloss.reading.results import NumberQuantiles, NumberReading, WrittenNumber
from ntloss.reading.torch_model import Continuations, TorchModel
from ntloss.reading.writing import Before, options_of, read_begun

_PLACES = 16  # of one answer that are read at once


def read_number(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[str] | None = None,
    prefill: str = "",
    *,
    format: NumberFormat | None = None,
    levels: Sequence[float] = (0.05, 0.5, 0.95),
    system: str | None = None,
    messages: Messages | Sequence[Messages] | None = None,
    template_options: Mapping[str, Any] | None = None,
    template: str | None = AUTO,
    images: Any = None,
    low: float | None = None,
    high: float | None = None,
    max_digits: int = MAX_DIGITS,
    thousands: str | None = None,
    most_texts: int = MOST_TEXTS,
    generator: torch.Generator | None = None,
) -> Any:
    """Read the number with which a model answers a prompt, or each of several.

    With a chat template, the prompt is the user's turn and the prefill begins the assistant's. Other causal
    models continue the prompt, a line break unless it ends in white space, and the prefill. Encoder-decoders
    get the prompt in the encoder and the prefill in the decoder. A space at the end of the text is kept only
    where every form of a number can follow its token: many tokenizers join the space of ` -5` with the sign.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode; or a server of
            `ntloss.reading.served`.
        tokenizer: its tokenizer, or its processor for prompts with images. None for a server that tokenizes
            the prompts itself.
        prompt: the question, or several.
        prefill: the answer's text before the number, such as `"It takes "`. Default: none, the answer begins
            with the number.
        format: the fixed width in which numbers are written. Default: none, numbers of any length.
        levels: levels of the quantiles, the lowest and the highest of which are the interval's ends; the
            median is always read. Default: a 90 % interval.
        system: the system's turn before the prompt. Default: that of the chat template.
        messages: in place of a prompt, the turns of a conversation, or of several; the last may be the
            beginning of the assistant's.
        template_options: further options of the chat template, such as `{"enable_thinking": False}`.
        template: None for prompts without a chat template, as a model was fine-tuned on plain texts; or a
            template in Jinja. Default: "auto", the tokenizer's own template if it has one, with a warning if
            `make_number_aware` has seen that the model was trained without.
        images: those of the prompt, in its front; of several prompts, a list for each. A model of
            transformers takes what its processor takes, such as images of Pillow; a server files, addresses
            and images of Pillow. Images may also stand in `messages`, as `{"type": "image", "image": image}`.
        low, high, max_digits, thousands, most_texts, generator: see `number_quantiles`.

    Returns:
        A `NumberReading` for one prompt, a list of them for several.

    Raises:
        TypeError: not a model or a tokenizer of transformers, a prompt that is not a text, or both or none of
            prompt and messages.
        ValueError: levels outside (0, 1), an empty prompt, a prefill or a plain prompt that ends in a part of
            a number, a prefill that the chat template has no turn for, a format that writes logarithms; see
            `number_quantiles`.

    Warns:
        UnlikelyNumberWarning: see `number_quantiles`.

    Example:
        >>> import torch
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789+=")}, "0"))
        >>> characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)
        >>> config = LlamaConfig(vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> reading = read_number(model, tokenizer, "12+34=", format=NumberFormat(digits=2))
        >>> reading.low <= reading.median <= reading.high
        True
    """
    processor, tokenizer = tokenizer, tokenizer_of(tokenizer)
    readable = for_images(as_readable(model), images, messages)
    check_tokenizer(readable, tokenizer)
    check_answer_format(format)
    limits = Limits.checked(low, high, max_digits, most_texts, format=format)
    with_median = tuple(sorted({*as_levels(levels), 0.5}))
    written, single = write_prompts(
        readable, processor, prompt, prefill, system, messages, template_options, template, images
    )
    befores = [Before.of(each.before, thousands) for each in written]
    for each, before in zip(written, befores, strict=True):
        check_before(each, before.thousands)
    readings: dict[int, NumberReading] = {}
    batches = [
        (before, [i for i in batch if befores[i] == before])
        for batch in in_batches(written, readable)
        for before in dict.fromkeys(befores[i] for i in batch)
    ]
    for before, index in batches:
        some = [written[i] for i in index]
        endings = [number_forms(each.answer or each.text, format) for each in some]
        inputs, prefix_ids = encode_prompts(readable, processor, some, endings)
        read = read_quantiles(
            model if isinstance(readable, TorchModel) else readable,
            inputs,
            tokenizer,
            with_median,
            format,
            limits,
            before,
            prefix_ids,
            generator,
        )
        readings |= {i: read.row(row) for row, i in enumerate(index)}
    return readings[0] if single else [readings[i] for i in range(len(written))]


@torch.no_grad()
def read_numbers(
    model: Any,
    tokenizer: Any,
    prompt: str | None,
    answer: str,
    *,
    levels: Sequence[float] = (0.05, 0.5, 0.95),
    system: str | None = None,
    messages: Messages | None = None,
    template_options: Mapping[str, Any] | None = None,
    template: str | None = AUTO,
    images: Any = None,
    low: float | None = None,
    high: float | None = None,
    max_digits: int = MAX_DIGITS,
    thousands: str | None = None,
    most_texts: int = MOST_TEXTS,
    generator: torch.Generator | None = None,
) -> list[WrittenNumber]:
    """Read, for each number of an answer that was already written, what the model would write in its place.

    Prompt and answer are run once; the answer of recurrent models, sliding windows and models that take no
    positions (BART, BLOOM, MPT) token by token. Each number is read after all that stands before it in the
    answer, the earlier numbers as they are written.
    What a reading does not skip, such as the `US` of `US$5` or a bracket, belongs to what stands before. The
    answer may be any text, such as JSON.

    Args:
        model: a causal model of transformers, in evaluation mode; or a server.
        tokenizer: its tokenizer or processor, a fast one, which knows where in a text its tokens stand.
        prompt: the question; None with `messages`.
        answer: the answer, whoever wrote it.
        levels, system, messages, template_options, template, images, low, high, max_digits, thousands,
            most_texts, generator: see `read_number`.

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
    processor, tokenizer = tokenizer, tokenizer_of(tokenizer)
    readable = for_images(as_readable(model), images, messages)
    check_tokenizer(readable, tokenizer)
    limits = Limits.checked(low, high, max_digits, most_texts)
    if not getattr(tokenizer, "is_fast", False):
        raise TypeError(
            f"tokenizer: expected a fast tokenizer of transformers, given {type(tokenizer).__name__}, which "
            "does not say where in a text its tokens stand"
        )
    with_median = tuple(sorted({*as_levels(levels), 0.5}))
    (whole,), _ = write_prompts(
        readable, processor, prompt, answer, system, messages, template_options, template, images
    )
    if whole.answer:
        raise TypeError("model: expected a causal model, which reads prompt and answer as one text")
    if not whole.text.endswith(answer):
        raise ValueError("answer: the chat template changes it. Leave out the white space around it.")
    vocabulary = as_vocabulary(tokenizer, readable)
    first = len(whole.text) - len(answer)
    numbers = [(each.start, each.end, each.value) for each in find_in_text(answer, thousands)]
    encoded = tokenizer(whole.text, add_special_tokens=whole.special, return_offsets_mapping=True)
    ids, ends = encoded["input_ids"], [end for _, end in encoded["offset_mapping"]]
    if not numbers:
        return []
    lengths, kept, signs, grammars = [], [], [], []
    marks = [thousands_at(answer, start, thousands) for start, _, _ in numbers]
    for (start, end, value), mark in zip(numbers, marks, strict=True):
        length = next(i for i, place in enumerate(ends) if place > first + start)
        while length > 1 and vocabulary.pieces.get(ids[length - 1]) == " ":  # ` -5` has no token of a space
            length -= 1
        places = [n for n in range(length, len(ids) + 1) if ends[n - 1] < first + end]
        texts = [whole.text[ends[place - 1] : first + end] for place in places]
        befores = [Before(mark, ends_in_currency(whole.text[first : ends[place - 1]])) for place in places]
        at = next((i for i, text in enumerate(texts) if _is_read_as(text, value, befores[i])), 0)
        lengths.append(places[at])
        kept.append(texts[at])
        grammars.append(befores[at])
        # The minus of `-US$5` and `($5)` stands before the place.
        signs.append(-1 if value < 0 < (read_begun(texts[at], befores[at]).value or 0) else 1)
    if isinstance(readable, TorchModel):
        inputs: dict[str, Any] = {"input_ids": torch.tensor([ids], device=readable.inner.device)}
        if whole.images:
            inputs, (added,) = process_prompts(readable, processor, [whole], [ids])
            lengths = [length + added for length in lengths]
        roots: Iterator[Continuations] = readable.prefixes(inputs, lengths, _PLACES)
    else:
        in_chat = getattr(readable, "is_chat", False)
        prompts = [whole.text[: ends[n - 1]] if in_chat else ids[:n] for n in lengths]
        roots = iter([readable.continuations(prompts, texts_of(vocabulary))])
    shifts, points = draw_shifts(generator), torch.tensor(with_median, dtype=torch.float64)
    found: list[WrittenNumber] = []
    for root in roots:
        some = slice(len(found), len(found) + len(root))
        read: dict[int, NumberReading] = {}
        shares: dict[int, float] = {}
        for grammar in dict.fromkeys(grammars[some]):
            index = [i for i, other in enumerate(grammars[some]) if other == grammar]
            after = any_length.numbers_after(
                root,
                torch.tensor(index, device=root.device),
                options_of(vocabulary, grammar, root.device),
                limits.most_texts,
                limits.max_digits,
                shifts,
                [kept[some][i] for i in index],
            )
            factors = torch.tensor([signs[some][i] for i in index], device=root.device)[after.questions]
            values = within(after.values * factors + 0.0, *limits.bounds)  # with one zero
            after = after._replace(values=values)
            fields = any_length.summarize(after, points.to(root.device), *limits.bounds)
            passes, run = root.counts
            of_mark = NumberQuantiles(with_median, **fields, passes=passes, rows=run)
            for row, i in enumerate(index):
                own = (after.questions == row) & ~after.values.isnan()
                share = after.weights[own & (after.values == numbers[some][i][2])].sum()
                shares[i] = float(share / after.weights[own].sum())
                read[i] = of_mark.row(row)
        for i, (start, end, value) in enumerate(numbers[some]):
            found.append(WrittenNumber(answer[start:end], start, value, shares[i], read[i]))
    return found


def _is_read_as(text: str, value: float, before: Before) -> bool:
    """Return whether a text that a model writes is read, from its first character on, as ± a value."""
    read = read_begun(text, before).value
    if read is None or abs(read) != abs(value):
        return False
    digit = next(i for i, character in enumerate(text) if character in DIGITS)
    return all(read_begun(text[:n], before).open for n in range(1, digit))
