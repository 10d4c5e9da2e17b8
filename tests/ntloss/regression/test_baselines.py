"""What simple models can do on a table, and what is advised, without a language model."""

import json

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
import torch
from regression_cases import rooms, save_tiny_encoder
from tolerances import assert_close
from transformers import AutoTokenizer, BertModel

from ntloss.regression.answers import AnswerFormat
from ntloss.regression.baselines import find_cached_encoder, fit_simple_models, sentence_vectors
from ntloss.regression.questions import Questions, divide
from ntloss.regression.report import summarize

TREES, MEDIAN, RIDGE = "boosted trees", "the median answer", "ridge on words"
ENCODER = "sentence encoder and SVR"
MEAN, FIRST = "pooling_mode_mean_tokens", "pooling_mode_cls_token"


def errors(table, answers, encoder=None, prompt=None):
    """The mean error of each simple model on held-out rows, on the scale of the answers."""
    questions, form = Questions.choose(table, answers, prompt=prompt), AnswerFormat.choose(answers)
    _, (train, _, held_out) = divide(len(answers), len(answers), shuffle=False, seed=0)
    models, failed = fit_simple_models(questions, table, answers, form, train, held_out, encoder)
    truths = answers[held_out]
    return {name: form.errors(each.predicted, truths).mean() for name, each in models.items()}, failed


@pytest.mark.parametrize("rows", [40, 60])
def test_trees_learn_from_few_rows(rows):
    random = np.random.default_rng(0)
    size = 100 * random.random(rows)
    found, _ = errors(pd.DataFrame({"size": size}), 1.5 * size + random.normal(0, 5, rows))
    assert found[TREES] < 0.3 * found[MEDIAN]


def test_trees_leave_the_commonest_answer():
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.random((400, 2)), columns=["a", "b"])
    answers = np.where(table.a > 0.6, 50 * table.b, 3.0)
    found, _ = errors(table, answers)
    assert found[TREES] < 0.2 * found[MEDIAN]


@pytest.mark.filterwarnings("error:invalid value")
def test_no_model_better_than_the_median_is_said_first_and_logarithms_are_factors():
    random = np.random.default_rng(0)
    alike = {name: random.exponential(1, 60) for name in (MEDIAN, RIDGE, "NumberRegressor")}
    assert summarize(alike).startswith("No model")
    better = summarize({**alike, RIDGE: alike[MEDIAN] / 4})
    assert not better.startswith("No model")
    assert better.endswith(f"Use {RIDGE}.")
    assert "nan" not in summarize({MEDIAN: np.zeros(20), "NumberRegressor": np.ones(20)})
    logs = {MEDIAN: np.full(60, 1.0), "NumberRegressor": np.full(60, 0.5)}
    assert "a factor of 3.16 against a factor of 10" in summarize(logs, log=True)


def test_an_encoder_in_the_cache_is_compared_and_one_that_is_damaged_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    random = np.random.default_rng(0)
    table = pd.DataFrame({"text": [f"{random.choice(['good', 'bad', 'fair'])} {i}" for i in range(60)]})
    answers = random.random(60).round(2)
    found, failed = errors(table, answers)
    assert ENCODER not in found
    assert "hf download" in failed[ENCODER]
    folder = tmp_path / "models--someone--encoder/snapshots/1"
    folder.mkdir(parents=True)
    save_tiny_encoder(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert find_cached_encoder() == str(folder)
    assert np.isfinite(errors(table, answers)[0][ENCODER])
    (folder / "model.safetensors").unlink()
    found, failed = errors(table, answers)
    assert ENCODER in failed
    with pytest.raises(ValueError, match="nothing"):
        errors(table, answers, str(tmp_path / "nothing"))
    numbers = pd.DataFrame({"a": range(3, 63), "b": random.random(60)})
    assert ENCODER in errors(numbers, answers, str(folder))[1]  # no column holds texts


@pytest.mark.parametrize("modes", [None, {MEAN: True}, {FIRST: True}, {"pooling_mode_lasttoken": True}])
def test_vectors_are_pooled_as_the_folder_says_or_it_is_refused(tmp_path, modes):
    folder = save_tiny_encoder(tmp_path)
    if modes is not None:
        (folder / "1_Pooling").mkdir()
        known = {MEAN: False, FIRST: False, "word_embedding_dimension": 16, **modes}
        (folder / "1_Pooling/config.json").write_text(json.dumps(known))
    texts = ["good 12", "very, very bad"]
    if "pooling_mode_lasttoken" in (modes or {}):
        with pytest.raises(ValueError, match="lasttoken"):
            sentence_vectors(str(folder), texts)
        return
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, sentence_vectors(str(folder), texts), strict=True):
        with torch.no_grad():
            (states,) = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        pooled = states[0] if modes == {FIRST: True} else states.mean(0)
        assert_close(vector, (pooled / pooled.norm()).double().numpy(), 1e-5)


def test_trees_see_gaps_decimal_commas_prices_and_percentages():
    table, prices = rooms(120)
    share = np.random.default_rng(0).random(120).round(3) * 100
    plain = table.assign(share=share)
    written = plain.assign(
        size=[None if np.isnan(n) else f"€ {n:.1f}".replace(".", ",") for n in plain["size"]],
        share=[f"{n:.1f}%" for n in share],
    )
    answers = prices.to_numpy() + share.round(1)
    found = [errors(each, answers)[0][TREES] for each in (plain, plain.convert_dtypes(), written)]
    assert_close(found, [found[0]] * 3)


def test_simple_models_see_what_the_prompt_names_on_the_scale_of_the_answers():
    random = np.random.default_rng(0)
    power = random.integers(0, 5, 200)
    table = pd.DataFrame({"text": [f"{'very ' * n}big thing" for n in power], "power": power})
    answers = 10.0 ** (power + 0.2 * random.random(200))
    for prompt, has_trees in (("{text}: ", False), ("{text} of {power}: ", True)):
        found, _ = errors(table, answers, prompt=prompt)
        assert (TREES in found) == has_trees
        assert max(found[name] for name in (RIDGE, TREES) if name in found) < 0.2 < found[MEDIAN]
