"""`NumberErrors` logs the errors of answers at each evaluation, in number-aware trainers and in others."""

import math
from functools import partial

import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases
from transformers import Trainer

from ntloss import HLGauss
from ntloss.numbers import NumberFormat
from ntloss.reading import compare_answers
from ntloss.trainers import make_number_aware
from ntloss.trainers.errors import NumberErrors

NAMES = {"eval_mae_greedy", "eval_mae_median", "eval_inside", "eval_invalid"}
QUESTIONS, TRUTHS = ["1 a ", "2 a ", "3 a "], [11, "22", 33]


def trainer_of(folder, aware, **options):
    tokenizer = tiny_tokenizers.llama_like()
    tokenizer.pad_token = "<unk>"
    ids = [tokenizer(f"{i} a {i * 11}")["input_ids"][:5] for i in range(1, 9)]
    trainer = cases.trainer_for(cases.llama(vocab_size=len(tokenizer)), folder, **options)
    trainer.processing_class = tokenizer
    rows = [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)} for row in ids]
    trainer.train_dataset = trainer.eval_dataset = rows * 3
    if aware:
        make_number_aware(trainer, HLGauss(2.0))
    return trainer


@pytest.mark.parametrize("aware", [True, False])
def test_errors_are_those_of_compare_answers_and_reach_the_metrics_and_the_log(aware, tmp_path):
    trainer = trainer_of(tmp_path, aware)
    format = NumberFormat(digits=2)
    trainer.add_callback(NumberErrors(trainer, QUESTIONS, TRUTHS, format=format))
    for _ in range(2):
        metrics = trainer.evaluate()
        given = {"m": trainer.model.eval()}, trainer.processing_class, QUESTIONS, TRUTHS
        errors = compare_answers(*given, format=format).models["m"]
        assert metrics["eval_mae_median"] == errors.median
        assert metrics["eval_inside"] == errors.coverage
        assert metrics["eval_invalid"] == 1 - errors.answered
        greedy = metrics["eval_mae_greedy"]
        assert greedy == errors.greedy or (math.isnan(greedy) and math.isnan(errors.greedy))
        assert {*trainer.state.log_history[-1]} >= NAMES
        trainer.model.train()


def test_they_reach_tensorboard_and_choose_the_best_checkpoint(tmp_path):
    """It trains, because the best checkpoint is chosen in training."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = {"report_to": ["tensorboard"], "eval_strategy": "steps", "save_strategy": "steps"}
    options |= {"eval_steps": 1, "save_steps": 1, "load_best_model_at_end": True, "save_only_model": True}
    options |= {"metric_for_best_model": "mae_median", "greater_is_better": False}
    trainer = trainer_of(tmp_path, True, cls=partial(Trainer, eval_dataset=cases.samples(1)), **options)
    trainer.add_callback(NumberErrors(trainer, QUESTIONS, TRUTHS, format=NumberFormat(digits=2)))
    trainer.train()
    logged = [each["eval_mae_median"] for each in trainer.state.log_history if "eval_mae_median" in each]
    assert len(logged) == cases.STEPS
    assert trainer.state.best_metric == min(logged)
    (folder,) = {path.parent for path in tmp_path.rglob("events.out*")}
    events = accumulator.EventAccumulator(str(folder)).Reload()
    written = [event.value for event in events.Scalars("eval/mae_median")]
    assert torch.tensor(written).tolist() == torch.tensor(logged).tolist()


def test_the_first_questions_are_asked_and_each_needs_a_truth(tmp_path):
    trainer = trainer_of(tmp_path, False)
    assert len(NumberErrors(trainer, QUESTIONS * 40, TRUTHS * 40).questions) == 64
    for prompts, truths in ((QUESTIONS, TRUTHS[:2]), ("12", TRUTHS), (QUESTIONS[:1], TRUTHS[:1])):
        with pytest.raises(ValueError, match="questions"):
            NumberErrors(trainer, prompts, truths)
