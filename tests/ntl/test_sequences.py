"""Sequences of commands: no old number is given for a new one, and nothing of the user's is lost.

What was trained on other rows, files or code is never continued, finished or averaged.
"""

import json
import random
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from runs import compare, logged, main, predictions, results, train, written
from safetensors.torch import load_file, save_file
from tolerances import approx

import ntl.identity
from ntl import commands
from ntl.data import Example, fingerprint
from ntl.data.task import BY_SETTINGS
from ntl.identity import differing, hash_rows, identify
from ntl.layout import JOBS, LEARNED_ROWS
from ntl.own import digest_of_code, digest_of_source
from ntl.settings import compose_config

TINY = """
defaults: [compare, override dataset_args: tabular, _self_]
dataset_args:
  {file: t.csv, target: y, columns: [a, b], train_size: 60, validation_size: 6, test_size: 8}
model_args:
  {number_format: padded, config_overrides: {d_model: 16, d_kv: 8, d_ff: 16, num_layers: 1, num_heads: 2}}
training_args:
  {max_steps: 2, per_device_train_batch_size: 8, eval_steps: 2, save_steps: 2, use_cpu: true,
   lr_scheduler_type: constant, warmup_steps: 0}
"""


EVALUATED = ["training_args=eval", "training_args.output_dir=null", "model_args.config_overrides=null"]
OF_THE_SEED = ["dataset_args.data_seed=${training_args.seed}"]


def write_table(path, rows=80, factor=1, seed=0):
    draw = random.Random(seed)
    lines = [
        f"{i},{draw.randint(1, 99)},{draw.randint(1, 99)},{factor * draw.randint(100, 999)}"
        for i in range(rows)
    ]
    Path(path).write_text("\n".join(["id,a,b,y", *lines]), encoding="utf-8")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, no_figures):
    """Start each test in a folder with a table and a study of runs of two steps."""
    monkeypatch.chdir(tmp_path)
    write_table("t.csv")
    Path("study.yaml").write_text(TINY)
    return tmp_path


def sweep(*more, study="study.yaml"):
    return compare(study, "hydra/launcher=basic", "training_args.output_dir=out", *more)


def run(*more):
    """Train one run of the study."""
    return train("study.yaml", "training_args.output_dir=run", "training_args.seed=0", *more)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Train what many tests start from, once: a sweep over three losses."""
    archive = tmp_path_factory.mktemp("archive")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(archive)
        patch.setattr("ntl.report.figures.draw_figures", lambda *_: [])
        write_table("t.csv")
        Path("study.yaml").write_text(TINY)
        assert sweep("loss=ce,ntl_was,crps", "training_args.seed=0") == 0
        assert [*rows()] == ["T5", "T5 + NTL-WAS", "T5 + CRPS"]
    return archive


@pytest.fixture
def swept(folder, archive):
    """Return a function that puts finished runs of a sweep into `out`, with their report."""

    def put(*losses):
        for loss in losses:
            shutil.copytree(archive / f"out/loss-{loss}_seed-0", folder / f"out/loss-{loss}_seed-0")
        assert main(["report", "out", "--output", "out/report"]) == 0

    return put


@pytest.fixture
def finished(folder, archive):
    """Put a finished run into `run`: that of `run("loss=ce")`."""
    shutil.copytree(archive / "out/loss-ce_seed-0", folder / "run")


def rows():
    """The mean error of each row of the report."""
    table = pd.read_csv("out/report/metrics.csv")
    errors = table[(table["test"] == "test") & (table["metric"] == "mae")]
    return errors.groupby("row", sort=False)["value"].mean().to_dict()


def seeds_of(folder="out/report"):
    """The number of seeds of each row of a report."""
    table = pd.read_csv(f"{folder}/metrics.csv")
    return table.groupby("row", sort=False)["seed"].nunique().to_dict()


def test_refused_runs_are_in_no_report_and_no_contrast(swept):
    swept("ce", "ntl_was")
    assert [*rows()] == ["T5", "T5 + NTL-WAS"]
    Path("study.yaml").write_text(TINY.replace("max_steps: 2", "max_steps: 2, learning_rate: 0.01"))
    assert sweep("loss=ce,ntl_was", "training_args.seed=0") == 1
    assert not Path("out/report/table.md").exists()
    more = ["loss=ce,ntl_was,crps", "training_args.seed=0"]
    assert sweep(*more, "contrasts=[{of: crps, minus: ce}]") == 1
    assert [*rows()] == ["T5 + CRPS"]
    table = Path("out/report/table.md").read_text()
    assert table.count("training_args.learning_rate") == 2
    assert not Path("out/report/contrasts.csv").exists()


def test_a_table_says_which_settings_differ_between_its_rows(swept):
    swept("ce")
    Path("study.yaml").write_text(TINY.replace("max_steps: 2", "max_steps: 2, learning_rate: 0.01"))
    assert sweep("loss=crps", "training_args.seed=0") == 0
    assert (
        "training_args.learning_rate: 0.003 in T5; 0.01 in T5 + CRPS"
        in Path("out/report/table.md").read_text()
    )


def test_a_study_comes_before_the_shipped_files_of_its_name(capsys):
    Path("mine/loss").mkdir(parents=True)
    study = "defaults: [compare, _self_]\nloss: {weight: %s}\ntraining_args: {max_steps: 7}\n"
    Path("mine/noisy.yaml").write_text(study % 0.5)
    Path("mine/loss/ntl_was.yaml").write_text("defaults: [ce]\ncriterion: ntl_was\noptions: {squash: 2.0}\n")
    assert compare("mine/noisy.yaml", "--cfg", "job", "loss=ntl_was") == 0
    printed = capsys.readouterr().out
    assert "max_steps: 7" in printed
    assert "squash: 2.0" in printed
    Path("mine/noisy.yaml").rename("mine/compare.yaml")  # which it would extend itself
    assert compare("mine/compare.yaml", "--cfg", "job") == 2
    assert "mine/compare.yaml" in capsys.readouterr().err


def test_edited_code_of_ones_own_is_another_run(monkeypatch):
    monkeypatch.syspath_prepend(".")
    Path("edited_code.py").write_text("mine = 1\n")
    keys = ["dataset_args.load", "loss.criterion", "model_args.number_encoding"]
    config = compose_config(["dataset_args=own", *(f"{key}=edited_code:mine" for key in keys)], "compare")
    data = SimpleNamespace(source=None, digest="of rows")
    before, _ = identify(config, data)
    Path("edited_code.py").write_text("mine = 2\n")
    assert differing(before, identify(config, data)[0]) == [f"{key}.source" for key in keys]


@pytest.mark.parametrize(("found_in", "module"), [("flat", "mine_flat"), (".", "dotted.mine_dotted")])
def test_what_a_loss_of_ones_own_imports_from_its_folder_belongs_to_it(found_in, module, monkeypatch):
    package, file = module.rpartition(".")[::2]
    beside = Path(found_in, package)
    (beside / "parts").mkdir(parents=True)
    within = f"{package}." if package else ""
    for name, code in {
        f"{file}.py": f"from {within}helpers import scale\nimport torch, {within}parts\nloss = scale\n",
        "parts/__init__.py": "from .sums import total\n",
        "parts/sums.py": "total = sum\n",
        "helpers.py": "scale = 1\n",
        "unused.py": "scale = 1\n",
    }.items():
        (beside / name).write_text(code)
    monkeypatch.syspath_prepend(found_in)

    def digest():
        return digest_of_source("loss.criterion", f"{module}:loss")

    before = digest()
    (beside / "unused.py").write_text("scale = 2\n")
    assert digest() == before
    for name in ("helpers.py", "parts/sums.py"):
        (beside / name).write_text("scale = 2\n")
        assert digest() != before
        before = digest()


def test_what_all_models_before_a_run_have_learned_is_left_out_of_its_evaluations(folder, monkeypatch):
    write_table("t.csv", rows=240)
    assert run("loss=ce", "dataset_args.data_seed=0") == 0
    plain = "model_args.config_overrides=null"
    for number, name, before in ((1, "second", "run"), (2, "third", "second")):
        given = [f"model_args.model_name_or_path={before}", plain, f"training_args.output_dir={name}"]
        given.append(f"dataset_args.data_seed={number}")
        assert run(*given) == 0
    assert run(*given, "evaluation.name=again", "evaluation.samples=8") == 0
    learned = {row.question for seed in (0, 1) for row in _data(f"dataset_args.data_seed={seed}").train}
    shutil.rmtree("run")
    shutil.rmtree("second")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    alone = [f"dataset_args.file={folder}/t.csv", "dataset_args.data_seed=2", "evaluation.name=alone"]
    alone.append("model_args.model_name_or_path=../third")
    assert train("../study.yaml", *EVALUATED, *alone) == 0
    asked = [
        [row["question"] for test in ("validation", "test") for row in predictions("../third", test, name)]
        for name in ("test", "again", "alone")
    ]
    assert asked[0] == asked[1] == asked[2]
    assert 0 < len(asked[0]) < 14
    assert not learned & {*asked[0]}


def test_a_model_that_is_not_trained_has_learned_no_question():
    assert run("loss=ce", "training_args.max_steps=0") == 0
    other = ["model_args.model_name_or_path=run", "dataset_args.data_seed=5", "evaluation.name=other"]
    assert train("study.yaml", *EVALUATED, *other) == 0
    assert results("run", "other")["test"]["count"] == 8


def _data(*more):
    """Read the rows of the study's table, with more settings."""
    given = ["dataset_args=tabular", "dataset_args.file=t.csv", "dataset_args.target=y"]
    given += ["dataset_args.columns=[a,b]", "dataset_args.train_size=60"]
    given += ["dataset_args.validation_size=6", "dataset_args.test_size=8"]
    return compose_config([*given, *more], "compare").dataset_args.read()


def test_one_changed_label_among_many_changes_the_digest():
    examples = [Example(f"question {i}", str(i)) for i in range(30_000)]
    before = fingerprint(examples)
    examples[12_345] = examples[12_345]._replace(answer="0")
    assert fingerprint(examples) != before
    assert fingerprint([Example("a", "1", 2.0)]) != fingerprint([Example("a", "1", 3.0)])
    assert fingerprint([Example("a", "1", ratings=(1.0,))]) != fingerprint(
        [Example("a", "1", ratings=(2.0,))]
    )


@pytest.mark.parametrize("group", ["dataset_args.", "loss."])
def test_a_key_that_nothing_reads_is_an_error(group, capsys):
    assert run(f"+{group}tain_size=50") == 2  # Hydra would add it
    assert f"{group}tain_size" in capsys.readouterr().err


def test_a_report_into_the_folder_of_the_runs_counts_each_run_once(swept):
    swept("ce", "crps")
    for seeds in (1, 2):
        assert main(["report", "out", "--output", "out"]) == 0
        table = pd.read_csv("out/metrics.csv")
        assert table.groupby("row")["seed"].nunique().to_dict() == {"T5": seeds, "T5 + CRPS": 1}
        if seeds == 1:
            assert sweep("loss=ce", "training_args.seed=1") == 0
    for path in Path("out").glob("loss-ce*/test/metrics.json"):
        path.unlink()
    assert main(["report", "out", "--output", "out"]) == 0
    assert {*pd.read_csv("out/metrics.csv")["row"]} == {"T5 + CRPS"}


def test_a_run_keeps_its_place_when_it_is_repeated_or_evaluated_again(monkeypatch):
    with monkeypatch.context() as patch:  # the first loss fails at first
        patch.setattr("ntl.run.add_loss", lambda trainer, config: 1 / (config.loss.criterion is not None))
        assert sweep("loss=ce,ntl_was", "training_args.seed=0") == 1
    assert [*rows()] == ["T5 + NTL-WAS"]
    assert sweep("loss=crps,ce,ntl_was", "training_args.seed=0") == 0
    assert [*rows()] == ["T5", "T5 + NTL-WAS", "T5 + CRPS"]
    shutil.rmtree("out/loss-ntl_was_seed-0")
    assert sweep("loss=ntl_was", "training_args.seed=0") == 0
    assert [*rows()] == ["T5", "T5 + NTL-WAS", "T5 + CRPS"]
    again = ["model_args.model_name_or_path=out/loss-ce_seed-0", "evaluation.samples=8"]
    assert train("study.yaml", *EVALUATED, *again) == 0
    assert main(["report", "out", "--output", "out/report"]) == 0
    assert [*rows()] == ["T5", "T5 + NTL-WAS", "T5 + CRPS"]


def test_a_model_is_not_replaced_by_what_is_trained_from_it(finished, capsys):
    before = Path("run/model.safetensors").read_bytes()
    start = ["model_args.model_name_or_path=run", "model_args.config_overrides=null"]
    assert run("loss=crps", *start) == 2
    assert "training_args.output_dir" in capsys.readouterr().err
    assert Path("run/model.safetensors").read_bytes() == before


def test_a_run_is_trained_longer_where_its_rate_does_not_depend_on_the_steps(finished, capsys):
    config = Path("run/config.json")
    constant, linear = (
        config.read_text().replace('"constant"', f'"{kind}"') for kind in ("constant", "linear")
    )
    assert constant != linear
    config.write_text(linear)
    assert run("loss=ce", "training_args.lr_scheduler_type=linear", "training_args.max_steps=4") == 2
    assert "max_steps" in capsys.readouterr().err
    config.write_text(constant)
    (*_, first) = logged("run/checkpoint-2", "seconds")  # where training goes on
    assert run("loss=ce", "training_args.max_steps=4") == 0
    assert written("run")["steps"] == 4
    assert logged("run", "seconds")[-1] > first
    shutil.copytree("run", "longer")
    shutil.rmtree("run")
    assert run("loss=ce", "training_args.max_steps=4") == 0
    assert results("longer")["test"]["mae"] == approx(results("run")["test"]["mae"])
    assert run("loss=ce", "training_args.max_steps=3") == 2


def test_a_module_of_the_working_folder_does_not_hide_an_installed_one(folder, monkeypatch):
    Path("datasets.py").touch()
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as of `python -m ntl`
    assert Path(PathFinder.find_spec("datasets").origin) == folder / "datasets.py"
    assert train("study.yaml", "--cfg", "job") == 0
    assert Path(PathFinder.find_spec("datasets").origin).parent.name == "datasets"


def test_what_a_run_is_called_and_where_it_is_changes_nothing(tmp_path):
    data = _data()

    def identity(*overrides):
        return identify(compose_config(["dataset_args=tabular", *overrides], "compare"), data)

    same = ["training_args.output_dir=elsewhere", "training_args.logging_steps=7", "model_args.name=other"]
    same += ["training_args.use_cpu=true", "evaluation.name=again", "evaluation.batch_size=3"]
    assert identity(*same) == identity()
    answers = ["evaluation.beams=2", "dataset_args.max_new_tokens=3", "evaluation.read=[median]"]
    assert identity(*answers)[0] == identity()[0]
    assert identity(*answers)[1] != identity()[1]
    published = identity(
        "loss=from_model_args", "model_args=vanilla_t5_ntl", "model_args.model_name_or_path=null"
    )
    assert published[0] == identity("loss=ntl_mse")[0]
    for change in (
        "training_args.seed=1",
        "training_args.eval_steps=3",
        "evaluation.samples_during_training=9",
    ):
        assert identity(change)[0] != identity()[0]


@pytest.mark.parametrize(
    ("given", "unread"),
    [
        (["loss=ce"], ["loss.weight=0.9", "loss.options={squash: 2.0}"]),
        (
            ["model_args.model_name_or_path=base", "model_args.config_overrides=null"],
            ["model_args.config_name=t5-base"],
        ),
    ],
)
def test_what_nothing_reads_because_of_another_setting_changes_nothing(given, unread):
    data = _data()
    plain, other = (
        compose_config(["dataset_args=tabular", *given, *more], "compare") for more in ([], unread)
    )
    assert identify(other, data) == identify(plain, data)


def test_a_run_is_not_continued_from_other_weights(finished, capsys):
    Path("run").rename("base")
    tuned = ["loss=ce", "model_args.model_name_or_path=base", "model_args.config_overrides=null"]
    assert run(*tuned) == 0
    shutil.copytree("base", "copy")
    shutil.rmtree("base")
    assert run(*tuned) == 0  # it is finished, and needs its start no more
    shutil.copytree("copy", "base")
    assert run(*tuned) == 0
    weights = load_file("base/model.safetensors")
    save_file({key: weight + 1 for key, weight in weights.items()}, "base/model.safetensors")
    assert run(*tuned) == 2
    assert "model_args.model_name_or_path.source" in capsys.readouterr().err


def test_runs_on_several_datasets_are_in_one_folder():
    Path("study.yaml").write_text(
        TINY.replace("override dataset_args: tabular, ", "").replace(
            "file: t.csv, target: y, columns: [a, b], ", ""
        )
    )
    swept = ["dataset_args=tabular,noisy_regression", "loss=ce", "training_args.seed=0"]
    assert train("study.yaml", "hydra/launcher=basic", "-m", *swept) == 0
    assert train("-m", "study.yaml", "hydra/launcher=basic", *swept) == 0
    (report,) = Path("outputs").glob("*/sweep/report/metrics.csv")
    assert {*pd.read_csv(report)["dataset"]} == {"noisy_regression", "tabular"}


@pytest.mark.parametrize("more", [[], ["training_args.overwrite_output_dir=true"]])
def test_a_model_of_another_program_is_not_replaced(more, finished, capsys):
    for folder in ("run", "run/checkpoint-2"):
        config = Path(folder, "config.json")
        trained = config.read_text()
        config.write_text(json.dumps({**json.loads(trained), "ntl": {}}))
        before = Path(folder, "model.safetensors").read_bytes()
        assert run("loss=ce", *more) == 2
        assert f"{folder} holds a model" in capsys.readouterr().err
        assert Path(folder, "model.safetensors").read_bytes() == before
        config.write_text(trained)


@pytest.mark.parametrize(
    ("changed", "seeds"),
    [("data", OF_THE_SEED), pytest.param("data", [], marks=pytest.mark.slow), ("code", [])],
)
def test_runs_on_changed_data_or_code_are_refused_and_never_averaged_with_earlier_ones(
    changed, seeds, monkeypatch, capsys
):
    assert sweep("loss=ce", "training_args.seed=0", *seeds) == 0
    if changed == "data":
        write_table("t.csv", factor=10)
    else:
        monkeypatch.setattr(ntl.identity, "digest_of_code", lambda: "of another commit")
    for seed in (0, 1):  # which would be taken for finished, and averaged with the other
        assert sweep("loss=ce", f"training_args.seed={seed}", *seeds) == 1
        assert f"{changed} changed" in capsys.readouterr().err
    apart = ["training_args.output_dir=apart"]
    assert sweep("loss=ce", "training_args.seed=1", *seeds, *apart) == 0
    assert main(["report", "out", "apart", "--output", "both"]) == 0
    assert [*seeds_of("both").values()] == [1, 1]


def test_an_evaluation_of_a_changed_table_is_not_taken_for_the_runs_own(finished, capsys):
    honest = results("run")["test"]["mae"]
    write_table("t.csv", factor=3)
    other = ["training_args=eval", "model_args.model_name_or_path=run", "training_args.output_dir=null"]
    other.append("model_args.config_overrides=null")
    assert train("study.yaml", *other) == 2  # it would replace the run's own
    assert "evaluation.name" in capsys.readouterr().err
    assert train("study.yaml", *other, "evaluation.name=changed") == 0
    write_table("t.csv")
    assert run("loss=ce") == 0
    assert results("run")["test"]["mae"] == honest


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
    pd.read_csv("t.csv").assign(c=1).to_csv("wider.csv", index=False)
    pd.read_csv("t.csv").rename(columns={"a": "A"}).to_csv("renamed.csv", index=False)
    tasks = [_data(*more, "dataset_args.train_size=null") for more in ([], change)]
    known, again = (hash_rows([*task.train, *task.validation, *task.tests["test"]]) for task in tasks)
    assert np.isin(again, known).any(axis=1).all()


def test_a_copied_checkpoint_knows_the_rows_it_has_learned(capsys):
    assert train("study.yaml", "training_args.output_dir=out", "loss=ce") == 0
    learned = np.load(f"out/{LEARNED_ROWS}")
    # 60 rows, each known by its question, the cells of that and all cells; two questions are the same
    assert 170 < len(learned) <= 180
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


def test_a_comment_does_not_change_the_digest_of_the_code(tmp_path, monkeypatch):
    found = SimpleNamespace(submodule_search_locations=[tmp_path])
    monkeypatch.setattr("ntl.own.find_spec", lambda _: found)

    def digest(text):
        (tmp_path / "criteria.py").write_text(text)
        return digest_of_code.__wrapped__()

    first = digest("def loss(p):\n    return 2 * p\n")
    assert digest("def loss(p):\n    return 2 * p  # twice\n") == first
    assert digest("def loss(p):\n    return 3 * p\n") != first


def test_a_sweep_is_not_failed_by_the_runs_of_another_one_in_its_folder(monkeypatch):
    run = commands.run

    def beside_another_sweep(*given):
        job = {"sweep": 9e9, "job": 0, "latest": 9e9, "reason": "it is not finished"}
        Path("out", JOBS, "loss-crps_seed-0.json").write_text(json.dumps(job))
        return run(*given)

    monkeypatch.setattr(commands, "run", beside_another_sweep)
    assert sweep("loss=ce", "training_args.seed=0") == 0
    assert seeds_of() == {"T5": 1}


def test_a_metric_of_ones_own_is_measured_reported_and_measured_again_when_it_was_edited(capsys):
    metric = "def share(texts, answers):\n    return {} * sum(map(bool, texts)) / len(answers)\n"
    Path("my_metrics.py").write_text(metric.format(1))
    own = ["training_args.seed=0", "evaluation.metrics=[my_metrics:share]"]
    best = ["training_args.metric_for_best_model=my_metrics:share", "training_args.greater_is_better=true"]
    assert sweep("loss=ce", *own, *best) == 0
    (run,), name = Path("out").glob("loss-ce*"), "my_metrics:share"
    assert results(run)["test"][name] == 1
    assert "| test share |" in Path("out/report/table.md").read_text()
    assert f'"validation, step 2",,{name},1.0' in Path("out/report/metrics.csv").read_text()
    Path("my_metrics.py").write_text(metric.format(0.5))
    del sys.modules["my_metrics"]
    assert sweep("loss=ce", *own, *best) == 0
    assert results(run)["test"][name] == 0.5
    assert sweep("loss=ce", "training_args.seed=1", "evaluation.metrics=[my_metrics:none]") == 1
    assert "my_metrics:none" in capsys.readouterr().err
