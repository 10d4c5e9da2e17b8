"""Generate questions like those of the DeepMind mathematics dataset, for users without its files.

Each module has one function, which draws a question and its answer, given a random generator and the maximum
size of the numbers. The questions are simpler than the originals. All arithmetic is exact, in integers and
decimals.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Set
from decimal import ROUND_HALF_UP, Context, Decimal

from ntl.data import Example, format_number

Maker = Callable[[random.Random, int], tuple[str, Decimal | int]]

TEMPLATES = ("{}", "Evaluate {}.", "Calculate {}.", "What is {}?", "What is the value of {}?")
EXACT = Context(prec=60)
POWERS = ("units", "tens", "hundreds", "thousands", "ten thousands", "hundred thousands", "millions")
NEAREST = ("integer", "ten", "one hundred", "one thousand")
PLACES = ("one decimal place", "two decimal places", "three decimal places")
# Maximum size of the integers that a question is built from.
SIZES = {"train-easy": 10, "train-medium": 50, "train-hard": 200, "interpolate": 100, "extrapolate": 5000}


def generate_questions(
    split: str, modules: tuple[str, ...], rng: random.Random, exclude: Set[str]
) -> Iterator[Example]:
    """Generate an endless stream of questions that are not in `exclude`, cycling through the modules.

    `split`, a key of `SIZES`, sets the size of the numbers. Modules whose names end with `_big` differ only
    in this size.
    """
    while True:
        for module in modules:
            question = None
            while question is None or question in exclude:
                question, answer = MAKERS[module.removesuffix("_big")](rng, SIZES[split])
            yield Example(question, format_number(answer))


def draw_expression(integers: int, largest: int, rng: random.Random) -> tuple[str, int]:
    """Draw an expression of sums and differences of `integers` integers, and return it with its value."""
    if integers == 1:
        value = rng.randint(-largest, largest)
        return str(value), value
    left = rng.randint(1, integers - 1)
    left_text, left_value = draw_expression(left, largest, rng)
    right_text, right_value = draw_expression(integers - left, largest, rng)
    if integers - left > 1:
        right_text = f"({right_text})"
    if rng.random() < 0.5:
        return f"{left_text} + {right_text}", left_value + right_value
    return f"{left_text} - {right_text}", left_value - right_value


def _decimal(rng: random.Random, size: int) -> Decimal:
    """Draw an integer in half of the cases, otherwise a decimal with up to three digits after the point."""
    return Decimal(rng.randint(-size * 10, size * 10)).scaleb(-rng.choice((0, 0, 0, 1, 2, 3)))


def _nonzero(rng: random.Random, size: int) -> int:
    return rng.choice((-1, 1)) * rng.randint(1, size)


def _variables(rng: random.Random, count: int) -> list[str]:
    return rng.sample("abcdfghjkmnpqrstuvwxyz", count)


def _let_sentence(rng: random.Random, name: str, value: int, size: int) -> str:
    """Define a variable as a difference of two integers."""
    part = rng.randint(-size, size)
    return f"Let {name} = {value - part} - {-part}."


def _linear_1d(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = _nonzero(rng, size), rng.randint(-size, size), rng.randint(-size, size)
    v = _variables(rng, 1)[0]
    return f"Solve {a}*{v} - {-b} = {a * x + b} for {v}.", x


def _linear_1d_composed(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = _nonzero(rng, size), rng.randint(-size, size), rng.randint(-size, size)
    v, k = _variables(rng, 2)
    return f"{_let_sentence(rng, k, b, size)} Solve {a}*{v} + {k} = {a * x + b} for {v}.", x


def _linear_2d(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, c = _nonzero(rng, 9), _nonzero(rng, 9), _nonzero(rng, 9)
    d = next(d for d in (1, 2) if a * d != b * c)  # otherwise the solution is not unique
    x, y = rng.randint(-size, size), rng.randint(-size, size)
    v, w = _variables(rng, 2)
    return f"Solve {a}*{v} + {b}*{w} = {a * x + b * y}, {c}*{v} + {d}*{w} = {c * x + d * y} for {v}.", x


def _linear_2d_composed(rng: random.Random, size: int) -> tuple[str, int]:
    a, x, y = _nonzero(rng, 9), rng.randint(-size, size), rng.randint(-size, size)
    v, w, k = _variables(rng, 3)
    return f"{_let_sentence(rng, k, x + y, size)} Solve {v} + {w} = {k}, {a}*{w} = {a * y} for {v}.", x


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
    return sentence.format(format_number(a), format_number(b)), a + sign * b


def _add_sub_multiple(rng: random.Random, size: int, fewest: int = 3, most: int = 6) -> tuple[str, int]:
    text, value = draw_expression(rng.randint(fewest, most), size, rng)
    return rng.choice(TEMPLATES).format(text), value


def _add_sub_multiple_longer(rng: random.Random, size: int) -> tuple[str, int]:
    return _add_sub_multiple(rng, size // 25, fewest=8, most=11)


def _mul(rng: random.Random, size: int) -> tuple[str, Decimal]:
    a, b = _decimal(rng, size), _decimal(rng, size)
    sentence = rng.choice(("What is {} times {}?", "{} * {}", "Multiply {} and {}.", "Work out {} * {}."))
    return sentence.format(format_number(a), format_number(b)), EXACT.multiply(a, b)


def _mul_div_multiple(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, c, x = (_nonzero(rng, max(size // 100, 9)) for _ in range(4))
    return rng.choice(TEMPLATES).format(f"({a * b * x}/({b})*{c})/({a})"), x * c


def _mixed(rng: random.Random, size: int) -> tuple[str, int]:
    a, b, x = (_nonzero(rng, max(size // 100, 9)) for _ in range(3))
    text, value = draw_expression(rng.randint(2, 4), max(size // 25, 9), rng)
    return rng.choice(TEMPLATES).format(f"({a * b * x}/({b}))/({a}) - ({text})"), x - value


def _remainder(rng: random.Random, size: int) -> tuple[str, int]:
    b = rng.randint(2, size * 2)
    a = rng.randint(b, b * size)
    return f"Calculate the remainder when {a} is divided by {b}.", a % b


def _remainder_composed(rng: random.Random, size: int) -> tuple[str, int]:
    b = rng.randint(2, size * 2)
    a, k = rng.randint(b, b * 10), _variables(rng, 1)[0]
    return f"{_let_sentence(rng, k, a, size)} Calculate the remainder when {k} is divided by {b}.", a % b


def _place_value(rng: random.Random, size: int) -> tuple[str, int]:
    number = rng.randint(size, size * 1000)
    place = rng.randrange(min(len(str(number)), len(POWERS)))
    return f"What is the {POWERS[place]} digit of {number}?", number // 10**place % 10


def _round_number(rng: random.Random, size: int) -> tuple[str, Decimal]:
    if rng.random() < 0.5:
        value, places = Decimal(rng.randint(-size * 10**4, size * 10**4)).scaleb(-5), rng.randint(1, 3)
        sentence = f"Round {format_number(value)} to {PLACES[places - 1]}."
    else:
        value, places = Decimal(rng.randint(-size * 10**3, size * 10**3)).scaleb(-1), -rng.randint(0, 3)
        sentence = f"What is {format_number(value)} rounded to the nearest {NEAREST[-places]}?"
    return sentence, value.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)


def _round_number_composed(rng: random.Random, size: int) -> tuple[str, Decimal]:
    value, zeros, k = rng.randint(-size * 1000, size * 1000), rng.randint(1, 3), _variables(rng, 1)[0]
    rounded = Decimal(value).quantize(Decimal(1).scaleb(zeros), rounding=ROUND_HALF_UP)
    return f"{_let_sentence(rng, k, value, size)} Round {k} to the nearest {NEAREST[zeros]}.", rounded


MAKERS: dict[str, Maker] = {
    "algebra__linear_1d": _linear_1d,
    "algebra__linear_1d_composed": _linear_1d_composed,
    "algebra__linear_2d": _linear_2d,
    "algebra__linear_2d_composed": _linear_2d_composed,
    "algebra__sequence_next_term": _sequence,
    "arithmetic__add_or_sub": _add_or_sub,
    "arithmetic__add_sub_multiple": _add_sub_multiple,
    "arithmetic__add_sub_multiple_longer": _add_sub_multiple_longer,
    "arithmetic__mixed_longer": _mixed,
    "arithmetic__mul": _mul,
    "arithmetic__mul_div_multiple_longer": _mul_div_multiple,
    "numbers__div_remainder": _remainder,
    "numbers__div_remainder_composed": _remainder_composed,
    "numbers__place_value": _place_value,
    "numbers__round_number": _round_number,
    "numbers__round_number_composed": _round_number_composed,
}
