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

from ntloss.regression.baselines import find_cached_encoder, fit_simple_models, sentence_vectors
from ntloss.regression.evaluation import summarize
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.questions import Questions, divide

TREES, MEDIAN, RIDGE = "boosted trees", "the median answer", "ridge on words"
ENCODER = "sentence encoder and SVR"
MEAN, FIRST = "pooling_mode_mean_tokens", "pooling_mode_cls_token"


def errors(table, answers, encoder=None, prompt=None):
    """The mean error of each simple model on held-out rows, on the scale of the answers."""
    questions, form = Questions.choose(table, answers, prompt=prompt), AnswerFormat.choose(answers)
    train, _, held_out = divide(len(answers))
    given = questions, table, questions.write(table), answers, form, train, held_out
    models, failed = fit_simple_models(*given, encoder)
    truths = answers[held_out]
    return {name: form.errors(each.predicted, truths).mean() for name, each in models.items()}, failed


@pytest.mark.parametrize("rows", [40, 57, 60])
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


def test_simple_models_have_the_scale_of_the_answers():
    random = np.random.default_rng(0)
    power, noise = random.integers(0, 5, 200), random.random(200)
    table = pd.DataFrame({"text": [f"{'very ' * n}big thing" for n in power], "power": power})
    found, _ = errors(table, 10.0 ** (power + 0.2 * noise))
    assert max(found[RIDGE], found[TREES]) < 0.2 < found[MEDIAN]


def test_no_model_better_than_the_median_is_said_first():
    random = np.random.default_rng(0)
    alike = {name: random.exponential(1, 60) for name in (MEDIAN, RIDGE, "NumberRegressor")}
    assert summarize(alike).startswith("No model")
    better = summarize({**alike, RIDGE: alike[MEDIAN] / 4})
    assert not better.startswith("No model")
    assert better.endswith(f"Use {RIDGE}.")


@pytest.mark.filterwarnings("error:invalid value")
def test_models_without_an_error_are_not_compared_in_percent():
    right = {MEDIAN: np.zeros(20), "NumberRegressor": np.zeros(20)}
    assert "nan" not in summarize(right)
    assert "nan" not in summarize({**right, "NumberRegressor": np.ones(20)})


def test_errors_of_logarithms_are_factors():
    text = summarize({MEDIAN: np.full(60, 1.0), "NumberRegressor": np.full(60, 0.5)}, log=True)
    assert "a factor of 3.16 against a factor of 10" in text


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


@pytest.mark.parametrize("modes", [None, {MEAN: True}, {FIRST: True}])
def test_vectors_are_pooled_as_the_folder_says(tmp_path, modes):
    folder = save_tiny_encoder(tmp_path)
    if modes is not None:
        (folder / "1_Pooling").mkdir()
        known = {MEAN: False, FIRST: False, "word_embedding_dimension": 16, **modes}
        (folder / "1_Pooling/config.json").write_text(json.dumps(known))
    texts = ["good 12", "very, very bad"]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, sentence_vectors(str(folder), texts), strict=True):
        with torch.no_grad():
            (states,) = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        pooled = states[0] if modes == {FIRST: True} else states.mean(0)
        assert_close(vector, (pooled / pooled.norm()).double().numpy(), 1e-5)


def test_pooling_of_another_kind_is_an_error(tmp_path):
    folder = save_tiny_encoder(tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(ValueError, match="lasttoken"):
        sentence_vectors(str(folder), ["good"])


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


def test_simple_models_see_what_the_prompt_names():
    table, prices = rooms(60)
    for prompt, has_trees in (("{kind}: ", False), ("{kind} of {size}: ", True)):
        assert (TREES in errors(table, prices.to_numpy(), prompt=prompt)[0]) == has_trees


def test_texts_without_words_have_no_ridge():
    table = pd.DataFrame({"text": ["ab"[i % 2] for i in range(60)]})
    found, failed = errors(table, np.arange(60.0), prompt="{text} = ")
    assert (RIDGE in found, RIDGE in failed) == (False, True)
