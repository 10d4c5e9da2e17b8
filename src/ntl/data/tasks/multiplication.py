"""Multiplication: "What is 47 times 913?", with factors of up to a given number of digits.

The test questions have the same numbers of digits as the training questions (interpolate), or one longer
factor (extrapolate).
"""

import random
from collections import defaultdict

from ntl.config import Multiplication
from ntl.data import Example, TaskData
from ntl.data.files import SPLIT_FILES, Layout, load_files, read_records
from ntl.errors import UserError

PREPARED = Layout({split: f"{file}.jsonl" for split, file in SPLIT_FILES.items()}, read_records)
# The paper's repository has one test file.
PUBLISHED = Layout({"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}, read_records)

Pair = tuple[int, int]


def load(settings: Multiplication) -> TaskData:
    """Generate or read the questions."""
    return generate(settings) if settings.data_dir is None else load_files(settings, [PREPARED, PUBLISHED])


def generate(settings: Multiplication) -> TaskData:
    """Generate the questions.

    Returns:
        The questions. In training, each pair of digit counts is equally likely. The products of the training,
        validation and test sets are disjoint, regardless of the order of the factors. Training questions may
        repeat, because there are only 81 products of two one-digit numbers.

    Raises:
        UserError: Factors for extrapolation are not longer, or there are too few products to hold out for
            validation and test.
    """
    digits, more = settings.digits, settings.extrapolate_digits
    if more <= digits:
        raise UserError(
            f"extrapolate_digits is {more}; expected more than digits={digits}. Pass extrapolate_digits="
            f"{digits + 1}."
        )
    inside = [(n, m) for n in range(1, digits + 1) for m in range(1, digits + 1)]
    outside = [shape for m in range(1, digits + 1) for shape in ((more, m), (m, more))]
    room = sum(_max_held_out(shape) for shape in inside if shape[0] <= shape[1])
    wanted = settings.validation_size + settings.test_size
    if room < wanted:
        raise UserError(
            f"digits={digits} leaves {room} products to hold out; expected at least {wanted}. Raise "
            "digits, or lower validation_size and test_size."
        )
    rng = random.Random(settings.data_seed)
    held_out: dict[Pair, set[Pair]] = defaultdict(set)
    tests = {
        "interpolate": _draw(inside, settings.test_size, rng, held_out),
        "extrapolate": _draw(outside, settings.test_size, rng, held_out),
    }
    validation = _draw(inside, settings.validation_size, rng, held_out)
    train = _draw(inside, settings.train_size, rng, held_out, hold_out=False)
    return TaskData(train, validation, tests)


def _max_held_out(shape: Pair) -> int:
    """Return how many products of a shape may be held out: a quarter of them, ignoring the factors' order."""
    n, m = shape
    products = 81 * 10 ** (n + m - 2)
    return -(-products // (8 if n == m else 4))


def _draw(
    shapes: list[Pair], size: int, rng: random.Random, held_out: dict[Pair, set[Pair]], hold_out: bool = True
) -> list[Example]:
    """Draw questions whose factors have the given numbers of digits, and hold their factors out, by shape."""
    examples: list[Example] = []
    while len(examples) < size:
        a, b = (rng.randrange(10 ** (n - 1), 10**n) for n in rng.choice(shapes))
        factors = min(a, b), max(a, b)
        shape = len(str(factors[0])), len(str(factors[1]))
        if factors in held_out[shape] or (hold_out and len(held_out[shape]) >= _max_held_out(shape)):
            continue
        if hold_out:
            held_out[shape].add(factors)
        examples.append(Example(f"What is {a} times {b}?", str(a * b)))
    return examples
