"""What a model reads before a number or a score, as tokens: where they end, and which are run at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import takewhile
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import CURRENCIES, DIGITS, SPACES, find_numbers
from ntloss.numbers.vocabulary import NumberToken
from ntloss.reading.images import process, tokenizer_of
from ntloss.reading.question import Prompt, as_questions, has_decoder
from ntloss.reading.torch_model import TorchModel, as_source

_AT_ONCE = 64  # prompts
_SEEING_AT_ONCE = 8  # prompts with images
_CHARACTERS = (
    4096  # of all prompts, with padding, that are run at once on a CPU, which gains nothing from more
)
_PATIENCE = 2.0  # seconds without a progress bar
T = TypeVar("T")


def write_questions(model: Any, processor: Any, question: Any) -> tuple[Any, list[Prompt], bool]:
    """Return the source of a model's next tokens, its prompts, and whether there is only one."""
    questions, single = as_questions(question)
    source = as_source(model)
    if not callable(processor) or not hasattr(tokenizer_of(processor), "chat_template"):
        raise TypeError(
            f"tokenizer: expected the model's tokenizer of transformers, such as AutoTokenizer."
            f"from_pretrained(name), given {type(processor).__name__}. With any other, encode the prompt "
            "yourself and pass it to number_quantiles."
        )
    if any(each.seen for each in questions) and hasattr(source, "chats"):
        source = source.chats()
    return source, [each.written_for(source, processor) for each in questions], single


def read_each(
    prompts: Sequence[Prompt],
    source: Any,
    read: Callable[[list[int]], Sequence[T]],
    keys: Sequence[Hashable],
    most: int = _AT_ONCE,
) -> list[T]:
    """Read prompts of equal keys together, `most` or fewer at a time; return the readings in their order.

    After two seconds, a progress bar is shown. An error, such as of a server that dies, has as `results` what
    was read before, None for the other prompts.
    """
    found: list[T | None] = [None] * len(prompts)
    for index in _shown(in_batches(prompts, source, keys, most), len(prompts)):
        try:
            readings = read(index)
        except Exception as error:
            error.results = found  # type: ignore[attr-defined]
            raise
        for i, reading in zip(index, readings, strict=True):
            found[i] = reading
    return cast(list[T], found)


def _shown(batches: Iterator[list[int]], count: int) -> Iterator[list[int]]:
    """Yield batches, with a progress bar if tqdm is there and there are several prompts."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield from batches
        return
    with tqdm(total=count, unit="question", delay=_PATIENCE, leave=False, disable=count == 1) as bar:
        for index in batches:
            yield index
            bar.update(len(index))


def in_batches(
    prompts: Sequence[Prompt], source: Any, keys: Sequence[Hashable], most: int = _AT_ONCE
) -> Iterator[list[int]]:
    """Yield the indices of prompts of equal keys that are run at once, which have similar lengths."""
    lengths = [len(prompt.text) for prompt in prompts]
    kinds = [(key, p.answer, p.special, bool(p.images)) for key, p in zip(keys, prompts, strict=True)]
    on_cpu = isinstance(source, TorchModel) and source.inner.device.type == "cpu"
    for kind in dict.fromkeys(kinds):
        at_once = min(most, _SEEING_AT_ONCE if kind[-1] else _AT_ONCE)
        batch: list[int] = []
        for i in sorted((i for i, own in enumerate(kinds) if own == kind), key=lengths.__getitem__):
            too_long = on_cpu and (len(batch) + 1) * lengths[i] > _CHARACTERS
            if batch and (too_long or len(batch) >= at_once):
                yield batch
                batch = []
            batch.append(i)
        yield batch


def check_before(prompt: Prompt, thousands: str | None) -> None:
    """Raise a ValueError if the text before a number holds a part of that number.

    A plain prompt may end in what joins two numbers, such as `10 : `, because the second is read as it is.
    """
    given = prompt.begun.strip() or not prompt.is_plain
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


def encode_before(tokenizer: Any, text: str, endings: Sequence[str], special: bool) -> list[int]:
    """Encode a text without the tokens that one of the endings would change, and those that end it.

    Tokenizers join the space before a number with a digit, or only with a sign: what could not follow the
    space's own token has to be able to follow.
    """
    rows = [tokenizer.encode(text + ending, add_special_tokens=special) for ending in endings]
    columns = zip(*rows, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def encode_before_number(tokenizer: Any, text: str, endings: Sequence[str], special: bool) -> list[int]:
    """Encode a text without the tokens of white space at its end that one of the endings would change.

    All else stays, also where a tokenizer would join its last character with a sign (`(-`) or with a point.
    """
    ids = encode_before(tokenizer, text, endings, special)
    words = encode_whole(tokenizer, text.rstrip(), special)
    is_whole = tokenizer.decode(ids).rstrip() == tokenizer.decode(words).rstrip()
    return ids if is_whole else words


def encode_whole(tokenizer: Any, text: str, special: bool) -> list[int]:
    """Encode a text without the tokens that the tokenizer adds to its end."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=special)
    if special:
        both = tokenizer.encode("a", add_special_tokens=True)
        bare = tokenizer.encode("a", add_special_tokens=False)
        added = next(n for n in range(len(both)) if both[len(both) - len(bare) - n :][: len(bare)] == bare)
        ids = ids[: len(ids) - added]
    return ids


def encode_prompts(
    model: Any, processor: Any, prompts: Sequence[Prompt], endings: Sequence[Sequence[str]]
) -> tuple[Any, list[int]]:
    """Return the inputs of a model, and the tokens that every answer begins with.

    `endings` are what may follow each prompt. A server's route for chats gets texts.
    """
    tokenizer = tokenizer_of(processor)
    if getattr(model, "is_chat", False):
        spaced = [any(not ending[:1].isdigit() for ending in each) for each in endings]
        texts = [prompt.text for prompt in prompts]
        return [text.rstrip(" ") if cut else text for text, cut in zip(texts, spaced, strict=True)], []
    prefix_ids: list[int] = []
    if has_decoder(model):
        prefix_ids = encode_before_number(tokenizer, prompts[0].answer, endings[0], special=False)
        rows = [tokenizer.encode(prompt.text) for prompt in prompts]
    else:
        rows = [
            encode_before_number(tokenizer, prompt.text, each, prompt.special)
            for prompt, each in zip(prompts, endings, strict=True)
        ]
    for prompt, row in zip(prompts, rows, strict=True):
        if not row and not prompt.images:
            raise ValueError(f"prompt: expected a question, given {prompt.text!r}, which has no tokens")
    if not isinstance(model, TorchModel):
        return rows, prefix_ids
    if prompts[0].images:
        return process_prompts(model, processor, prompts, rows)[0], prefix_ids
    return pad(rows, model.inner.device), prefix_ids


def process_prompts(
    model: TorchModel, processor: Any, prompts: Sequence[Prompt], rows: Sequence[Sequence[int]]
) -> tuple[dict[str, Any], list[int]]:
    """Return the inputs of prompts with images, given their tokens without the images'; see `process`."""
    texts, images = [prompt.text for prompt in prompts], [prompt.images for prompt in prompts]
    return process(processor, texts, images, rows, prompts[0].special, model.inner)


def pad(rows: Sequence[Sequence[int]], device: torch.device, pad_id: int = 0) -> dict[str, Tensor]:
    """Pad rows of tokens on the left, with a mask."""
    longest = max(map(len, rows))
    ids = [[pad_id] * (longest - len(row)) + list(row) for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }
