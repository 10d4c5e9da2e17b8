"""Compare readers of judges' answers on recorded ones: of `ntloss.scores`, DeepEval, ragas, prometheus-eval.

    pip install deepeval==3.4.8 ragas==0.3.9 langchain-community==0.3.31 prometheus-eval==0.1.20
    python -m benchmarks.judges

Each reader gets the answers whose levels are numbers, in OpenAI's form. DeepEval weighs the probabilities of
the tokens at the first token that equals the value of `score` in the answer's JSON, as its G-Eval does.
ragas (rubrics, whose JSON also has a feedback, here an empty one) and prometheus-eval (on a scale to 5) read
the score that was written, so the written level is right for them.
"""

import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ntloss.scores import scores_from_response
from ntloss.scores.responses import answer_of

ANSWERS = Path(__file__).parents[1] / "tests/ntloss/scores/answers.jsonl"
_TOLERANCE = 0.005
Reader = Callable[[Any, dict[str, Any]], float]


def ours(response: Any, answer: dict[str, Any]) -> float:
    """Read the mean as a user does."""
    first, last = (answer["levels"][i] for i in (0, -1))
    levels = range(first, last + 1) if len(answer["levels"]) == 2 else answer["levels"]
    return float(scores_from_response(response, levels, answer["after"]).mean)


def deepeval(response: Any, answer: dict[str, Any]) -> float:
    """Read as DeepEval's G-Eval: the JSON's score, and then the weighted one, or the first if that fails."""
    from deepeval.metrics.g_eval.utils import calculate_weighted_summed_score
    from deepeval.metrics.utils import trimAndLoadJson

    try:
        score = trimAndLoadJson(response.choices[0].message.content)["score"]
    except Exception:  # of another form, which is an error there, too
        return math.nan
    try:
        return float(calculate_weighted_summed_score(score, response))
    except Exception:  # as `GEval` does
        return float(score) if isinstance(score, int | float) else math.nan


def prometheus(response: Any, answer: dict[str, Any]) -> float:
    """Read what was written."""
    from prometheus_eval.parser import parse_output

    _, score = parse_output(response.choices[0].message.content, "absolute")
    return math.nan if score is None else float(score)


def ragas(response: Any, answer: dict[str, Any]) -> float:
    """Read what was written, in JSON."""
    from ragas.metrics._domain_specific_rubrics import ScoreFeedback
    from ragas.prompt.utils import extract_json

    try:
        found = json.loads(extract_json(response.choices[0].message.content))
        return float(ScoreFeedback.model_validate({"feedback": "", **found}).score)
    except (ValueError, TypeError):  # of another form, for which ragas asks its model again
        return math.nan


def rows(reader: Reader) -> Iterator[tuple[str, str]]:
    """Yield the kind of each answer and whether it was read right, wrong or not at all."""
    for line in ANSWERS.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        if isinstance(answer["levels"], dict):
            continue
        found = reader(_in_openai(answer["response"]), answer)
        right = sum(float(level) * share for level, share in answer["right"].items()) or math.nan
        if reader in (ragas, prometheus) and answer["right"]:
            right = float(max(answer["right"], key=answer["right"].__getitem__))
        is_right = abs(found - right) < _TOLERANCE or (math.isnan(found) and math.isnan(right))
        for kind in (answer["kind"], "all"):
            yield kind, "right" if is_right else "none" if math.isnan(found) else "wrong"


def _in_openai(response: Any) -> Any:
    positions, has_ended = answer_of(response)
    content = []
    for position in positions:
        shares, token = position.shares(), position.written or ""
        if token.strip().isdigit() and token[0] == " ":  # OpenAI's tokenizers write a space by itself
            content.append(_entry(" ", {" ": 1.0}))
            shares, token = {each.strip(): share for each, share in shares.items()}, token.strip()
        content.append(_entry(token, shares))
    message = SimpleNamespace(content="".join(entry.token for entry in content))
    choice = SimpleNamespace(
        message=message,
        logprobs=SimpleNamespace(content=content),
        finish_reason="stop" if has_ended else "length",
    )
    return SimpleNamespace(choices=[choice])


def _entry(token: str, shares: dict[str, float]) -> Any:
    top = [SimpleNamespace(token=each, logprob=math.log(share)) for each, share in shares.items()]
    return SimpleNamespace(token=token, logprob=math.log(shares[token]), top_logprobs=top)


def main() -> None:
    """Print a row for each kind of answer: read right, wrong, not at all."""
    warnings.simplefilter("ignore")
    found = {reader: Counter(rows(reader)) for reader in (ours, deepeval, ragas, prometheus)}
    kinds = dict.fromkeys(kind for kind, _ in found[ours] if kind != "all")
    print("| answer | answers | ntloss | DeepEval 3.4.8 | ragas 0.3.9 | prometheus-eval 0.1.20 |")
    print("| --- | ---: | --- | --- | --- | --- |")
    for kind in [*kinds, "all"]:
        counts = [[each[kind, state] for state in ("right", "wrong", "none")] for each in found.values()]
        print(
            "|", " | ".join([kind, str(sum(counts[0])), *(", ".join(map(str, row)) for row in counts)]), "|"
        )


if __name__ == "__main__":
    main()
