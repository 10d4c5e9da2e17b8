"""A question to a model: the prompt, the beginning of the answer, and how both are put together."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from ntloss.reading.torch_model import TorchModel

Turns = Sequence[Mapping[str, Any]]
AUTO = "auto"
_PROCESSES = ("image_processor", "feature_extractor")


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
            be the beginning of the assistant's.
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
        if self.prompt is not None and not isinstance(self.prompt, str):
            kind = type(self.prompt).__name__
            raise TypeError(f"prompt: expected a text, given {kind} {self.prompt!r:.80}")
        if not isinstance(self.prefill, str):
            raise TypeError(f"prefill: expected a text, given {type(self.prefill).__name__}")
        if self.prompt == "":
            raise ValueError("prompt: expected a question, given an empty one")
        if self.messages is not None and not _is_chat(self.messages):
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
        in_turns: Any = list
        if tokenizer_of(writer) is not writer:
            in_turns = _in_parts
        elif any(isinstance(turn.get("content"), list | tuple) for turn in chat):
            in_turns = list if _reads_parts(writer, options) else _in_texts
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


class Prompt(NamedTuple):
    """A question as a model reads it.

    Args:
        text: the text that the answer continues.
        special: whether the tokenizer adds its special tokens to the text; that of a chat template has them.
        begun: the part of the answer that is given, which ends the text.
        asked: what is read apart from the text: by an encoder the question, by a server the name of the
            conversation. Default: nothing.
        images: what stands at the text's placeholders of images.
    """

    text: str
    special: bool
    begun: str
    asked: str = ""
    images: tuple[Any, ...] = ()

    @property
    def before(self) -> str:
        """The part of the text that may belong to the answer's number: all of a plain prompt."""
        return self.text if self.special else self.begun


def _is_chat(given: Any) -> bool:
    """Return whether this is a conversation, turns with a role each."""
    is_list = isinstance(given, Sequence) and len(given) > 0
    return is_list and all(isinstance(turn, Mapping) and "role" in turn for turn in given)


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


def _reads_parts(source: Any, options: Mapping[str, Any]) -> bool:
    """Whether a chat template reads contents in parts: whether it writes one part as it writes the text."""
    from jinja2 import TemplateError  # transformers needs it for templates

    chats: list[Any] = [[{"role": "user", "content": "x"}]]
    chats.append(_in_parts(chats[0]))
    try:
        text, parts = (source.apply_chat_template(chat, tokenize=False, **options) for chat in chats)
    except (TemplateError, TypeError):  # it takes a list for a text
        return False
    return bool(text == parts)


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
