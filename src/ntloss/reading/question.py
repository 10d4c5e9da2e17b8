"""A question to a model: the prompt, the beginning of the answer, and how both are put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ntloss.reading.images import (
    as_messages,
    images_of,
    in_parts,
    in_texts,
    is_processor,
    reads_parts,
    tokenizer_of,
    with_images,
)
from ntloss.reading.torch_model import TorchModel

Turns = Sequence[Mapping[str, Any]]
AUTO = "auto"


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
        if self.images is None:
            return images_of(self.messages or ())
        is_list = isinstance(self.images, Sequence) and not isinstance(self.images, str | bytes)
        return [*self.images] if is_list else [self.images]

    @property
    def turns(self) -> list[Mapping[str, Any]]:
        """The conversation, without the prefill."""
        chat = [*(self.messages or [{"role": "user", "content": with_images(self.prompt or "", self.seen)}])]
        return chat if self.system is None else [{"role": "system", "content": self.system}, *chat]

    def written_for(self, source: Any, processor: Any) -> Prompt:
        """Return the text that a model reads, with a tokenizer or a processor."""
        images = tuple(self.seen)
        if getattr(source, "is_chat", False):  # a server's route for them
            return Prompt(
                source.add_chat(as_messages(self.turns, images), self.prefill), "", True, self.prefill
            )
        if images and (
            not is_processor(processor) or not isinstance(source, TorchModel) or has_decoder(source)
        ):
            raise TypeError(
                "images: expected a server, or a causal model of transformers and its processor in place of "
                "the tokenizer, such as AutoProcessor.from_pretrained(name); given "
                f"{type(processor).__name__}"
            )
        parts = (processor, tokenizer_of(processor))
        writer = next((part for part in parts if getattr(part, "chat_template", None) is not None), None)
        if self.template is not None and writer is not None and not has_decoder(source):
            return self._in_template(writer)._replace(images=images)
        if self.prompt is None or self.system is not None or self.template_options:
            raise ValueError(
                "system, messages and template_options need a tokenizer with a chat template: pass the "
                "prompt as one text"
            )
        if has_decoder(source):
            return Prompt(self.prompt, self.prefill, True, self.prefill)
        line_break = "\n" if self.prefill and not self.prompt[-1].isspace() else ""
        text = self.prompt + line_break + self.prefill
        return Prompt(text, "", True, self.prefill, images, is_plain=True)

    def _in_template(self, writer: Any) -> Prompt:
        """Write the conversation with the assistant's turn left open after the prefill."""
        options, chat, prefill = {**(self.template_options or {})}, self.turns, self.prefill
        if self.template != AUTO:
            options["chat_template"] = self.template
        in_turns: Any = in_texts
        if is_processor(writer):
            in_turns = in_parts
        elif any(isinstance(turn.get("content"), list | tuple) for turn in chat) and reads_parts(
            writer, options
        ):
            in_turns = list
        if chat[-1]["role"] == "assistant" and not chat[-1].get("tool_calls"):
            *chat, last = chat
            begun = in_texts([last])[0].get("content") or ""
            if not isinstance(begun, str):
                raise TypeError(
                    f"messages: expected the assistant's last turn to be a text, given {begun!r:.80}"
                )
            prefill = begun + prefill
        words = prefill.rstrip()
        if not words:
            options = {"add_generation_prompt": True, **options}
            text = writer.apply_chat_template(in_turns(chat), tokenize=False, **options)
            return Prompt(text + prefill, "", False, prefill)
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
        return Prompt(text.rstrip() + prefill[len(words) :], "", False, prefill)


class Prompt(NamedTuple):
    """A question as one text.

    Args:
        text: what the model reads; of an encoder-decoder, what the encoder reads.
        answer: of an encoder-decoder, the beginning of the answer, which the decoder reads.
        special: whether the tokenizer adds its special tokens, which the text of a chat template has already.
        begun: the part of the answer that is given, which ends the text.
        images: what stands at the text's placeholders of images.
        is_plain: whether the answer continues the prompt itself, without a chat template between them.
    """

    text: str
    answer: str
    special: bool
    begun: str
    images: tuple[Any, ...] = ()
    is_plain: bool = False

    @property
    def before(self) -> str:
        """The given text that the number continues: a plain prompt, or the beginning of the answer."""
        return self.text if self.is_plain else self.begun


def as_questions(given: Any) -> tuple[list[Question], bool]:
    """Return one or several questions, each given as a text or a `Question`, and whether it is only one."""
    single = isinstance(given, str | Question | Mapping) or not isinstance(given, Iterable)
    questions = [
        each if isinstance(each, Question) else Question(each) for each in ([given] if single else given)
    ]
    if not questions:
        raise ValueError("question: expected at least one")
    return questions, single


def has_decoder(source: Any) -> bool:
    """Return whether the answer is read by a decoder of its own, and not after the prompt."""
    return isinstance(source, TorchModel) and bool(source.inner.config.is_encoder_decoder)


def _is_chat(given: Any) -> bool:
    """Return whether this is a conversation, turns with a role each."""
    is_list = isinstance(given, Sequence) and len(given) > 0
    return is_list and all(isinstance(turn, Mapping) and "role" in turn for turn in given)
