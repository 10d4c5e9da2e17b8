"""Runs of one seed are paired: they start from the same weights and see the same batches."""

from __future__ import annotations

import pytest
import torch
from ntl.config.comparison import load_comparison
from ntl.runs.run import run
from tolerances import TRAINED_BY_ADAM, assert_close, assert_identical

from ntl.approaches import build_approach
from ntl.approaches.language_model import LanguageModel
from ntl.approaches.regression_head import RegressionHead

OBJECTIVES = ("ce", "ntl_was", "ntl_mse", "vanilla_t5_regression_head")


def settings_of(tiny, objective, *more, seed=0):
    given = [*tiny[:-1], f"objectives=[{objective}]", f"seeds=[{seed}]", *more, tiny[-1]]
    (settings,) = load_comparison(given).runs.values()
    return settings


def quietly(settings):
    run(settings, lambda share: None)
    return settings.output_dir / "model.safetensors"


def test_all_objectives_of_one_seed_start_from_the_same_weights(tiny):
    def started(objective, seed=3):
        settings = settings_of(tiny, objective, seed=seed)
        return build_approach(settings.model, settings.loss).model

    ce, ntl, regression = (started(name) for name in ("ce", "ntl_mse", "vanilla_t5_regression_head"))
    body = ce.state_dict()
    assert_identical(ntl.state_dict(), body)
    for key, value in regression.transformer.state_dict().items():
        assert_identical(value, body[key])
    assert not torch.equal(started("ce", seed=4).shared.weight, body["shared.weight"])


def test_all_objectives_of_one_seed_see_the_same_batches(tiny, monkeypatch):
    seen: dict[str, list] = {}

    def record(kind):
        collate = kind.collate

        def recorded(self, rows):
            seen.setdefault(now, []).append([row["input_ids"] for row in rows])
            return collate(self, rows)

        monkeypatch.setattr(kind, "collate", recorded)

    record(LanguageModel)
    record(RegressionHead)
    for now in ("ce", "ntl_was", "vanilla_t5_regression_head"):
        quietly(settings_of(tiny, now, "training_args.eval_steps=4"))
    batches = {name: [rows for rows in found if len(rows) == 8][:4] for name, found in seen.items()}
    assert batches["ntl_was"] == batches["ce"] == batches["vanilla_t5_regression_head"]
    assert len({tuple(map(tuple, rows)) for rows in batches["ce"]}) == 4


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradient_accumulation_does_not_change_the_training(objective, tiny, tmp_path):
    from safetensors.torch import load_file

    whole = load_file(quietly(settings_of(tiny, objective)))
    parts = ["training_args.gradient_accumulation_steps=4", "training_args.per_device_train_batch_size=2"]
    split = load_file(quietly(settings_of([*tiny[:-1], f"output_dir={tmp_path}/split"], objective, *parts)))
    assert_close(split, whole, TRAINED_BY_ADAM)
