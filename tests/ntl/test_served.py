"""`ntl predict` with the address of a server, and with true answers."""

import io

import pandas as pd
import pytest
from decoding_cases import make_model
from form_server import TEXTS, serving
from tolerances import approx

from ntl.answers import advise, describe_answer, read_truths, score_predictions
from ntl.cli import main
from ntl.scores import describe_errors
from ntloss.decoding import number_quantiles
from ntloss.decoding.served import ServedModel
from ntloss.numbers import NumberFormat
from ntloss.numbers.parsing import parse_numbers

pytest.importorskip("httpx2")
PROMPT = "Z{a}Z"


@pytest.fixture(scope="module")
def model():
    return make_model("llama", len(TEXTS), seed=1, scale=2.0).double()


@pytest.fixture
def table(tmp_path):
    rows = {"a": [f"{i % 10}{i // 10}" for i in range(40)], "y": [(7 * i) % 100 for i in range(40)]}
    path = tmp_path / "new.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def predict(server, table, *options):
    arguments = [server.url, f"data={table}", f"prompt={PROMPT}", *options]
    return main(["predict", *arguments])


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_rows_are_answered_by_a_server_with_medians_and_intervals(kind, model, table, capsys):
    with serving(kind, model) as server:
        assert predict(server, table, "digits=2", "truth=y") == 0
        out, err = capsys.readouterr()
        served = ServedModel(server.url)
        texts = [f"Z{a}Z" for a in pd.read_csv(table, dtype=str)["a"]]
        levels, digits = (0.05, 0.95, 0.5), NumberFormat(digits=2)
        read = number_quantiles(served, texts, served.vocabulary(), levels, digits)
        written = server.write(texts[0], 16)
    answers = pd.read_csv(io.StringIO(out), dtype={"a": str})
    assert list(answers) == ["a", "y", "greedy", "median", "lower", "upper", "number_probability"]
    assert list(answers["median"]) == approx(read.values[:, 2].tolist())
    assert list(answers["lower"]) == approx(read.lower[:, 0].tolist())
    assert list(answers["upper"]) == approx(read.upper[:, 1].tolist())
    assert answers["greedy"][0] == approx(next(iter(parse_numbers(written)), float("nan")))
    assert "40 rows, MAE: median" in err
    assert "90 % interval covers" in err
    assert "the median of these truths" in err


def test_wide_intervals_and_missing_numbers_are_followed_by_advice():
    found = pd.DataFrame({"greedy": [1.0, float("nan")], "lower": [2.0, 3.0], "upper": [20.0, 30.0]})
    missing, wide = advise(found, None, False)
    assert missing.startswith("1 of 2 answers are no numbers")
    assert wide.startswith("2 of 2 intervals span a power of ten or more: digits=N")
    assert "scale=log" in [*advise(found, None, True)][1]
    assert len([*advise(found, None, True, is_log=True)]) == 1
    assert len([*advise(found, NumberFormat(2, signed=True), True)]) == 1
    assert [*advise(found.assign(greedy=1.0, upper=19.0), None, False)] == []


def test_labelled_rows_calibrate_the_intervals(model, table, tmp_path, capsys):
    shares = []
    with serving("vllm", model) as server:
        for options in ((), (f"calibrate={table}", "truth=y")):
            path = tmp_path / f"answers{len(options)}.csv"
            assert predict(server, table, "digits=2", f"output={path}", *options) == 0
            answers = pd.read_csv(path)
            shares.append(((answers.lower <= answers.y) & (answers.y <= answers.upper)).mean())
        line = capsys.readouterr().err.splitlines()[-1]
        assert "covers" in line
        # The same command finds its rows, and does not ask again for more than one.
        before = len(server.requests)
        assert predict(server, table, "digits=2", f"output={path}", *options) == 0
        assert capsys.readouterr().err.splitlines()[-1] == line
    assert shares[0] != shares[1]
    assert shares[1] >= 0.9
    assert len(server.requests) > before


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["digits=0"], "format=0 cannot be used"),
        (["digits=two"], "format=two cannot be used"),
        (["truth=z"], "truth=z: the table has no such column"),
        (["truth=b"], "truth=b: row 2 holds 'x'"),
        (["calibrate=labelled.csv"], "needs a column of true answers"),
        (["calibrate=true"], "calibrate needs intervals and the validation data of a run"),
    ],
)
def test_options_that_cannot_be_used_are_errors(model, tmp_path, capsys, options, complaint):
    path = tmp_path / "new.csv"
    path.write_text("a,b\n1,2\n2,x\n")
    with serving("vllm", model) as server:
        assert predict(server, path, *options) == 2
    assert complaint in capsys.readouterr().err


def test_a_server_that_cannot_be_used_is_an_error_of_one_line(model, table, capsys, monkeypatch):
    monkeypatch.setattr("ntloss.decoding.served.transport._FIRST_WAIT", 0.01)
    assert main(["predict", "http://127.0.0.1:9", "text=Z", "prompt={a}"]) == 2
    assert "failed 5 times, the last time with: ConnectError" in capsys.readouterr().err
    with serving("openai", model, most=1) as server:
        assert predict(server, table, "digits=2") == 2
    assert "say nothing about quantiles" in capsys.readouterr().err


def test_errors_are_described_beside_those_of_the_best_constant():
    table = pd.DataFrame({"y": ["1", " 2.5", "-4"], "z": ["1", None, "3"]})
    truths = read_truths(table, "y")
    assert truths == [1.0, 2.5, -4.0]
    found = pd.DataFrame({"greedy": [1.0, float("nan"), 0.0], "median": [1.0, 2.0, -3.0]})
    intervals = found.assign(lower=[0.0, 0.0, 0.0], upper=[2.0, 2.0, 2.0])
    expected = "MAE: median 0.5 · greedy 2 · constant 2.167"
    scores = score_predictions(found, truths, 1.0)
    assert describe_errors(scores, 0.9) == f"{expected} · 1 answers are no numbers"
    scores = score_predictions(intervals, truths, 1.0)
    for level, printed in ((0.8, "80 %"), (0.975, "97.5 %"), (0.999, "99.9 %")):
        line = f"{expected} · {printed} interval covers 33 %, width 2"
        assert describe_errors(scores, level).startswith(line)
    nothing = pd.Series(dict.fromkeys(("median", "lower", "upper"), float("nan")))
    assert describe_answer(nothing, 0.9) == "no number"
