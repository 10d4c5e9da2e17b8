"""`ntloss fit` and `ntloss predict` on files, with a tiny model."""

import io
import json
import os
import pathlib
import shlex
import shutil
import sys

import pandas as pd
import pytest
from regression_cases import reviews, rooms, save_tiny_model

from ntloss.cli import main
from ntloss.regression import program
from ntloss.regression.estimator import NumberRegressor


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def run(tiny, tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return its exit code, and what it printed and complained of."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        options = ("--model", tiny, "--epochs", "1") if words[0] == "fit" else ()
        code = main([*words, *options])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def fitted(tiny, tmp_path_factory):
    """A folder that fit has written, and its table; tests of predict only read it."""
    folder = tmp_path_factory.mktemp("fitted")
    table = write_reviews(str(folder / "reviews.csv"))
    options = ("--target", "stars", "--output", str(folder / "model"), "--model", tiny, "--epochs", "1")
    assert main(["fit", table, *options]) == 0
    return str(folder / "model"), pd.read_csv(table, dtype=str)


def write_reviews(path="reviews.csv", count=80, seed=0):
    texts, stars = reviews(count, seed)
    pd.DataFrame({"text": texts, "stars": stars}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("count", [80, 30])
def test_the_command_that_fit_prints_predicts_with_intervals_if_there_are_enough_rows(run, count):
    table = pd.read_csv(write_reviews(count=count)).rename(columns={"stars": "my stars"})
    table.to_csv("reviews.csv", index=False)
    code, printed, _ = run("fit", "reviews.csv", "--target", "my stars")
    assert (code, "NumberRegressor" in printed, "{}" in printed) == (0, True, False)
    assert not [*pathlib.Path("reviews-my stars").glob("checkpoint*")]
    command = shlex.split(printed.splitlines()[-1].partition("ntloss ")[2].partition(" >")[0])
    table.to_csv("NEW.csv", index=False)
    code, printed, complaints = run(*command, "--truth", "my stars")
    found = pd.read_csv(io.StringIO(printed))
    assert (code, [*found.columns]) == (0, ["text", "my stars", "prediction", "lower", "upper"])
    assert (f"{count} rows" in complaints, "nan" in complaints) == (True, False)
    assert found["prediction"].notna().all()
    assert found[["lower", "upper"]].isna().all(axis=None) == (count == 30)
    _, printed, _ = run(*command, "--level", "0.5")
    narrow = pd.read_csv(io.StringIO(printed))
    assert ((narrow.lower <= narrow.prediction) & (narrow.prediction <= narrow.upper)).all()


def test_an_interrupted_command_goes_on_when_it_is_repeated(run, monkeypatch):
    write_reviews()
    fit = NumberRegressor.fit

    def interrupted(self, *rows):
        fit(self, *rows)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(NumberRegressor, "fit", interrupted)
        assert run("fit", "reviews.csv", "--target", "stars")[0] == 130
    code, printed, _ = run("fit", "reviews.csv", "--target", "stars")
    assert code == 0
    assert "continued" in printed


def test_a_folder_of_other_files_or_a_finished_model_is_refused_and_left_as_it_is(
    run, tiny, fitted, tmp_path
):
    folder, _ = fitted
    shutil.copytree(tiny, "base")
    write_reviews()
    for given in ("base", folder):
        weights = (tmp_path / given / "model.safetensors").read_bytes()
        code, _, complaint = run("fit", "reviews.csv", "--target", "stars", "--output", given)
        assert (code, f"--output {given}" in complaint) == (2, True)
        assert (tmp_path / given / "model.safetensors").read_bytes() == weights
    (tmp_path / "empty").mkdir()
    assert run("fit", "reviews.csv", "--target", "stars", "--output", "empty")[0] == 0


@pytest.fixture
def asked(monkeypatch):
    """What `ntloss fit` gives to `NumberRegressor.fit`."""
    rows, fit = [], NumberRegressor.fit
    monkeypatch.setattr(NumberRegressor, "fit", lambda self, x, y: (rows.append((x, y)), fit(self, x, y))[1])
    return rows


@pytest.fixture
def written(monkeypatch):
    """The questions that models are asked."""
    texts, read = [], NumberRegressor._read_texts
    monkeypatch.setattr(
        NumberRegressor,
        "_read_texts",
        lambda self, asked, *options: (texts.extend(asked), read(self, asked, *options))[1],
    )
    return texts


def test_predict_reads_gaps_and_decimals_as_fit_was_told_to(run, written):
    table, prices = rooms(60)
    table["size"] = table["size"].fillna(-999).astype(int)
    table.assign(price=[f"{1 + price / 1000:.3f}" for price in prices]).to_csv("rooms.csv", index=False)
    options = ("--missing", "-999", "--decimal", ",")
    assert run("fit", "rooms.csv", "--target", "price", *options)[0] == 0
    table[:3].assign(size=["-999", "?", "NA"], price=["1.500", "", "-999"]).to_csv("new.csv", index=False)
    written.clear()
    code, printed, complaints = run("predict", "rooms-price", "new.csv", "--truth", "price")
    assert (code, "1 row with a true answer" in complaints) == (0, True)
    assert [", size: unknown, " in text for text in written] == [True] * 3
    predicted = pd.read_csv(io.StringIO(printed))["prediction"][0]
    assert f"{abs(predicted - 1500):.3g};" in complaints


@pytest.mark.parametrize("by", [None, "built", "size"])
def test_dates_and_numbers_sort_the_rows_and_dates_are_pointed_out(run, asked, by):
    table, prices = rooms(60)
    table = table.rename(columns={"built": "Execution Date"}).assign(price=prices.where(table["id"] % 9 != 0))
    table.sample(frac=1, random_state=0).to_parquet("rooms.parquet")
    by = "Execution Date" if by == "built" else by
    options = () if by is None else ("--sort-by", by, "--missing", "flat")
    code, printed, _ = run("fit", "rooms.parquet", "--target", "price", "--drop", "country", *options)
    assert code == 0
    assert ("--sort-by 'Execution Date' " in printed) == (by is None)
    assert ("without 'kind'" in printed) == (by is not None)
    ((rows, answers),) = asked
    assert answers.tolist() == prices[rows["id"].astype(int)].tolist()
    if by is not None:
        key = rows[by] if by != "size" else pd.to_numeric(rows[by], errors="coerce").fillna(-1)
        assert key.is_monotonic_increasing
    if by == "size":
        assert f"{table['size'].isna().sum()} rows" in printed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing.csv", "--target", "stars"], "nothing.csv"),
        (["reviews.csv", "--target", "start"], "stars"),
        (["reviews.csv", "--target", "text"], "text"),
        (["reviews.csv", "--target", "stars", "--drop", "text"], "X: no column"),
        (["reviews.csv", "--target", "stars", "--prompt", "{star}"], "prompt"),
    ],
)
def test_wrong_uses_are_one_line_that_names_the_cause(run, words, named):
    write_reviews()
    code, _, complaint = run("fit", *words)
    assert code == 2
    assert complaint.startswith("ntloss: ")
    assert complaint.count("\n") == 1
    assert named in complaint


def test_predict_reads_truths_before_the_model_and_says_what_it_assumed(run, fitted, monkeypatch):
    folder, table = fitted
    table.assign(stars=["?", *("$" + table["stars"][1:])]).to_csv("new.csv", index=False)
    code, _, complaints = run("predict", folder, "new.csv", "--truth", "stars")
    assert (code, "'$'" in complaints or "$" in complaints, "79 rows" in complaints) == (0, True, True)
    monkeypatch.setattr(NumberRegressor, "load", None)
    for words, named in ((("--truth", "text"), "'text'"), (("--level", "90"), "--level")):
        code, _, complaint = run("predict", folder, "new.csv", *words)
        assert (code, named in complaint) == (2, True)


def test_predict_names_columns_that_a_table_lacks_or_may_not_have(run, fitted):
    folder, table = fitted
    pd.DataFrame({"review": ["good"], "x": [1]}).to_csv("new.csv", index=False)
    pathlib.Path("bare.txt").write_text("good 1234\nbad 1234\n")
    for file in ("new.csv", "bare.txt"):
        code, printed, complaint = run("predict", folder, file)
        assert (code, printed, "'text'" in complaint) == (2, "", True)
    for name in program.PREDICTED:
        table.assign(**{name: 1}).to_csv("more.csv", index=False)
        for words in (["predict", folder, "more.csv"], ["fit", "more.csv", "--target", "stars"]):
            code, printed, complaint = run(*words)
            assert (code, f"'{name}'" in complaint) == (2, True)


def test_rows_in_which_nothing_is_given_have_no_prediction_and_cells_stay(run, fitted):
    folder, _ = fitted
    given = pd.DataFrame({"text": ["good 1", None, "NA", " "], "stars": ["30", "20", "?", "10"]})
    given.to_csv("new.csv", index=False)
    code, printed, complaints = run("predict", folder, "new.csv", "--truth", "stars")
    found = pd.read_csv(io.StringIO(printed), dtype=str, keep_default_na=False)
    assert (code, (found["prediction"] == "").tolist()) == (0, [False, True, False, True])
    assert (found["text"].str.strip() == ["good 1", "", "NA", ""]).all()
    assert ("2 rows" in complaints, "1 row with a true answer" in complaints) == (True, True)
    given[:0].to_csv("new.csv", index=False)
    code, printed, _ = run("predict", folder, "new.csv", "--truth", "stars")
    assert (code, printed.split()) == (0, ["text,stars,prediction,lower,upper"])


def test_terminals_without_emoji_and_halves_of_them_are_no_obstacle(run, monkeypatch):
    texts, stars = reviews(60)
    texts = [text + ("\ud83d" if i % 2 else " \U0001f600") for i, text in enumerate(texts)]
    rows = [{"text": text, "stars": star} for text, star in zip(texts, stars.tolist(), strict=True)]
    pathlib.Path("emoji.json").write_text(json.dumps(rows))
    for words in (["fit", "emoji.json", "--target", "stars"], ["predict", "emoji-stars", "emoji.json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
        assert run(*words)[0] == 0
    found = pd.read_csv(io.BytesIO(written.getvalue()))
    assert found["text"][::2].tolist() == texts[::2]


def test_a_reader_that_goes_away_ends_no_fit_and_no_prediction(run, monkeypatch):
    write_reviews()
    for words in (["fit", "reviews.csv", "--target", "stars"], ["predict", "reviews-stars", "reviews.csv"]):
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patch, open(writer, "w") as closed:
            patch.setattr(sys, "stdout", closed)
            code, _, complaints = run(*words)
        assert (code, "ntloss:" in complaints) == (0, False)
    code, printed, _ = run("predict", "reviews-stars", "reviews.csv")
    assert (code, len(printed.splitlines())) == (0, 81)
