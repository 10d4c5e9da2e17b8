"""What a model is asked: a question, the range of its answer, the text that a model reads, and its tokens."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch.nn.utils.rnn import pad_sequence

from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import CURRENCIES, DIGITS, SPACES, find_numbers
from ntloss.numbers.parsing import as_float
from ntloss.numbers.vocabulary import NumberToken, NumberVocabulary
from ntloss.reading.source import Continuations, Source
from ntloss.reading.torch_model import TorchModel

Turns = Sequence[Mapping[str, Any]]
AUTO = "auto"
_PROCESSES = ("image_processor", "feature_extractor")
_AT_ONCE = 64  # prompts
_SEEING_AT_ONCE = 8  # prompts with images
_CHARACTERS = 4096  # of all prompts that are run at once on a CPU, with padding; more gain nothing there
_MOST_DIGITS = 18  # of an int64
_PATIENCE = 2.0  # seconds without a progress bar
T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """What a model is asked, and how its answer begins; a text alone stands for `Question(text)`.

    With a chat template, the prompt is the user's turn and the prefill begins the assistant's. Other causal
    models continue the prompt, a line break unless it ends in white space, and the prefill. Encoder-decoders
    get the prompt in the encoder and the prefill in the decoder.

    Args:
        prompt: the question. Default: none, there are `messages`.
        prefill: the answer's text before the number or score, such as `"It takes "`. Default: none, the
            answer begins with it.
        system: the system's turn before the prompt. Default: that of the chat template.
        messages: in place of a prompt, the turns of a conversation, as OpenAI's API takes them; the last may
            be the beginning of the assistant's. A tokenizer's template gets several texts of a turn as one,
            a line each.
        images: those of the prompt, in its front: an image or a list. A model of transformers takes what its
            processor takes, such as images of Pillow; a server files, addresses and images of Pillow. Images
            may also stand in `messages`, as `{"type": "image", "image": image}`. Default: none.
        template: "auto" for the tokenizer's chat template, if it has one; None for prompts without a chat
            template, for a model that was fine-tuned on plain texts; or a template in Jinja.
        template_options: further options of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        TypeError: a prompt or prefill that is not a text, both or none of prompt and messages, or messages of
            another form.
        ValueError: an empty prompt, or a system's turn in both `system` and `messages`.

    Example:
        >>> Question("How many minutes does it take to boil an egg?", prefill="It takes ").prefill
        'It takes '
    """

    prompt: str | None = None
    prefill: str = ""
    system: str | None = None
    messages: Turns | None = None
    images: Any = None
    template: str | None = AUTO
    template_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise TypeError("question: expected either a prompt or messages")
        for name in ("prompt", "prefill"):
            if not isinstance(given := getattr(self, name), str) and (name, given) != ("prompt", None):
                raise TypeError(f"{name}: expected a text, given {type(given).__name__} {given!r:.80}")
        if self.prompt == "":
            raise ValueError("prompt: expected a question, given an empty one")
        is_list = isinstance(self.messages, Sequence) and len(self.messages) > 0
        if self.messages is not None and not (
            is_list and all(isinstance(turn, Mapping) and "role" in turn for turn in self.messages)
        ):
            raise TypeError(
                "messages: expected the turns of one conversation, such as "
                f"[{{'role': 'user', 'content': 'How many?'}}], given {self.messages!r:.80}"
            )
        if self.system is not None and any(turn["role"] == "system" for turn in self.messages or ()):
            raise ValueError("system: the messages have a system's turn already. Omit one of the two.")

    @property
    def seen(self) -> list[Any]:
        """The images of the prompt, or of the messages."""
        if self.images is not None:
            is_list = isinstance(self.images, Sequence) and not isinstance(self.images, str | bytes)
            return [*self.images] if is_list else [self.images]
        contents = (turn.get("content") for turn in self.messages or ())  # none of a turn that calls a tool
        parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
        return [
            part["image"] for part in parts if isinstance(part, Mapping) and part.get("image") is not None
        ]

    def written_for(self, source: Any, processor: Any) -> Prompt:
        """Return what a model reads, with a tokenizer or a processor."""
        images, prefill, content = tuple(self.seen), self.prefill, cast(Any, self.prompt)
        if self.images is not None:
            shown = [{"type": "image", "image": image} for image in images]
            content = [*shown, {"type": "text", "text": self.prompt}]
        chat = [*(self.messages or [{"role": "user", "content": content}])]
        if self.system is not None:
            chat = [{"role": "system", "content": self.system}, *chat]
        if source.is_chat:
            return Prompt(prefill, False, prefill, source.add_chat(_as_messages(chat, images)))
        if images and (
            tokenizer_of(processor) is processor or not isinstance(source, TorchModel) or source.has_decoder
        ):
            raise TypeError(
                "images: expected a server, or a causal model of transformers and its processor in place of "
                "the tokenizer, such as AutoProcessor.from_pretrained(name); given "
                f"{type(processor).__name__}"
            )
        parts = (processor, tokenizer_of(processor))
        writer = next((part for part in parts if getattr(part, "chat_template", None) is not None), None)
        if self.template is not None and writer is not None and not source.has_decoder:
            return self._in_template(writer, chat)._replace(images=images)
        if self.prompt is None or self.system is not None or self.template_options:
            raise ValueError(
                "system, messages and template_options need a tokenizer with a chat template: pass the "
                "prompt as one text"
            )
        if source.has_decoder:
            return Prompt(prefill, False, prefill, self.prompt)
        text = self.prompt + ("\n" if prefill and not self.prompt[-1].isspace() else "") + prefill
        return Prompt(text, True, prefill, images=images)

    def _in_template(self, writer: Any, chat: list[Mapping[str, Any]]) -> Prompt:
        """Write a conversation with the assistant's turn left open after the prefill."""
        options, prefill = {**(self.template_options or {})}, self.prefill
        if self.template != AUTO:
            options["chat_template"] = self.template
        in_turns = _in_texts if tokenizer_of(writer) is writer else _in_parts
        if chat[-1]["role"] == "assistant" and not chat[-1].get("tool_calls"):
            *chat, last = chat
            begun = _in_texts([last])[0].get("content") or ""
            if not isinstance(begun, str):
                raise TypeError(
                    f"messages: expected the assistant's last turn to be a text, given {begun!r:.80}"
                )
            prefill = begun + prefill
        words = prefill.rstrip()
        if not words:
            options = {"add_generation_prompt": True, **options}
            text = writer.apply_chat_template(in_turns(chat), tokenize=False, **options)
            return Prompt(text + prefill, False, prefill)
        turns = in_turns([*chat, {"role": "assistant", "content": words}])
        from jinja2 import TemplateError  # transformers needs it for templates

        try:
            text = writer.apply_chat_template(turns, continue_final_message=True, tokenize=False, **options)
        except (TemplateError, ValueError) as error:  # it refuses the assistant's turn, or leaves it out
            raise ValueError(
                f"prefill={prefill!r}: the chat template has no assistant turn that can be continued "
                f"({error}). Omit prefill."
            ) from error
        # Some templates trim the message, others do not.
        return Prompt(text.rstrip() + prefill[len(words) :], False, prefill)


@dataclass(frozen=True)
class Limits:
    """Which numbers are read, and how exactly.

    Args:
        low, high: the range of the number, inclusive: the quantiles are those of the model's number given
            that it is in the range. Default: all numbers.
        max_digits: any length: most digits of a number, from 1 to 300; further decimals are cut off, and
            numbers of 10 to this power or more are not counted. Default: 18.
        most_texts: any length: how many texts of each prompt are followed in a pass, at most; the likeliest
            are all followed, and the remaining ones are sampled. A larger number makes the result more exact,
            see `NumberQuantiles.lower` and `.upper`. Default: 64.
        thousands: any length: the separator of thousands, see `parse_numbers`. Default: the vocabulary's, and
            of texts before the number what they decide.

    Raises:
        ValueError: an option is out of range, or no number is in the range.

    Example:
        >>> Limits(0, 100).high
        100.0
    """

    low: float = -math.inf
    high: float = math.inf
    max_digits: int = 18
    most_texts: int = 64
    thousands: str | None = None

    def __post_init__(self) -> None:
        if self.most_texts < 1 or not 1 <= self.max_digits <= 300:
            raise ValueError(
                f"most_texts={self.most_texts}, max_digits={self.max_digits}: expected most_texts of 1 or "
                "more, and max_digits from 1 to 300"
            )
        for name in ("low", "high"):
            given = getattr(self, name)
            object.__setattr__(self, name, as_float(given))
            if math.isnan(getattr(self, name)):
                raise ValueError(f"{name}={given!r}: expected a number; omit it for no limit")
        if self.low > self.high:
            raise ValueError(f"low={self.low}, high={self.high}: expected the first not above the second")

    def check(self, format: Any) -> None:
        """Raise an error for what is no format of numbers, or writes none in the range."""
        if format is None:
            return
        if not isinstance(format, NumberFormat):
            raise TypeError(
                f"format={format!r}: expected a NumberFormat, such as NumberFormat(digits=3), or None"
            )
        if format.digits + format.decimals > _MOST_DIGITS:
            raise ValueError(f"{format}: expected at most {_MOST_DIGITS} digits and decimals in total")
        step, largest = 10.0**format.decimals, 10**format.digits - 10.0**-format.decimals
        low, high = max(self.low, -largest if format.signed else 0.0), min(self.high, largest)
        if low > high or math.ceil(low * step - 1e-9) > math.floor(high * step + 1e-9):
            raise ValueError(f"low={self.low}, high={self.high}: {format} writes no number in this range")


NO_LIMITS = Limits()


class Prompt(NamedTuple):
    """A question as a model reads it."""

    text: str  # that the answer continues
    special: bool  # whether the tokenizer adds its special tokens to it; that of a chat template has them
    begun: str  # the part of the answer that is given, which ends the text
    asked: str = ""  # read apart: by an encoder the question, by a server the name of the conversation
    images: tuple[Any, ...] = ()  # what stands at the text's placeholders of images

    @property
    def before(self) -> str:
        """The part of the text that may belong to the answer's number: all of a plain prompt."""
        return self.text if self.special else self.begun


def tokenizer_of(given: Any) -> Any:
    """Return the tokenizer of a processor, which has a part for images or sounds; anything else as it is."""
    is_processor = hasattr(given, "tokenizer") and any(hasattr(given, name) for name in _PROCESSES)
    return given.tokenizer if is_processor else given


def _in_parts(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return turns whose contents are lists of parts, which templates of processors expect."""
    return [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]}
        if isinstance(turn.get("content"), str)
        else {**turn}
        for turn in chat
    ]


def _in_texts(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return turns whose contents are texts, which templates of tokenizers expect, a line for each part."""
    found = [{**turn} for turn in chat]
    for turn in found:  # one that calls a tool may have no content
        if isinstance(content := turn.get("content"), list | tuple):
            texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
            if all(isinstance(each, str) for each in texts):
                turn["content"] = "\n".join(texts)
    return found


def _as_messages(chat: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a conversation as OpenAI's chat API takes it, with images as addresses or as data."""
    rest = iter(images)

    def part_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
        if part.get("type") != "image":
            return part
        return {"type": "image_url", "image_url": {"url": as_url(next(rest))}}

    def content(given: Any) -> Any:
        return [part_of(part) for part in given] if isinstance(given, list | tuple) else given

    return [{**turn, "content": content(turn.get("content"))} for turn in chat]


def as_url(image: Any) -> str:
    """Return an image's address as it is, and any other image as data in an address."""
    if isinstance(image, str) and image.startswith(("http://", "https://", "data:")):
        return image
    if isinstance(image, str | Path):
        data = Path(image).read_bytes()
    elif isinstance(image, bytes):
        data = image
    elif hasattr(image, "save"):  # of Pillow
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        data = buffer.getvalue()
    else:
        raise TypeError(
            "images: expected images of Pillow, files or addresses for a server, given "
            f"{type(image).__name__}"
        )
    kinds = {b"\xff\xd8": "jpeg", b"GI": "gif", b"RI": "webp"}
    kind = kinds.get(data[:2], "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


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
    source = model if isinstance(model, Source) else TorchModel(model)
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


def likeliest_after(root: Continuations, row: int, vocabulary: NumberVocabulary) -> str:
    """Return how a message shows the likeliest token after a row."""
    token = root.likeliest(row)  # of some servers, its text
    text = vocabulary.text_of(token) if isinstance(token, int) else token
    return repr(text) if text is not None else "another token" if token is None else f"token {token}"


def read_each(
    source: Source,
    processor: Any,
    prompts: Sequence[Prompt],
    endings: Sequence[Sequence[str]],
    read: Callable[[list[int], Any, list[int], list[list[int]]], Sequence[T]],
    keys: Sequence[Hashable] | None = None,
    most: int = _AT_ONCE,
) -> list[T]:
    """Read prompts of equal keys together, `most` or fewer at a time; return the readings in their order.

    `read` gets the prompts' rows and what `encode_prompts` returns of them. Prompts of similar lengths are
    run at once. A progress bar is shown after two seconds. An error, such as of a server that dies, has as
    `results` what was read before, None for the other prompts.
    """
    kinds = [  # of encoder-decoders, all answers of a batch begin alike
        (key, p.text if p.asked else "", p.special, bool(p.images))
        for key, p in zip(keys or [None] * len(prompts), prompts, strict=True)
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
    bar: Any = None
    with suppress(ImportError):
        from tqdm.auto import tqdm

        bar = tqdm(
            total=len(prompts), unit="question", delay=_PATIENCE, leave=False, disable=len(prompts) == 1
        )
    with nullcontext() if bar is None else bar:
        for index in batches:
            some, after = [prompts[i] for i in index], [endings[i] for i in index]
            try:
                readings = read(index, *encode_prompts(source, processor, some, after))
            except Exception as error:
                error.results = found  # type: ignore[attr-defined]
                raise
            for i, reading in zip(index, readings, strict=True):
                found[i] = reading
            if bar is not None:
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
    last = numbers[-1] if numbers else None
    begins = last is not None and last.plain == "5" and (last.alone or not given or text[-1:] in ("(", "["))
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
        # A processor takes texts, whose white space at the end is kept whole, or not at all.
        prompts = [
            p if row == _encode_whole(tokenizer, p.text, p.special) else p._replace(text=p.text.rstrip())
            for p, row in zip(prompts, kept, strict=True)
        ]
        kept = [_encode_whole(tokenizer, prompt.text, prompt.special) for prompt in prompts]
        return process(source, processor, prompts, kept), prefix_ids, kept
    tokens = [torch.tensor(row, device=source.inner.device) for row in rows]
    masks = [torch.ones_like(row) for row in tokens]
    ids, mask = (pad_sequence(each, batch_first=True, padding_side="left") for each in (tokens, masks))
    return {"input_ids": ids, "attention_mask": mask}, prefix_ids, kept


def process(
    model: TorchModel, processor: Any, prompts: Sequence[Prompt], kept: Sequence[Sequence[int]]
) -> Any:
    """Let a processor put the tokens of images into texts with a placeholder for each.

    `kept` are the tokens of each text without the images'. Return the model's inputs, padded on the left.
    """
    made = processor(
        text=[prompt.text for prompt in prompts],
        images=[[*prompt.images] for prompt in prompts],
        padding=True,
        padding_side="left",
        add_special_tokens=prompts[0].special,
        return_tensors="pt",
    )
    if made["input_ids"][:, -1].tolist() != [row[-1] for row in kept]:
        raise ValueError(
            f"{type(processor).__name__} encodes the end of a prompt in another way than its tokenizer: "
            "pass what it returns to number_quantiles"
        )
    return made.to(model.inner.device, model.inner.dtype)
