from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ntl.encodings.digits import character_tokenizer
from ntl.models import T5ForRegression, build_model
from ntl.objectives import build_objective, language_logits
from ntl.tasks import Example
from ntl.training import ComparisonTrainer, EncodedExamples, collate, plan_batches, training_arguments
from ntloss import NTLoss, NumberVocabulary

MODEL = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
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
# Answers of one to five labels, and of zero to four digits: micro-batches differ in both counts.
EXAMPLES = [
    Example(f"{i} + 1", answer)
    for i, answer in enumerate(["1", "-22", "333", "4444", "5", "-0.5", "77", "8"] * 3)
]


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


def encode(tokenizer, examples):
    return EncodedExamples(tokenizer, examples).rows(range(len(examples)))


def objective(tokenizer, **settings):
    defaults = {"head": "language", "term": None, "weight": 0.3, "reweigh": True}
    return build_objective({**defaults, **settings}, NumberVocabulary.from_tokenizer(tokenizer))


OBJECTIVES = [{}, {"term": "wasserstein"}, {"term": "squared_error"}, {"head": "regression"}]


def train(tokenizer, settings, accumulation, tmp_path):
    goal = objective(tokenizer, **settings)
    rows = encode(tokenizer, EXAMPLES)
    targets = [row["value"] for row in rows] if settings.get("head") == "regression" else None
    model = build_model(MODEL, tokenizer, seed=0, regression_targets=targets)
    training = {**TRAINING, "gradient_accumulation_steps": accumulation}
    trainer = ComparisonTrainer(
        model=model,
        args=training_arguments(training, 0, str(tmp_path)),
        train_dataset=rows,
        data_collator=collate,
        objective=goal,
    )
    trainer.train()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("settings", OBJECTIVES)
def test_gradient_accumulation_does_not_change_the_training(tokenizer, settings, tmp_path):
    whole = train(tokenizer, settings, 1, tmp_path)
    split = train(tokenizer, settings, 4, tmp_path)
    start = build_model(MODEL, tokenizer, 0, [0.0, 1.0] if settings.get("head") else None)
    moved = whole - torch.cat([p.detach().flatten() for p in start.parameters()])
    assert moved.abs().max() > 1e-3
    torch.testing.assert_close(split, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("settings", OBJECTIVES)
def test_the_gradient_of_a_batch_does_not_depend_on_how_it_is_split(tokenizer, settings):
    goal = objective(tokenizer, **settings)
    rows = encode(tokenizer, EXAMPLES[:8])
    model = build_model(MODEL, tokenizer, 0, [0.0, 1.0] if settings.get("head") else None).double()

    def gradient(size):
        batches = [collate(rows[i : i + size]) for i in range(0, 8, size)]
        counts = goal.count(batches)
        model.zero_grad()
        for batch in batches:
            goal(model, batch, counts).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return torch.cat([g.flatten().clone() for g in grads])

    whole = gradient(8)
    assert whole.norm() > 1e-4
    torch.testing.assert_close(gradient(2), whole)
    torch.testing.assert_close(gradient(1), whole)


def test_the_language_objective_is_mean_cross_entropy_plus_weighted_mean_number_loss(tokenizer):
    goal = objective(tokenizer, term="wasserstein")
    model = build_model(MODEL, tokenizer, seed=0)
    batch = collate(encode(tokenizer, EXAMPLES[:8]))
    logits = language_logits(model, batch)
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()) + 0.3 * NTLoss(
        NumberVocabulary.from_tokenizer(tokenizer)
    )(logits, batch["labels"])
    torch.testing.assert_close(goal(model, batch, goal.count([batch])), expected)
    # "1 -22 333 4444 5 -0.5 77 8": 16 digits, 3 signs and points... and 8 end tokens.
    assert goal.count([batch]) == (1 + 3 + 3 + 4 + 1 + 4 + 2 + 1 + 8, 1 + 2 + 3 + 4 + 1 + 2 + 2 + 1)


def test_logits_without_labels_are_those_that_t5_computes_with_labels(tokenizer):
    model = build_model(MODEL, tokenizer, seed=0)
    batch = collate(encode(tokenizer, EXAMPLES[:3]))
    reference = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]
    ).logits
    torch.testing.assert_close(language_logits(model, batch), reference)


def test_one_seed_gives_both_heads_the_same_body_and_another_seed_another(tokenizer):
    language = build_model(MODEL, tokenizer, seed=3).state_dict()
    regression = build_model(MODEL, tokenizer, seed=3, regression_targets=[1.0, 3.0])
    assert isinstance(regression, T5ForRegression)
    assert (regression.mean, regression.scale) == (2.0, 1.0)
    for key, value in regression.transformer.state_dict().items():
        torch.testing.assert_close(value, language[key], rtol=0, atol=0)
    other = build_model(MODEL, tokenizer, seed=4).state_dict()
    assert not torch.equal(other["shared.weight"], language["shared.weight"])


def test_batches_cover_every_example_once_per_epoch_and_group_like_lengths():
    lengths = [1, 9] * 64
    order = plan_batches(lengths, steps=32, batch_size=8, seed=0)
    assert sorted(order[:128]) == sorted(order[128:]) == list(range(128))
    spreads = [len({lengths[i] for i in order[start : start + 8]}) for start in range(0, len(order), 8)]
    assert max(spreads) == 1
    assert order == plan_batches(lengths, 32, 8, seed=0)
    assert order != plan_batches(lengths, 32, 8, seed=1)
