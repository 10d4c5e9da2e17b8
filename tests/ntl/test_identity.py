"""One identity: what was trained on other rows, files or code is never continued, finished or averaged."""

import json
import random
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from runs import compare, main, results, train

import ntl.identity
from ntl import commands
from ntl.data.task import BY_SETTINGS
from ntl.identity import differing, hash_rows, identify
from ntl.layout import JOBS, LEARNED_ROWS
from ntl.own import digest_of_code
from ntl.settings import compose_config

STUDY = """
defaults: [compare, override dataset_args: tabular, _self_]
dataset_args:
  {file: t.csv, target: y, columns: [a, b], train_size: 60, validation_size: 6, test_size: 8}
model_args:
  {number_format: padded, config_overrides: {d_model: 16, d_kv: 8, d_ff: 16, num_layers: 1, num_heads: 2}}
training_args:
  {max_steps: 2, per_device_train_batch_size: 8, eval_steps: 2, save_steps: 2, use_cpu: true, output_dir: out}
"""
EVALUATED = ["training_args=eval", "training_args.output_dir=null", "model_args.config_overrides=null"]


def write_table(path="t.csv", rows=120, factor=1, **more):
    draw = random.Random(0)
    table = pd.DataFrame({name: [draw.randint(1, 999) for _ in range(rows)] for name in "aby"})
    table["y"] *= factor
    table.assign(id=range(rows), **more).to_csv(path, index=False)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ntl.report.figures.draw_figures", lambda *_: [])
    write_table()
    Path("study.yaml").write_text(STUDY)


def sweep(*more):
    return compare("study.yaml", "hydra/launcher=basic", "loss=ce", *more)


def rows(folder="out/report"):
    table = pd.read_csv(f"{folder}/metrics.csv")
    return table.groupby("row", sort=False)["seed"].nunique().to_dict()


@pytest.mark.parametrize("seeds", [[], ["dataset_args.data_seed=${training_args.seed}"]])
def test_runs_on_a_changed_table_are_refused_beside_earlier_ones_and_never_averaged_with_them(seeds, capsys):
    assert sweep("training_args.seed=0", *seeds) == 0
    write_table(factor=10)
    assert sweep("training_args.seed=1", *seeds) == 1
    assert "data changed" in capsys.readouterr().err
    apart = ["training_args.output_dir=apart"]
    assert sweep("training_args.seed=1", *seeds, *apart) == 0
    assert main(["report", "out", "apart", "--output", "both"]) == 0
    assert [*rows("both").values()] == [1, 1]


def test_rows_that_each_seed_draws_from_one_table_are_one_row():
    assert sweep("training_args.seed=0,1", "dataset_args.data_seed=${training_args.seed}") == 0
    assert rows() == {"T5": 2}


@pytest.mark.parametrize(
    "change",
    [
        ["dataset_args.names=true"],
        ["dataset_args.columns=[b,a]"],
        ["dataset_args.columns=[b]"],
        ["dataset_args.prompt='{b} and {a}: '", "dataset_args.columns=null"],
        ["dataset_args.target=b", "dataset_args.columns=[a,y]"],
        ["dataset_args.file=wider.csv"],
        ["dataset_args.file=renamed.csv", "dataset_args.columns=[A,b]"],
        ["dataset_args.significant_digits=2"],
    ],
)
def test_a_row_is_recognized_however_its_question_is_written(change):
    write_table("wider.csv", c=1)
    pd.read_csv("t.csv").rename(columns={"a": "A"}).to_csv("renamed.csv", index=False)
    asked = ["dataset_args=tabular", "dataset_args.file=t.csv", "dataset_args.target=y"]
    asked.append("dataset_args.columns=[a,b]")
    configs = (
        compose_config([*asked, *more, "dataset_args.test_size=20", "dataset_args.validation_size=20"])
        for more in ([], change)
    )
    tasks = [config.dataset_args.read() for config in configs]
    known, again = (hash_rows([*task.train, *task.validation, *task.tests["test"]]) for task in tasks)
    assert np.isin(again, known).any(axis=1).all()


def test_a_copied_checkpoint_knows_the_rows_it_has_learned(capsys):
    assert train("study.yaml", "loss=ce") == 0
    learned = np.load(f"out/{LEARNED_ROWS}")
    assert len(learned) == 180  # 60 rows, known by the question, its cells and all cells
    Path("moved").mkdir()
    shutil.copytree("out/checkpoint-2", "moved/best")
    other = [*EVALUATED, "dataset_args.data_seed=1", "dataset_args.names=true"]
    for model in ("out", "moved/best"):
        given = f"model_args.model_name_or_path={model}"
        assert train("study.yaml", *other, given, "evaluation.name=other") == 0
    assert results("out", "other") == results("moved/best", "other")
    assert results("out", "other")["test"]["count"] < 8
    Path("moved/best", LEARNED_ROWS).unlink()
    assert train("study.yaml", *other, given, "evaluation.name=again") == 2
    assert LEARNED_ROWS in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "file", "change"),
    [
        ("config_name", "config.json", {"d_ff": 16}),
        ("tokenizer_name_or_path", "tokenizer.json", {"version": "2.0"}),
        ("model_name_or_path", "tokenizer.json", {"version": "2.0"}),
        ("model_name_or_path", "config.json", {"dropout_rate": 0.5}),
    ],
)
def test_an_edited_shape_or_tokenizer_is_another_run(setting, file, change):
    Path("base").mkdir()
    Path("base/config.json").write_text(json.dumps({"model_type": "t5", "d_ff": 8}))
    Path("base/tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    given = [
        "dataset_args=noisy_regression",
        f"model_args.{setting}=base",
        "model_args.config_overrides=null",
    ]
    config = compose_config(given, "compare")
    data = config.dataset_args.read()
    before, _ = identify(config, data)
    edited = {**json.loads(Path("base", file).read_text()), **change}
    Path("base", file).write_text(json.dumps(edited))
    assert differing(before, identify(config, data)[0]) == [f"model_args.{setting}.source"]
    assert data.source == BY_SETTINGS


def test_a_run_of_other_code_is_neither_finished_nor_averaged(monkeypatch, capsys):
    assert sweep("training_args.seed=0") == 0
    monkeypatch.setattr(ntl.identity, "digest_of_code", lambda: "of another commit")
    assert sweep("training_args.seed=0,1") == 1
    assert capsys.readouterr().err.count("code of the lab or of ntloss changed") >= 2
    assert sweep("training_args.seed=1", "training_args.output_dir=apart") == 0
    assert main(["report", "out", "apart", "--output", "both"]) == 0
    assert [*rows("both").values()] == [1, 1]


def test_the_digest_of_the_code_changes_with_statements_alone(tmp_path, monkeypatch):
    package = tmp_path / "ntloss"
    package.mkdir()
    monkeypatch.setattr(
        "ntl.own.find_spec", lambda name: SimpleNamespace(submodule_search_locations=[tmp_path / name])
    )

    def digest(text, file="criteria.py"):
        (package / file).write_text(text)
        digest_of_code.cache_clear()
        return digest_of_code()

    try:
        first = digest('"""Losses."""\ndef loss(p):\n    """A loss."""\n    return 2 * p\n')
        assert digest('def loss(p):\n    """Another text."""\n    return 2 * p  # twice\n') == first
        assert digest("def loss(p):\n    return 3 * p\n") != first
        digest("def loss(p):\n    return 2 * p\n")
        assert digest("x = 1", "more.py") != first
    finally:
        digest_of_code.cache_clear()


def test_a_sweep_is_not_failed_by_the_runs_of_another_one_in_its_folder(monkeypatch):
    run = commands.run

    def beside_another_sweep(*given):
        job = {"sweep": 9e9, "job": 0, "latest": 9e9, "reason": "it is not finished", "refused": False}
        Path("out", JOBS, "loss-crps_seed-0.json").write_text(json.dumps(job))
        return run(*given)

    monkeypatch.setattr(commands, "run", beside_another_sweep)
    assert sweep("training_args.seed=0") == 0
    assert rows() == {"T5": 1}


def test_a_metric_of_ones_own_is_measured_reported_and_measured_again_when_it_was_edited(capsys):
    metric = "def share(texts, answers):\n    return {} * sum(map(bool, texts)) / len(answers)\n"
    Path("my_metrics.py").write_text(metric.format(1))
    own = ["training_args.seed=0", "evaluation.metrics=[my_metrics:share]"]
    best = ["training_args.metric_for_best_model=my_metrics:share", "training_args.greater_is_better=true"]
    assert sweep(*own, *best) == 0
    (run,), name = Path("out").glob("loss-ce*"), "my_metrics:share"
    assert results(run)["test"][name] == 1
    assert "| test share |" in Path("out/report/table.md").read_text()
    assert f'"validation, step 2",,{name},1.0' in Path("out/report/metrics.csv").read_text()
    Path("my_metrics.py").write_text(metric.format(0.5))
    del sys.modules["my_metrics"]
    assert sweep(*own, *best) == 0
    assert results(run)["test"][name] == 0.5
    assert sweep("training_args.seed=1", "evaluation.metrics=[my_metrics:none]") == 1
    assert "my_metrics:none" in capsys.readouterr().err
