"""The study of scores in levels: its tables, what it reads from a trained model, and its measures."""

import importlib
import json
from pathlib import Path

import pytest
from tolerances import DISTRIBUTION, approx

pytest.importorskip("hydra")
from ntl.report.runs import read_runs

np, pd, torch = (pytest.importorskip(name) for name in ("numpy", "pandas", "torch"))
transformers = pytest.importorskip("transformers")
pytest.importorskip("sklearn")
ROOT = Path(__file__).parents[1]
LEVELS = np.arange(9)


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"studies.scores.{name}")


def test_levels_are_rounded_mean_ratings_and_half_points_of_valence(study, tmp_path):
    pd.DataFrame({"text": ["a", "b"], "sentiment": [9, 9], "ratings": ["10 20", "80 70 70"]}).to_csv(
        tmp_path / "rated.csv"
    )
    pd.DataFrame({"text": ["a", "b"], "valence": [1.0, 3.26]}).to_csv(tmp_path / "valence.csv")
    study("tables").main("sentiment", tmp_path / "rated.csv", tmp_path / "one.csv")
    study("tables").main("emobank", tmp_path / "valence.csv", tmp_path / "other.csv")
    one, other = (pd.read_csv(tmp_path / name) for name in ("one.csv", "other.csv"))
    assert (one["ratings"].tolist(), one["level"].tolist()) == (["1 2", "8 7 7"], [2, 7])
    assert other["level"].tolist() == [0, 5]


def test_measures_are_those_of_their_definitions(study):
    generator = np.random.default_rng(0)
    found = generator.dirichlet(np.ones(9), 30)
    labels, ratings = generator.integers(0, 9, 30), generator.integers(0, 9, (30, 4))
    measured = study("results").measures(0.7 * found, labels, ratings.tolist())

    def score(row, truth):  # the CRPS as a difference of mean distances
        spread = (row[:, None] * row * abs(LEVELS[:, None] - LEVELS)).sum()
        return (row * abs(LEVELS - truth)).sum() - spread / 2

    rows = range(30)
    draws = [np.repeat(LEVELS, np.round(1e5 * row).astype(int)) for row in found]
    assert measured["rps"] == approx(np.mean([score(found[i], labels[i]) for i in rows]))
    assert measured["rater_rps"] == approx(np.mean([score(found[i], r) for i in rows for r in ratings[i]]))
    assert measured["median_mae"] == np.mean([abs(np.median(draws[i]) - labels[i]) for i in rows])
    assert measured["mean_mae"] == approx(np.abs(found @ LEVELS - labels).mean())
    median = np.array([np.median(each) for each in draws])
    expected = np.subtract.outer(median, labels) ** 2
    assert measured["kappa"] == approx(1 - ((median - labels) ** 2).mean() / expected.mean())


def test_two_peaks_have_a_valley_between_them(study):
    rows = [[1, 4, 1, 3, 1], [1, 4, 3, 2, 0], [0, 0, 0, 0, 10], [3.0, 2.95, 3.05, 1, 0], [4, 0, 0, 3, 3]]
    found = study("results").has_two_peaks(np.array(rows) / 10)
    assert found.tolist() == [True, False, False, False, True]


def test_calibration_is_the_distance_between_probability_and_frequency_in_each_bin(study):
    probabilities = np.array([0.21, 0.29, 0.23, 0.27, 0.92, 1.0])
    happened = np.array([0, 1, 0, 0, 1, 1])
    error = study("results").calibration_error(probabilities, happened)
    assert error == approx((4 * 0 + 2 * 0.04) / 6)


def test_a_run_is_read_and_measured_without_its_model(study, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    ids = {character: i for i, character in enumerate("0123456789ab: ?")}
    characters = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "?"))
    characters.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=characters, chat_template="?")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(ids), **shape)).eval()
    texts = [f"{'ab'[i % 2]}{i % 7}{i % 9}" for i in range(60)]
    rows = [f"{text},{i % 9},{i % 9} 4" for i, text in enumerate(texts)]
    (tmp_path / "made.csv").write_text("\n".join(["text,level,ratings", *rows]))
    sizes = {"train_size": 20, "validation_size": 2, "test_size": 10}
    table = {"file": f"{tmp_path}/made.csv", "target": "level", "ratings": "ratings", "prompt": "{text}: "}
    for seed, loss in [(0, "ce"), (1, "ce"), (0, "crps"), (1, "crps")]:
        run = tmp_path / "runs" / "sentiment" / f"{loss}-{seed}"
        (run / "test").mkdir(parents=True)
        settings = {"dataset_args": {**table, **sizes, "data_seed": seed}}
        (run / "test/metrics.json").write_text(
            json.dumps({"identity": {}, "settings": settings, "name": loss, "seed": seed})
        )
        tokenizer.save_pretrained(run)
        with torch.no_grad():
            model.lm_head.weight += 0.1 * torch.randn_like(model.lm_head.weight)
        model.save_pretrained(run)
        study("read").main([str(run)])
        (run / "model.safetensors").unlink()
    read = pd.read_csv(run / "levels.csv")
    assert len(read) == 10
    probabilities = read.iloc[:, 1:10].to_numpy()
    task = study("read").Tabular(**settings["dataset_args"]).read()
    questions = [row.question for row in task.tests["test"]]
    for question, row, none in zip(questions, probabilities, read["none"], strict=True):
        # A level is read where no digit makes it another number.
        written = torch.tensor([tokenizer.encode(f"{question}{level}") for level in range(9)])
        probs = model(written).logits[:, -2:].softmax(-1)
        levels = probs[range(9), 0, range(9)] * (1 - probs[:, 1, :10].sum(-1))
        assert row == approx(levels.tolist(), DISTRIBUTION)
        assert row.sum() + none == approx(1, DISTRIBUTION)
    study("results").main([str(tmp_path / "runs"), str(tmp_path / "pack")])
    pack, _ = read_runs([tmp_path / "pack"])
    assert {*pack["name"]} == {"ce", "crps", "constant", "raters"}
    assert not pack.duplicated(["dataset", "name", "seed", "metric"]).any()


@pytest.mark.skipif(not (ROOT / "studies/scores/results").exists(), reason="an sdist has no results")
def test_what_the_page_says_of_each_seed_holds_for_each_seed():
    table, _ = read_runs([ROOT / "studies/scores/results"])
    sentiment = table[table["dataset"] == "sentiment"]
    runs = sentiment.pivot_table(index=["name", "seed"], columns="metric", values="value")
    for name, sign in (("hl_gauss", -1), ("ntl_was", 1)):
        assert (sign * (runs.loc[name]["ece"] - runs.loc["ce"]["ece"]) > 0).all()
    assert (runs.loc["hl_gauss"]["two_peaks"] < runs.loc["ce"]["two_peaks"]).all()
    assert (runs.loc["ce"]["median_mae"] <= runs.loc["ce"]["mode_mae"]).all()
