"""What a model reads before a number or a score, as tokens: where they end, and which are run at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import takewhile
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import CURRENCIES, DIGITS, SPACES, find_numbers
from ntloss.numbers.vocabulary import NumberToken, NumberVocabulary
from ntloss.reading.question import Prompt, Question, tokenizer_of
from ntloss.reading.source import Continuations, Source
from ntloss.reading.torch_model import TorchModel, as_source

_AT_ONCE = 64  # prompts
_SEEING_AT_ONCE = 8  # prompts with images
_CHARACTERS = 4096  # of all prompts that are run at once on a CPU, with padding; more gain nothing there
_PATIENCE = 2.0  # seconds without a progress bar
T = TypeVar("T")


def write_questions(model: Any, processor: Any, question: Any) -> tuple[Any, list[Prompt], bool]:
    """Return the source of a model's next tokens, its prompts, and whether there is only one.

    Questions are given as texts or as `Question`s, one or several.
    """
    single = isinstance(question, str | Question | Mapping) or not isinstance(question, Iterable)
    questions = [
        each if isinstance(each, Question) else Question(each)
        for each in ([question] if single else question)
    ]
    if not questions:
        raise ValueError("question: expected at least one")
    source = as_source(model)
    if not callable(processor) or not hasattr(tokenizer_of(processor), "chat_template"):
        raise TypeError(
            f"tokenizer: expected the model's tokenizer of transformers, such as AutoTokenizer."
            f"from_pretrained(name), given {type(processor).__name__}. With any other, encode the prompt "
            "yourself and pass it to number_quantiles."
        )
    if any(each.seen for each in questions):
        source = source.for_images()
    return source, [each.written_for(source, processor) for each in questions], single


_vocabularies: WeakKeyDictionary[Any, dict[tuple[int, int | None], NumberVocabulary]] = WeakKeyDictionary()


def vocabulary_of(given: NumberVocabulary | Any, source: Source) -> NumberVocabulary:
    """Return a vocabulary; that of a tokenizer is made once, until tokens are added to it."""
    given = tokenizer_of(given)
    if isinstance(given, NumberVocabulary):
        return given
    if given is None:
        raise TypeError("vocabulary: expected the model's tokenizer or its NumberVocabulary, given None")
    width = source.width if isinstance(source, TorchModel) else None
    try:
        made = _vocabularies.setdefault(given, {})
    except TypeError:  # it can be in no dictionary
        return NumberVocabulary.from_tokenizer(given, vocab_size=width)
    key = (len(given) if hasattr(given, "__len__") else 0, width)
    if key not in made:
        made[key] = NumberVocabulary.from_tokenizer(given, vocab_size=width).without_tokenizer()
    return made[key]


def likeliest_after(root: Continuations, row: int, vocabulary: NumberVocabulary) -> tuple[str | None, str]:
    """Return the text of the likeliest token after a row, None if unknown, and how messages show it."""
    token = root.likeliest(row)  # of some servers, its text
    text = vocabulary.text_of(token) if isinstance(token, int) else token
    return text, f"token {token}" if text is None else repr(text)


def read_each(
    prompts: Sequence[Prompt],
    source: Any,
    read: Callable[[list[int]], Sequence[T]],
    keys: Sequence[Hashable],
    most: int = _AT_ONCE,
) -> list[T]:
    """Read prompts of equal keys together, `most` or fewer at a time; return the readings in their order.

    Prompts of similar lengths are run at once. After two seconds, a progress bar is shown, if tqdm is there.
    An error, such as of a server that dies, has as `results` what was read before, None for the other
    prompts.
    """
    kinds = [  # of encoder-decoders, all answers of a batch begin alike
        (key, p.text if p.asked else "", p.special, bool(p.images))
        for key, p in zip(keys, prompts, strict=True)
    ]
    lengths = [len(prompt.asked + prompt.text) for prompt in prompts]
    on_cpu = isinstance(source, TorchModel) and source.inner.device.type == "cpu"
    batches: list[list[int]] = []
    for kind in dict.fromkeys(kinds):
        at_once, batch = min(most, _SEEING_AT_ONCE if kind[-1] else _AT_ONCE), list[int]()
        for i in sorted((i for i, own in enumerate(kinds) if own == kind), key=lengths.__getitem__):
            too_long = on_cpu and (len(batch) + 1) * lengths[i] > _CHARACTERS
            if not batch or too_long or len(batch) >= at_once:
                batches.append(batch := [])
            batch.append(i)
    found: list[T | None] = [None] * len(prompts)
    bar: Any = nullcontext()
    with suppress(ImportError):
        from tqdm.auto import tqdm

        bar = tqdm(
            total=len(prompts), unit="question", delay=_PATIENCE, leave=False, disable=len(prompts) == 1
        )
    with bar:
        for index in batches:
            try:
                readings = read(index)
            except Exception as error:
                error.results = found  # type: ignore[attr-defined]
                raise
            for i, reading in zip(index, readings, strict=True):
                found[i] = reading
            if hasattr(bar, "update"):
                bar.update(len(index))
    return cast(list[T], found)


def check_before(prompt: Prompt, thousands: str | None) -> None:
    """Raise a ValueError if the text before a number holds a part of that number.

    A plain prompt may end in what joins two numbers, such as `10 : `, because the second is read as it is.
    """
    given = prompt.begun.strip() or not prompt.special
    name, text = ("prefill", prompt.begun) if given else ("prompt", prompt.text.rpartition("\n")[-1])
    # After a letter, a space comes first.
    numbers = [number for number in find_numbers(f"{text}5", thousands) if number.end > len(text)]
    numbers = numbers or find_numbers(f"{text} 5", thousands)
    begins = (
        bool(numbers)
        and numbers[-1].plain == "5"
        and bool(numbers[-1].alone or not given or text[-1:] in tuple("(["))
    )
    may_group = thousands != "" and re.search(r"[0-9][.,]\Z", text) is not None
    if text.rstrip(SPACES + "\n")[-1:] in tuple(DIGITS) or may_group or not begins:
        raise ValueError(
            f"{name}={text!r}: expected the text before the number, given one whose end is a part of a "
            "number. Omit that part. If another number ends there, write a space or a word after its mark."
        )


def number_forms(text: str, format: NumberFormat | None) -> list[str]:
    """Return numbers that together have every form in which one may begin after a text."""
    if format is not None:
        return [*DIGITS, "-5", "+5"] if format.signed else [*DIGITS]
    currency = [] if text.rstrip()[-1:] in tuple(CURRENCIES) else ["$5"]
    return [*DIGITS, "-5", ".5", *currency]


def value_forms(tokens: Sequence[NumberToken], tokenizer: Any) -> list[str]:
    """Return texts of tokens that are values, one for each way in which they begin, and an empty one."""
    texts = [tokenizer.decode([token.token_id]) for token in tokens]
    return ["", *{text.strip()[:1]: text.strip() for text in texts}.values()]


def _encode_before(tokenizer: Any, text: str, endings: Sequence[str], special: bool) -> list[int]:
    """Encode a text without the tokens of white space at its end that one of the endings would change.

    Tokenizers join the space before a number with a digit, or only with a sign: what could not follow the
    space's own token has to be able to follow. All else stays, also where a tokenizer would join its last
    character with a sign (`(-`) or with a point.
    """
    rows = [tokenizer.encode(text + ending, add_special_tokens=special) for ending in endings]
    columns = zip(*rows, strict=False)
    ids = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
    words = _encode_whole(tokenizer, text.rstrip(), special)
    is_whole = tokenizer.decode(ids).rstrip() == tokenizer.decode(words).rstrip()
    return ids if is_whole else words


def _encode_whole(tokenizer: Any, text: str, special: bool) -> list[int]:
    """Encode a text without the tokens that the tokenizer adds to its end."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=special)
    if special:
        both = tokenizer.encode("a", add_special_tokens=True)
        bare = tokenizer.encode("a", add_special_tokens=False)
        added = next(n for n in range(len(both)) if both[len(both) - len(bare) - n :][: len(bare)] == bare)
        ids = ids[: len(ids) - added]
    return ids


def encode_after(tokenizer: Any, prompt: Prompt, kept: Sequence[int], text: str) -> list[int]:
    """Encode what follows a prompt, of which these tokens are kept."""
    ids = _encode_whole(tokenizer, prompt.text + text, prompt.special)
    if ids[: len(kept)] == [*kept]:
        return ids[len(kept) :]
    return list(tokenizer.encode(text, add_special_tokens=False))  # it joins the prompt's last character


def encode_prompts(
    source: Source, processor: Any, prompts: Sequence[Prompt], endings: Sequence[Sequence[str]]
) -> tuple[Any, list[int], list[list[int]]]:
    """Return the inputs of a model, the tokens that every answer begins with, and each prompt's own tokens.

    `endings` are what may follow each prompt. A server's route for chats gets texts.
    """
    tokenizer, pairs = tokenizer_of(processor), [*zip(prompts, endings, strict=True)]
    kept = [_encode_before(tokenizer, prompt.text, each, prompt.special) for prompt, each in pairs]
    if source.is_chat:
        joins = [any(not ending[:1].isdigit() for ending in each) for each in endings]
        texts = [p.text.rstrip(" ") if cut else p.text for p, cut in zip(prompts, joins, strict=True)]
        return [p.asked + text for p, text in zip(prompts, texts, strict=True)], [], kept
    prefix_ids = kept[0] if source.has_decoder else []
    rows = [tokenizer.encode(prompt.asked) for prompt in prompts] if source.has_decoder else kept
    for prompt, row in zip(prompts, rows, strict=True):
        if not row and not prompt.images:
            given = prompt.asked or prompt.text
            raise ValueError(f"prompt: expected a question, given {given!r}, which has no tokens")
    if not isinstance(source, TorchModel):
        return rows, prefix_ids, kept
    if prompts[0].images:
        return process(source, processor, prompts, rows)[0], prefix_ids, kept
    return pad(rows, source.inner.device), prefix_ids, kept


def process(
    model: TorchModel, processor: Any, prompts: Sequence[Prompt], kept: Sequence[Sequence[int]]
) -> tuple[dict[str, Any], list[int]]:
    """Let a processor put the tokens of images into prompts.

    Args:
        model: the model.
        processor: the model's.
        prompts: texts with one placeholder for each of their images.
        kept: tokens of each prompt without the images', which may leave out some at its end.

    Returns:
        The inputs of the model, padded on the left, and how many tokens of images were put in front of the
        last ones of each prompt.
    """
    special = prompts[0].special
    made = processor(
        text=[prompt.text for prompt in prompts],
        images=[[*prompt.images] for prompt in prompts],
        padding=True,
        add_special_tokens=special,
        return_tensors="pt",
    )
    ids = made["input_ids"]
    mask = made.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    by_token = {
        name
        for name, value in made.items()
        if getattr(value, "shape", None) == ids.shape and not torch.is_floating_point(value)
    }
    columns: dict[str, list[list[int]]] = {name: [] for name in by_token - {"attention_mask"}}
    added = []
    for row, (prompt, tokens) in enumerate(zip(prompts, kept, strict=True)):
        whole = processor.tokenizer.encode(prompt.text, add_special_tokens=special)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, tokens, strict=False)))
        lost, written = whole[same:], list(tokens[same:])
        own = mask[row].bool()
        length = int(own.sum()) - len(lost)
        if ids[row][own][length:].tolist() != lost:
            raise ValueError(
                f"{type(processor).__name__} encodes the end of a prompt in another way than its tokenizer: "
                "pass what it returns to number_quantiles"
            )
        added.append(length - same)
        for name, rows in columns.items():
            end = written if name == "input_ids" else [0] * len(written)
            rows.append([*made[name][row][own][:length].tolist(), *end])
    inputs = {**made} | {name: pad(rows, ids.device)["input_ids"] for name, rows in columns.items()}
    inputs["attention_mask"] = pad(columns["input_ids"], ids.device)["attention_mask"]
    inner = model.inner
    return {
        name: value.to(inner.device, inner.dtype if torch.is_floating_point(value) else None)
        if isinstance(value, Tensor)
        else value
        for name, value in inputs.items()
    }, added


def pad(rows: Sequence[Sequence[int]], device: torch.device, pad_id: int = 0) -> dict[str, Tensor]:
    """Pad rows of tokens on the left, with a mask."""
    longest = max(map(len, rows))
    ids = [[pad_id] * (longest - len(row)) + list(row) for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
