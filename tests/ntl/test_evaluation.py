import math

import numpy as np
import pytest
from accelerate import PartialState
from fake_approach import FakeApproach
from processes import results_of
from tolerances import approx, assert_close

from ntl.config import Evaluation
from ntl.data import Example, TaskData
from ntl.errors import UserError
from ntl.evaluation import batches_by_length, evaluate, evaluate_tests
from ntl.training.run_folder import EvaluationFolder, RunRecord

NUMBERS = TaskData([], [], {})
TEXTS = TaskData([], [], {}, number_metrics=False)
SOLUTIONS = TaskData([], [], {}, final_answer_marker="####")
DECODING = Evaluation(batch_size=2)

# (question, answer, the model's text), with questions of many lengths in no particular order.
ASKED = [
    ("What is ten?", "10", "it is 10"),
    ("0", "0", "no idea"),
    ("Some longer question?", "-99", "-999"),
    ("Half?", "0.5", "0.5"),
    ("1000000000000?", "1000000000000", "2000000000000"),
]
EXAMPLES = [Example(question, answer) for question, answer, _ in ASKED]


def approach_to(asked=ASKED):
    return FakeApproach({question: text for question, _, text in asked})


def test_the_papers_metrics_of_numbers_equal_values_computed_by_hand():
    metrics = evaluate(approach_to(), EXAMPLES, NUMBERS, DECODING).metrics
    assert metrics["count"] == 5
    assert (metrics["invalid"], metrics["invalid_rate"]) == (1, 0.2)
    assert metrics["exact_number"] == 2 / 5
    assert metrics["accuracy"] == 2 / 5  # the last number of a text counts, and an invalid one is wrong
    # The last pair is clipped to 1e10 on both sides, after accuracy.
    assert metrics["mae"] == approx(900 / 4)
    assert metrics["medae"] == 0
    assert metrics["rmse"] == approx(math.sqrt(900**2 / 4))
    assert metrics["log_mae"] == approx(1 / 4)  # log10(1000) - log10(100)
    true = [math.log10(11), -2, math.log10(1.5), math.log10(1e10 + 1)]
    spread = sum((x - sum(true) / 4) ** 2 for x in true)
    assert metrics["log_r2"] == approx(1 - 1 / spread)
    assert metrics["spearman"] == approx(1.0)
    assert metrics["exact_match"] == 1 / 5
    assert metrics["pearson"] == approx(np.corrcoef([10, -999, 0.5, 1e10], [10, -99, 0.5, 1e10])[0, 1])
    assert "final_answer_accuracy" not in metrics


def test_malformed_numbers_are_counted():
    approach = approach_to()
    plain = evaluate(approach, EXAMPLES, NUMBERS, DECODING).metrics
    assert "ill_formed" not in plain
    approach.ill_formed = 7  # from an earlier evaluation
    answer = approach.answer

    def answer_badly(model, questions, generation):
        approach.ill_formed += len(questions)
        return answer(model, questions, generation)

    approach.answer = answer_badly
    assert evaluate(approach, EXAMPLES, NUMBERS, DECODING).metrics == {**plain, "ill_formed": 5}


def test_predictions_are_in_the_examples_order_for_any_batch_size():
    approach = approach_to()
    predictions = evaluate(approach, EXAMPLES, NUMBERS, DECODING).predictions
    assert [(p.question, p.answer, p.text) for p in predictions] == ASKED
    assert [p.predicted for p in predictions] == [10, None, -999, 0.5, 2e12]
    assert [p.true for p in predictions] == [10, 0, -99, 0.5, 1e12]
    asked = [[len(question) for question in batch] for batch in approach.asked]
    assert asked == [[21, 14], [12, 5], [1]]


def test_the_loss_does_not_depend_on_the_batch_size():
    approach = approach_to()
    metrics = evaluate(approach, EXAMPLES, NUMBERS, DECODING).metrics
    labels = "".join(e.answer for e in EXAMPLES)
    ce = labels.count("0") / len(labels)
    assert metrics["ce"] == approx(ce)
    assert metrics["loss"] == approx(2 * ce)
    assert metrics["perplexity"] == approx(math.exp(ce))


def test_the_model_is_in_training_mode_again_after_an_evaluation_even_a_failed_one():
    approach = approach_to()
    evaluate(approach, EXAMPLES, NUMBERS, DECODING)
    assert approach.model.training
    with pytest.raises(KeyError):
        evaluate(FakeApproach({}), EXAMPLES, NUMBERS, DECODING, model=approach.model)
    assert approach.model.training


def test_text_answers_have_no_number_metrics():
    asked = [("q1", "the 2 cats | a dog", "the 2 cats | a dog"), ("q2 longer", "nobody", "nobody 7")]
    examples = [Example(question, answer) for question, answer, _ in asked]
    result = evaluate(approach_to(asked), examples, TEXTS, DECODING)
    assert {"exact_number", "accuracy", "mae", "invalid"}.isdisjoint(result.metrics)
    assert result.metrics["exact_match"] == 0.5
    assert result.metrics["rouge1"] == approx((1 + 2 / 3) / 2)
    assert result.metrics["rouge2"] == approx(0.5)
    precisions = [7 / 8, 5 / 6, 4 / 4, 3 / 3]  # of n-grams of one to four tokens; | is a token
    assert result.metrics["bleu"] == approx(100 * math.prod(precisions) ** 0.25)
    assert {(p.predicted, p.true) for p in result.predictions} == {(None, None)}


def test_a_correct_number_without_a_marker_is_not_a_correct_final_answer():
    asked = [
        ("a", "2+3=5 #### 5", "2+3=5 #### 5"),
        ("bb", "so #### 1000", "so #### 1,000 coins, in 2 bags"),
        ("ccc", "so #### 7", "so it is 7"),
        ("dddd", "so #### 7", "so #### "),
    ]
    examples = [Example(question, answer) for question, answer, _ in asked]
    metrics = evaluate(approach_to(asked), examples, SOLUTIONS, DECODING).metrics
    assert metrics["exact_final_answer"] == metrics["final_answer_accuracy"] == 0.5
    assert metrics["accuracy"] == 0.5  # of last numbers: 5 and 7


def test_undefined_metrics_are_none_and_predictions_are_finite():
    asked = [("q", "3", "1e999")]
    result = evaluate(approach_to(asked), [Example("q", "3")], NUMBERS, DECODING)
    assert result.metrics["r2"] is None
    assert result.metrics["invalid"] == 0  # clipped, like other large ones
    assert math.isfinite(result.predictions[0].predicted)


def test_an_evaluation_without_examples_is_an_error():
    with pytest.raises(UserError, match="no examples"):
        evaluate(approach_to(), [], NUMBERS, DECODING)


def test_batches_group_similar_lengths_and_hold_every_example_once():
    lengths = [3, 1, 4, 1, 5, 9, 2]
    batches = batches_by_length(lengths, 3)
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert [[lengths[i] for i in batch] for batch in batches] == [[9, 5, 4], [3, 2, 1], [1]]


def two_tests():
    return TaskData([], [], {"interpolate": EXAMPLES, "extrapolate/big": EXAMPLES[:2]})


def evaluated(approach, folder):
    found = evaluate_tests(approach, two_tests(), DECODING, EvaluationFolder(folder), RunRecord("T5"))
    return dict(found)


def test_an_interrupted_evaluation_does_not_count_and_is_replaced(tmp_path):
    folder, approach = EvaluationFolder(tmp_path / "run"), approach_to()
    next(evaluate_tests(approach, two_tests(), DECODING, folder, RunRecord("T5")))
    assert list(folder.metrics()) == ["interpolate"]
    assert not folder.is_complete()
    results = evaluated(approach, tmp_path / "run")
    assert folder.is_complete()
    assert results == folder.metrics()
    assert {*folder.record().questions} == {*results}
    assert [p.text for p in folder.predictions("extrapolate/big")] == ["it is 10", "no idea"]


def evaluate_on_rank(rank, folder):
    PartialState(cpu=True)  # as transformers' arguments make it
    approach = approach_to()
    results = evaluated(approach, folder / "run")
    alone = evaluate(approach, EXAMPLES[:1], NUMBERS, DECODING).metrics
    return approach.asked, approach.losses, results, alone


def test_two_processes_give_the_same_results_as_one(tmp_path):
    ranks = results_of(evaluate_on_rank, (tmp_path,), tmp_path)
    (asked, losses, results, alone), (other_asked, other_losses, other_results, other_alone) = ranks
    # Five questions in three batches of two: the second rank repeats one to keep in step, and does not count
    # it.
    assert [len(batch) for batch in asked] == [2, 1, 1, 1]
    assert [len(batch) for batch in other_asked] == [2, 1, 1, 1]
    assert losses == other_losses == 4
    assert results == other_results
    expected = evaluated(approach_to(), tmp_path / "one")
    assert_close(results, expected)
    assert alone == other_alone == evaluate(approach_to(), EXAMPLES[:1], NUMBERS, DECODING).metrics
    written = EvaluationFolder(tmp_path / "run")
    assert written.metrics() == results
    assert [p.question for p in written.predictions("interpolate")] == [e.question for e in EXAMPLES]
