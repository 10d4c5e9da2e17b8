"""Tool calls with three numbers of different scale, which three words determine up to noise."""

import json
from typing import NamedTuple

import numpy as np

WORDS = {
    "Room": ("tiny", "small", "modest", "medium", "roomy", "large", "huge", "endless"),
    "Voice": ("silent", "whispering", "soft", "calm", "clear", "loud", "shouting", "roaring"),
    "Song": ("frozen", "slow", "gentle", "moderate", "lively", "fast", "hasty", "frantic"),
}


class Field(NamedTuple):
    """A number of the call: `first + step * level`, and noise with a standard deviation of half a step."""

    name: str
    first: float
    step: float
    low: float  # numbers are kept between these, which all have one width
    high: float
    decimals: int

    @property
    def noise(self) -> float:
        """The standard deviation of the noise."""
        return abs(self.step) / 2

    def write(self, value: float) -> str:
        """Write a number with the decimals of the field."""
        return f"{value:.{self.decimals}f}"


FIELDS = (
    Field("room_size", 1.8, 0.8, 0.0, 9.99, 2),
    Field("threshold_db", -80.0, 8.0, -99.9, -10.0, 1),
    Field("delay_ms", 800.0, -80.0, 100.0, 999.0, 0),
)


class Row(NamedTuple):
    """A text and the numbers of its call."""

    question: str
    values: tuple[float, ...]

    @property
    def call(self) -> str:
        """The call."""
        return call_with(self.values)


def call_with(values: tuple[float, ...]) -> str:
    """Write a call, or its beginning, up to where the next number stands."""
    text = "{"
    for i, field in enumerate(FIELDS[: len(values) + 1]):
        text += f'{", " if i else ""}"{field.name}": '
        text += field.write(values[i]) if i < len(values) else ""
    return text + "}" if len(values) == len(FIELDS) else text


def draw_rows(count: int, rng: np.random.Generator) -> list[Row]:
    """Draw rows."""
    rows = []
    for levels in rng.integers(0, 8, (count, len(FIELDS))):
        words = [f"{name}: {of_name[i]}." for (name, of_name), i in zip(WORDS.items(), levels, strict=True)]
        values = tuple(
            float(
                field.write(
                    min(max(rng.normal(field.first + field.step * i, field.noise), field.low), field.high)
                )
            )
            for field, i in zip(FIELDS, levels, strict=True)
        )
        rows.append(Row(f"{' '.join(words)}\n", values))
    return rows


def read_call(text: str) -> tuple[float, ...] | None:
    """Return the numbers of a call; None if it is not valid."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    names = [field.name for field in FIELDS]
    if not isinstance(call, dict) or [*call] != names:
        return None
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in call.values()):
        return None
    return tuple(map(float, call.values()))
