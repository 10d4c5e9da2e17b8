from dataclasses import replace
from statistics import mean, median

import pytest
import torch
from approach_cases import ANSWERS, GREEDY, QUESTIONS, make, overfit
from data_cases import rows, tabular
from fake_approach import FakeApproach
from published_commands import scaled_down
from tolerances import approx, assert_close

from ntl.data import Example, TaskData
from ntl.errors import UserError
from ntl.evaluation import check_readings, evaluate, evaluate_tests
from ntl.scores import SPACED_LEVELS
from ntl.train import main
from ntl.training.run_folder import EvaluationFolder, RunRecord
from ntloss.numbers import NumberFormat
from ntloss.reading import NumberQuantiles
from tests.ntl.conftest import shared

ALL = replace(GREEDY, read=["median", "mean"], batch_size=4)
EXAMPLES = [Example(question, answer) for question, answer in zip(QUESTIONS, ANSWERS, strict=True)]
DATA = TaskData(EXAMPLES, EXAMPLES, {"test": EXAMPLES})


class UniformApproach(FakeApproach):
    """Answers 0 to every question; its distribution is uniform between the question's two numbers."""

    def read(self, model, questions, generation, levels):
        return self.answer(model, questions, generation), self.quantiles(model, questions, levels)

    def quantiles(self, model, questions, levels):
        ends = torch.tensor([[float(end) for end in question.split()] for question in questions])
        low, high = ends.double()[:, :1], ends.double()[:, 1:]
        values = low + (high - low) * torch.tensor(levels, dtype=torch.float64)
        rows = torch.zeros(len(questions), dtype=torch.float64)
        return NumberQuantiles(
            tuple(levels), values, values, values, rows, rows, rows + 0.5, rows, rows, passes=1, rows=1
        )


def uniform(asked):
    return UniformApproach({question: "0" for question, _ in asked}), [Example(*pair) for pair in asked]


def test_each_reading_has_its_own_metrics_and_the_decoded_numbers_keep_theirs():
    asked = [("0 10", "5"), ("0 20", "19.7"), ("-8 0", "-3"), ("5 5", "4")]
    approach, examples = uniform(asked)
    greedy = evaluate(approach, examples, DATA, GREEDY).metrics
    result = evaluate(approach, examples, DATA, ALL)
    metrics = result.metrics
    assert {name: metrics[name] for name in greedy} == greedy
    assert metrics["mae"] == approx((5 + 19.7 + 3 + 4) / 4)
    assert metrics["median_mae"] == metrics["mean_mae"] == approx((0 + 9.7 + 1 + 1) / 4)
    assert metrics["median_exact_number"] == 1 / 4
    assert metrics["interval_coverage"] == metrics["coverage_95"] == 2 / 4  # 19.7 is above 19.5, 4 below 5
    assert metrics["interval_width"] == approx(0.9 * (10 + 20 + 8 + 0) / 4)
    assert metrics["number_mass"] == 0.5
    coverages = [name for name in metrics if name.startswith("coverage_")]
    assert coverages == [f"coverage_{percent}" for percent in range(95, 0, -10)]
    assert [(p.lower, p.median, p.upper, p.mean) for p in result.predictions] == [
        approx(row) for row in [(0.5, 5, 9.5, 5), (1, 10, 19, 10), (-7.6, -4, -0.4, -4), (5, 5, 5, 5)]
    ]


def test_the_interval_holds_the_requested_share_of_the_distribution():
    approach, examples = uniform([("0 10", "5"), ("0 10", "8")])
    half = evaluate(approach, examples, DATA, replace(ALL, read=["median"], interval=0.5))
    assert half.metrics["interval_width"] == approx(5)
    assert half.metrics["interval_coverage"] == 0.5
    assert "mean_mae" not in half.metrics
    assert half.predictions[0].mean is None
    assert "mean" not in half.predictions[0].row()
    assert half.predictions[0].row()["upper"] == approx(7.5)


@pytest.mark.parametrize(
    ("shape", "family", "number_format"),
    [
        ("t5-tiny", "t5", "padded"),
        ("llama-tiny", "decoder_only", "plain"),
        ("mamba-tiny", "decoder_only", "padded"),
    ],
)
def test_the_medians_of_an_overfitted_model_are_the_answers(shape, family, number_format):
    approach = make(shape, family=family, number_format=number_format)
    approach.fit(ANSWERS)
    overfit(approach, steps=600, until=0.01)
    check_readings(approach, DATA, ALL)
    for dtype in (torch.float32, torch.bfloat16):
        approach.model.to(dtype)
        result = evaluate(approach, EXAMPLES, DATA, ALL)
        assert result.metrics["median_exact_number"] == 1
        for p in result.predictions:
            assert p.lower <= p.median == p.true <= p.upper


def test_batching_does_not_change_the_quantiles():
    approach = make(number_format="padded")
    approach.fit(ANSWERS)
    approach.model.eval().double()
    together = approach.quantiles(approach.model, QUESTIONS, SPACED_LEVELS)
    alone = [approach.quantiles(approach.model, [q], SPACED_LEVELS) for q in QUESTIONS]
    assert_close(together.starts, torch.cat([read.starts for read in alone]))
    assert_close(together.values, torch.cat([read.values for read in alone]))


def test_errors_of_a_table_are_not_clipped(tmp_path):
    table = "ends,y\n" + "".join(f"{i}e13 {2 * i}e13,{i}7000000000000\n" for i in range(1, 9))
    (tmp_path / "table.csv").write_text(table)
    data = tabular(f"file={tmp_path}/table.csv", "target=y", "validation_size=1", "test_size=3")
    approach = UniformApproach({example.question: "0" for example in rows(data)})
    folder = EvaluationFolder(tmp_path / "run")
    metrics = dict(evaluate_tests(approach, data, ALL, folder, RunRecord("T5")))["test"]
    constant = median(float(example.answer) for example in data.train)
    answers = [(1.5e13 * float(e.question.partition("e")[0]), float(e.answer)) for e in data.tests["test"]]
    assert metrics["mae"] == approx(mean(y for _, y in answers))
    assert metrics["median_mae"] == approx(mean(abs(x - y) for x, y in answers))
    assert metrics["constant_mae"] == approx(mean(abs(constant - y) for _, y in answers))


def test_a_model_that_cannot_write_a_number_has_no_readings():
    approach = make(number_format="plain")
    digits = torch.tensor(approach.vocabulary.token_ids)
    approach.model.lm_head.register_forward_hook(
        lambda module, given, logits: logits.index_fill(-1, digits, -torch.inf)
    )
    result = evaluate(approach, EXAMPLES, DATA, ALL)
    assert result.metrics["median_invalid"] == result.metrics["mean_invalid"] == len(EXAMPLES)
    assert result.metrics["crps"] is None
    assert result.metrics["interval_coverage"] is None
    assert result.metrics["number_mass"] == 0
    assert {(p.lower, p.median, p.upper, p.mean) for p in result.predictions} == {(None,) * 4}


@pytest.mark.parametrize("shape", ["t5-tiny", "llama-tiny"])
def test_plain_answers_are_read_the_same_in_every_evaluation(shape):
    approach = make(shape, family="t5" if shape == "t5-tiny" else "decoder_only", number_format="plain")
    approach.model.eval().double()
    together = approach.quantiles(approach.model, QUESTIONS, SPACED_LEVELS)
    alone = [approach.quantiles(approach.model, [q], SPACED_LEVELS) for q in QUESTIONS]
    assert_close(together.values, torch.cat([read.values for read in alone]))


def test_t5s_tokenizer_starts_numbers_with_a_space():
    approach = make(tokenizer=str(shared("tokenizers/t5")))
    space = approach.tokenizer.convert_tokens_to_ids("▁")
    assert approach.answer_format.quantile_options()["prefix_ids"] == [space]
    # Its ids of an answer start with it, whatever the sign.
    for row in approach.encode(["q"] * 3, ["7", "-7", "0.5"])["labels"]:
        assert row[0] == space
    approach = make(tokenizer=str(shared("tokenizers/t5")), number_format="padded")
    approach.fit(["1", "20"])
    options = approach.answer_format.quantile_options()
    assert (options["prefix_ids"], options["format"]) == ([space], NumberFormat(2))
    assert approach.quantiles(approach.model.eval(), ["3 + 4"], [0.5]).values.isfinite().all()


def test_numbers_with_different_first_tokens_are_an_error():
    approach = make(tokenizer=str(shared("tokenizers/t5")), number_format="padded")
    approach.fit(["1", "-20"])
    with pytest.raises(UserError, match=r"starts -99 with '▁' and \+88 with '▁\+'"):
        check_readings(approach, DATA, ALL)


def command(tmp_path, *more):
    return [*scaled_down(tmp_path), "model_args=vanilla_t5", "evaluation.read=[greedy,median,mean]", *more]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["dataset_args=gsm8k"], "is not a single number; evaluation.read=[median,mean] expects"),
        (["dataset_args=multirc"], "is not a single number; evaluation.read=[median,mean] expects"),
        (
            ["dataset_args=arithmetic", "model_args.number_format=padded", "model_args.number_width=30"],
            "quantiles cannot be read from this model: digits=30",
        ),
    ],
)
def test_readings_that_do_not_fit_are_a_one_line_error_and_nothing_is_written(
    arguments, expected, tmp_path, capsys
):
    assert main(command(tmp_path, *arguments)) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert len(message.strip().splitlines()) == 1
    assert not (tmp_path / "run/run.json").exists()
