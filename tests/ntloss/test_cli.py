"""The `ntloss` command: output, inputs and errors."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_tokenizers

import ntloss
from ntloss.cli import main
from ntloss.numbers import inspect_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")


@pytest.fixture
def folder(tmp_path):
    """The folder of a small tokenizer like GPT-2's."""
    tiny_tokenizers.byte_level().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
def run_inspect(capsys):
    def inspected(*arguments):
        assert main(["inspect", *arguments]) == 0
        return capsys.readouterr().out

    return inspected


def test_the_quickstart_shows_the_current_output(tokenizer_folder, run_inspect, monkeypatch):
    monkeypatch.chdir(tokenizer_folder)
    page = Path(__file__).parents[2] / "docs" / "quickstart.md"
    shown = page.read_text(encoding="utf-8").partition("$ ntloss inspect gpt2\n")[2].partition("```")[0]
    assert shown
    for excerpt in filter(None, shown.split("...\n")):
        assert excerpt.strip() in run_inspect("gpt2")


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"ntloss {ntloss.__version__}\n"


def test_the_command_alone_shows_its_help_on_one_screen(capsys):
    assert main([]) == 0
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", "--help"])
    shown = capsys.readouterr().out
    for page in (shown.partition("usage: ntloss inspect")[0], shown.partition("usage: ntloss inspect")[2]):
        lines = page.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 110
        assert "examples:" in lines


def test_json_holds_the_inspection(folder, tmp_path, run_inspect):
    text = tmp_path / "text.txt"
    text.write_text("is 42\n7 and ٣\n", encoding="utf-8")
    inspection = json.loads(run_inspect(folder, "--text", str(text), "--json"))
    assert inspection["source"] == folder
    assert inspection["tokens"] == "numbers"
    assert inspection["coverage"] == {"digits": 1 / 3, "numbers": 1.0}


def test_reads_standard_input(folder, run_inspect, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeff7 8".encode())))
    assert "100.0%" in run_inspect(folder, "--text", "-")


def test_long_lines_are_split_between_numbers(folder, tmp_path, run_inspect, monkeypatch):
    longest = []

    def inspected(tokenizer, texts):
        longest.append(max(map(len, texts)))
        return inspect_tokenizer(tokenizer, texts)

    monkeypatch.setattr("ntloss.numbers.inspection.inspect_tokenizer", inspected)
    inspections = []
    for separator in ("\n", " "):
        (tmp_path / "text.txt").write_text(separator.join(["is 42"] * 5000))
        inspections.append(run_inspect(folder, "--text", str(tmp_path / "text.txt"), "--json"))
    assert inspections[0] == inspections[1]
    assert longest[0] < 100 < longest[1] <= 10_000


def test_runs_as_a_module_on_a_terminal_without_unicode(tmp_path):
    tiny_tokenizers.sentence_piece().save_pretrained(tmp_path / "café")
    env = {**os.environ, "PYTHONPATH": str(Path(ntloss.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "ntloss", "inspect", str(tmp_path / "café")]
    done = subprocess.run(command, capture_output=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    assert b"HLGauss" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"caf\xe9 4", r"not UTF-8 text \(byte 3\)"), (b"\n \n", "text"), (None, "No such file")],
    ids=["latin-1", "blank", "missing"],
)
def test_an_invalid_text_is_a_one_line_error_with_exit_code_2(content, message, folder, tmp_path, capsys):
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    assert main(["inspect", folder, "--text", str(tmp_path / "text")]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert re.match(f"ntloss: .*{message}", captured.err)


def test_a_tokenizer_without_numbers_is_an_error(tmp_path, capsys):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    assert main(["inspect", str(tmp_path)]) == 2
    assert re.search("no number token among 2 tokens.*from_mapping", capsys.readouterr().err)
