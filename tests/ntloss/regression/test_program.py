"""`ntloss fit` and `ntloss predict` on files, with a tiny model."""

import io
import json
import os
import pathlib
import shlex
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from regression_cases import make, reviews, rooms, save_tiny_model

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


def write_reviews(path="reviews.csv", count=80, seed=0):
    texts, stars = reviews(count, seed)
    pd.DataFrame({"text": texts, "stars": stars}).to_csv(path, index=False)
    return path


def test_fit_saves_a_model_that_predict_uses(run, tmp_path):
    code, printed, _ = run("fit", write_reviews(), "--target", "stars")
    assert code == 0
    assert "NumberRegressor" in printed
    assert "{}" not in printed
    write_reviews("new.csv", 30, seed=1)
    code, printed, complaints = run("predict", "reviews-stars", "new.csv", "--truth", "stars")
    assert code == 0
    found = pd.read_csv(io.StringIO(printed))
    assert list(found.columns) == ["text", "stars", "prediction", "lower", "upper"]
    assert ((found.lower <= found.prediction) & (found.prediction <= found.upper)).all()
    assert "30 rows" in complaints
    assert not list(tmp_path.glob("*/checkpoint*"))


def test_the_command_that_fit_prints_works_for_few_rows_and_names_with_blanks(run):
    table = pd.read_csv(write_reviews(count=30)).rename(columns={"stars": "my stars"})
    table.to_csv("reviews.csv", index=False)
    _, printed, _ = run("fit", "reviews.csv", "--target", "my stars")
    command = shlex.split(printed.splitlines()[-1].partition("ntloss ")[2].partition(" >")[0])
    table.to_csv("NEW.csv", index=False)
    code, printed, complaints = run(*command, "--truth", "my stars")
    found = pd.read_csv(io.StringIO(printed))
    assert (code, found["prediction"].notna().all()) == (0, True)
    assert found[["lower", "upper"]].isna().all(axis=None)
    assert "30 rows" in complaints
    assert "nan" not in complaints
    _, printed, _ = run(*command, "--level", "0.5")
    narrow = pd.read_csv(io.StringIO(printed))
    assert (narrow["lower"] <= narrow["upper"]).all()


def test_the_same_command_prints_the_report_again_and_another_one_is_refused(run):
    write_reviews()
    _, first, _ = run("fit", "reviews.csv", "--target", "stars")
    code, again, _ = run("fit", "reviews.csv", "--target", "stars")
    assert code == 0
    summary = next(line for line in first.splitlines() if line.startswith("On "))
    assert summary in again
    for option in (("--scale", "log"), ("--compare", "encoder")):
        code, _, complaint = run("fit", "reviews.csv", "--target", "stars", *option)
        assert (code, "--output" in complaint) == (2, True)
    write_reviews(seed=1)
    code, _, complaint = run("fit", "reviews.csv", "--target", "stars")
    assert (code, "--output" in complaint) == (2, True)


@pytest.mark.usefixtures("run")
def test_a_model_of_other_pretrained_weights_is_another_one(tiny):
    shutil.copytree(tiny, "base")
    command = ["fit", write_reviews(), "--target", "stars", "--model", "base", "--epochs", "1"]
    assert main(command) == 0
    pathlib.Path("base/notes.json").write_text("{}")
    assert main(command) == 0
    save_tiny_model("base", seed=1)
    assert main(command) == 2
    shutil.rmtree("base")
    assert main(command) == 0  # nothing says that the weights were others


def test_a_table_from_a_pipe_is_told_from_another_one(run):
    codes = []
    for seed in (0, 0, 1):
        texts, stars = reviews(60, seed)
        reader, writer = os.pipe()
        with open(writer, "w") as file:
            pd.DataFrame({"text": texts, "stars": stars}).to_csv(file, index=False)
        codes.append(run("fit", f"/dev/fd/{reader}", "--target", "stars", "--output", "piped")[0])
        os.close(reader)
    assert codes == [0, 0, 2]


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


def test_a_folder_of_other_files_is_refused_and_left_as_it_is(run, tiny, tmp_path):
    shutil.copytree(tiny, "base")
    weights = (tmp_path / "base/model.safetensors").read_bytes()
    write_reviews()
    for _ in range(2):
        code, _, complaint = run("fit", "reviews.csv", "--target", "stars", "--output", "base")
        assert (code, "--output base" in complaint) == (2, True)
    assert (tmp_path / "base/model.safetensors").read_bytes() == weights
    (tmp_path / "empty").mkdir()
    assert run("fit", "reviews.csv", "--target", "stars", "--output", "empty")[0] == 0


def test_a_model_that_python_saved_is_another_one_and_a_damaged_one_is_named(run, tiny):
    write_reviews(count=60)
    make(tiny, epochs=1).fit(*reviews(60)).save("reviews-stars")
    code, _, complaint = run("fit", "reviews.csv", "--target", "stars")
    assert (code, "--output" in complaint) == (2, True)
    assert run("predict", "reviews-stars", "reviews.csv")[0] == 0
    record = pathlib.Path("reviews-stars/regressor.json")
    for content in (record.read_text()[:300], "{}", "[]"):
        record.write_text(content)
        code, _, complaint = run("predict", "reviews-stars", "reviews.csv")
        assert (code, "regressor.json" in complaint, complaint.count("\n")) == (2, True, 1)


def test_rows_without_an_answer_are_left_out_and_counted(run):
    texts, stars = reviews(60)
    pd.DataFrame({"text": texts, "stars": ["?", *map(str, stars[1:])]}).to_csv("gaps.csv", index=False)
    code, printed, _ = run("fit", "gaps.csv", "--target", "stars")
    assert code == 0
    assert "1 row" in printed


def test_cells_of_other_columns_that_missing_leaves_out_are_counted(run):
    texts, stars = reviews(60)
    rooms = ["0"] * 20 + ["?"] * 5 + ["2", "3", "4", "5", "6"] * 7
    table = pd.DataFrame({"text": texts, "rooms": rooms, "id": "0", "stars": stars})
    table.to_csv("rooms.csv", index=False)
    options = ("--target", "stars", "--drop", "id")
    for missing, counted in (((), []), (("--missing", "0"), ["20 rows"])):
        _, printed, _ = run("fit", "rooms.csv", *options, *missing, "--output", f"m{len(missing)}")
        said = [line for line in printed.splitlines() if line.startswith("read") and "--missing" in line]
        assert len(said) == len(counted)
        assert all("'rooms'" in line and count in line for line, count in zip(said, counted, strict=True))


@pytest.fixture
def asked(monkeypatch):
    """What `ntloss fit` gives to `NumberRegressor.fit`."""
    rows, fit = [], NumberRegressor.fit
    monkeypatch.setattr(NumberRegressor, "fit", lambda self, x, y: (rows.append((x, y)), fit(self, x, y))[1])
    return rows


def test_a_last_row_with_the_total_is_neither_trained_nor_counted(run, asked):
    table = pd.read_csv(write_reviews(count=60))
    table.loc[60] = "Total", table["stars"].sum().round(1)
    table.to_csv("reviews.csv", index=False)
    code, printed, _ = run("fit", "reviews.csv", "--target", "stars")
    assert (code, "'Total'" in printed, len(asked[0][0])) == (0, True, 60)
    code, printed, complaints = run("predict", "reviews-stars", "reviews.csv", "--truth", "stars")
    assert (code, "'Total'" in complaints, "60 rows with true answers" in complaints) == (0, True, True)
    assert len(pd.read_csv(io.StringIO(printed))) == 61


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


def test_predict_reads_true_answers_with_the_marks_that_fit_has_found(run):
    texts, numbers = reviews(60)
    prices = [f"{1 + number / 100:.3f}" + ",5" * (i % 2) for i, number in enumerate(numbers)]
    pd.DataFrame({"text": texts, "price": prices}).to_csv("prices.csv", index=False)
    assert run("fit", "prices.csv", "--target", "price")[0] == 0
    pd.DataFrame({"text": texts[:1], "price": ["1.500"]}).to_csv("new.csv", index=False)
    code, printed, complaints = run("predict", "prices-price", "new.csv", "--truth", "price")
    predicted = pd.read_csv(io.StringIO(printed))["prediction"][0]
    assert (code, f"{abs(predicted - 1500):.3g};" in complaints) == (0, True)


def test_the_other_rows_of_a_table_do_not_change_what_predict_reads(run, written):
    texts, stars = reviews(60)
    region = ["EU", "1", "NA"] * 20  # where NA is a region, as EU is
    code = ["007", "042", "?"] * 20  # where ? is a gap, though codes are no numbers
    pd.DataFrame({"text": texts, "region": region, "code": code, "y": stars}).to_csv("t.csv", index=False)
    assert run("fit", "t.csv", "--target", "y")[0] == 0
    written.clear()
    for others in ("", "b,1,042\n", "b,EU,x\n"):
        pathlib.Path("new.csv").write_text(f"text,region,code\na,NA,?\n{others}")
        assert run("predict", "t-y", "new.csv", "--level", "0.5")[0] == 0
    assert [each for each in written if each.startswith("text: a")] == [
        "text: a, region: NA, code: unknown, y: "
    ] * 3


@pytest.mark.parametrize("by", [None, "n"])
def test_answers_of_shuffled_parquet_stay_with_their_rows(run, asked, by):
    texts, stars = reviews(80)
    n = np.arange(80)
    table = pd.DataFrame({"text": texts, "n": n, "stars": np.where(n % 9, stars, np.nan)})
    table.sample(frac=1, random_state=0)[:70].to_parquet("rows.parquet")
    options = () if by is None else ("--sort-by", by)
    assert run("fit", "rows.parquet", "--target", "stars", *options)[0] == 0
    ((rows, answers),) = asked
    numbers = rows["n"].astype(int)
    assert answers.tolist() == [stars[number] for number in numbers]
    assert numbers.is_monotonic_increasing == (by is not None)


def test_dates_are_pointed_out_and_sort_the_rows(run):
    table, prices = rooms()
    table.assign(price=prices).to_csv("rooms.csv", index=False)
    code, printed, _ = run("fit", "rooms.csv", "--target", "price", "--drop", "id")
    assert (code, "--sort-by built" in printed) == (0, True)
    options = ("--sort-by", "built", "--drop", "built", "--output", "late")
    code, printed, _ = run("fit", "rooms.csv", "--target", "price", *options)
    assert (code, "--sort-by" in printed) == (0, False)


def test_decimals_sort_rows_as_numbers_and_rows_without_one_are_counted(run, asked):
    texts, stars = reviews(60)
    years = [f"{2012 + i % 20}.{i % 13}" for i in range(60)]
    table = pd.DataFrame({"text": texts, "year": [*years[:50], *["then"] * 10], "stars": stars})
    table.to_csv("years.csv", index=False)
    code, printed, _ = run("fit", "years.csv", "--target", "stars", "--sort-by", "year")
    assert (code, "10 rows" in printed) == (0, True)
    sorted_years = asked[0][0]["year"].tolist()
    assert sorted_years == ["then"] * 10 + sorted(years[:50], key=float)


def test_truths_are_read_before_the_model_and_what_was_assumed_is_said(run, monkeypatch):
    run("fit", write_reviews(), "--target", "stars")
    table = pd.read_csv("reviews.csv", dtype=str)
    table.assign(stars="$" + table["stars"]).to_csv("new.csv", index=False)
    code, _, complaints = run("predict", "reviews-stars", "new.csv", "--truth", "stars")
    assert (code, "'$'" in complaints, "80 rows" in complaints) == (0, True, True)
    monkeypatch.setattr(NumberRegressor, "load", None)
    code, _, complaint = run("predict", "reviews-stars", "new.csv", "--truth", "text")
    assert (code, "'text'" in complaint) == (2, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nothing.csv", "--target", "stars"], "nothing.csv"),
        (["reviews.csv", "--target", "start"], "stars"),
        (["reviews.csv", "--target", "text"], "text"),
        (["reviews.csv", "--target", "stars", "--drop", "color"], "color"),
        (["reviews.csv", "--target", "stars", "--drop", "text"], "stars"),
        (["reviews.csv", "--target", "stars", "--prompt", "{star}"], "prompt"),
        (["reviews.csv", "--target", "stars", "--prompt", "Stars: "], "prompt"),
    ],
)
def test_wrong_uses_are_one_line_that_names_the_cause(run, words, named):
    write_reviews()
    code, _, complaint = run("fit", *words)
    assert code == 2
    assert complaint.startswith("ntloss: ")
    assert complaint.count("\n") == 1
    assert named in complaint


def test_predict_names_the_column_that_a_table_lacks(run):
    run("fit", write_reviews(), "--target", "stars")
    pd.DataFrame({"review": ["good"], "x": [1]}).to_csv("new.csv", index=False)
    pathlib.Path("bare.txt").write_text("good 1234\nbad 1234\n")
    for table in ("new.csv", "bare.txt"):
        code, printed, complaint = run("predict", "reviews-stars", table)
        assert (code, printed, "'text'" in complaint) == (2, "", True)


def test_predict_writes_the_cells_as_they_were_given(run):
    table, prices = rooms()
    table.assign(price=prices).to_csv("rooms.csv", index=False)
    run("fit", "rooms.csv", "--target", "price")
    table[:4].astype({"size": object}).assign(size=["NA", "?", "", "50"]).to_csv("new.csv", index=False)
    code, printed, _ = run("predict", "rooms-price", "new.csv")
    found = pd.read_csv(io.StringIO(printed), dtype=str, keep_default_na=False)
    given = pd.read_csv("new.csv", dtype=str, keep_default_na=False)
    assert (code, found[given.columns].equals(given)) == (0, True)


@pytest.mark.parametrize("name", program.PREDICTED)
def test_a_column_that_predict_would_replace_is_refused_by_name(run, name):
    run("fit", write_reviews(), "--target", "stars")
    pd.read_csv("reviews.csv").assign(**{name: 1}).to_csv("more.csv", index=False)
    for words in (["predict", "reviews-stars", "more.csv"], ["fit", "more.csv", "--target", "stars"]):
        code, printed, complaint = run(*words)
        assert (code, printed, f"'{name}'" in complaint) == (2, "", True)


def test_rows_in_which_nothing_is_given_have_no_prediction(run):
    run("fit", write_reviews(), "--target", "stars")
    pd.DataFrame({"text": ["good 1", None, "  "], "stars": [30, 20, 10]}).to_csv("new.csv", index=False)
    code, printed, complaints = run("predict", "reviews-stars", "new.csv", "--truth", "stars")
    assert code == 0
    assert list(pd.read_csv(io.StringIO(printed)).prediction.isna()) == [False, True, True]
    assert "2 rows" in complaints
    assert "1 row with a true answer" in complaints
    pd.DataFrame({"text": [None, None], "stars": [20, 10]}).to_csv("new.csv", index=False)
    assert run("predict", "reviews-stars", "new.csv", "--truth", "stars")[0] == 0


def test_predict_writes_only_the_header_of_a_table_without_rows(run):
    run("fit", write_reviews(), "--target", "stars")
    pd.DataFrame({"text": [], "stars": []}).to_csv("new.csv", index=False)
    code, printed, _ = run("predict", "reviews-stars", "new.csv", "--truth", "stars")
    assert (code, printed.split()) == (0, ["text,stars,prediction,lower,upper"])


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_without_emoji_and_halves_of_them_are_no_obstacle(run, monkeypatch, encoding):
    texts, stars = reviews(60)
    texts = [text + ("\ud83d" if i % 2 else " \U0001f600") for i, text in enumerate(texts)]
    rows = [{"text": text, "stars": star} for text, star in zip(texts, stars.tolist(), strict=True)]
    pathlib.Path("emoji.json").write_text(json.dumps(rows))
    for words in (["fit", "emoji.json", "--target", "stars"], ["predict", "emoji-stars", "emoji.json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
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


def test_a_level_out_of_range_is_named_as_the_option(run):
    run("fit", write_reviews(), "--target", "stars")
    code, _, complaint = run("predict", "reviews-stars", "reviews.csv", "--level", "90")
    assert (code, "--level" in complaint) == (2, True)


def test_help_fits_a_screen(capsys):
    for command in ("fit", "predict"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert len(capsys.readouterr().out.splitlines()) <= 48


def test_a_large_table_is_read_in_seconds(tmp_path):
    texts, stars = reviews(2000)
    table = pd.concat([pd.DataFrame({"text": texts, "stars": stars})] * 10, ignore_index=True)
    table.to_csv(tmp_path / "large.csv", index=False)
    from ntloss.regression.columns import read_answers
    from ntloss.regression.tables import read_table

    assert np.isfinite(read_answers(read_table(tmp_path / "large.csv").rows["stars"]).numbers).all()
