"""Studies that train all layers: runs are made once and go on, and packs are merged and measured."""

import argparse
import importlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from tolerances import TRAINED_BY_ADAM, approx, assert_close

pytest.importorskip("tokenizers")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("hydra")
import tokenizers
import torch
import transformers

from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import read_runs

ROOT = Path(__file__).parents[1]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name, of="all_layers": importlib.import_module(f"studies.{of}.{name}")


@pytest.fixture
def tiny(tmp_path):
    """A folder with a small causal model whose tokens are characters."""
    characters = ["[END]", *' -+.,0123456789:abcdefghijklmnopqrstuvwxyz{}"_']
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="[END]")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    plain.decoder = tokenizers.decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="[END]").save_pretrained(tmp_path)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(characters), eos_token_id=0, bos_token_id=None, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def tables(study, tmp_path, monkeypatch):
    """A table of whole numbers with signs, and one of numbers with a decimal."""
    train = study("train")
    monkeypatch.setattr(train, "COMMON", {"train_size": 32, "validation_size": 20, "test_size": 20})
    words = ("calm", "glad", "cross")
    made = {}
    for name, scale in (("whole", 10), ("decimals", 0.7)):
        rows = [f"{word} {chr(97 + k)},{scale * i:g}" for k in range(26) for i, word in enumerate(words, -1)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,score", *rows]))
        made[name] = {"file": str(tmp_path / f"{name}.csv"), "target": "score", "prompt": "{text}: "}
    monkeypatch.setattr(train, "TABLES", made)
    return made


def test_each_arm_writes_one_file_that_is_kept_and_locked_runs_are_left_to_others(
    study, tiny, tables, tmp_path
):
    import fcntl

    train, outputs = study("train"), tmp_path / "outputs"
    given = ["--model", str(tiny), "--seeds", "3", "--rates", "1e-2", "--products", "float32"]
    given += ["--outputs", str(outputs), "--tables", *tables, "--arms"]
    outputs.mkdir()
    with open(outputs / "whole-ce-3-1e-02.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        train.main([*given, "ce", "head"])
        assert not (outputs / "whole-ce-3-1e-02.json").is_file()
    before = {path: path.stat().st_mtime_ns for path in outputs.glob("*.json")}
    assert len(before) == 3
    train.main([*given, "ce", "hl_gauss"])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    runs = [json.loads(path.read_text()) for path in sorted(outputs.glob("*.json"))]
    assert len(runs) == 6
    for run in runs:
        assert [point["step"] for point in run["read"]] == [4, 8, 12, 16, 20]
        for part, point in ((part, point) for part in ("validation", "test") for point in run["read"]):
            truths, answers = run["truths"][part], point[part]["answers"]
            assert len(truths) == len(answers) == 20
            assert ("quantiles" in point[part]) == (run["arm"] != "head")
        assert run["losses"][-1] < run["losses"][0]


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(study, tiny, tables, tmp_path, monkeypatch):
    train = study("train")
    given = ["--model", str(tiny), "--seeds", "3", "--rates", "1e-3", "--products", "float32"]
    given += ["--tables", "whole", "--arms", "jittered", "--outputs"]
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    train.main([*given, str(whole)])
    train.main([*given, str(pieces), "--until", "00:00"])
    monkeypatch.setattr("studies.fine_tuning.SAVE_EVERY", 0)
    step = train.Run._train_step

    def killed(run, parameters):
        if run.step == 7:
            raise KeyboardInterrupt
        return step(run, parameters)

    monkeypatch.setattr(train.Run, "_train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train.main([*given, str(pieces)])
    assert [*pieces.glob("*.state")]
    assert not [*pieces.glob("*.json")]
    monkeypatch.setattr(train.Run, "_train_step", step)
    train.main([*given, str(pieces)])
    made = [json.loads(next(folder.glob("*.json")).read_text()) for folder in (whole, pieces)]
    assert made[1]["losses"] == approx(made[0]["losses"], TRAINED_BY_ADAM)
    assert [point["step"] for point in made[1]["read"]] == [4, 8, 12, 16, 20]
    assert not [*pieces.glob("*.state")]


def made_run(seed, arm="ce", good_step=2):
    """A run whose median is right at one step alone, with an interval that covers half of the answers."""
    truths = {"validation": [10.0] * 19, "test": [10.0] * 10 + [16.0] * 10}
    read = []
    for step in (1, 2, 3):
        point = {"step": step}
        for part, of_part in truths.items():
            median = 10.0 if step == good_step else 20.0
            row = [median] * 20 + [median - 1, median, median + 1]
            point[part] = {"answers": [median + seed] * len(of_part), "quantiles": [row] * len(of_part)}
        read.append(point)
    return {
        **{"table": "sentiment", "arm": arm, "seed": seed, "rate": 1e-4, "train_rows": 600},
        **{"truths": truths, "read": read},
    }


def test_weights_are_chosen_by_each_rule_and_intervals_calibrated_by_validation_rows(study):
    results = study("results")
    rows = results.rows_of_metrics([made_run(27)])
    found = {(test, metric): value for _, _, _, test, metric, value in rows}
    last, by_median = results.RULES["last"], results.RULES["median"]
    assert [found[test, "chosen_step"] for test in results.RULES.values()] == [3, 2, 2]
    assert found[by_median, "median_mae"] == 3
    assert found[by_median, "mae"] == (27 + 21) / 2
    # all validation rows are 10
    assert (found[by_median, "interval_width"], found[by_median, "calibrated_width"]) == (2, 0)
    assert (found[last, "interval_coverage"], found[last, "calibrated_coverage"]) == (0, 1)


def test_packs_grow_and_keep_what_the_outputs_lack(study, tmp_path, capsys):
    results, outputs = study("results"), tmp_path / "outputs"
    outputs.mkdir()
    for seeds in ((27, 28), (28, 29)):
        for old in outputs.glob("*.json"):
            old.unlink()
        for seed in seeds:
            for arm, step in (("ce", 2), ("hl_gauss", 3)):
                (outputs / f"{arm}{seed}.json").write_text(json.dumps(made_run(seed, arm, step)))
        results.main(["--outputs", str(outputs), "--results", str(tmp_path)])
    assert "| sentiment | hl_gauss | 27, 28, 29 | 9 |" in capsys.readouterr().out
    plan = yaml.safe_load((ROOT / "studies/all_layers/contrasts.yaml").read_text("utf-8"))
    found, _ = compare_rows(read_runs([tmp_path])[0], read_contrasts(plan["contrasts"]), plan["margin"])
    medians = found[found["of"] == "hl_gauss, median"]
    assert medians["seeds"].tolist() == [3, 3]
    # HL-Gauss is right after the last step and cross-entropy is not; at the best step, both are.
    assert medians["percent"].tolist() == [approx(-100 * (7 - 3) / 7, scale=100), 0]


def test_other_seeds_rates_and_numbers_of_rows_have_names_of_their_own(study, tmp_path):
    results, outputs = study("results"), tmp_path / "outputs"
    outputs.mkdir()
    more = {
        "tuned": {"seed": 12},
        "rate": {"rate": 1e-3},
        "pilot": {"seed": 24},
        "rows": {"train_rows": 2400},
    }
    for name, change in more.items():
        (outputs / f"{name}.json").write_text(json.dumps({**made_run(27), **change}))
    results.main(["--outputs", str(outputs), "--results", str(tmp_path)])
    table = read_runs([tmp_path])[0]
    own = table[table["row"].str.startswith("ce")]
    assert {*own[["dataset", "row", "seed"]].itertuples(index=False, name=None)} == {
        ("sentiment, seeds of the pilot", "ce", 24),
        ("sentiment, 2400 rows", "ce", 27),
        ("sentiment", "ce at 0.001", 27),
    }
    # The models of the study of ten epochs stand beside runs on their rows alone.
    others = {*table[table["row"] == "encoder"]["dataset"]}
    assert others == {"sentiment", "sentiment, seeds of the pilot"}


def test_padded_calls_have_the_states_of_packed_ones(study, tiny):
    train = study("train", "fields")
    run = train.Run(argparse.Namespace(model=str(tiny), device="cpu", products="float32"), "ce", 0)
    texts = [[5, 6, 7], [8], [9, 10, 11, 12]]
    (padded, ends), (packed, ends_of_packed) = (
        run.hidden_states(texts),
        train.FineTuning.hidden_states(run, texts),
    )
    for text, end, other in zip(texts, ends, ends_of_packed, strict=True):
        assert_close(padded[end - len(text) : end], packed[other - len(text) : other])


def test_calls_are_read_back_if_they_have_the_fields_and_numbers(study):
    task = study("task", "fields")
    rows = task.draw_rows(200, np.random.default_rng(0))
    assert [task.read_call(row.call) for row in rows] == [row.values for row in rows]
    assert len({len(row.call) for row in rows}) == 1  # a batch has answers of one length
    assert all(row.call.startswith(task.call_with(row.values[:i])) for row in rows for i in range(3))
    call = rows[0].call
    for broken in (call[:-1], call.replace("room", "hall"), call.replace(": ", ': "', 1), "[1, 2, 3]", "7"):
        assert task.read_call(broken) is None
    assert task.read_call('{"room_size": true, "threshold_db": 1, "delay_ms": 2}') is None


def test_errors_of_fields_are_in_units_of_their_noise_and_invalid_calls_are_left_out(study):
    task, results = study("task", "fields"), study("results", "fields")
    truths = [(2.0, -30.0, 500.0), (3.0, -40.0, 600.0)]
    off = tuple(value + field.noise for value, field in zip(truths[0], task.FIELDS, strict=True))
    found = results.measures(truths, {"calls": [task.call_with(off), "{}"], "medians": [off, truths[1]]})
    assert found["invalid_rate"] == 0.5
    assert found["mae"] == approx(1)
    assert found["median_mae"] == found["median_delay_ms_mae"] == approx(0.5)


def test_each_half_of_the_rows_chooses_the_temperature_of_the_other(study):
    calibrate = study("results", "soft_labels").calibrate
    sure = np.full((6, 9), 0.01)
    sure[:, 4] = 0.92
    ratings = [[4, 5], [4, 4]] * 3  # of the rows with even indices, half of the ratings are 5
    shares = calibrate(sure, ratings)[:, 4]
    assert (shares[1::2] < 0.92).all()
    assert (shares[::2] > 0.99).all()


@pytest.mark.parametrize("name", ["fields", "soft_labels"])
def test_runs_of_other_studies_are_made_packed_and_measured(name, study, tiny, tmp_path, monkeypatch, capsys):
    train, results, outputs = study("train", name), study("results", name), tmp_path / "outputs"
    monkeypatch.setattr(train, "RATE", 1e-2)
    if name == "fields":
        monkeypatch.setattr(train, "TRAIN", 32)
        monkeypatch.setattr(train, "TEST", 4)
    else:
        levels = [
            f"{word} {k},{(k + i) % 9},{(k + i) % 9} 4" for k in range(30) for i, word in enumerate("abc")
        ]
        (tmp_path / "levels.csv").write_text("\n".join(["text,level,ratings", *levels]))
        table = {"file": str(tmp_path / "levels.csv"), "train_size": 32, "test_size": 20}
        monkeypatch.setattr(train, "TABLE", train.TABLE | table)
        monkeypatch.setattr(train, "STEPS", 4)
    given = ["--model", str(tiny), "--products", "float32", "--outputs", str(outputs), "--seeds", "0", "1"]
    train.main([*given, "--arms", "ce", train.ARMS[-1]])
    for path in outputs.glob("*.json"):
        losses = json.loads(path.read_text())["losses"]
        assert losses[-1] < losses[0]
    results.main(["--outputs", str(outputs), "--results", str(tmp_path)])
    shown = capsys.readouterr().out
    tested = pd.read_csv(tmp_path / "contrasts.csv")
    assert {of.partition(",")[0] for of in tested["of"]} == {train.ARMS[-1]}
    assert tested["seeds"].tolist() == [2] * len(tested)
    results.main(["--outputs", str(tmp_path / "none"), "--results", str(tmp_path)])
    assert capsys.readouterr().out in shown
