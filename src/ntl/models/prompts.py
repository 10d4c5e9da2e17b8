"""Turn questions into the tokens that precede an answer."""

from collections.abc import Callable, Sequence
from typing import Any

from ntl.errors import UserError
from ntl.models.source import ModelSource

Prompts = Callable[[Sequence[str]], list[list[int]]]


def decoder_prompts(source: ModelSource, encoding: Any) -> Prompts:
    """Make the function that encodes questions for a decoder-only model.

    A prompt is a question or, with a chat template, a conversation up to the assistant's turn; the separator
    follows. Its default is nothing in a chat or after white space, and otherwise a line break or, if the
    tokenizer has none, its end token.
    """
    tokenizer, settings = source.tokenizer, source.settings
    if settings.chat_template and tokenizer.chat_template is None:
        raise UserError(
            "model_args.chat_template=true, but the tokenizer has no chat template; expected that of an "
            "instruct model. Omit it."
        )

    def plain(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = encoding.encode(texts, special_tokens=False)
        return found

    def as_chat(question: str) -> str:
        turns = [{"role": "user", "content": question}]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    given = None if settings.separator is None else settings.separator.replace("\\n", "\n")
    if settings.chat_template:
        return lambda questions: plain([as_chat(question) + (given or "") for question in questions])
    line_break = plain(["\n"])[0]
    if not line_break or tokenizer.unk_token_id in line_break or "\n" not in encoding.decode([line_break])[0]:
        line_break = [tokenizer.eos_token_id]
    separator = line_break if given is None else plain([given])[0]
    first = tokenizer("1")["input_ids"][:1]
    prefix = first if first == [tokenizer.bos_token_id] else []

    def prompts(questions: Sequence[str]) -> list[list[int]]:
        ends = [given is None and question[-1:].isspace() for question in questions]
        rows = zip(plain(questions), ends, strict=True)
        return [[*prefix, *ids, *([] if ends_itself else separator)] for ids, ends_itself in rows]

    return prompts
