"""The answers of answers.jsonl, in the forms of all servers: each has its right distribution."""

import json
import math
from pathlib import Path

import pytest
from tolerances import approx

from ntloss.scores import scores_from_response

LINES = Path(__file__).with_name("answers.jsonl").read_text(encoding="utf-8").splitlines()
ANSWERS = [json.loads(line) for line in LINES]
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.scores.UnlikelyNumberWarning")


def levels_of(answer):
    """Levels are words with values, two ends of whole numbers, or a list."""
    levels = answer["levels"]
    is_range = isinstance(levels, list) and len(levels) == 2
    return range(levels[0], levels[1] + 1) if is_range else levels


def name_of(answer):
    return f"{answer['kind']}-{answer['server']}"


@pytest.mark.parametrize("answer", ANSWERS, ids=name_of)
def test_the_distribution_of_an_answer_is_right(answer):
    found = scores_from_response(answer["response"], levels_of(answer), answer["after"])
    shares = {str(level): p for level, p in found.probabilities.items() if p}
    right = {
        level if level in found.probabilities else f"{float(level):g}": p
        for level, p in answer["right"].items()
    }
    assert {k.removesuffix(".0"): p for k, p in shares.items()} == approx(right)
    assert (found.none, found.left_out) == (approx(answer["none"]), approx(0.0, scale=1.0))
    assert math.isnan(found.mean) == (not right)


def test_there_are_answers_of_all_servers():
    assert len(ANSWERS) >= 150
    assert len({answer["server"] for answer in ANSWERS}) == 13
