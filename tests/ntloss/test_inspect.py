"""`ntloss inspect`: what it says of each make of tokenizer, and what it says when it cannot."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import other_tokenizers
import pytest
import tiny_tokenizers
from tiny_tokenizers import DIGITS

from ntloss import NumberVocabulary, tokenizer_loading
from ntloss.cli import describe, main
from ntloss.inspection import SENTENCE, Inspection, inspect_tokenizer
from ntloss.tokenizer_loading import TokenizerLoadingError, load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.NumberTokensLeftOut")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing answers; the addresses asked for."""
    asked = []

    def refuse(request: Any, timeout: float) -> None:
        asked.append(request.full_url)
        raise urllib.error.URLError("no network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return asked


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The folder of a small tokenizer of GPT-2's make."""
    tiny_tokenizers.byte_level().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def shares(inspection: Inspection) -> dict[tuple[bool, bool], float]:
    return {(r.digit_level, r.space_prefixed): r.seen / inspection.digits for r in inspection.readings}


def counts(inspection: Inspection) -> dict[str, dict[str, int]]:
    return {
        shape: {marker: group.count for marker, group in groups.items()}
        for shape, groups in inspection.forms.items()
    }


def code_runs(inspection: Inspection, tokenizer: Any) -> NumberVocabulary:
    assert inspection.recommendation is not None
    return eval(
        inspection.recommendation.code, {"NumberVocabulary": NumberVocabulary, "tokenizer": tokenizer}
    )


class TestMakes:
    @pytest.mark.parametrize(
        ("make", "forms", "digit_level"),
        [
            ("llama_like", {"one digit": {"plain": 10}}, True),
            ("qwen_like", {"one digit": {"plain": 10}}, True),
            ("gemma_like", {"one digit": {"plain": 10}}, True),
            ("llama_3_like", {"one digit": {"plain": 10}, "several digits": {"plain": 1100}}, False),
            (
                "byte_level",
                {
                    "one digit": {"plain": 10, "after a space": 10},
                    "several digits": {"plain": 1, "after a space": 1},
                },
                True,
            ),
            (
                "sentence_piece",
                {
                    "one digit": {"plain": 10, "after a space": 9},
                    "several digits": {"plain": 3, "after a space": 2},
                    "decimal": {"plain": 3, "after a space": 3},
                    "signed": {"plain": 2, "after a space": 2},
                    "exponent": {"plain": 2, "after a space": 2},
                },
                False,
            ),
            (
                "word_piece",
                {
                    "one digit": {"plain": 10, "inside a word": 10},
                    "several digits": {"plain": 2, "inside a word": 2},
                    "decimal": {"plain": 3, "inside a word": 3},
                    "signed": {"plain": 2, "inside a word": 2},
                    "exponent": {"plain": 2, "inside a word": 2},
                },
                False,
            ),
        ],
    )
    def test_forms_and_advice(self, make: str, forms: dict[str, dict[str, int]], digit_level: bool) -> None:
        tokenizer = tiny_tokenizers.MAKES[make]()
        text = "1 2 3 in 2019 or 4 5 6 7 8 9" if make == "byte_level" else "42 3.14 2 -3 42 007 1e3"
        inspection = inspect_tokenizer(tokenizer, text)
        assert counts(inspection) == forms
        assert inspection.number_tokens == sum(sum(groups.values()) for groups in forms.values())
        assert inspection.recommendation is not None
        assert inspection.recommendation.digit_level is digit_level

    def test_following_the_advice_sees_what_was_promised(self, tiny_tokenizer: Any) -> None:
        text = "42 2 -3 3.14"
        inspection = inspect_tokenizer(tiny_tokenizer, text)
        coverage = code_runs(inspection, tiny_tokenizer).coverage(text)
        chosen = inspection.recommendation
        assert chosen is not None
        assert shares(inspection)[chosen.digit_level, chosen.space_prefixed] == coverage.share
        assert coverage.share >= 0.9 * max(shares(inspection).values()) > 0

    def test_the_four_readings_are_those_of_a_vocabulary(self, tiny_tokenizer: Any) -> None:
        texts = ["is 42, 7", "3.14 in 2019"]
        inspection = inspect_tokenizer(tiny_tokenizer, texts)
        for reading in inspection.readings:
            vocabulary = NumberVocabulary.from_tokenizer(
                tiny_tokenizer, reading.digit_level, reading.space_prefixed
            )
            coverage = vocabulary.coverage(texts)
            assert (reading.seen, inspection.digits) == (coverage.seen, coverage.digits)
            assert (reading.tokens, reading.values) == (
                len(vocabulary.tokens),
                len(vocabulary.distinct_values),
            )
            left_out = reading.longer_left_out + reading.marked_left_out
            assert left_out == len(vocabulary.left_out)
            assert inspection.vocab_size == vocabulary.vocab_size

    def test_tokenizers_are_not_changed(self, tiny_tokenizer: Any) -> None:
        before = tiny_tokenizer.backend_tokenizer.to_str()
        inspect_tokenizer(tiny_tokenizer)
        assert tiny_tokenizer.backend_tokenizer.to_str() == before

    @pytest.mark.parametrize(
        ("name", "share", "forms"),
        [
            (
                "t5",
                {(True, False): 0, (True, True): 0, (False, False): 2 / 9, (False, True): 1},
                {
                    "one digit": {"plain": 10, "after a space": 9},
                    "several digits": {"plain": 316, "after a space": 194},
                    "decimal": {"plain": 106, "after a space": 37},
                    "signed": {"plain": 32},
                },
            ),
            (
                "gpt2",
                {(True, False): 0, (True, True): 1 / 9, (False, False): 2 / 9, (False, True): 1},
                {
                    "one digit": {"plain": 10, "after a space": 10},
                    "several digits": {"plain": 984, "after a space": 687},
                },
            ),
        ],
    )
    def test_real_ones(self, name: str, share: Any, forms: Any, real_tokenizer: Callable[[str], Any]) -> None:
        start = time.process_time()
        inspection = inspect_tokenizer(real_tokenizer(name))
        assert time.process_time() - start < 10
        assert shares(inspection) == share
        assert counts(inspection) == forms
        assert inspection.recommendation is not None
        assert (inspection.recommendation.digit_level, inspection.recommendation.space_prefixed) == (
            False,
            True,
        )

    @pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct.model.v3", "tekken.json"])
    def test_of_mistral_common(self, name: str, tmp_path: Path) -> None:
        mistral = pytest.importorskip("mistral_common.tokens.tokenizers.mistral")
        make = other_tokenizers.tekken_file if name == "tekken.json" else other_tokenizers.sentence_piece_file
        path = make(tmp_path) if name == "tekken.json" else make(tmp_path, name)
        inspection = inspect_tokenizer(mistral.MistralTokenizer.from_file(path))
        assert counts(inspection) == {"one digit": {"plain": 10}}
        assert set(shares(inspection).values()) == {1}

    def test_of_tiktoken(self) -> None:
        pytest.importorskip("tiktoken")
        inspection = inspect_tokenizer(other_tokenizers.tiny_encoding())
        assert inspection.vocab_size == 2002
        assert counts(inspection) == {"one digit": {"plain": 10}, "several digits": {"plain": 1100}}
        # "42", "3", "14", "201", "9"
        assert shares(inspection)[True, True] == 2 / 9
        assert shares(inspection)[False, True] == 1


class TestWhatIsNotCounted:
    def test_digits_of_other_scripts_by_script(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.sentence_piece())
        assert inspection.other_scripts["arabic-indic"].samples == ("٣", " ٣")
        assert {"devanagari", "fullwidth", "superscript"} <= set(inspection.other_scripts)
        assert (inspection.mixed.count, inspection.mixed.samples[0]) == (22, "1_000")
        assert inspection.number_tokens == 10 + 9 + 2 * 9 + 1

    def test_digits_of_other_scripts_in_bytes(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.qwen_like())
        assert inspection.other_scripts["arabic-indic"].samples == ("٣",)
        pytest.importorskip("tiktoken")
        inspection = inspect_tokenizer(other_tokenizers.tiny_encoding())
        assert inspection.other_scripts["superscript"].samples == ("²",)

    def test_digits_of_other_scripts_in_a_text(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.qwen_like(), "4 and ٣٤")
        assert (inspection.digits, inspection.other_digits) == (1, 2)
        assert any("other scripts" in note and ": 2." in note for note in inspection.notes)

    def test_tokens_that_are_numbers_and_more(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "4 4a 4a 1,000 5")
        assert inspection.unseen == {" 1,000": 4, " 4a": 2}
        assert any("6 of the digits (75.0%)" in note and "' 4a'" in note for note in inspection.notes)

    def test_digits_in_unknown_tokens(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "4 999 5")
        assert inspection.unseen == {}
        assert any("3 of the digits (60.0%)" in note and "unknown" in note for note in inspection.notes)

    def test_no_reading_sees_any_digit(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.word_level(), "999")
        assert inspection.recommendation is None
        assert any("would be zero" in note for note in inspection.notes)
        assert "Choose" not in describe(inspection, "x", "y")


class TestAdvice:
    def test_missing_digits_make_a_reading_unusable_and_say_why(self) -> None:
        tokenizer = tiny_tokenizers.sentence_piece(with_plain_digits=False)
        inspection = inspect_tokenizer(tokenizer, "1 2 3")
        problems = {(r.digit_level, r.space_prefixed): r.problem for r in inspection.readings}
        assert problems[False, True] is None
        assert problems[True, True] == "the digits 0 have no token in this vocabulary"
        assert inspection.recommendation is not None
        assert not inspection.recommendation.digit_level
        assert "digits 0 have no token" in inspection.recommendation.reason
        code_runs(inspection, tokenizer)
        assert "unusable" in describe(inspection, "x", "y")

    def test_numbers_of_several_digits_decide_by_the_text(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        by_text = {text: inspect_tokenizer(tokenizer, text).recommendation for text in ("7 8 9", "is 42")}
        assert by_text["7 8 9"].digit_level
        assert not by_text["is 42"].digit_level
        assert "' 42'" in by_text["is 42"].reason

    def test_spaces_are_explained(self) -> None:
        with_marker = inspect_tokenizer(tiny_tokenizers.byte_level(), "is 7 8").recommendation
        assert with_marker is not None
        assert "10 of them wear a marker (such as ' 7'), without which it would be 0.0%" in with_marker.reason
        without = inspect_tokenizer(tiny_tokenizers.llama_like()).recommendation
        assert without is not None
        assert "space_prefixed changes nothing" in without.reason

    def test_a_text_without_digits_is_said_and_replaced_by_the_sentence(self) -> None:
        inspection = inspect_tokenizer(tiny_tokenizers.llama_3_like(), "no number here")
        assert inspection.digits == 0
        assert any("holds no digit" in note and SENTENCE in note for note in inspection.notes)
        assert inspection.recommendation == inspect_tokenizer(tiny_tokenizers.llama_3_like()).recommendation

    @pytest.mark.parametrize("texts", ["", " \n", [], ["", " "]], ids=["none", "blank", "no-texts", "blanks"])
    def test_an_empty_text_is_an_error(self, texts: Any) -> None:
        with pytest.raises(ValueError, match="empty"):
            inspect_tokenizer(tiny_tokenizers.llama_like(), texts)

    @pytest.mark.parametrize("given", [None, "t5", {"4": 4}], ids=lambda x: type(x).__name__)
    def test_what_is_no_tokenizer_is_an_error(self, given: Any) -> None:
        with pytest.raises(TypeError, match=rf"expected a tokenizer.*{type(given).__name__}"):
            inspect_tokenizer(given)


class TestTheCommand:
    def test_prints_aligned_tables(self, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["inspect", folder]) == 0
        out = capsys.readouterr().out
        for part in (
            "22 of 271 tokens are numbers, 11 different values",
            "one digit       10: '0' '1' '2' '3' '4' ...  10: ' 0' ' 1' ' 2' ' 3' ' 4' ...",
            "'The answer is 42, or 3.14 in 2019.': 9 digits",
            "True         False               10      10            5   55.6%  2 not one digit, 10 with a m",
            "False        True                22      11            9  100.0%  -",
            "Choose: NumberVocabulary.from_tokenizer(tokenizer, digit_level=False, space_prefixed=True)",
        ):
            assert part in out

    def test_json_holds_the_inspection(
        self, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = tmp_path / "text.txt"
        text.write_text("is 42\n7 and ٣\n", encoding="utf-8")
        assert main(["inspect", folder, "--text", str(text), "--json"]) == 0
        out = capsys.readouterr().out
        assert out.isascii()
        told = json.loads(out)
        assert (told["digits"], told["other_digits"], told["number_tokens"]) == (3, 1, 22)
        assert told["source"] == folder
        assert told["forms"]["one digit"]["plain"]["samples"] == DIGITS[:5]
        assert [r["seen"] for r in told["readings"]] == [1, 1, 1, 3]
        assert told["recommendation"]["digit_level"] is False

    def test_reads_standard_input(
        self, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeff7 8".encode())))
        assert main(["inspect", folder, "--text", "-"]) == 0
        assert "standard input: 2 digits" in capsys.readouterr().out

    def test_a_text_without_digits_is_no_error(
        self, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "text.txt").write_text("none")
        assert main(["inspect", folder, "--text", str(tmp_path / "text.txt")]) == 0
        assert "The text holds no digit" in capsys.readouterr().out

    def test_runs_as_a_module_on_a_terminal_without_unicode(self, tmp_path: Path) -> None:
        tiny_tokenizers.sentence_piece().save_pretrained(tmp_path)
        done = subprocess.run(
            [sys.executable, "-m", "ntloss", "inspect", str(tmp_path)],
            capture_output=True,
            env={"PYTHONPATH": str(Path(tokenizer_loading.__file__).parents[1]), "PYTHONIOENCODING": "ascii"},
            timeout=120,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert rb"'\u0663'" in done.stdout

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"caf\xe9 4", r"no UTF-8 text \(byte 3\)"),
            (b"", "is empty"),
            (b"\n \n", "is empty"),
            (None, "cannot read the text .*No such file"),
        ],
        ids=["latin-1", "empty", "blank", "missing"],
    )
    def test_a_bad_text_is_one_line_and_2(
        self, content: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if content is not None:
            (tmp_path / "text").write_bytes(content)
        # The text is looked at before a tokenizer is loaded.
        self.fails(["inspect", "no/such/tokenizer", "--text", str(tmp_path / "text")], message, capsys)

    def test_a_tokenizer_without_numbers_is_one_line_and_2(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
        self.fails(["inspect", str(tmp_path)], "no number token among the 2 tokens", capsys)

    def fails(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("ntloss: ")
        assert pytest.importorskip("re").search(message, captured.err)


class TestLoading:
    def test_a_tokenizer_json_alone(self, folder: str) -> None:
        tokenizer = load_tokenizer(f"{folder}/tokenizer.json")
        assert inspect_tokenizer(tokenizer).number_tokens == 22

    @pytest.mark.parametrize("whole_folder", [True, False])
    def test_tekken(self, whole_folder: bool, tmp_path: Path) -> None:
        pytest.importorskip("mistral_common")
        path = other_tokenizers.tekken_file(tmp_path)
        tokenizer = load_tokenizer(str(tmp_path if whole_folder else path))
        assert inspect_tokenizer(tokenizer).vocab_size == 256 + 2 + 20

    @pytest.mark.parametrize("name", ["spiece.model", "tokenizer.model", "tokenizer.model.v7m1"])
    @pytest.mark.parametrize("whole_folder", [True, False])
    def test_sentence_piece(self, name: str, whole_folder: bool, tmp_path: Path) -> None:
        path = other_tokenizers.sentence_piece_file(tmp_path, name)
        tokenizer = load_tokenizer(str(tmp_path if whole_folder else path))
        assert counts(inspect_tokenizer(tokenizer)) == {"one digit": {"plain": 10}}

    def test_an_encoding_of_tiktoken_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")
        asked: list[str] = []
        monkeypatch.setattr(
            tiktoken, "get_encoding", lambda name: asked.append(name) or other_tokenizers.tiny_encoding()
        )
        assert inspect_tokenizer(load_tokenizer("tiktoken:cl100k_base")).number_tokens == 1110
        assert asked == ["cl100k_base"]

    def test_a_name_is_looked_up_in_the_cache_before_the_network(
        self, monkeypatch: pytest.MonkeyPatch, no_network: list[str]
    ) -> None:
        import transformers

        calls = []

        def from_pretrained(name: str, **options: Any) -> str:
            calls.append((name, options))
            return "cached"

        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
        assert load_tokenizer("org/name") == "cached"
        assert calls == [("org/name", {"local_files_only": True, "trust_remote_code": False})]
        assert no_network == []


class TestLoadingFails:
    def test_offline_at_once_with_what_to_do(self, no_network: list[str], tmp_path: Path) -> None:
        start = time.monotonic()
        with pytest.raises(TokenizerLoadingError, match=r"does not answer.*save_pretrained\(folder\)"):
            load_tokenizer("nobody/has-this-name")
        assert time.monotonic() - start < 30
        assert len(no_network) == 1

    def test_the_network_is_left_alone_when_told(
        self, no_network: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(TokenizerLoadingError, match="HF_HUB_OFFLINE is set"):
            load_tokenizer("nobody/has-this-name")
        assert no_network == []

    def test_an_encoding_that_cannot_be_downloaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")

        def refuse(name: str) -> None:
            raise ConnectionError("no network")

        monkeypatch.setattr(tiktoken, "get_encoding", refuse)
        with pytest.raises(TokenizerLoadingError, match=r"TIKTOKEN_CACHE_DIR.*ConnectionError"):
            load_tokenizer("tiktoken:cl100k_base")

    def test_an_encoding_whose_download_hangs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")
        answer = threading.Event()
        monkeypatch.setattr(tiktoken, "get_encoding", lambda name: answer.wait(60))
        monkeypatch.setattr(tokenizer_loading, "_PATIENCE_WITH_DOWNLOAD", 0.1)
        with pytest.raises(TokenizerLoadingError, match="no answer within"):
            load_tokenizer("tiktoken:cl100k_base")
        answer.set()

    def test_an_unknown_encoding_names_those_there_are(self) -> None:
        pytest.importorskip("tiktoken")
        with pytest.raises(TokenizerLoadingError, match=r"'nope'.*cl100k_base"):
            load_tokenizer("tiktoken:nope")

    @pytest.mark.parametrize(
        ("source", "module", "distribution"),
        [
            ("tiktoken:cl100k_base", "tiktoken", "tiktoken"),
            ("tekken.json", "mistral_common.tokens.tokenizers.tekken", "mistral-common"),
            ("tokenizer.model", "sentencepiece", "sentencepiece"),
            ("tokenizer.json", "transformers", "transformers"),
            ("org/name", "transformers", "transformers"),
        ],
    )
    def test_a_missing_library_is_named_with_how_to_install_it(
        self, source: str, module: str, distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tekken.json").write_text('{"config": {"pattern": "."}}')
        (tmp_path / "tokenizer.model").write_bytes(b"\x00")
        (tmp_path / "tokenizer.json").write_text('{"model": {}}')
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(TokenizerLoadingError, match=f"pip install {distribution}$"):
            load_tokenizer(source)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("tokenizer.json", b"{", "cannot be read"),
            ("tokenizer.json", b"[1]", "holds no tokenizer"),
            ("tokenizer.json", b'{"model": {}}', "cannot be read"),
            ("vocab.json", b'{"a": 0}', "give the folder"),
            ("tekken.json", b'{"config": {"pattern": "."}}', "cannot be read"),
            ("tokenizer.model", b"not a model", "cannot be read"),
            ("tokenizer.model", b"", "cannot be read"),
            ("tokenizer.model", b"IQ== 0\nIg== 1\n", "does not say how it splits numbers"),
            ("cl100k_base.tiktoken", b"IQ== 0\n", "does not say how it splits numbers"),
            ("readme.txt", b"4", "expected a tokenizer.json"),
        ],
    )
    def test_a_file_that_is_none(self, name: str, content: bytes, message: str, tmp_path: Path) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TokenizerLoadingError, match=message) as error:
            load_tokenizer(str(tmp_path / name))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("files", [[], ["model.safetensors", "notes.txt"]], ids=["empty", "others"])
    def test_a_folder_without_a_tokenizer_says_what_it_found(self, files: list[str], tmp_path: Path) -> None:
        for name in files:
            (tmp_path / name).touch()
        found = "model.safetensors, notes.txt" if files else "no files"
        with pytest.raises(TokenizerLoadingError, match=f"no tokenizer in the folder.*found {found}"):
            load_tokenizer(str(tmp_path))

    def test_a_folder_that_asks_for_its_own_code(self, tmp_path: Path) -> None:
        auto_map = {"AutoTokenizer": ["code.Tokenizer", None]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
        with pytest.raises(TokenizerLoadingError, match="custom code") as error:
            load_tokenizer(str(tmp_path))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("source", ["no/such/folder", "./gone", "gone/tokenizer.json", "gone.model", ""])
    def test_a_path_that_is_not_there_is_no_hub_name(self, source: str, no_network: list[str]) -> None:
        with pytest.raises(TokenizerLoadingError, match="is no file or folder here"):
            load_tokenizer(source)
        assert no_network == []


def test_256k_tokens_of_many_scripts_take_seconds() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    # Half of the tokens are not ASCII, as in Gemma's vocabulary.
    words = [f"Ġw{i:x}" if i % 2 else f"Ù£w{i:x}" for i in range(256_000)]
    vocab = {text: i for i, text in enumerate([*DIGITS, *words])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="0"))
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    start = time.process_time()
    inspect_tokenizer(tokenizer, "4")
    assert time.process_time() - start < 10
