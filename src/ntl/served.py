"""A model behind a server, as `ntl predict` knows a model; see `ntloss.decoding.served`."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from ntl.errors import UserError
from ntloss.decoding import NumberQuantiles, UnlikelyNumberWarning, number_quantiles
from ntloss.decoding.served import ServedModel, ServerError
from ntloss.numbers import NumberFormat
from ntloss.numbers.grammar import find_in_text

T = TypeVar("T")


def is_address(run: object) -> bool:
    """Return whether a model is given by the address of a server."""
    return str(run).startswith(("http://", "https://"))


class ServedApproach:
    """What `ntl.predictor.Predictor` needs of an `ntl.approaches.Approach`.

    Args:
        url: The server's address.
        number_format: How all answers are written; None if they have any length.
    """

    def __init__(self, url: str, number_format: NumberFormat | None):
        self.number_format = number_format
        self.server = _explained(lambda: ServedModel(url))
        self.vocabulary = _explained(self.server.vocabulary)
        self.model = SimpleNamespace(config=SimpleNamespace(ntl={}))
        # llama.cpp keeps the prompts of its slots, by default four, from digit to digit; the others keep all.
        self.batch_size = 4 if self.server.form.name == "llama.cpp" else 64

    def answer(self, model: Any, questions: Sequence[str], generation: Any) -> list[str]:
        """Answer with what the model writes, up to the end of its first number."""
        most = generation.max_new_tokens if self.number_format is None else len(self.number_format.slots) + 2
        texts = _explained(lambda: self.server.write(questions, most))
        found = [find_in_text(text) for text in texts]
        return [
            text[: numbers[0].end] if numbers else text for text, numbers in zip(texts, found, strict=True)
        ]

    def read(
        self, model: Any, questions: Sequence[str], generation: Any, levels: Sequence[float]
    ) -> tuple[list[str], NumberQuantiles]:
        """Answer, and read quantiles: the lower end of an interval, its upper end, and the median.

        Of a server that returns its likeliest tokens, the ends are the outer bounds of the two quantiles.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlikelyNumberWarning)  # `number_probability` reports it
            read = _explained(
                lambda: number_quantiles(self.server, questions, self.vocabulary, levels, self.number_format)
            )
        if self.number_format is not None:
            ends = torch.stack([read.lower[:, 0], read.upper[:, 1], read.values[:, 2]], dim=-1)
            read = replace(read, values=ends)
        return self.answer(model, questions, generation), read


def _explained(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (ServerError, ValueError) as error:
        raise UserError(f"{str(error).rstrip('.')}.") from None
