"""A number read from a model in one call: the chat template, the space before the number and its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

from ntloss.decoding.models import innermost
from ntloss.decoding.quantiles import number_quantiles
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.grammar import DIGITS


@dataclass(frozen=True)
class NumberReading:
    """A number that a model is about to write; printed as `11 [2, 29]`. NaN if it writes none.

    Args:
        median: half of the model's probability is on smaller numbers.
        interval: the lower and the upper end of the central interval.
        level: the interval's share of the probability.
        starts: probability that a number starts at the end of the prompt.
    """

    median: float
    interval: tuple[float, float]
    level: float
    starts: float

    def __str__(self) -> str:
        if math.isnan(self.median):
            return "no number"
        median, low, high = (f"{number:.15g}" for number in (self.median, *self.interval))
        return f"{median} [{low}, {high}]"


def read_number(
    model: Any,
    tokenizer: Any,
    prompt: str,
    prefill: str = "",
    *,
    level: float = 0.9,
    format: NumberFormat | None = None,
    walks: int | None = None,
    generator: torch.Generator | None = None,
) -> NumberReading:
    """Read the number with which a model answers one prompt; for several at once, see `number_quantiles`.

    With a chat template, the prompt is the user's turn and the prefill begins the assistant's. Other causal
    models continue the prompt, a line break unless it ends in white space, and the prefill. Encoder-decoders
    get the prompt in the encoder and the prefill in the decoder. A space or a sign at the end of the text is
    kept only where the tokenizer does not join it with the digits.

    Args:
        model: a causal or encoder-decoder model of transformers, in evaluation mode.
        tokenizer: its tokenizer.
        prompt: the question.
        prefill: the answer's text before the number, such as `"It takes "`. Default: none, the answer begins
            with the number.
        level: share of the probability between the ends of the interval. Default: 0.9.
        format, walks, generator: see `number_quantiles`. Default: numbers of any length.

    Returns:
        The median, the interval, and the probability that a number starts there.

    Raises:
        TypeError: not a model or a tokenizer of transformers, or a prompt that is not one text.
        ValueError: a level outside (0, 1), an empty prompt, a prefill that ends in a digit or that the chat
            template has no turn for; see `number_quantiles`.

    Warns:
        UnlikelyNumberWarning: see `number_quantiles`.

    Example:
        >>> import torch
        >>> from tokenizers import Tokenizer, models, pre_tokenizers
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> characters = Tokenizer(models.WordLevel({c: i for i, c in enumerate("0123456789+=")}))
        >>> characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)
        >>> config = LlamaConfig(vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> reading = read_number(model, tokenizer, "12+34=", format=NumberFormat(digits=2))
        >>> reading.interval[0] <= reading.median <= reading.interval[1]
        True
    """
    _check(tokenizer, prompt, prefill)
    tail = _tail(level)
    inner, prefix_ids = innermost(model), list[int]()
    if inner.config.is_encoder_decoder:
        inputs = dict(tokenizer(prompt, return_tensors="pt"))
        prefix_ids = _encode_up_to_number(tokenizer, prefill, special=False)
    else:
        text, special = _text_before_number(tokenizer, prompt, prefill)
        inputs = {"input_ids": torch.tensor([_encode_up_to_number(tokenizer, text, special)])}
    inputs = {name: column.to(inner.device) for name, column in inputs.items()}
    read = number_quantiles(
        model,
        inputs,
        tokenizer,
        (tail, 0.5, 1 - tail),
        format,
        walks=walks,
        prefix_ids=prefix_ids,
        generator=generator,
    )
    low, median, high = read.values[0].tolist()
    return NumberReading(median, (low, high), level, read.starts.item())


def _check(tokenizer: Any, prompt: Any, prefill: Any) -> None:
    if not callable(tokenizer) or not hasattr(tokenizer, "chat_template"):
        raise TypeError(
            f"tokenizer: expected the model's tokenizer of transformers, such as AutoTokenizer."
            f"from_pretrained(name), given {type(tokenizer).__name__}. With any other, encode the prompt "
            "yourself and pass it to number_quantiles."
        )
    for name, given in (("prompt", prompt), ("prefill", prefill)):
        if not isinstance(given, str):
            raise TypeError(
                f"{name}: expected one text, given {type(given).__name__}. Read several prompts one after "
                "the other, or as a batch with number_quantiles."
            )
    if not prompt:
        raise ValueError("prompt: expected a question, given an empty text")
    if prefill.rstrip()[-1:] in tuple(DIGITS):
        raise ValueError(
            f"prefill={prefill!r}: expected the text before the number, given a part of a number. Omit its "
            "last digits."
        )


def _tail(level: Any) -> float:
    """Return the share of the probability below an interval."""
    tail = round((1 - level) / 2, 12) if isinstance(level, int | float) else math.nan
    if not 0 < tail < 1 / 2:
        raise ValueError(f"level={level!r}: expected a share above 0 and below 1, such as 0.9")
    return tail


def _text_before_number(tokenizer: Any, prompt: str, prefill: str) -> tuple[str, bool]:
    """Return the text that a causal model continues, and whether it lacks special tokens."""
    if tokenizer.chat_template is None:
        needs_break = prefill and not prompt[-1].isspace()
        return prompt + ("\n" if needs_break else "") + prefill, True
    words = prefill.rstrip()
    chat = [{"role": "user", "content": prompt}]
    if not words:
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return text + prefill, False
    chat.append({"role": "assistant", "content": words})
    from jinja2 import TemplateError  # transformers needs it for templates

    try:
        text = tokenizer.apply_chat_template(chat, continue_final_message=True, tokenize=False)
    except (TemplateError, ValueError) as error:  # it refuses the assistant's turn, or leaves it out
        raise ValueError(
            f"prefill={prefill!r}: the chat template has no assistant turn that can be continued ({error}). "
            "Omit prefill."
        ) from error
    return text.rstrip() + prefill[len(words) :], False  # some templates trim the message, others do not


def _encode_up_to_number(tokenizer: Any, text: str, special: bool) -> list[int]:
    """Encode a text without the tokens that would change if a digit followed, and those that end it."""
    rows = [tokenizer.encode(text + digit, add_special_tokens=special) for digit in DIGITS]
    columns = zip(*rows, strict=False)
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
