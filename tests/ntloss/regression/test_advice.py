"""What simple models can do on a table, and what is advised, without a language model."""

import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
from regression_cases import save_tiny_encoder

from ntloss.regression.baselines import find_cached_encoder, fit_simple_models
from ntloss.regression.evaluation import summarize
from ntloss.regression.formats import AnswerFormat
from ntloss.regression.questions import Questions
from ntloss.regression.rows import divide

TREES, MEDIAN, RIDGE = "boosted trees", "the median answer", "ridge on words"


def errors(table, answers, encoder=None):
    """The mean error of each simple model on held-out rows, on the scale of the answers."""
    questions, form = Questions.choose(table, answers), AnswerFormat.choose(answers)
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


def test_errors_of_logarithms_are_factors():
    text = summarize({MEDIAN: np.full(60, 1.0), "NumberRegressor": np.full(60, 0.5)}, log=True)
    assert "a factor of 3.16 against a factor of 10" in text


def test_an_encoder_in_the_cache_is_compared_and_one_that_is_damaged_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    random = np.random.default_rng(0)
    table = pd.DataFrame({"text": [f"{random.choice(['good', 'bad', 'fair'])} {i}" for i in range(60)]})
    answers = random.random(60).round(2)
    found, failed = errors(table, answers)
    assert "sentence encoder and SVR" not in found
    assert "hf download" in failed["sentence encoder and SVR"]
    folder = tmp_path / "models--someone--encoder/snapshots/1"
    folder.mkdir(parents=True)
    save_tiny_encoder(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    assert find_cached_encoder() == str(folder)
    assert np.isfinite(errors(table, answers)[0]["sentence encoder and SVR"])
    (folder / "model.safetensors").unlink()
    found, failed = errors(table, answers)
    assert "sentence encoder and SVR" in failed
    with pytest.raises(ValueError, match="nothing"):
        errors(table, answers, str(tmp_path / "nothing"))
