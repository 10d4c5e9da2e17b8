"""The commands and snippets of docs/regression.md run, with a tiny model in place of SmolLM2."""

import shlex
from functools import partial

import pandas as pd
import pytest
from pages import blocks, snippets
from regression_cases import SMALL, reviews, save_tiny_model

from ntloss import regression
from ntloss.cli import main

PAGE = "docs/regression.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with the page's tables, as its first snippet writes them, and a tiny model."""
    monkeypatch.chdir(tmp_path)
    texts, stars = reviews(430, 0)
    (tmp_path / "data").mkdir()
    pd.DataFrame({"text": texts, "sentiment": stars}).to_csv("data/sentiment.csv", index=False)
    exec(snippets(PAGE)[0])  # writes the page's tables
    return save_tiny_model("tiny")


def test_the_commands_of_the_page_run(folder, capsys):
    lines = [line for language, text in blocks(PAGE) if language == "bash" for line in text.splitlines()]
    commands = [shlex.split(line.partition(">")[0]) for line in lines if line.startswith("ntloss ")]
    assert [command[1] for command in commands] == ["fit", "predict"]
    fit, predict = (command[1:] for command in commands)
    assert main([*fit, "--model", folder, "--epochs", "1"]) == 0, capsys.readouterr().err
    assert main(predict) == 0, capsys.readouterr().err


def test_the_snippets_of_the_page_run_in_turn(folder, monkeypatch):
    tiny = partial(regression.NumberRegressor, folder, **SMALL)
    tiny.load = regression.NumberRegressor.load
    monkeypatch.setattr(regression, "NumberRegressor", tiny)
    names = {}
    for snippet in snippets(PAGE)[1:]:
        exec(snippet, names)
    assert names["scores"].shape == (3,)
