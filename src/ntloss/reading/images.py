"""Prompts with images: what a processor makes of them, and how a server takes them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_PROCESSES = ("image_processor", "feature_extractor")


def is_processor(given: Any) -> bool:
    """Whether this is a processor of transformers, with a tokenizer and a part for images or sounds."""
    return hasattr(given, "tokenizer") and any(hasattr(given, name) for name in _PROCESSES)


def tokenizer_of(given: Any) -> Any:
    """Return the tokenizer of a processor; anything else as it is."""
    return given.tokenizer if is_processor(given) else given


def as_lists(images: Any, count: int, single: bool) -> list[list[Any]]:
    """Return the images of each prompt; a ValueError if not every prompt has one."""
    if images is None:
        return [[] for _ in range(count)]
    is_list = isinstance(images, Sequence) and not isinstance(images, str | bytes)
    found = [list(images) if is_list else [images]] if single else [_as_list(each) for each in images]
    if len(found) != count or not all(found):
        raise ValueError(
            f"images: expected a list of images for one prompt, or such a list for each of {count} prompts, "
            f"none of them empty; given {len(found)} for {count}"
        )
    return found


def _as_list(images: Any) -> list[Any]:
    return list(images) if isinstance(images, list | tuple) else [images]


def with_images(content: str, images: Sequence[Any]) -> Any:
    """Return the content of a user's turn: images before the text."""
    if not images:
        return content
    return [*({"type": "image", "image": image} for image in images), {"type": "text", "text": content}]


def images_of(chat: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the images that stand in the turns of a conversation."""
    contents = (turn.get("content") for turn in chat)  # none of a turn that calls a tool
    parts = (part for content in contents if isinstance(content, list | tuple) for part in content)
    return [part["image"] for part in parts if isinstance(part, Mapping) and part.get("image") is not None]


def in_parts(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return turns whose contents are lists of parts, which templates of processors expect."""

    def parts(content: Any) -> Any:
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    return _with_contents(chat, parts)


def in_texts(chat: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return turns whose contents are texts, which templates of tokenizers expect, a line for each part."""

    def text(content: Any) -> Any:
        if not isinstance(content, list | tuple):
            return content
        texts: list[Any] = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "\n".join(texts) if all(isinstance(each, str) for each in texts) else content

    return _with_contents(chat, text)


def _with_contents(chat: Sequence[Mapping[str, Any]], rewrite: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return turns with their contents rewritten; one that calls a tool may have none."""
    return [{**turn, "content": rewrite(turn["content"])} if "content" in turn else {**turn} for turn in chat]


def reads_parts(source: Any, options: Mapping[str, Any]) -> bool:
    """Whether a chat template reads contents in parts: whether it writes one part as it writes the text."""
    from jinja2 import TemplateError  # transformers needs it for templates

    chats: list[Any] = [[{"role": "user", "content": "x"}]]
    chats.append(in_parts(chats[0]))
    try:
        text, parts = (source.apply_chat_template(chat, tokenize=False, **options) for chat in chats)
    except (TemplateError, TypeError):  # it takes a list for a text
        return False
    return bool(text == parts)


def process(
    processor: Any,
    texts: Sequence[str],
    images: Sequence[Sequence[Any]],
    kept: Sequence[Sequence[int]],
    special: bool,
    model: Any,
) -> tuple[dict[str, Any], list[int]]:
    """Let a processor put the tokens of images into prompts.

    Args:
        processor: the model's.
        texts: the prompts, with one placeholder for each image.
        images: those of each prompt.
        kept: tokens of each prompt without the images', which may leave out some at its end.
        special: whether the tokenizer adds its special tokens.
        model: a model of transformers.

    Returns:
        The inputs of the model, padded on the left, and how many tokens of images were put in front of the
        last ones of each prompt.
    """
    made = processor(
        text=list(texts),
        images=[list(of_prompt) for of_prompt in images],
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
    for row, (text, tokens) in enumerate(zip(texts, kept, strict=True)):
        whole = processor.tokenizer.encode(text, add_special_tokens=special)
        same = next(
            (i for i, (a, b) in enumerate(zip(whole, tokens, strict=False)) if a != b),
            min(len(whole), len(tokens)),
        )
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
    inputs = {name: _pad_left(rows) for name, rows in columns.items()}
    inputs["attention_mask"] = _pad_left([[1] * len(row) for row in columns["input_ids"]])
    inputs |= {name: value for name, value in made.items() if name not in inputs}
    return {name: _to(value, model) for name, value in inputs.items()}, added


def _pad_left(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])


def _to(value: Any, model: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(model.device, model.dtype if torch.is_floating_point(value) else None)


def as_messages(chat: Sequence[Mapping[str, Any]], images: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a conversation as OpenAI's chat API takes it, with images as addresses or as data."""
    rest = iter(images)
    return [{**turn, "content": _as_openai(turn.get("content"), rest)} for turn in chat]


def _as_openai(content: Any, images: Iterator[Any]) -> Any:
    if not isinstance(content, list | tuple):
        return content
    return [
        {"type": "image_url", "image_url": {"url": as_url(next(images))}}
        if part.get("type") == "image"
        else part
        for part in content
    ]


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
