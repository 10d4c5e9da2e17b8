"""Loading tokenizers from folders, files and names, and the errors if that fails."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import huggingface_hub
import other_tokenizers
import pytest
import tiny_tokenizers
import transformers
from huggingface_hub.utils import HfHubHTTPError
from torch.torch_version import TorchVersion

from ntloss.numbers import tokenizer_loading
from ntloss.numbers.inspection import inspect_tokenizer
from ntloss.numbers.tokenizer_loading import TokenizerLoadingError, load_tokenizer


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let all questions to the hub fail, and return the list of names that it was asked for."""
    asked = []

    def refuse(self: Any, name: str, timeout: float) -> None:
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    return asked


class TestLoading:
    def test_a_tokenizer_json_is_loaded_without_its_folder(self, tmp_path: Path) -> None:
        tiny_tokenizers.byte_level().save_pretrained(tmp_path)
        tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
        assert inspect_tokenizer(tokenizer).number_tokens == 22

    @pytest.mark.parametrize("files", ["all", "tokenizer.json"])
    def test_a_folder_is_loaded_by_auto_tokenizer(self, files: str, tmp_path: Path) -> None:
        tiny_tokenizers.byte_level().save_pretrained(tmp_path)
        if files != "all" and TorchVersion(transformers.__version__) < TorchVersion("5"):
            pytest.skip("transformers 4 needs the configuration beside tokenizer.json")
        for path in tmp_path.iterdir() if files != "all" else ():
            if path.name != files:
                path.unlink()
        assert inspect_tokenizer(load_tokenizer(str(tmp_path))).number_tokens == 22

    def test_a_sentencepiece_file_is_loaded_by_its_library(self, tmp_path: Path) -> None:
        pytest.importorskip("sentencepiece")
        file = other_tokenizers.sentence_piece_file(tmp_path)
        from_file = inspect_tokenizer(load_tokenizer(str(file)))
        assert from_file.tokenizer == "SentencePieceProcessor"
        assert from_file.number_tokens == 10
        assert inspect_tokenizer(load_tokenizer(str(file.rename(tmp_path / "llama2.model")))) == from_file

    def test_a_tiktoken_encoding_is_loaded_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")
        asked: list[str] = []
        monkeypatch.setattr(
            tiktoken, "get_encoding", lambda name: asked.append(name) or other_tokenizers.tiny_encoding()
        )
        assert inspect_tokenizer(load_tokenizer("tiktoken:cl100k_base")).number_tokens == 1110
        assert asked == ["cl100k_base"]

    def test_a_hub_name_is_looked_up_in_the_cache_before_the_network(
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
    def test_a_hub_name_that_is_not_in_the_cache_is_downloaded(
        self, gated: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def answer(self: Any, name: str, timeout: float) -> None:
            if gated:  # still an answer
                raise HfHubHTTPError("403", response=types.SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]

        def from_pretrained(name: str, trust_remote_code: bool, local_files_only: bool = False) -> str:
            assert not trust_remote_code
            if local_files_only:
                raise OSError("not cached")
            return "downloaded"

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", answer)
        monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
        assert load_tokenizer("org/name") == "downloaded"


class TestLoadingFails:
    def test_offline_fails_fast_and_says_what_to_do(self, no_network: list[str]) -> None:
        start = time.monotonic()
        with pytest.raises(
            TokenizerLoadingError, match=r"cannot be asked: no network. .*save_pretrained\(folder\)"
        ):
            load_tokenizer("nobody/has-this-name")
        assert time.monotonic() - start < 30
        assert no_network == ["nobody/has-this-name"]

    def test_the_offline_switch_of_the_hub_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(TokenizerLoadingError, match=r"offline mode is enabled.* `HF_HUB_OFFLINE`"):
            load_tokenizer("nobody/has-this-name")

    def test_an_encoding_that_cannot_be_downloaded_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")

        def refuse(name: str) -> None:
            raise ConnectionError("no network")

        monkeypatch.setattr(tiktoken, "get_encoding", refuse)
        with pytest.raises(TokenizerLoadingError, match=r"ConnectionError.*TIKTOKEN_CACHE_DIR"):
            load_tokenizer("tiktoken:cl100k_base")

    def test_an_encoding_whose_download_hangs_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tiktoken = pytest.importorskip("tiktoken")
        answer = threading.Event()
        monkeypatch.setattr(tiktoken, "get_encoding", lambda name: answer.wait(60))
        monkeypatch.setattr(tokenizer_loading, "DOWNLOAD_TIMEOUT", 0.1)
        with pytest.raises(TokenizerLoadingError, match="no answer within"):
            load_tokenizer("tiktoken:cl100k_base")
        answer.set()

    def test_the_error_for_an_unknown_encoding_lists_the_valid_ones(self) -> None:
        pytest.importorskip("tiktoken")
        with pytest.raises(TokenizerLoadingError, match=r"'nope'.*cl100k_base"):
            load_tokenizer("tiktoken:nope")

    @pytest.mark.parametrize(
        ("source", "library"),
        [
            ("tiktoken:cl100k_base", "tiktoken"),
            ("tokenizer.json", "transformers"),
            ("llama2.model", "sentencepiece"),
            ("org/name", "transformers"),
        ],
    )
    def test_the_error_for_a_missing_library_says_how_to_install_it(
        self, source: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tokenizer.json").write_text('{"model": {}}')
        (tmp_path / "llama2.model").touch()
        monkeypatch.chdir(tmp_path)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(TokenizerLoadingError, match=f"pip install {library}$"):
            load_tokenizer(source)

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("tokenizer.json", b"{", "no tokenizer could be loaded"),
            ("tokenizer.json", b"[1]", "no tokenizer could be loaded"),
            ("tokenizer.json", b'{"model": {}}', "no tokenizer could be loaded"),
            ("vocab.json", b'{"a": 0}', "no tokenizer could be loaded"),
            ("tekken.json", b'{"config": {"pattern": "."}}', "no tokenizer could be loaded"),
            ("tokenizer.model", b"", "no tokenizer could be loaded"),
            ("llama3.model", b"IQ== 0\n", "no tokenizer could be loaded"),  # ranks of tiktoken
            ("cl100k_base.tiktoken", b"IQ== 0\n", "expected a folder, a tokenizer.json"),
            ("readme.txt", b"4", "expected a folder, a tokenizer.json"),
            ("folder/notes.txt", b"4", "no tokenizer could be loaded"),
        ],
    )
    def test_other_files_are_an_error_that_says_to_pass_the_object(
        self, name: str, content: bytes, message: str, tmp_path: Path
    ) -> None:
        if ".model" in name:
            pytest.importorskip("sentencepiece")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TokenizerLoadingError, match=f"{message}.*inspect_tokenizer") as error:
            load_tokenizer(str(tmp_path / name.removesuffix("/notes.txt")))
        assert "\n" not in str(error.value)

    def test_custom_code_of_a_tokenizer_is_not_run(self, tmp_path: Path) -> None:
        auto_map = {"AutoTokenizer": ["code.Tokenizer", None]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
        # transformers 4 looks for the model's configuration first, which is missing.
        with pytest.raises(TokenizerLoadingError, match=r"custom code|Unrecognized model") as error:
            load_tokenizer(str(tmp_path))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("source", ["no/such/folder", "./gone", "gone/tokenizer.json", "gone.model", ""])
    def test_a_missing_path_is_not_looked_up_on_the_hub(self, source: str, no_network: list[str]) -> None:
        with pytest.raises(TokenizerLoadingError, match="no such file or folder"):
            load_tokenizer(source)
        assert no_network == []
