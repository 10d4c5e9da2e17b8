"""The score of a judge: what was read of it, and what is made of several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from ntloss.callers import UnlikelyNumberWarning, warn_caller
from ntloss.results import Result, axes
from ntloss.scores.levels import NONE, UNKNOWN, Ask, Levels, Node, Scale, read_level, walk_levels
from ntloss.scores.places import Place, places_of_score
from ntloss.scores.responses import Answer, answer_of, answer_of_list, plain

# The probability of what is no level, and of what is not known, that warns.
MOST_NONE, MOST_LEFT_OUT = 0.5, 0.1


@dataclass(frozen=True, repr=False)
class ScoreReading(Result):
    """The score that a model answers with; printed as its mean and the probability of each level.

    Args:
        probabilities: level to its probability, in the order of their values.
        none: the probability that the model answers with something else.
        left_out: the probability of tokens that a list does not hold, and of a beginning of a level (the `1`
            of 10) where nobody knows what would follow it; 0 for a model.
        values: level to its value. Default: the levels are numbers.
    """

    probabilities: Mapping[Any, float]
    none: float = 0.0
    left_out: float = 0.0
    values: Mapping[Any, float] | None = None

    @property
    def mean(self) -> float:
        """The mean of the levels' values, given that the model answers with a level; NaN if it does not."""
        total = sum(self.probabilities.values())
        weighted = sum(self.value_of(level) * p for level, p in self.probabilities.items())
        return weighted / total if total else math.nan

    @property
    def median(self) -> float:
        """The lowest value at which the levels have half of their probability; NaN if they have none."""
        half, reached = sum(self.probabilities.values()) / 2 * (1 - 1e-12), 0.0
        for level, probability in self.probabilities.items():
            reached += probability
            if reached >= half > 0:
                return self.value_of(level)
        return math.nan

    def value_of(self, level: Any) -> float:
        """Return what a level is worth."""
        return float(level if self.values is None else self.values[level])

    def plot(self, ax: Any = None) -> Any:
        """Draw the levels' probabilities and the mean, on axes of matplotlib or new ones; return them."""
        ax = axes(ax)
        places = [self.value_of(level) for level in self.probabilities]
        gap = min((b - a for a, b in pairwise(places)), default=1.0)
        ax.bar(places, [*self.probabilities.values()], width=0.8 * gap or 0.8)
        ax.set_xticks(places, [str(level) for level in self.probabilities])
        ax.axvline(self.mean, color="black", label=f"mean {self.mean:.3g}")
        ax.set_ylabel("probability")
        ax.legend()
        return ax

    def __str__(self) -> str:
        shares = ", ".join(f"{level}: {share:.3g}" for level, share in self.probabilities.items())
        return f"{self.mean:.3g} ({shares})"

    def _rows(self) -> dict[Any, dict[str, Any]]:
        shares = {f"P({level})": share for level, share in self.probabilities.items()}
        whole = {"mean": self.mean, "median": self.median}
        return {"": {**whole, **shares, "none": self.none, "left_out": self.left_out}}


def reading_of(shares: Mapping[Any, float], values: Mapping[Any, float]) -> ScoreReading:
    """Return the reading of the probabilities of levels, of NONE and of UNKNOWN."""
    order = sorted(values, key=lambda level: values[level])
    probabilities = {level: shares.get(level, 0.0) for level in order}
    return ScoreReading(probabilities, shares.get(NONE, 0.0), shares.get(UNKNOWN, 0.0), dict(values))


def scores_from_response(
    response: Any, levels: Levels = range(1, 6), after: str | Iterable[str] | None = None
) -> Any:
    """Find the score in the answer of an API, and read the probability of each level at its place.

    The score stands in a key of JSON, behind a mark or a name, or alone, in this order; in a sentence it is a
    guess that warns (`ntloss.scores.places`). If what stands there is no level (`Score: N/A`), there is none.

    Args:
        response: what an API or a library has returned with log-probabilities, as an object or a mapping:
            OpenAI's chats (`logprobs=True, top_logprobs=20`), completions and responses, vLLM, SGLang, TGI,
            llama.cpp, Ollama, Gemini and LangChain; or a list of them. Of several choices, the first counts.
        levels: the scores, such as `range(1, 11)`; or words with their values, such as `{"yes": 1, "no": 0}`.
            Default: 1 to 5.
        after: the text that stands before the score, such as `'"score":'`, whatever spaces are in it; or
            several, one for each criterion. Default: the answer decides.

    Returns:
        A `ScoreReading`; for several texts in `after`, a dict of them; for a list of responses, a list.
        Without a score, the mean is NaN and `none` is 1.

    Raises:
        ValueError: the response has no log-probabilities, or is an error; fewer than two levels.
        TypeError: it is of another form.

    Warns:
        UnlikelyNumberWarning: there is no score, or places of one kind disagree, so that there is none; the
            score stands in a sentence; or `none` is above 0.5 or `left_out` above 0.1.

    Example:
        >>> top = [{"token": "7", "logprob": math.log(0.75)}, {"token": "8", "logprob": math.log(0.25)}]
        >>> content = [{"token": "Score: ", "logprob": 0.0}, {**top[0], "top_logprobs": top}]
        >>> response = {"choices": [{"logprobs": {"content": content}, "finish_reason": "stop"}]}
        >>> scores_from_response(response, levels=range(1, 11)).mean
        7.25
    """
    if isinstance(response, list | tuple):
        return [scores_from_response(each, levels, after) for each in response]
    scale, answer = Scale(levels), answer_of(response)

    def read(after: str | None) -> ScoreReading:
        place = _place(answer.text, scale, after)
        if place is None:
            return reading_of({NONE: 1.0}, scale.values)
        return _read(Answer(answer.positions_from(place.start), answer.has_ended), scale)

    return _for_each(after, read)


def scores_from_logprobs(top_logprobs: Any, levels: Levels = range(1, 6)) -> ScoreReading:
    """Read the probability of each level from the log-probabilities of the place where a score stands.

    Args:
        top_logprobs: in OpenAI's form, the list `choices[0].logprobs.content[i].top_logprobs` of the position
            i at which the score is written; or `content[i:]`, the positions from there on, for levels of
            several tokens. Also those of the other APIs, or a mapping of tokens to log-probabilities.
        levels: see `scores_from_response`.

    Returns:
        The score; it and its warnings are those of `scores_from_response`.

    Raises:
        ValueError: an empty list, fewer than two levels, or numbers that are no log-probabilities.
        TypeError: entries of another form.

    Example:
        >>> scores = scores_from_logprobs({"4": -0.22, "5": -2.3, "I": -3.0}, levels=range(1, 6))
        >>> round(scores.mean, 2), round(scores.left_out, 2)
        (4.11, 0.05)
    """
    return _read(answer_of_list(top_logprobs), Scale(levels))


def scores_from_samples(
    answers: Iterable[str], levels: Levels = range(1, 6), after: str | Iterable[str] | None = None
) -> Any:
    """Count the scores of several answers to one question, for APIs without log-probabilities.

    Args:
        answers: the texts of the answers, sampled with the temperature 1.
        levels, after: see `scores_from_response`.

    Returns:
        A `ScoreReading` with the share of each level; for several texts in `after`, a dict of them.

    Raises:
        TypeError: the answers are no texts.
        ValueError: there is none.

    Example:
        >>> print(scores_from_samples(["Score: 4", "Score: 5", "Score: 4", "I cannot say."]))
        4.33 (1: 0, 2: 0, 3: 0, 4: 0.5, 5: 0.25)
    """
    scale = Scale(levels)
    texts = [answers] if isinstance(answers, str) else [*answers]
    if not texts:
        raise ValueError("answers: expected the texts of one or more answers, given none")
    if others := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(f"answers: expected texts, given {others[0]!r:.80}")

    def read(after: str | None) -> ScoreReading:
        places = [_place(plain(text), scale, after) for text in texts]
        counts = Counter(NONE if place is None else place.level for place in places)
        return reading_of({level: count / len(texts) for level, count in counts.items()}, scale.values)

    return _for_each(after, read)


def compare(first: ScoreReading, second: ScoreReading) -> float:
    """Return the probability that the first of two answers is better, given the scores of each.

    A tie counts half. It is that of two judges who score independently: 0.5 for equal distributions.

    Args:
        first, second: readings of the same scale.

    Returns:
        The probability; NaN if one of them has no score.

    Example:
        >>> compare(ScoreReading({1: 0.5, 2: 0.5}), ScoreReading({1: 0.75, 2: 0.25}))
        0.625
    """
    sides = [
        [(reading.value_of(level), p) for level, p in reading.probabilities.items()]
        for reading in (first, second)
    ]
    total = math.prod(sum(p for _, p in side) for side in sides)
    better = sum(p * q * ((x > y) + (x == y) / 2) for x, p in sides[0] for y, q in sides[1])
    return better / total if total else math.nan


class MeanScore(NamedTuple):
    """A mean of scores, its standard error (NaN for one score), and the number of scores."""

    mean: float
    error: float
    number: int


def average(scores: Iterable[Any] | Mapping[Any, Any]) -> MeanScore:
    """Return the mean of scores over criteria or repeats, with its standard error over them.

    Args:
        scores: readings, such as those of several criteria (`scores_from_response(..., after=[...])`), or of
            several answers; of a list of dicts or lists, the mean of each counts as one score.

    Returns:
        The mean. It is NaN if one of the readings has no score.

    Raises:
        ValueError: there are no scores.

    Example:
        >>> average([ScoreReading({1: 0.5, 2: 0.5}), ScoreReading({1: 0.0, 2: 1.0})])
        MeanScore(mean=1.75, error=0.25, number=2)
    """
    given = scores.values() if isinstance(scores, Mapping) else scores
    means = [each.mean if isinstance(each, ScoreReading) else average(each).mean for each in given]
    if not means:
        raise ValueError("scores: expected one or more readings, given none")
    count, mean = len(means), sum(means) / len(means)
    spread = sum((each - mean) ** 2 for each in means)
    return MeanScore(mean, math.sqrt(spread / (count - 1) / count) if count > 1 else math.nan, count)


def best_of(answers: Sequence[Any] | Mapping[Any, Any]) -> Any:
    """Choose the answer with the highest mean score.

    Args:
        answers: for each answer its reading, or its readings by criteria or repeats, see `average`; a list,
            or a dict of them by name.

    Returns:
        The index of the best answer, or its name; of equal ones, the first. An answer without a score is
        never the best.

    Raises:
        ValueError: no answer has a score.

    Example:
        >>> best_of([ScoreReading({1: 0.5, 2: 0.5}), ScoreReading({1: 0.2, 2: 0.8})])
        1
    """
    named = answers if isinstance(answers, Mapping) else dict(enumerate(answers))
    means = {name: average([scores]).mean for name, scores in named.items()}
    if not (known := {name: mean for name, mean in means.items() if not math.isnan(mean)}):
        raise ValueError(f"answers: none of {len(means)} has a score")
    return max(known, key=lambda name: known[name])


def _for_each(after: str | Iterable[str] | None, read: Callable[[str | None], ScoreReading]) -> Any:
    return read(after) if after is None or isinstance(after, str) else {each: read(each) for each in after}


def _place(text: str, scale: Scale, after: str | None) -> Place | None:
    """Return where the score stands in an answer; None if nowhere or if places disagree; and warn."""
    places = places_of_score(text, scale, after)
    levels = dict.fromkeys(place.level for place in places)
    found = places[-1] if len(levels) == 1 and NONE not in levels else None
    if found is not None and not found.is_guess:
        return found
    if found is not None:
        problem = (
            f"has its score {found.level!r} in a sentence: ask for a line such as 'Score: {found.level}'"
        )
    elif len(levels) > 1:
        shown = " and ".join("no level" if level is NONE else repr(level) for level in levels)
        problem = f"holds {shown}, so its score is NaN: pass the text before one of them as after="
    else:
        at = f" where it is expected ({text[places[-1].start :][:20]!r})" if places else ""
        problem = (
            f"holds none of the levels{at}, so its score is NaN. If a score has a name of its own, as in "
            "'clarity: 4', pass after='clarity'"
        )
    warn_caller(f"the answer {text[-80:]!r} {problem}", UnlikelyNumberWarning)
    return found


def _read(answer: Answer, scale: Scale) -> ScoreReading:
    """Read the score with which an answer begins, and warn if it is not known."""
    first = answer.positions[0].shares()
    (shares,) = walk_levels(_ask_of(answer, first, scale.levels), [0], scale.levels)
    found = reading_of(shares, scale.values)
    problem = None
    if found.none > MOST_NONE or math.isnan(found.mean):
        problem = (
            "the listed tokens hardly hold a level (with probability "
            f"{sum(found.probabilities.values()):.2g}; {max(first, key=first.__getitem__, default='')!r} is "
            "likeliest): pass those of the position at which the score is written, or the response to "
            "scores_from_response"
        )
    elif found.left_out > MOST_LEFT_OUT:
        problem = (
            f"{found.left_out:.2g} of the probability is of tokens that are not listed, or that may begin "
            "a longer level: ask for more tokens (top_logprobs=20), or use levels of one token each"
        )
    if problem:
        warn_caller(f"top_logprobs: {problem}", UnlikelyNumberWarning)
    return found


def _ask_of(answer: Answer, first: Mapping[str, float], levels: Mapping[str, Any]) -> Ask:
    """Say what may follow the texts that an API has written, and that others end where the list shows it.

    The state of a text is the position behind it, None if it was not written.
    """
    positions, has_ended = answer
    seen = {token.strip() for token in first}
    lengths = {len(token) for token in seen if token.isdigit()}

    def follows(node: Node) -> list[tuple[str, float, int | None]] | None:
        i, is_point = node.state, node.text[-1:] in (".", ",")  # that of a sentence, or of 4.5
        if i is not None and i < len(positions):
            shares, written = positions[i].shares(), positions[i].written
            return [(token, p, i + 1 if token == written else None) for token, p in shares.items()]
        if i is not None and (has_ended or (has_ended is None and is_point)):
            return [("", 1.0, None)]
        # Where 85 is one token, so would be any other level of two digits, and 8 is not the beginning of one.
        text = node.text.strip()
        longer = [name for name in levels if name.startswith(text) and name != text]
        are_tokens = all(name in seen or (name.isdigit() and len(name) in lengths) for name in longer)
        is_level = read_level(text, levels).level is not NONE and not is_point
        return [("", 1.0, None)] if is_level and are_tokens else None

    return lambda nodes: [follows(node) for node in nodes]
