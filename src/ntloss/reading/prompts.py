"""What a model reads before a number or a score: the chat template, the prefill, and where the tokens end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ntloss.callers import UnlikelyNumberWarning, warn_caller
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import CURRENCIES, DIGITS, SPACES, find_numbers
from ntloss.numbers.vocabulary import NumberToken
from ntloss.reading.images import (
    as_lists,
    as_messages,
    images_of,
    in_parts,
    in_texts,
    is_processor,
    process,
    reads_parts,
    tokenizer_of,
    with_images,
)
from ntloss.reading.torch_model import Readable, TorchModel

Messages = Sequence[Mapping[str, Any]]
_Turns = Callable[[Messages], list[Any]]
AUTO = "auto"
PLAIN_PROMPTS = "number_prompts_are_plain"
"""The entry of a model's configuration that says that it was trained on prompts without a chat template."""
_AT_ONCE = 64  # prompts
_SEEING_AT_ONCE = 8  # prompts with images
_CHARACTERS = (
    4096  # of all prompts, with padding, that are run at once on a CPU, which gains nothing from more
)


class Prompt(NamedTuple):
    """A prompt as one text.

    Args:
        text: what the model reads; of an encoder-decoder, what the encoder reads.
        answer: of an encoder-decoder, the beginning of the answer, which the decoder reads.
        special: whether the tokenizer adds its special tokens, which the text of a chat template has already.
        begun: the part of the answer that is given, which ends the text.
        images: what stands at the text's placeholders of images.
        plain: whether the answer continues the prompt itself, without a chat template between them.
    """

    text: str
    answer: str
    special: bool
    begun: str
    images: tuple[Any, ...] = ()
    plain: bool = False

    @property
    def before(self) -> str:
        """The given text that the number continues: a plain prompt, or the beginning of the answer."""
        return self.text if self.plain else self.begun


def write_prompts(
    model: Any,
    processor: Any,
    prompt: str | Sequence[str] | None,
    prefill: str,
    system: str | None,
    messages: Messages | Sequence[Messages] | None,
    template_options: Mapping[str, Any] | None,
    template: str | None,
    images: Any,
) -> tuple[list[Prompt], bool]:
    """Return the prompts as texts, and whether it is only one; see `read_number` for the arguments."""
    if (prompt is None) == (messages is None):
        raise TypeError("expected either a prompt or messages")
    if not isinstance(prefill, str):
        raise TypeError(f"prefill: expected a text, given {type(prefill).__name__}")
    given: Any = messages if prompt is None else prompt
    single = isinstance(given, (str, Mapping)) or (prompt is None and _is_chat(given))
    prompts = [given] if single else list(given)
    if not prompts:
        raise ValueError("prompt: expected at least one question")
    seen = as_lists(images, len(prompts), single)
    chats = []
    for each, own in zip(prompts, seen, strict=True):
        if prompt is not None and not isinstance(each, str):
            raise TypeError(f"prompt: expected a text or several, given {type(each).__name__} {each!r:.80}")
        if not each:
            raise ValueError("prompt: expected a question, given an empty one")
        if prompt is None and not _is_chat(each):
            raise TypeError(
                "messages: expected turns, such as [{'role': 'user', 'content': 'How many?'}], or a list of "
                f"these for each conversation; given {each!r:.80}"
            )
        chats.append(
            [{"role": "user", "content": with_images(each, own)}] if prompt is not None else list(each)
        )
    if system is not None and any(turn["role"] == "system" for chat in chats for turn in chat):
        raise ValueError("system: the messages have a system's turn already. Omit one of the two.")
    if system is not None:
        chats = [[{"role": "system", "content": system}, *chat] for chat in chats]
    if images is None and prompt is None:
        seen = [images_of(chat) for chat in chats]
    if any(seen) and not isinstance(model, TorchModel):
        chosen = [as_messages(chat, own) for chat, own in zip(chats, seen, strict=True)]
        return [Prompt(key, "", True, prefill) for key in model.add_chats(chosen, prefill)], single
    if any(seen) and (not is_processor(processor) or has_decoder(model)):
        raise TypeError(
            "images: expected a causal model and its processor in place of the tokenizer, such as "
            f"AutoProcessor.from_pretrained(name); given {type(processor).__name__}"
        )
    source = _with_template(processor)
    if template is not None and source is not None and not has_decoder(model):
        if _is_trained_on_plain(model) and template == AUTO:
            warn_caller(
                "the model was trained on prompts without a chat template, which is applied now: pass "
                "template=None to read it as it was trained, or template='default' for the template",
                UnlikelyNumberWarning,
            )
        options = dict(template_options or {})
        if template not in (AUTO, "default"):
            options["chat_template"] = template
        in_turns = _writer_of_turns(source, chats, options)
        written = [_of_chat(source, chat, prefill, options, in_turns) for chat in chats]
        return [each._replace(images=tuple(own)) for each, own in zip(written, seen, strict=True)], single
    if prompt is None or system is not None or template_options:
        raise ValueError(
            "system, messages and template_options need a tokenizer with a chat template: pass the prompt as "
            "one text"
        )
    if has_decoder(model):
        return [Prompt(text, prefill, True, prefill) for text in prompts], single
    breaks = ["\n" if prefill and not text[-1].isspace() else "" for text in prompts]
    return [
        Prompt(text + br + prefill, "", True, prefill, tuple(own), plain=True)
        for text, br, own in zip(prompts, breaks, seen, strict=True)
    ], single


def _is_chat(given: Any) -> bool:
    """Return whether this is a conversation, turns with a role each."""
    is_list = isinstance(given, Sequence) and len(given) > 0
    return is_list and all(isinstance(turn, Mapping) and "role" in turn for turn in given)


def _with_template(processor: Any) -> Any:
    """Return what has a chat template: a processor or its tokenizer; None if neither has."""
    parts = (processor, tokenizer_of(processor))
    return next((part for part in parts if getattr(part, "chat_template", None) is not None), None)


def _is_trained_on_plain(model: Any) -> bool:
    """Whether `make_number_aware` has seen that the model's training prompts had no chat template."""
    return isinstance(model, TorchModel) and getattr(model.inner.config, PLAIN_PROMPTS, False) is True


def _writer_of_turns(source: Any, chats: Sequence[Messages], options: Mapping[str, Any]) -> _Turns:
    """Return how turns are given to a chat template: as they are if it reads contents in parts by itself."""
    if is_processor(source):
        return in_parts
    contents = [turn.get("content") for chat in chats for turn in chat]
    if any(isinstance(content, list | tuple) for content in contents) and reads_parts(source, options):
        return list
    return in_texts


def _of_chat(
    source: Any, chat: Sequence[Mapping[str, Any]], prefill: str, options: Mapping[str, Any], in_turns: _Turns
) -> Prompt:
    """Write a conversation with the assistant's turn left open after the prefill."""
    if chat[-1]["role"] == "assistant" and not chat[-1].get("tool_calls"):
        *chat, last = chat
        begun = in_texts([last])[0].get("content") or ""
        if not isinstance(begun, str):
            raise TypeError(f"messages: expected the assistant's last turn to be a text, given {begun!r:.80}")
        prefill = begun + prefill
    words = prefill.rstrip()
    if not words:
        options = {"add_generation_prompt": True, **options}
        text = source.apply_chat_template(in_turns(chat), tokenize=False, **options)
        return Prompt(text + prefill, "", False, prefill)
    turns = in_turns([*chat, {"role": "assistant", "content": words}])
    from jinja2 import TemplateError  # transformers needs it for templates

    try:
        text = source.apply_chat_template(turns, continue_final_message=True, tokenize=False, **options)
    except (TemplateError, ValueError) as error:  # it refuses the assistant's turn, or leaves it out
        raise ValueError(
            f"prefill={prefill!r}: the chat template has no assistant turn that can be continued ({error}). "
            "Omit prefill."
        ) from error
    # Some templates trim the message, others do not.
    return Prompt(text.rstrip() + prefill[len(words) :], "", False, prefill)


def has_decoder(model: Any) -> bool:
    """Return whether the answer is read by a decoder of its own, and not after the prompt."""
    return isinstance(model, TorchModel) and bool(model.inner.config.is_encoder_decoder)


def for_images(model: Readable, images: Any, messages: Any) -> Any:
    """Return a server's route for chats if prompts have images, which its other routes do not take."""
    chats = [messages] if _is_chat(messages) else [] if messages is None else list(messages)
    has_images = images is not None or any(images_of(chat) for chat in chats if _is_chat(chat))
    return model.chats() if has_images and hasattr(model, "chats") else model


def in_batches(prompts: Sequence[Prompt], model: Readable, most: int = _AT_ONCE) -> Iterator[list[int]]:
    """Yield the indices of prompts that are run at once, `most` or fewer, which have similar lengths."""
    lengths = [len(prompt.text) for prompt in prompts]
    on_cpu = isinstance(model, TorchModel) and model.inner.device.type == "cpu"
    batch: list[int] = []
    for i in sorted(range(len(prompts)), key=lambda i: lengths[i]):
        too_long = on_cpu and (len(batch) + 1) * lengths[i] > _CHARACTERS
        at_once = min(most, _SEEING_AT_ONCE if prompts[i].images else _AT_ONCE)
        changes = bool(batch) and bool(prompts[i].images) != bool(prompts[batch[0]].images)
        if batch and (too_long or changes or len(batch) >= at_once):
            yield batch
            batch = []
        batch.append(i)
    yield batch


def check_before(prompt: Prompt, thousands: str | None) -> None:
    """Raise a ValueError if the text before a number holds a part of that number.

    A plain prompt may end in what joins two numbers, such as `10 : `, because the second is read as it is.
    """
    given = prompt.begun.strip() or not prompt.plain
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
    texts = [t.text if tokenizer is None else tokenizer.decode([t.token_id]) for t in tokens]
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

    `endings` are what may follow each prompt. Without a tokenizer, and in chats, a server gets texts.
    """
    tokenizer = tokenizer_of(processor)
    if tokenizer is None or getattr(model, "is_chat", False):
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


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raise a TypeError if a tokenizer is none of transformers, unless a server tokenizes the prompts."""
    if tokenizer is None and not isinstance(model, TorchModel):
        return
    if not callable(tokenizer) or not hasattr(tokenizer_of(tokenizer), "chat_template"):
        raise TypeError(
            f"tokenizer: expected the model's tokenizer of transformers, such as AutoTokenizer."
            f"from_pretrained(name), given {type(tokenizer).__name__}. With any other, encode the prompt "
            "yourself and pass it to number_quantiles."
        )
