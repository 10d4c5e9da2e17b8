"""Questions like those of the DeepMind mathematics dataset's modules, for who has not its files.

One maker per kind of question: from a random generator and the size of its numbers to question and answer.
They are ours, simpler than the originals, and exact: integers and decimals, no floating point.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Set
from decimal import ROUND_HALF_UP, Context, Decimal

from ntl.tasks import Example

Maker = Callable[[random.Random, int], tuple[str, Decimal | int]]

TEMPLATES = ("{}", "Evaluate {}.", "Calculate {}.", "What is {}?", "What is the value of {}?")
EXACT = Context(prec=60)
POWERS = ("units", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")
NEAREST = ("integer", "ten", "one hundred", "one thousand")
PLACES = ("one decimal place", "two decimal places", "three decimal places")
# The largest integer that a question starts from.
SIZES = {"train-easy": 10, "train-medium": 50, "train-hard": 200, "interpolate": 100, "extrapolate": 5000}


def questions(
    split: str, modules: tuple[str, ...], rng: random.Random, exclude: Set[str] = frozenset()
) -> Iterator[Example]:
    """Draw questions without end, the modules in turn.

    Args:
        split: `train-easy`, `train-medium`, `train-hard`, `interpolate` or `extrapolate`: how large
            the numbers are.
        modules: Names of modules.
        rng: Where they come from.
        exclude: Questions that are not drawn.

    Yields:
        The questions.
    """
    while True:
        for module in modules:
            question = None
            while question is None or question in exclude:
                question, answer = MAKERS[module](rng, SIZES[split])
            yield Example(question, text_of(answer))


def text_of(number: Decimal | int) -> str:
    """Write a number without exponent and without zeros that say nothing.

    Example:
        >>> text_of(Decimal("2.50")), text_of(Decimal("-1E+3")), text_of(Decimal("-0.0"))
        ('2.5', '-1000', '0')
    """
    text = format(Decimal(number), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def expression_of(integers: int, largest: int, rng: random.Random) -> tuple[str, int]:
    """Draw a random sum or difference of so many integers, in brackets where needed, and its value."""
    if integers == 1:
        value = rng.randint(-largest, largest)
        return str(value), value
    left = rng.randint(1, integers - 1)
    left_text, left_value = expression_of(left, largest, rng)
    right_text, right_value = expression_of(integers - left, largest, rng)
    if integers - left > 1:
        right_text = f"({right_text})"
    if rng.random() < 0.5:
        return f"{left_text} + {right_text}", left_value + right_value
    return f"{left_text} - {right_text}", left_value - right_value


def _decimal(rng: random.Random, size: int) -> Decimal:
    """An integer in half of the cases, else with up to three decimals."""
    return Decimal(rng.randint(-size * 10, size * 10)).scaleb(-rng.choice((0, 0, 0, 1, 2, 3)))


def _nonzero(rng: random.Random, size: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, size)


def _variables(rng: random.Random, count: int) -> list[str]:
    return rng.sample("abcdfghjkmnpqrstuvwxyz", count)


def _let(rng: random.Random, name: str, value: int, size: int) -> str:
    """A sentence that says what a variable is, in a roundabout way."""
    part = rng.randint(-size, size)
    return f"Let {name} = {value - part} - {-part}."


def _linear_1d(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = _nonzero(rng, size), rng.randint(-size, size), rng.randint(-size, size)
    v = _variables(rng, 1)[0]
    return f"Solve {a}*{v} - {-b} = {a * x + b} for {v}.", x


def _linear_1d_composed(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = _nonzero(rng, size), rng.randint(-size, size), rng.randint(-size, size)
    v, k = _variables(rng, 2)
    return f"{_let(rng, k, b, size)} Solve {a}*{v} + {k} = {a * x + b} for {v}.", x


def _linear_2d(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, c = _nonzero(rng, 9), _nonzero(rng, 9), _nonzero(rng, 9)
    d = next(d for d in (1, 2) if a * d != b * c)  # else there is no single solution
    x, y = rng.randint(-size, size), rng.randint(-size, size)
    v, w = _variables(rng, 2)
    return f"Solve {a}*{v} + {b}*{w} = {a * x + b * y}, {c}*{v} + {d}*{w} = {c * x + d * y} for {v}.", x


def _linear_2d_composed(rng: random.Random, size: int) -> tuple[str, int]:
    a, x, y = _nonzero(rng, 9), rng.randint(-size, size), rng.randint(-size, size)
    v, w, k = _variables(rng, 3)
    return f"{_let(rng, k, x + y, size)} Solve {v} + {w} = {k}, {a}*{w} = {a * y} for {v}.", x


def _sequence(rng: random.Random, size: int) -> tuple[str, int]:
    start, step, bend = rng.randint(-size * 5, size * 5), _nonzero(rng, size), rng.choice((0, 0, 1, -1, 2))
    terms = [start + step * i + bend * i * i for i in range(rng.randint(4, 7) + 1)]
    sentence = rng.choice(("What is the next term in {}?", "What comes next: {}?"))
    return sentence.format(", ".join(map(str, terms[:-1]))), terms[-1]


def _add_or_sub(rng: random.Random, size: int) -> tuple[str, Decimal]:
    a, b = _decimal(rng, size), _decimal(rng, size)
    sentence, sign = rng.choice(
        (("What is {} plus {}?", 1), ("Add {} and {}.", 1), ("What is {} minus {}?", -1), ("{} - {}", -1))
    )
    return sentence.format(text_of(a), text_of(b)), a + sign * b


def _add_sub_multiple(rng: random.Random, size: int) -> tuple[str, int]:
    text, value = expression_of(rng.randint(3, 6), size, rng)
    return rng.choice(TEMPLATES).format(text), value


def _add_sub_multiple_longer(rng: random.Random, size: int) -> tuple[str, int]:
    text, value = expression_of(rng.randint(8, 11), size // 25, rng)
    return rng.choice(TEMPLATES).format(text), value


def _mul(rng: random.Random, size: int) -> tuple[str, Decimal]:
    a, b = _decimal(rng, size), _decimal(rng, size)
    sentence = rng.choice(("What is {} times {}?", "{} * {}", "Multiply {} and {}.", "Work out {} * {}."))
    return sentence.format(text_of(a), text_of(b)), EXACT.multiply(a, b)


def _mul_div_multiple(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, c, x = (_nonzero(rng, max(size // 100, 9)) for _ in range(4))
    return rng.choice(TEMPLATES).format(f"({a * b * x}/({b})*{c})/({a})"), x * c


def _mixed(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = (_nonzero(rng, max(size // 100, 9)) for _ in range(3))
    text, value = expression_of(rng.randint(2, 4), max(size // 25, 9), rng)
    return rng.choice(TEMPLATES).format(f"({a * b * x}/({b}))/({a}) - ({text})"), x - value


def _remainder(rng: random.Random, size: int) -> tuple[str, int]:
    b = rng.randint(2, size * 2)
    a = rng.randint(b, b * size)
    return f"Calculate the remainder when {a} is divided by {b}.", a % b


def _remainder_composed(rng: random.Random, size: int) -> tuple[str, int]:
    b = rng.randint(2, size * 2)
    a, k = rng.randint(b, b * 10), _variables(rng, 1)[0]
    return f"{_let(rng, k, a, size)} Calculate the remainder when {k} is divided by {b}.", a % b


def _place_value(rng: random.Random, size: int) -> tuple[str, int]:
    number = rng.randint(size, size * 1000)
    place = rng.randrange(min(len(str(number)), len(POWERS)))
    return f"What is the {POWERS[place]} digit of {number}?", number // 10**place % 10


def _round_number(rng: random.Random, size: int) -> tuple[str, Decimal]:
    if rng.random() < 0.5:
        value, places = Decimal(rng.randint(-size * 10**4, size * 10**4)).scaleb(-5), rng.randint(1, 3)
        sentence = f"Round {text_of(value)} to {PLACES[places - 1]}."
    else:
        value, places = Decimal(rng.randint(-size * 10**3, size * 10**3)).scaleb(-1), -rng.randint(0, 3)
        sentence = f"What is {text_of(value)} rounded to the nearest {NEAREST[-places]}?"
    return sentence, value.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)


def _round_number_composed(rng: random.Random, size: int) -> tuple[str, Decimal]:
    value, zeros, k = rng.randint(-size * 1000, size * 1000), rng.randint(1, 3), _variables(rng, 1)[0]
    rounded = Decimal(value).quantize(Decimal(1).scaleb(zeros), rounding=ROUND_HALF_UP)
    return f"{_let(rng, k, value, size)} Round {k} to the nearest {NEAREST[zeros]}.", rounded


MAKERS: dict[str, Maker] = {
    "algebra__linear_1d": _linear_1d,
    "algebra__linear_1d_composed": _linear_1d_composed,
    "algebra__linear_2d": _linear_2d,
    "algebra__linear_2d_composed": _linear_2d_composed,
    "algebra__sequence_next_term": _sequence,
    "arithmetic__add_or_sub": _add_or_sub,
    "arithmetic__add_or_sub_big": _add_or_sub,
    "arithmetic__add_sub_multiple": _add_sub_multiple,
    "arithmetic__add_sub_multiple_longer": _add_sub_multiple_longer,
    "arithmetic__mixed_longer": _mixed,
    "arithmetic__mul": _mul,
    "arithmetic__mul_big": _mul,
    "arithmetic__mul_div_multiple_longer": _mul_div_multiple,
    "numbers__div_remainder": _remainder,
    "numbers__div_remainder_composed": _remainder_composed,
    "numbers__place_value": _place_value,
    "numbers__place_value_big": _place_value,
    "numbers__round_number": _round_number,
    "numbers__round_number_big": _round_number,
    "numbers__round_number_composed": _round_number_composed,
}
