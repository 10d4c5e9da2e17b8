from __future__ import annotations

import pytest
import torch
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, approx, assert_close, assert_identical

from ntl.comparison.training import (
    EncodedExamples,
    answer,
    build,
    encode,
    held_out_losses,
    plan_batches,
    training_arguments,
)
from ntl.settings import GenerationSettings
from ntl.tasks import Example
from ntl.trainer import ApproachTrainer
from ntloss import NTLoss

TRAINING = {
    "steps": 3,
    "batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-2,
    "schedule": "linear",
    "warmup": 0.0,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}
LANGUAGE = {"head": "language", "term": None, "weight": 0.3, "reweigh": True}
CONFIG = {
    "tokenizer": None,
    "model": {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0},
    "objective": {
        "ce": LANGUAGE,
        "ntl_was": {**LANGUAGE, "term": "wasserstein"},
        "ntl_mse": {**LANGUAGE, "term": "squared_error"},
        "regression_head": {**LANGUAGE, "head": "regression"},
    },
}
# Answers of one to five labels, and of zero to four digits: micro-batches differ in both counts.
EXAMPLES = [
    Example(f"{i} + 1", answer)
    for i, answer in enumerate(["1", "-22", "333", "4444", "5", "-0.5", "77", "8"] * 3)
]


def started(objective, seed=0):
    approach = build(CONFIG, objective, seed)
    approach.fit(example.answer for example in EXAMPLES)
    return approach


def weights(approach):
    return torch.cat([p.detach().flatten() for p in approach.model.parameters()])


def train(objective, accumulation, tmp_path):
    approach = started(objective)
    ApproachTrainer(
        approach=approach,
        args=training_arguments({**TRAINING, "gradient_accumulation_steps": accumulation}, 0, str(tmp_path)),
        train_dataset=EncodedExamples(EXAMPLES).rows(approach, range(len(EXAMPLES))),
    ).train()
    return weights(approach)


@pytest.mark.parametrize("objective", CONFIG["objective"])
def test_gradient_accumulation_does_not_change_the_training(objective, tmp_path):
    whole = train(objective, 1, tmp_path)
    split = train(objective, 4, tmp_path)
    assert (whole - weights(started(objective))).abs().max() > 1e-3
    assert_close(split, whole, TRAINED_BY_ADAM)


def test_all_objectives_of_one_seed_start_from_the_same_weights():
    ce, ntl, regression = (started(name, seed=3).model for name in ("ce", "ntl_mse", "regression_head"))
    body = ce.state_dict()
    assert_identical(ntl.state_dict(), body)
    for key, value in regression.transformer.state_dict().items():
        assert_identical(value, body[key])
    assert not torch.equal(started("ce", seed=4).model.shared.weight, body["shared.weight"])


def test_held_out_losses_do_not_depend_on_the_training_objective():
    was, mse = started("ntl_was"), started("ntl_mse")
    batch = was.collate(encode(was, EXAMPLES[:8]))
    losses = held_out_losses(mse, batch)
    assert_close(losses, held_out_losses(was, batch), ONE_COMPUTATION)
    logits = was.logits(was.model, batch)
    assert losses["ntl"] == approx(NTLoss(was.vocabulary)(logits, batch["labels"]).item())
    assert mse.model.training


def test_examples_are_encoded_once_for_each_kind_of_approach():
    examples = EncodedExamples(EXAMPLES)
    language, regression = started("ce"), started("regression_head")
    rows = examples.rows(language, [3, 0, 3])
    assert rows[0] is rows[2]
    assert examples.rows(started("ntl_was"), [3])[0] is rows[0]
    assert examples.rows(regression, [3])[0]["labels"] == 4444.0


def test_answers_are_in_the_order_of_the_questions():
    approach = started("regression_head")
    questions = [Example("1" * n, "0") for n in (9, 1, 5, 3)]
    generation = GenerationSettings(beams=1, batch_size=2)
    alone = [answer(approach, [question], generation)[0] for question in questions]
    assert answer(approach, questions, generation) == approx(alone)


def test_batches_cover_every_example_once_per_epoch_and_group_similar_lengths():
    lengths = [1, 9] * 64
    order = plan_batches(lengths, steps=32, batch_size=8, seed=0)
    assert sorted(order[:128]) == sorted(order[128:]) == list(range(128))
    spreads = [len({lengths[i] for i in order[start : start + 8]}) for start in range(0, len(order), 8)]
    assert max(spreads) == 1
    assert order == plan_batches(lengths, 32, 8, seed=0)
    assert order != plan_batches(lengths, 32, 8, seed=1)
