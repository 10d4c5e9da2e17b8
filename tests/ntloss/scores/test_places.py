"""Where the score stands in answers: it is marked here, and an answer without a mark has none."""

import warnings

import pytest

from ntloss.scores import UnlikelyNumberWarning, scores_from_samples

TO_FIVE, TO_TEN, TO_100, HALVES = range(1, 6), range(1, 11), range(101), [i / 2 for i in range(2, 11)]
SIGNED, YES_OR_NO = [-1, -0.5, 0, 0.5, 1], {"yes": 1, "no": 0, "Yes": 1, "No": 0}
PAIR, LETTERS = {"A": 1, "B": 0, "C": 0.5}, {c: 20 - i for i, c in enumerate("ABCDEFGHIJKLMNOPQRST")}

ANSWERS = [
    # Objects: the outermost name of a score, whatever texts say
    (TO_FIVE, '{"evaluation": {"relevance": {"score": 2}, "overall_score": «4»}}'),
    (TO_FIVE, '{"reasons": ["rating 5", "score: 2"], "score": [«4»]}'),
    (TO_FIVE, '{"score": "«4» - good, a 5 would need sources"}'),
    (YES_OR_NO, '{"label": "«yes»", "score": 0.9}'),
    (SIGNED, '{"sentiment": «-0.5»}'),
    (TO_FIVE, '{"scores": {"clarity": 4, "depth": 3}}'),
    (TO_FIVE, '{"score": [4, 5]}'),
    (TO_FIVE, '{"score": {}, "n": 3}'),
    (TO_FIVE, '{"score": 0.8, "n": 3}'),
    # YAML
    (TO_FIVE, 'evaluation:\n  reason: "5 facts"\n  score: «4»  # of 5'),
    # Marks
    (TO_FIVE, "<final_score>«4»</final_score>\n<max_score>5</max_score>"),
    # Lines
    (TO_FIVE, "overallRating → «4», 2 errors"),
    (TO_FIVE, "Score «4»\nA rating of 5 would need sources."),
    (TO_FIVE, "Score 1: bad\nScore 5: perfect\n\nScore: «4»"),
    (TO_FIVE, "The answer is \\boxed{3}, the reference \\boxed{5}.\nScore: «1»"),
    (TO_FIVE, "Score (final): «4»\n3 errors"),
    (TO_FIVE, "Rating [stars]: «4»"),
    (TO_TEN, "Score: «10»/10"),
    (TO_100, "Score: «85»%\nErrors: 3"),
    (HALVES, "Score: «4.5»\n3 errors"),
    (SIGNED, "Score: «-1»\n0 errors"),
    (LETTERS, "Grade: «B»\nA is for sources"),
    (LETTERS, "Grade: «B» - A needs sources"),
    (LETTERS, '{"grade": "B-"}'),
    (LETTERS, "Grade: B2"),
    (LETTERS, "Grade: B-C"),
    ({"A": 4, "B": 3, "B+": 3.3}, "Grade: «B+»"),
    (TO_FIVE, "Оценка: «4» из 5. Есть 3 ошибки"),
    (TO_FIVE, "最终评分：**«4»**分\n共有3处错误"),
    (TO_FIVE, "점수: «4»점\n3개의 오류"),
    (TO_FIVE, '{"Score (1-10)": 4}'),
    (TO_FIVE, "Score (expected): 4"),
    (TO_FIVE, "Score: between 3 and 4"),
    (TO_FIVE, "Score: 3–4"),
    (TO_FIVE, "Score: ?\n\n3"),
    (YES_OR_NO, "Verdict: unclear\nno errors"),
    (TO_FIVE, "Rating: ★★★★☆ («4»/5)"),
    # Nearly nothing else
    (TO_FIVE, "$$\\boxed{«4»}$$ with 3 errors"),
    (TO_FIVE, "«4» because of 3 flaws"),
    (TO_100, "«85»%"),
    (TO_FIVE, "3 facts are missing"),
    (TO_FIVE, "2024-05-03"),
    (TO_TEN, "12:30"),
    (YES_OR_NO, "I do not know whether yes or no."),
    (TO_FIVE, ""),
    # Thoughts
    (TO_FIVE, "commentaryScore: 3assistantfinal«4»/5"),
    (TO_FIVE, "<think>3?</think><think>4?</think>«5»"),
    (TO_FIVE, "<|START_THINKING|>Score: 3<|END_THINKING|>Score: «4»"),
    (TO_FIVE, "◁think▷rating 3◁/think▷Score: «4»"),
    # Outside of what is promised
    (TO_FIVE, "3/10"),
    (TO_TEN, "8 points of 10"),
    (TO_FIVE, "That's a 4 for me."),
]
IN_SENTENCES = [
    (TO_FIVE, "I assign a score of «4». For a score of 5, more detail is needed."),
    (TO_FIVE, "Score: 5 is the maximum. I give «4»."),
    (PAIR, "My final verdict is «A». B is longer."),
    (TO_FIVE, "It would not deserve a 5."),
    (TO_FIVE, "I can't assign a score of 1 to 5 here."),
    (TO_FIVE, "I give it at most a 3."),
]


@pytest.mark.parametrize(("levels", "answer"), ANSWERS, ids=[answer for _, answer in ANSWERS])
def test_the_score_stands_where_the_structure_says(levels, answer):
    found, warned = read(levels, answer)
    assert found == marked(levels, answer)
    assert warned == (not found)


@pytest.mark.parametrize(("levels", "answer"), IN_SENTENCES, ids=[answer for _, answer in IN_SENTENCES])
def test_a_score_in_a_sentence_is_a_guess_and_warns(levels, answer):
    assert read(levels, answer) == (marked(levels, answer), True)


def marked(levels, answer):
    return [level for level in levels if f"«{level}»" in answer]


def read(levels, answer):
    """Return the levels that an answer is read as, and whether a warning was given."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = scores_from_samples([answer.replace("«", "").replace("»", "")], levels)
    assert all(each.category is UnlikelyNumberWarning for each in said)
    return [level for level, share in found.probabilities.items() if share], bool(said)


@pytest.mark.parametrize(
    ("answer", "after"),
    [
        ('{"n":4, "faults": 3}', '"n":'),
        ('{"coherence" : 4, "score": 3}', '"coherence":'),
        ("Score: 3?[/THINK]A score of 4. Not a 5", "score of"),
        ("<why>short: 3</why>4", "</why>"),
    ],
)
def test_the_text_before_the_score_may_be_given(answer, after):
    assert scores_from_samples([answer], after=after).mean == 4
