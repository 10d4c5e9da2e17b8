import math
from dataclasses import replace
from statistics import mean, median

import pytest
import torch
from accelerate import PartialState
from data_cases import rows, tabular
from model_cases import ANSWERS, QUESTIONS, make, overfit
from processes import results_of
from tokenizers_like import tokenizer_like
from tolerances import approx
from torch import nn

from ntl.data import Example, TaskData
from ntl.evaluate import (
    Evaluation,
    check_readings,
    read_results,
    score_answers,
    write_results,
)
from ntl.metrics.answers import reference_scores
from ntl.metrics.registry import find_metric
from ntl.models.answer_format import start_ids
from ntloss.numbers import NumberFormat
from ntloss.reading import NumberQuantiles

NUMBERS = TaskData([], [], {})
TEXTS = TaskData([], [], {}, number_metrics=False)
SOLUTIONS = TaskData([], [], {}, final_answer_marker="####")
DECODING = Evaluation(batch_size=2)
GREEDY = Evaluation(beams=1, max_new_tokens=12)
ALL = replace(GREEDY, read=["median", "mean"], batch_size=4)

# (question, answer, the model's text), with questions of many lengths in no particular order.
ASKED = [
    ("What is ten?", "10", "it is 10"),
    ("0", "0", "no idea"),
    ("Some longer question?", "-99", "-999"),
    ("Half?", "0.5", "0.5"),
    ("1000000000000?", "1000000000000", "2000000000000"),
]
EXAMPLES = [Example(question, answer) for question, answer, _ in ASKED]
SUMS = [Example(question, answer) for question, answer in zip(QUESTIONS, ANSWERS, strict=True)]
DATA = TaskData(SUMS, SUMS, {"test": SUMS})


class FromTable:
    """Answers from a table, and records the questions."""

    answer_format = None

    def __init__(self, asked=ASKED):
        self.answers = {question: text for question, _, text in asked}
        self.model, self.asked = nn.Linear(1, 1), []

    def answer(self, questions, beams, max_new_tokens):
        assert not self.model.training
        assert not torch.is_grad_enabled()
        self.asked.append(list(questions))
        return [self.answers[question] for question in questions]


class Uniform(FromTable):
    """Answers 0 to every question; its distribution is uniform between the question's two numbers."""

    def read(self, questions, beams, max_new_tokens, levels):
        return self.answer(questions, beams, max_new_tokens), self.quantiles(questions, levels)

    def quantiles(self, questions, levels):
        ends = torch.tensor([[float(end) for end in question.split()] for question in questions])
        low, high = ends.double()[:, :1], ends.double()[:, 1:]
        values = low + (high - low) * torch.tensor(levels, dtype=torch.float64)
        none = torch.zeros(len(questions), dtype=torch.float64)
        return NumberQuantiles(
            tuple(levels), values, values, values, none, none, none + 0.5, none, none, passes=1, rows=1
        )


def uniform(asked):
    return Uniform([(question, None, "0") for question, _ in asked]), [Example(*pair) for pair in asked]


def test_predictions_are_in_the_examples_order_for_any_batch_size():
    built = FromTable()
    predictions = score_answers(built, EXAMPLES, NUMBERS, DECODING).predictions
    assert [(p["question"], p["answer"], p["text"]) for p in predictions] == ASKED
    assert [p["predicted"] for p in predictions] == [10, None, -999, 0.5, 2e12]
    assert [p["true"] for p in predictions] == [10, 0, -99, 0.5, 1e12]
    asked = [[len(question) for question in batch] for batch in built.asked]
    assert asked == [[21, 14], [12, 5], [1]]


def test_text_answers_have_no_number_metrics():
    asked = [("q1", "the 2 cats | a dog", "the 2 cats | a dog"), ("q2 longer", "nobody", "nobody 7")]
    examples = [Example(question, answer) for question, answer, _ in asked]
    result = score_answers(FromTable(asked), examples, TEXTS, DECODING)
    assert {"exact_number", "accuracy", "mae", "invalid"}.isdisjoint(result.metrics)
    assert result.metrics["exact_match"] == 0.5
    assert result.metrics["rouge1"] == approx((1 + 2 / 3) / 2)
    assert result.metrics["rouge2"] == approx(0.5)
    precisions = [7 / 8, 5 / 6, 4 / 4, 3 / 3]  # of n-grams of one to four tokens; | is a token
    assert result.metrics["bleu"] == approx(100 * math.prod(precisions) ** 0.25)
    assert {(p["predicted"], p["true"]) for p in result.predictions} == {(None, None)}


def test_a_correct_number_without_a_marker_is_not_a_correct_final_answer():
    asked = [
        ("a", "2+3=5 #### 5", "2+3=5 #### 5"),
        ("bb", "so #### 1000", "so #### 1,000 coins, in 2 bags"),
        ("ccc", "so #### 7", "so it is 7"),
        ("dddd", "so #### 7", "so #### "),
    ]
    examples = [Example(question, answer) for question, answer, _ in asked]
    metrics = score_answers(FromTable(asked), examples, SOLUTIONS, DECODING).metrics
    assert metrics["exact_final_answer"] == metrics["final_answer_accuracy"] == 0.5
    assert metrics["accuracy"] == 0.5  # of last numbers: 5 and 7


def test_an_evaluation_that_was_interrupted_while_it_was_replaced_is_not_finished(tmp_path, monkeypatch):
    result = score_answers(FromTable(), EXAMPLES, NUMBERS, DECODING)
    write_results(tmp_path, {"identity": {}}, {"extrapolate/big": result})
    assert read_results(tmp_path)["metrics"] == {"extrapolate/big": result.metrics}

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ntl.evaluate.write_atomically", die)
    with pytest.raises(KeyboardInterrupt):
        write_results(tmp_path, {"identity": {}}, {"test": result})
    assert read_results(tmp_path) is None


def evaluate_on_rank(rank):
    PartialState(cpu=True)  # as transformers' arguments make it
    built = FromTable()
    result = score_answers(built, EXAMPLES, NUMBERS, DECODING)
    return built.asked, result, score_answers(built, EXAMPLES[:1], NUMBERS, DECODING)


@pytest.mark.slow
def test_two_processes_give_the_same_results_as_one(tmp_path):
    (asked, result, alone), (other_asked, *others) = results_of(evaluate_on_rank, (), tmp_path)
    # Five questions in three batches of two, and then a single one.
    assert [len(batch) for batch in asked] == [2, 1, 1]
    assert [len(batch) for batch in other_asked] == [2]
    assert [result, alone] == others
    assert result == score_answers(FromTable(), EXAMPLES, NUMBERS, DECODING)
    assert alone == score_answers(FromTable(), EXAMPLES[:1], NUMBERS, DECODING)


def test_each_reading_has_its_own_metrics_and_the_decoded_numbers_keep_theirs():
    asked = [("0 10", "5"), ("0 20", "19.7"), ("-8 0", "-3"), ("5 5", "4")]
    built, examples = uniform(asked)
    greedy = score_answers(built, examples, DATA, GREEDY).metrics
    result = score_answers(built, examples, DATA, ALL)
    metrics = result.metrics
    assert {name: metrics[name] for name in greedy} == greedy
    assert all(find_metric(name).name == name for name in metrics)
    assert metrics["mae"] == approx((5 + 19.7 + 3 + 4) / 4)
    assert metrics["median_mae"] == metrics["mean_mae"] == approx((0 + 9.7 + 1 + 1) / 4)
    assert metrics["median_exact_number"] == 1 / 4
    assert metrics["interval_coverage"] == metrics["coverage_95"] == 2 / 4  # 19.7 is above 19.5, 4 below 5
    assert metrics["interval_width"] == approx(0.9 * (10 + 20 + 8 + 0) / 4)
    assert metrics["interval_score"] == approx((0.9 * (10 + 20 + 8 + 0) + 20 * (0.7 + 1)) / 4)
    assert metrics["number_mass"] == 0.5
    coverages = [name for name in metrics if name.startswith("coverage_")]
    assert coverages == [f"coverage_{percent}" for percent in range(95, 0, -10)]
    assert [(p["lower"], p["median"], p["upper"], p["mean"]) for p in result.predictions] == [
        approx(row) for row in [(0.5, 5, 9.5, 5), (1, 10, 19, 10), (-7.6, -4, -0.4, -4), (5, 5, 5, 5)]
    ]


def test_rows_without_ratings_are_left_out_of_the_score_by_ratings():
    built, examples = uniform([("0 10", "5"), ("0 20", "12")])
    rated = examples[1]._replace(ratings=(10.0, 14.0))
    scores = [score_answers(built, rows, DATA, ALL).metrics for rows in ([rated], [examples[0], rated])]
    assert scores[0]["rater_crps"] == approx(scores[1]["rater_crps"])
    assert "rater_crps" not in score_answers(built, examples, DATA, ALL).metrics


@pytest.mark.parametrize(
    ("shape", "family", "number_format"),
    [
        ("t5-tiny", "t5", "padded"),
        ("llama-tiny", "decoder_only", "plain"),
        ("mamba-tiny", "decoder_only", "padded"),
    ],
)
def test_the_medians_of_an_overfitted_model_are_the_answers(shape, family, number_format):
    built = make(shape, family=family, number_format=number_format)
    built.fit(ANSWERS)
    overfit(built, steps=600, until=0.01)
    check_readings(built, DATA, ALL)
    for dtype in (torch.float32, torch.bfloat16):
        built.model.to(dtype)
        result = score_answers(built, SUMS, DATA, ALL)
        assert result.metrics["median_exact_number"] == 1
        for p in result.predictions:
            assert p["lower"] <= p["median"] == p["true"] <= p["upper"]


def test_errors_of_a_table_are_not_clipped(tmp_path):
    table = "ends,y\n" + "".join(f"{i}e13 {2 * i}e13,{i}7000000000000\n" for i in range(1, 9))
    (tmp_path / "table.csv").write_text(table)
    data = tabular(f"file={tmp_path}/table.csv", "target=y", "validation_size=1", "test_size=3")
    built = Uniform([(example.question, None, "0") for example in rows(data)])
    tests = data.tests["test"]
    metrics = score_answers(built, tests, data, ALL).metrics | reference_scores(data, tests)
    constant = median(float(example.answer) for example in data.train)
    answers = [(1.5e13 * float(e.question.partition("e")[0]), float(e.answer)) for e in tests]
    assert metrics["mae"] == approx(mean(y for _, y in answers))
    assert metrics["median_mae"] == approx(mean(abs(x - y) for x, y in answers))
    assert metrics["constant_mae"] == approx(mean(abs(constant - y) for _, y in answers))


def test_a_model_that_cannot_write_a_number_has_no_readings():
    built = make(number_format="plain")
    digits = torch.tensor(built.vocabulary.token_ids)
    built.model.lm_head.register_forward_hook(
        lambda module, given, logits: logits.index_fill(-1, digits, -torch.inf)
    )
    result = score_answers(built, SUMS, DATA, ALL)
    assert result.metrics["median_invalid"] == result.metrics["mean_invalid"] == len(SUMS)
    assert result.metrics["crps"] is None
    assert result.metrics["interval_coverage"] is None
    assert result.metrics["number_mass"] == 0
    assert {(p["lower"], p["median"], p["upper"], p["mean"]) for p in result.predictions} == {(None,) * 4}


def test_t5s_tokenizer_starts_numbers_with_a_space():
    built = make(tokenizer=tokenizer_like("t5"))
    space = built.tokenizer.convert_tokens_to_ids("▁")
    assert start_ids(built.tokenizer, None) == [space]
    # Its ids of an answer start with it, whatever the sign.
    for row in built.encode(["q"] * 3, ["7", "-7", "0.5"])["labels"]:
        assert row[0] == space
    built = make(tokenizer=tokenizer_like("t5"), number_format="padded")
    built.fit(["1", "20"])
    numbers = built.answer_format.form.numbers
    assert numbers == NumberFormat(2)
    assert start_ids(built.tokenizer, numbers) == [space]
    assert built.quantiles(["3 + 4"], [0.5]).values.isfinite().all()
