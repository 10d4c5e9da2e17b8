"""`ntl predict` and `ntl.load`, with models that learn nothing: only what is done with them matters."""

import csv
import io
import json
import math
import os
import re
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from tolerances import approx

import ntl
import ntl.answers
from ntl.cli import main
from ntl.data import Example
from ntl.data.files import only_writer
from ntl.errors import UserError
from ntl.predictor import PREDICTED, Margin
from ntl.train import main as train

SMALL = (
    "training_args.max_steps=2",
    "training_args.per_device_train_batch_size=8",
    "training_args.per_device_eval_batch_size=4",
    "training_args.eval_steps=2",
    "training_args.lr_scheduler_type=constant",
    "training_args.use_cpu=true",
    "dataset_args=tabular",
    "dataset_args.validation_size=20",
    "dataset_args.test_size=4",
    "evaluation.beams=1",
    "model_args.model_name_or_path=null",
    "model_args.config_name=t5-tiny",
    "model_args.config_overrides={d_model: 16, d_kv: 8, d_ff: 16, num_layers: 1, num_heads: 2}",
)
DATES = [f"2026-{month:02}-{day:02}" for month in (1, 2, 3) for day in range(1, 21)]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write a table of dates, quotes, missing values and letters of other alphabets."""
    rows = {
        "when": DATES,
        "note": ['said "no", twice', "Ærø\nsecond line", "日本", None, "plain"] * 12,
        "size": [1.5, None, 2000.0833, 7, -3] * 12,
        "y": range(10, 70),
        "lat": [47.5, -12.0, 0.1] * 20,
        "lon": [8.5, -170.2, 99.9] * 20,
    }
    path = tmp_path_factory.mktemp("data") / "table.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def trained(table, folder, *overrides):
    cache = f"dataset_args.cache_dir={folder}/cache"
    given = [
        *SMALL,
        f"dataset_args.file={table}",
        f"training_args.output_dir={folder}/run",
        cache,
        *overrides,
    ]
    assert train(given) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    """Train a run whose question has a date, a text and a number."""
    chosen = ("dataset_args.target=y", "dataset_args.columns=[when,note,size]")
    return trained(table, tmp_path_factory.mktemp("run"), *chosen, "model_args.number_format=padded")


@pytest.fixture
def new(table, tmp_path):
    """Write new rows."""
    rows = pd.read_csv(table).drop(columns=["y", "lat", "lon"]).head(10)
    rows.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


def predict(capsys, *arguments):
    capsys.readouterr()
    code = main(["predict", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, " ".join(printed.err.split())


def test_a_run_answers_new_rows_with_medians_and_intervals(run, new, capsys):
    code, out, _ = predict(capsys, run, f"data={new}")
    assert code == 0
    found = pd.read_csv(io.StringIO(out))
    rows = pd.read_csv(new)
    assert found[[*rows]].equals(rows)
    assert [*found] == [*rows, *PREDICTED]
    assert (found["lower"] <= found["median"]).all()
    assert (found["median"] <= found["upper"]).all()
    assert found["number_probability"].between(0, 1).all()
    assert found["greedy"].between(0, 99).all()  # two digits, as in the training answers


def test_a_column_that_has_the_name_of_a_prediction_is_kept(run, new, tmp_path, capsys):
    rows = pd.read_csv(new).assign(median=range(10))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    output = tmp_path / "answers.csv"
    code, _, err = predict(capsys, run, f"data={tmp_path}/rows.csv", f"output={output}", "truth=median")
    found = pd.read_csv(output)
    assert (code, [*found][-5:]) == (0, ["greedy", "predicted_median", *PREDICTED[2:]]), err
    assert found["median"].tolist() == [*range(10)]
    error = (found["predicted_median"] - found["median"]).abs().mean()
    assert f"median {error:.4g} · greedy" in err


def test_python_and_the_command_give_the_same_answers_by_index(run, new, capsys):
    _, out, _ = predict(capsys, run, f"data={new}", "level=0.5")
    rows = pd.read_csv(new).set_axis(range(100, 110))
    found = ntl.load(run).predict(rows, level=0.5, progress=True)
    assert found.index.tolist() == rows.index.tolist()
    for name in ("greedy", "median", "lower", "upper"):
        assert found[name].tolist() == pd.read_csv(io.StringIO(out))[name].tolist()
    wide = ntl.load(str(run)).predict(rows.to_dict("records"))
    assert (wide["upper"] - wide["lower"]).sum() > (found["upper"] - found["lower"]).sum()


def test_calibrated_intervals_hold_their_share_of_the_validation_answers(run, table):
    model = ntl.load(run)
    validation = ntl.predictor.load_task(model.data).validation
    rows = pd.read_csv(table)
    rows = rows[rows["y"].isin([int(example.answer) for example in validation])]
    with pytest.warns(UserWarning, match="20 validation rows: the margin is uncertain"):
        found = model.predict(rows, level=0.6, calibrate=True)
    covered = (found["lower"] <= rows["y"]) & (rows["y"] <= found["upper"])
    assert covered.mean() >= 0.6
    with pytest.raises(UserError, match=r"20 validation rows are too few .* expected at least 99 rows"):
        model.predict(rows, level=0.99, calibrate=True)


@pytest.mark.parametrize(
    ("margin", "ends", "said"),
    [
        (1.5, (28.0, 62.0), "the intervals are widened by 1.5 at each end"),  # to what two digits write
        (2.0, (28.0, 62.0), "the intervals are widened by 2 at each end"),
        (278.0, (0.0, 99.0), "the intervals are widened by 278 at each end"),  # two digits, no sign
        (-3.0, (33.0, 57.0), "the intervals are narrowed by 3 at each end"),
        (-278.0, (40.0, 40.0), "the intervals are narrowed by 278 at each end"),  # to the median
    ],
)
def test_calibration_moves_the_ends_no_further_than_answers_go(
    run, new, capsys, monkeypatch, margin, ends, said
):
    monkeypatch.setattr(ntl.predictor, "interval_margin", lambda *_: margin)
    monkeypatch.setattr(ntl.predictor, "FEW_ROWS", 20)
    read = SimpleNamespace(values=torch.tensor([[30.0, 60.0, 40.0]] * 4), starts=torch.ones(4))

    def answered(self, model, questions, *_):
        few = SimpleNamespace(values=read.values[: len(questions)], starts=read.starts[: len(questions)])
        return ["40"] * len(questions), few

    monkeypatch.setattr("ntl.approaches.language_model.LanguageModel.read", answered)
    _, out, err = predict(capsys, run, f"data={new}", "calibrate=true")
    found = pd.read_csv(io.StringIO(out))
    assert found[["lower", "upper"]].drop_duplicates().to_numpy().tolist() == [[*ends]]
    assert said in err
    assert "uncertain" not in err
    monkeypatch.setattr(ntl.predictor, "FEW_ROWS", 21)
    assert (
        "ntl predict: 20 validation rows: the margin is uncertain"
        in predict(capsys, run, f"data={new}", "calibrate=true")[2]
    )


@pytest.mark.parametrize(
    ("truths", "margin"),
    [([1, 1, 1, 2, 2, 3, 5, 8, 20, 100], Margin(math.log(10), True)), ([8.0] * 9 + [12.0], Margin(2.0))],
)
def test_the_ends_of_long_tailed_answers_are_moved_by_a_factor(run, monkeypatch, truths, margin):
    model = ntl.load(run)
    found = pd.DataFrame({"lower": [0.0] * 10, "median": [5.0] * 10, "upper": [10.0] * 10})
    monkeypatch.setattr(ntl.predictor.Predictor, "_validation", lambda *_: (found, truths))
    with pytest.warns(UserWarning, match="uncertain"):
        found_margin = model.margin(0.9)
    assert found_margin.by_factor == margin.by_factor
    assert found_margin.size == approx(margin.size)
    moved = ntl.predictor.moved(model.approach, *(np.array([end]) for end in (2.0, 5.0, 9.0)), margin)
    assert [*moved.values()] == ([[0.0], [90.0]] if margin.by_factor else [[0.0], [11.0]])


def test_intervals_that_end_at_zero_are_calibrated_by_a_factor_too(run, monkeypatch):
    truths = np.exp(np.linspace(0.5, 5, 99))
    zeros = pd.DataFrame({"lower": np.zeros(99), "median": np.zeros(99), "upper": np.zeros(99)})
    monkeypatch.setattr(ntl.predictor.Predictor, "_validation", lambda *_: (zeros, truths.tolist()))
    margin = ntl.load(run).margin(0.9)
    lower, upper = margin.move(zeros["lower"], zeros["upper"])
    assert margin.by_factor
    assert ((lower <= truths) & (truths <= upper)).mean() == approx(90 / 99)


def test_the_run_answers_its_validation_rows_once(run, monkeypatch):
    model = ntl.load(run)
    held = model.run.evaluation("test")
    known = [p._replace(lower=20.0, median=30.0, upper=40.0) for p in held.predictions("validation")]
    monkeypatch.setattr("ntl.training.run_folder.EvaluationFolder.predictions", lambda *_: known)
    with monkeypatch.context() as unused:
        unused.setattr(ntl.predictor.Predictor, "batches", None)
        found, truths = model._validation(0.9)
    assert (len(found), truths) == (20, [p.true for p in known])
    del known[7:]  # evaluation.samples=7
    model.generation = replace(model.generation, samples=7)
    found, truths = model._validation(0.9)
    assert len(found) == len(truths) == 20


def test_a_report_and_a_copy_of_a_run(run, tmp_path):
    model = ntl.load(run)
    report = model.report
    assert [*report.index] == ["validation", "test"]
    assert report.loc["test", "rows"] == 4
    assert report[["greedy", "constant"]].notna().all(axis=None)
    model.save(tmp_path / "copy")
    assert ntl.load(tmp_path / "copy").report.equals(report)
    with pytest.raises(UserError, match="a folder that does not exist"):
        model.save(tmp_path)


def test_intervals_of_answers_that_are_not_numbers_cannot_be_calibrated(run, new, monkeypatch):
    data = SimpleNamespace(validation=[Example("1.0", "3/4")])
    monkeypatch.setattr(ntl.predictor, "load_task", lambda settings: data)
    with pytest.raises(UserError, match=r"'3/4' is not a single number; calibrate=true .* omit calibrate"):
        ntl.load(run).predict(pd.read_csv(new), calibrate=True)


def test_an_interrupted_output_is_continued_from_its_last_whole_row(run, new, tmp_path, capsys, monkeypatch):
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    assert predict(capsys, run, f"data={new}", f"output={whole}")[0] == 0
    text = whole.read_text()
    for place in (0, 20, text.index("Ærø") + 5, len(text) // 2, len(text) - 3, len(text)):
        cut.write_text(text[:place])
        code, _, err = predict(capsys, run, f"data={new}", f"output={cut}")
        assert (code, cut.read_text() == text) == (0, True), place
    assert "10 of 10 rows are in" in err
    cut.unlink()
    batches = ntl.predictor.Predictor.answer
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batches(*arguments)

    monkeypatch.setattr(ntl.predictor.Predictor, "answer", interrupted)
    code, _, err = predict(capsys, run, f"data={new}", f"output={cut}")
    assert code == 130
    assert "the same command continues" in err
    assert len(pd.read_csv(cut)) == 4  # a batch
    code, _, err = predict(capsys, run, f"data={new}", f"output={cut}")
    assert "4 of 10 rows" in err
    assert cut.read_text() == text


@pytest.mark.parametrize("kind", ["continued", "device"])
def test_scores_and_advice_are_of_all_rows(kind, run, table, tmp_path, capsys, monkeypatch):
    def none(self, questions, *_):
        row = {"greedy": math.nan, "median": 5.0, "lower": 1.0, "upper": 50.0}
        return pd.DataFrame([row] * len(questions))

    monkeypatch.setattr(ntl.predictor.Predictor, "answer", none)
    pd.read_csv(table).head(10).to_csv(tmp_path / "rows.csv", index=False)
    given = (run, f"data={tmp_path}/rows.csv", "truth=y")
    output = os.devnull if kind == "device" else tmp_path / "out.csv"
    if kind == "continued":
        predict(capsys, *given, f"output={output}")
        output.write_text(output.read_text()[:-20])  # without its last row
    code, _, err = predict(capsys, *given, f"output={output}")
    assert code == 0
    for line in ("10 of 10 answers are no numbers", "10 of 10 intervals span", "10 rows, MAE: median 9.5"):
        assert line in err


def test_an_output_of_other_rows_or_options_is_left_alone(run, new, tmp_path, capsys):
    output = tmp_path / "out.csv"
    assert predict(capsys, run, f"data={new}", f"output={output}")[0] == 0
    before = output.read_text()
    other = tmp_path / "other.csv"
    pd.read_csv(new).iloc[::-1].to_csv(other, index=False)
    for options in ([f"data={other}"], [f"data={new}", "level=0.2"], [f"data={new}", "level=none"]):
        code, _, err = predict(capsys, run, *options, f"output={output}")
        assert code == 2
        assert "Choose another file, or remove this one." in err
    assert output.read_text() == before


def test_standard_input_is_read_as_a_table_or_as_texts(table, tmp_path_factory, capsys, monkeypatch):
    folder = tmp_path_factory.mktemp("prompted")
    run = trained(table, folder, "dataset_args.target=y", r'dataset_args.prompt="{when}\nSize: "')
    monkeypatch.setattr("sys.stdin", io.StringIO('when,text\n"a, b",1\nc,2\n'))
    code, out, _ = predict(capsys, run, "data=-")
    found = pd.read_csv(io.StringIO(out))
    assert found["when"].tolist() == ["a, b", "c"]
    assert [*found] == ["when", "text", *PREDICTED]
    monkeypatch.setattr("sys.stdin", io.StringIO("a, b\n\nc\n"))
    code, out, _ = predict(capsys, run, "-")
    texts = pd.read_csv(io.StringIO(out))
    found = found.drop(columns="text")
    assert [*texts] == [*found]
    numbers = texts.select_dtypes("number")
    assert numbers.to_numpy() == approx(found[[*numbers]].to_numpy())
    assert texts.drop(columns=[*numbers]).equals(found.drop(columns=[*numbers]))
    number = re.escape(f"{texts['median'][0]:g}")
    code, out, _ = predict(capsys, run, "text=a, b")
    assert (code, bool(re.fullmatch(rf"{number}, \S+ to \S+ \(90 %\)\n", out))) == (0, True), out
    assert predict(capsys, run, "text=a, b", "level=none")[1] == "no number\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "no lines on standard input" in predict(capsys, run, "-")[2]


def test_a_column_that_was_empty_in_training_may_have_values_later(table, tmp_path, capsys):
    rows = pd.read_csv(table)[["when", "y"]].assign(later=None)
    rows.to_csv(tmp_path / "table.csv", index=False)
    run = trained(tmp_path / "table.csv", tmp_path, "dataset_args.target=y")
    rows.head(2).assign(later=["12", "soon"]).to_csv(tmp_path / "new.csv", index=False)
    code, out, err = predict(capsys, run, f"data={tmp_path}/new.csv", "level=none")
    assert (code, len(pd.read_csv(io.StringIO(out)))) == (0, 2), err


@pytest.mark.parametrize("head", ["regression", "several"])
def test_models_without_a_distribution_say_that_there_is_no_interval(head, table, tmp_path, capsys):
    given = ["dataset_args.target=y", "model_args=vanilla_t5_regression_head", *SMALL[-3:]]
    if head == "several":
        given = ["dataset_args.target=[lat,lon]"]
    run = trained(table, tmp_path, "dataset_args.columns=[when,note]", *given)
    rows = pd.read_csv(table).head(2)[["when", "note"]]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    code, out, err = predict(capsys, run, f"data={tmp_path}/rows.csv")
    expected = {"regression": ["greedy"], "several": ["lat", "lon"]}[head]
    assert (code, [*pd.read_csv(io.StringIO(out))]) == (0, ["when", "note", *expected])
    assert "no interval" in err
    for options in ("level=0.9", "calibrate=true", *(["truth=note"] if head == "several" else [])):
        code, _, err = predict(capsys, run, f"data={tmp_path}/rows.csv", options)
        assert code == 2
        assert "Omit" in err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("when,size\n2026-01-01,2\n", "has no column 'note', .* expected the columns when, note, size"),
        (
            "when,note,size\n2026-01-01,x,2\n2026-01-02,y,two\n",
            "row 2 of the table: 'size' is 'two'; expected a",
        ),
        ("when,note,size\n", "has no rows"),
        ("", "has no rows"),
        ("when,note,size\n1,2,3,4\n", "line 2: the row has 4 fields"),
        (
            "when,note,size,median,predicted_median\n1,2,3,4,5\n",
            "has the columns 'median' and 'predicted_median'",
        ),
    ],
)
def test_a_table_that_cannot_be_answered_is_an_error(run, tmp_path, capsys, text, complaint):
    (tmp_path / "new.csv").write_text(text)
    code, _, err = predict(capsys, run, f"data={tmp_path}/new.csv")
    assert code == 2
    assert pd.Series([err]).str.contains(complaint).item(), err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["RUN"], "given neither"),
        (["text=a"], "'text=a' is given where the model is expected. Pass the folder of a run first"),
        (["-"], "'-' is given where the model is expected"),
        (["RUN", "text=a", "data=b"], "given both"),
        (["RUN", "txt=a"], "'txt=a' cannot be read; expected one of data="),
        (["RUN", "text=a", "digits=2", "format=00"], "digits=N and format=FORM both say"),
        (["RUN", "text=a", "level=90"], "level=90 cannot be used; expected a number above 0 and below 1"),
        (["RUN", "text=a", "calibrate=yes"], "expected true, false, or a table together with truth=COLUMN"),
        (["RUN", "text=a"], "the question has the columns when, note, size; expected rows"),
        (["RUN", "text=a", "prompt={a}"], "is a run, which has its own prompt"),
        (["nowhere", "text=a"], "there is no nowhere"),
    ],
)
def test_options_that_cannot_be_used_are_errors(run, tmp_path, capsys, arguments, complaint):
    if "columns" in complaint:  # a prompt of several columns
        model = ntl.load(run)
        model.data.prompt = "{when} {note} {size}"
        with pytest.raises(UserError, match=complaint):
            model.predict(["a"])
        return
    code, _, err = predict(capsys, *(run if each == "RUN" else each for each in arguments))
    assert code == 2
    assert complaint in err


def test_rows_of_other_types_are_errors(run):
    model = ntl.load(run)
    for rows in ("a text", 5, ["a", {"b": 1}], {"when": 1}):
        with pytest.raises(UserError, match="neither a DataFrame nor a list"):
            model.predict(rows)
    with pytest.raises(UserError, match="no rows"):
        model.predict([])
    with pytest.raises(AttributeError, match="nothing"):
        ntl.nothing  # noqa: B018


def test_a_run_of_an_older_version_is_read_with_the_defaults_of_newer_keys(run, tmp_path):
    held = json.loads((run / "run.json").read_text())
    shutil.copytree(run, tmp_path / "old")
    newer = {"weights": ["lora", "state_cache_gb"], "evaluation": ["name", "read"]}
    newer |= {"model_args": ["separator", "head_loss"], "dataset_args": ["longest", "group_by"]}
    for section, keys in newer.items():
        for key in keys:
            del held["config"][section][key]
    del held["config"]["loss"]
    held["config"]["training_args"] |= {"trained_layers": None, "lora": 4}  # where they once were
    (tmp_path / "old/run.json").write_text(json.dumps(held))
    rows = [{"when": "2026-01-01", "note": "x", "size": 2}]
    found, expected = (ntl.load(folder).predict(rows) for folder in (tmp_path / "old", run))
    assert found.to_numpy() == approx(expected.to_numpy())
    for config in ({}, {"model_args": {"family": "t5"}}):
        (tmp_path / "old/run.json").write_text(json.dumps({**held, "config": config}))
        with pytest.raises(UserError, match=r"run\.json"):
            ntl.load(tmp_path / "old")


def test_whole_numbers_beside_gaps_keep_their_digits(run):
    table = ntl.load(run).table([{"size": 9007199254740993}, {"size": None}])
    assert table["size"][0] == "9007199254740993"


def test_whole_predictions_are_integers_only_where_these_hold_them(run, monkeypatch):
    answers = pd.DataFrame({"greedy": [1e20], "median": [12.0]})
    monkeypatch.setattr(ntl.predictor.Predictor, "answer", lambda *_: answers)
    found = ntl.load(run).predict([{"when": "2026-01-01", "note": "x", "size": 2}])
    assert found.dtypes.astype(str).tolist() == ["float64", "int64"]
    assert found["greedy"].item() == approx(1e20)


def test_a_whole_output_of_written_numbers_or_texts_is_recognized(run, new, tmp_path, capsys, monkeypatch):
    for place, answer in enumerate(["12", "", "None", 'a "b",\r\nc', "a\rb"]):

        def written(self, questions, *_, answer=answer):
            return pd.DataFrame({"written": [answer for _ in questions], "greedy": 1.5})

        monkeypatch.setattr(ntl.predictor.Predictor, "answer", written)
        output = tmp_path / f"{place}.csv"
        assert predict(capsys, run, f"data={new}", f"output={output}")[0] == 0
        before = output.read_bytes()
        assert len(pd.read_csv(output)) == 10
        code, _, err = predict(capsys, run, f"data={new}", f"output={output}")
        assert (code, "10 of 10 rows are in" in err) == (0, True), (answer, err)
        assert output.read_bytes() == before


def test_an_output_that_ends_inside_a_character_or_has_windows_line_breaks_is_continued(
    run, new, tmp_path, capsys
):
    new.write_bytes(new.read_bytes().replace("Ærø\n".encode(), "Ærø\r\n".encode()))
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    assert predict(capsys, run, f"data={new}", f"output={whole}")[0] == 0
    content = whole.read_bytes()
    for place in (content.index("日".encode()) + 1, len(content)):
        cut.write_bytes(content[:place])
        assert predict(capsys, run, f"data={new}", f"output={cut}")[0] == 0
        assert cut.read_bytes() == content


def test_an_output_with_a_very_long_text_is_continued(run, new, tmp_path, capsys):
    limit = csv.field_size_limit()
    rows, output = tmp_path / "new.jsonl", tmp_path / "out.csv"
    table = pd.read_csv(new)
    table["unused"] = "long, " * limit
    table.to_json(rows, orient="records", lines=True)
    assert predict(capsys, run, f"data={rows}", f"output={output}")[0] == 0
    whole = output.read_text()
    for place in (len(whole), len(whole) - 3, whole.index("long") + limit + 5):
        output.write_text(whole[:place])
        code, _, err = predict(capsys, run, f"data={rows}", f"output={output}")
        assert (code, output.read_text() == whole) == (0, True), err[-500:]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("kind", ["fifo", "descriptor"])
def test_an_output_may_be_a_pipe(kind, run, new, tmp_path, capsys):
    if kind == "fifo":
        path = tmp_path / "pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    else:  # as /dev/stdout
        reader, writer = os.pipe()
        path = f"/dev/fd/{writer}"
    before = {*tmp_path.iterdir()}
    expected = predict(capsys, run, f"data={new}")[1]
    assert predict(capsys, run, f"data={new}", f"output={path}")[0] == 0
    assert os.read(reader, 1 << 16).decode() == expected
    assert {*tmp_path.iterdir()} == before


def test_an_output_has_one_writer_at_a_time(run, new, tmp_path, capsys):
    output, link = tmp_path / "out.csv", tmp_path / "link.csv"
    link.symlink_to(output)
    with only_writer(tmp_path / ".out.csv.lock", "a file"):
        for given in (output, link):
            code, _, err = predict(capsys, run, f"data={new}", f"output={given}")
            assert (code, f"output={given} is being written by another process" in err) == (2, True)
            assert not output.exists()
    assert predict(capsys, run, f"data={new}", f"output={link}")[0] == 0
    assert len(pd.read_csv(output)) == 10
    assert {path.name for path in tmp_path.iterdir()} == {"new.csv", "out.csv", "link.csv"}


@pytest.mark.parametrize("kind", ["a note", "a folder"])
def test_an_output_that_is_something_else_is_left_alone(kind, run, new, tmp_path, capsys):
    output = tmp_path / "output"
    if kind == "a folder":
        output.mkdir()
    else:
        output.write_text("remember the milk")
    code, _, err = predict(capsys, run, f"data={new}", f"output={output}")
    assert code == 2
    assert f"output={output}" in err
    assert output.is_dir() or output.read_text() == "remember the milk"


def test_a_prompt_is_also_written_around_a_column_called_question(table, tmp_path):
    pd.read_csv(table).rename(columns={"when": "question"}).to_csv(tmp_path / "renamed.csv", index=False)
    prompt = r'dataset_args.prompt="{question}\nSize: "'
    run = trained(tmp_path / "renamed.csv", tmp_path, "dataset_args.target=y", prompt)
    model = ntl.load(run)
    assert model.questions(model.table(["a"])) == ["a\nSize: "]
    assert model.questions(model.table([{"question": "a"}])) == ["a\nSize: "]
    with pytest.raises(UserError, match="names no column"):
        ntl.load(tmp_path, prompt="Size: ")


def test_only_plain_texts_are_whole_questions(table, tmp_path, capsys):
    pd.read_csv(table).rename(columns={"when": "question"}).to_csv(tmp_path / "renamed.csv", index=False)
    columns = ["dataset_args.columns=[question,note]", "dataset_args.names=true"]
    run = trained(tmp_path / "renamed.csv", tmp_path, "dataset_args.target=y", *columns)
    model = ntl.load(run)
    assert model.questions(model.table(["a, note: b, y: "])) == ["a, note: b, y: "]
    for rows in ([{"question": "a"}], pd.DataFrame({"question": ["a"]})):
        with pytest.raises(UserError, match="the table has no column 'note'"):
            model.predict(rows)
    (tmp_path / "rows.csv").write_text("question\na\n")
    code, _, err = predict(capsys, run, f"data={tmp_path}/rows.csv")
    assert (code, "the table has no column 'note'" in err) == (2, True)


def test_a_folder_around_runs_is_an_error_that_names_one(run, capsys):
    code, _, err = predict(capsys, run.parent, "text=a")
    assert code == 2
    assert "expected a folder that `ntl fit`, `ntl train` or `ntl compare` wrote" in err
    assert f"It contains runs, such as {run}." in err


def test_standard_input_may_begin_with_a_byte_order_mark(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffwhen,note,size\n2026-01-01,x,2\n"))
    code, out, _ = predict(capsys, run, "data=-")
    assert (code, out.splitlines()[1][:10]) == (0, "2026-01-01")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"when\n\xe9\n"), "utf-8"))
    code, _, err = predict(capsys, run, "data=-")
    assert code == 2
    assert "expected UTF-8" in err


def test_a_closed_pipe_ends_the_output_quietly(run, new, capfd, monkeypatch):
    def closed(*_):
        raise BrokenPipeError

    monkeypatch.setattr(ntl.answers, "write_predictions", closed)
    monkeypatch.setattr(ntl.answers, "discard_output", lambda: 141)
    assert predict(capfd, run, f"data={new}")[0] == 141


def test_duplicate_columns_and_impossible_levels_are_errors_in_python(run, new):
    model, rows = ntl.load(run), pd.read_csv(new)
    with pytest.raises(UserError, match="two columns 'when'"):
        model.predict(rows[["when", "when", "note", "size"]])
    for level in (90, -0.1, 1):
        with pytest.raises(UserError, match="above 0 and below 1"):
            model.predict(rows, level=level)
