"""Tokenizers from folders, files and names; and one line of advice where that fails."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
import urllib.error
from pathlib import Path
from typing import Any

import other_tokenizers
import pytest
import tiny_tokenizers
import transformers
from tiny_tokenizers import DIGITS

from ntloss import NumberVocabulary, tokenizer_loading
from ntloss.inspection import inspect_tokenizer
from ntloss.tokenizer_loading import TokenizerLoadingError, load_tokenizer


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


class TestLoading:
    def test_a_tokenizer_json_alone(self, tmp_path: Path) -> None:
        tiny_tokenizers.byte_level().save_pretrained(tmp_path)
        tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
        assert inspect_tokenizer(tokenizer).number_tokens == 22

    @pytest.mark.parametrize(
        "name", ["tekken.json", "spiece.model", "tokenizer.model", "tokenizer.model.v7m1"]
    )
    @pytest.mark.parametrize("whole_folder", [True, False])
    def test_files_of_mistral_and_sentence_piece(self, name: str, whole_folder: bool, tmp_path: Path) -> None:
        if name == "tekken.json":
            pytest.importorskip("mistral_common")
            path = other_tokenizers.tekken_file(tmp_path)
        else:
            path = other_tokenizers.sentence_piece_file(tmp_path, name)
        tokenizer = load_tokenizer(str(tmp_path if whole_folder else path))
        vocabulary = NumberVocabulary.from_tokenizer(tokenizer, digit_level=False)
        assert {token.text for token in vocabulary.tokens} == set(DIGITS)

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
        calls = []

        def from_pretrained(name: str, **options: Any) -> str:
            calls.append((name, options))
            return "cached"

        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
        assert load_tokenizer("org/name") == "cached"
        assert calls == [("org/name", {"local_files_only": True, "trust_remote_code": False})]
        assert no_network == []

    @pytest.mark.parametrize("gated", [False, True])
    def test_a_name_that_is_not_in_the_cache_is_downloaded(
        self, gated: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer(request: Any, timeout: float) -> io.BytesIO:
            if gated:  # an answer all the same
                raise urllib.error.HTTPError(request.full_url, 403, "forbidden", {}, None)  # type: ignore[arg-type]
            return io.BytesIO()

        def from_pretrained(name: str, local_files_only: bool, trust_remote_code: bool) -> str:
            if local_files_only:
                raise OSError("not cached")
            return "downloaded"

        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        monkeypatch.setattr("urllib.request.urlopen", answer)
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
        assert load_tokenizer("org/name") == "downloaded"


class TestLoadingFails:
    def test_offline_at_once_with_what_to_do(self, no_network: list[str]) -> None:
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
            ("vocab.json", b'{"a": 0, "config": 1, "model": 2}', "give the folder"),
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
        # transformers 4 reads the model's configuration first, and finds none.
        with pytest.raises(TokenizerLoadingError, match=r"custom code|Unrecognized model") as error:
            load_tokenizer(str(tmp_path))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("source", ["no/such/folder", "./gone", "gone/tokenizer.json", "gone.model", ""])
    def test_a_path_that_is_not_there_is_no_hub_name(self, source: str, no_network: list[str]) -> None:
        with pytest.raises(TokenizerLoadingError, match="is no file or folder here"):
            load_tokenizer(source)
        assert no_network == []
