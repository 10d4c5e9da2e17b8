"""The study of scores in levels: its tables, what it reads from a trained model, and its measures."""

import importlib
import json
import re
from pathlib import Path

import pytest
from tolerances import DISTRIBUTION, approx

np, pd, torch = (pytest.importorskip(name) for name in ("numpy", "pandas", "torch"))
transformers = pytest.importorskip("transformers")
pytest.importorskip("hydra")
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


def test_a_run_is_read_and_measured_without_its_model(study, tmp_path, capsys):
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
        (run / "test/metrics.json").write_text(json.dumps({"settings": settings, "name": loss, "seed": seed}))
        tokenizer.save_pretrained(run)
        with torch.no_grad():
            model.lm_head.weight += 0.1 * torch.randn_like(model.lm_head.weight)
        model.save_pretrained(run)
        study("read").main([str(run)])
        (run / "model.safetensors").unlink()
    read = pd.read_csv(run / "levels.csv")
    assert len(read) == 10
    probabilities = read.iloc[:, 1:10].to_numpy()
    task = study("read").load_task(study("read").Tabular(**settings["dataset_args"]))
    questions = [row.question for row in task.tests["test"]]
    for question, row, none in zip(questions, probabilities, read["none"], strict=True):
        logits = model(torch.tensor([tokenizer.encode(question)])).logits[0, -1]
        assert row == approx(logits.softmax(-1)[:9].tolist(), DISTRIBUTION)
        assert row.sum() + none == approx(1, DISTRIBUTION)
    study("results").main([str(tmp_path / "runs"), str(tmp_path / "pack")])
    printed = capsys.readouterr().out
    study("results").main([str(tmp_path / "pack")])
    assert capsys.readouterr().out == printed
    pack = pd.read_csv(tmp_path / "pack" / "metrics.csv")
    assert {*pack["objective"]} == {"ce", "crps", "constant", "raters"}
    assert not pack.duplicated(["dataset", "objective", "seed", "metric"]).any()
    assert "| sentiment | + CRPS | RPS | 2 |" in printed


NAMES = {
    "cross-entropy": "ce",
    "+ CRPS": "crps",
    "+ NTL-WAS": "ntl_was",
    "HL-Gauss": "hl_gauss",
    "constant shares": "constant",
    "the raters' own shares": "raters",
}
METRICS = {
    "RPS": "rps",
    "RPS, raters": "rater_rps",
    "median's error": "median_mae",
    "mean's error": "mean_mae",
    "likeliest level's error": "mode_mae",
    "kappa": "kappa",
    "two peaks": "two_peaks",
    "ECE": "ece",
    "ECE, cumulative": "cumulative_ece",
}


def published():
    """The pack by table, loss and seed, and the tables of the page, each as a list of rows by column."""
    results = ROOT / "results" / "scores"
    if not results.exists():
        pytest.skip("an sdist has no results")
    pack = pd.read_csv(results / "metrics.csv")
    lines = re.findall(r"^\|(.*)\|$", (results / "README.md").read_text("utf-8"), re.MULTILINE)
    rows = [[cell.strip(" *") for cell in line.split("|")] for line in lines]
    starts = [i for i, row in enumerate(rows) if row[0] == "table"]
    tables = [
        [dict(zip(rows[i], row, strict=True)) for row in rows[i + 2 : end]]
        for i, end in zip(starts, [*starts[1:], len(rows)], strict=True)
    ]
    return pack.pivot_table(index=["dataset", "objective", "seed"], columns="metric", values="value"), tables


def test_measures_of_the_page_are_means_of_the_runs():
    metrics, (rows, _) = published()
    assert {(row["table"], NAMES[row["loss"]]) for row in rows} == {key[:2] for key in metrics.index}
    for row in rows:
        runs = metrics.loc[row["table"], NAMES[row["loss"]]]
        assert int(row["seeds"]) == len(runs)
        for title, metric in METRICS.items():
            known = runs[metric].notna().any()
            assert bool(row[title]) == known
            if known:
                factor = 100 if row[title].endswith("%") else 1
                text = row[title].removesuffix(" %")
                digits = len(text.partition(".")[2])
                assert abs(float(text) - factor * runs[metric].mean()) <= 0.5001 * 10**-digits


def test_contrasts_of_the_page_are_those_of_the_runs():
    stats = pytest.importorskip("scipy.stats")
    metrics, (_, rows) = published()
    p, shown = [], []
    for row in rows:
        metric = METRICS[row["measure"]]
        mine, theirs = (metrics.loc[(row["table"], name), metric] for name in (NAMES[row["loss"]], "ce"))
        differences = (mine - theirs).dropna()
        assert int(row["seeds"]) == len(differences)
        shares = 100 * differences / theirs[differences.index].mean()
        ends = [stats.t.interval(c, len(shares) - 1, shares.mean(), stats.sem(shares)) for c in (0.95, 0.9)]
        half = (ends[0][1] - ends[0][0]) / 2
        assert row["difference"] == f"{shares.mean():+.1f} ± {half:.1f} %"
        assert row["no effect above 3 %"] == ("yes" if max(map(abs, ends[1])) <= 3 else "no")
        p.append(stats.ttest_rel(mine[differences.index], theirs[differences.index]).pvalue)
        shown.append((row["p"], row["p, Holm"]))
    order = np.argsort(p)
    corrected = dict(zip(order, np.maximum.accumulate(np.sort(p) * np.arange(len(p), 0, -1)), strict=True))
    assert shown == [(f"{value:.2g}", f"{min(corrected[i], 1):.2g}") for i, value in enumerate(p)]
    assert {(row["table"], row["loss"], row["measure"]) for row in rows} == {
        (table, loss, measure)
        for table in metrics.index.unique("dataset")
        for loss in ("+ CRPS", "+ NTL-WAS", "HL-Gauss")
        for measure in ("RPS", "median's error")
    }


def test_what_the_page_says_of_each_seed_holds_for_each_seed():
    runs = published()[0].loc["sentiment"]
    for name, sign in (("hl_gauss", -1), ("ntl_was", 1)):
        assert (sign * (runs.loc[name]["ece"] - runs.loc["ce"]["ece"]) > 0).all()
    assert (runs.loc["hl_gauss"]["two_peaks"] < runs.loc["ce"]["two_peaks"]).all()
    assert (runs.loc["ce"]["median_mae"] <= runs.loc["ce"]["mode_mae"]).all()
