"""The `ntloss` command: output, inputs and errors."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers
from tiny_tokenizers import DIGITS

import ntloss
from ntloss.cli import main
from ntloss.numbers.inspection import Inspection, inspect_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.numbers.NumberTokensLeftOutWarning")


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder of a small tokenizer like GPT-2's."""
    tiny_tokenizers.byte_level().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


class TestTheCommand:
    def test_prints_aligned_tables(self, folder: str, run_inspect: Callable[..., str]) -> None:
        out = run_inspect(folder)
        for part in (
            "22 of 271 tokens are numbers, 11 different values",
            "one digit       10: '0' '1' '2' '3' '4' ...  10: ' 0' ' 1' ' 2' ' 3' ' 4' ...",
            "'The answer is 42, or 3.14 in 2019.': 9 digits",
            "True         False               10      10            5   55.6%  2 not one digit, 10 after a ",
            "False        False               11      11            5   55.6%  11 after a space",
            "False        True                22      11            9  100.0%  -",
            "Choose: NumberVocabulary.from_tokenizer(tokenizer, digit_level=False, space_prefixed=True)",
        ):
            assert part in out

    def test_the_quickstart_shows_the_current_output(
        self, tokenizer_folder: Path, run_inspect: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tokenizer_folder)
        page = Path(__file__).parents[2] / "docs" / "quickstart.md"
        shown = page.read_text(encoding="utf-8").partition("$ ntloss inspect gpt2\n")[2].partition("```")[0]
        out = run_inspect("gpt2")
        assert shown
        for excerpt in filter(None, shown.split("...\n")):
            assert excerpt.strip() in out

    def test_the_version_is_that_of_the_package(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
        assert capsys.readouterr().out == f"ntloss {ntloss.__version__}\n"

    def test_the_import_in_the_help_works(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["inspect", "--help"])
        line = re.search(r"^  from .* import \w+$", capsys.readouterr().out, flags=re.MULTILINE)
        assert line is not None
        imported: dict[str, Any] = {}
        exec(line[0].strip(), imported)
        assert imported["inspect_tokenizer"] is inspect_tokenizer

    def test_json_holds_the_inspection(
        self, folder: str, tmp_path: Path, run_inspect: Callable[..., str]
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text("is 42\n7 and ٣\n", encoding="utf-8")
        out = run_inspect(folder, "--text", str(text), "--json")
        assert out.isascii()
        inspection = json.loads(out)
        assert (inspection["other_digits"], inspection["number_tokens"]) == (1, 22)
        assert inspection["source"] == folder
        assert inspection["forms"]["one digit"]["plain"]["samples"] == DIGITS[:5]
        assert inspection["coverage"]["digits"] == 3
        assert [row["seen"] for row in inspection["coverage"]["rows"]] == [1, 1, 1, 3]
        assert inspection["recommendation"]["digit_level"] is False

    def test_reads_standard_input(
        self, folder: str, run_inspect: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeff7 8".encode())))
        assert "standard input: 2 digits" in run_inspect(folder, "--text", "-")

    def test_long_lines_are_split_between_numbers(
        self, folder: str, tmp_path: Path, run_inspect: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        longest = []

        def inspected(tokenizer: Any, texts: list[str]) -> Inspection:
            longest.append(max(map(len, texts)))
            return inspect_tokenizer(tokenizer, texts)

        monkeypatch.setattr("ntloss.cli.inspect_tokenizer", inspected)
        inspections = []
        for separator in ("\n", " "):
            (tmp_path / "text.txt").write_text(separator.join(["is 42"] * 5000))
            inspections.append(run_inspect(folder, "--text", str(tmp_path / "text.txt"), "--json"))
        assert inspections[0] == inspections[1]
        assert longest[0] < 100 < longest[1] <= 10_000

    def as_a_module(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "ntloss", *arguments]
        env = {"PYTHONPATH": str(Path(ntloss.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
        return subprocess.run(command, stderr=subprocess.PIPE, env=env, timeout=120, **options)

    def test_runs_as_a_module_on_a_terminal_without_unicode(self, tmp_path: Path) -> None:
        tiny_tokenizers.sentence_piece().save_pretrained(tmp_path)
        done = self.as_a_module("inspect", str(tmp_path), stdout=subprocess.PIPE)
        assert done.returncode == 0, done.stderr.decode()
        assert rb"'\u0663'" in done.stdout

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"caf\xe9 4", r"not UTF-8 text \(byte 3\)"),
            (b"", "is empty"),
            (b"\n \n", "is empty"),
            ("is 42".encode("utf-16"), r"not UTF-8 text \(byte 0\)"),
            ("is 42".encode("utf-16le"), "looks like UTF-16"),
            (None, "cannot read the text .*No such file"),
        ],
        ids=["latin-1", "empty", "blank", "utf-16", "utf-16-unmarked", "missing"],
    )
    def test_an_invalid_text_is_a_one_line_error_with_exit_code_2(
        self, content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if content is not None:
            (tmp_path / "text").write_bytes(content)
        # The text is checked before the tokenizer is loaded.
        self.fails(["inspect", "no/such/tokenizer", "--text", str(tmp_path / "text")], message, capsys)

    def test_a_tokenizer_without_numbers_is_a_one_line_error_with_exit_code_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
        self.fails(["inspect", str(tmp_path)], "no number token among 2 tokens.*from_mapping", capsys)

    def test_an_interrupt_ends_it_with_exit_code_130(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupt(source: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("ntloss.cli.load_tokenizer", interrupt)
        assert main(["inspect", "gpt2"]) == 130
        assert capsys.readouterr().err == "ntloss: interrupted\n"

    @pytest.mark.parametrize("arguments", [["inspect", "{folder}"], ["--help"]], ids=["report", "help"])
    def test_a_closed_output_pipe_causes_no_traceback(self, arguments: list[str], folder: str) -> None:
        reads, writes = os.pipe()
        os.close(reads)  # as `| head -1` does after one line
        done = self.as_a_module(*(part.format(folder=folder) for part in arguments), stdout=writes)
        os.close(writes)
        assert done.stderr.decode() == ""
        assert done.returncode == 141

    def fails(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("ntloss: ")
        assert re.search(message, captured.err)
