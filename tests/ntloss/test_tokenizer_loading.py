"""Loading tokenizers from folders, files and names, and the errors if that fails."""

import json
import sys
from typing import Any

import pytest
import tiny_tokenizers
import transformers

from ntloss.numbers import inspect_tokenizer
from ntloss.tokenizer_loading import TokenizerLoadingError, load_tokenizer


@pytest.mark.parametrize("source", ["", "tokenizer.json"], ids=["folder", "file"])
def test_a_folder_and_a_tokenizer_json_are_loaded(source, tmp_path):
    tiny_tokenizers.byte_level().save_pretrained(tmp_path)
    assert inspect_tokenizer(load_tokenizer(str(tmp_path / source))).number_tokens["numbers"] == 22


def test_a_sentencepiece_file_is_loaded_by_its_library(tmp_path):
    pytest.importorskip("sentencepiece")
    file = tiny_tokenizers.sentence_piece_file(tmp_path)
    from_file = inspect_tokenizer(load_tokenizer(str(file)))
    assert (from_file.tokenizer, from_file.number_tokens["numbers"]) == ("SentencePieceProcessor", 10)
    assert inspect_tokenizer(load_tokenizer(str(file.rename(tmp_path / "llama2.model")))) == from_file


def test_names_are_loaded_by_their_library(monkeypatch):
    calls: list[Any] = []

    def from_pretrained(name, **options):
        calls.append((name, options))

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", from_pretrained)
    load_tokenizer("org/name")
    assert calls == [("org/name", {"trust_remote_code": False})]
    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "get_encoding", calls.append)
    load_tokenizer("tiktoken:cl100k_base")
    assert calls[1:] == ["cl100k_base"]


@pytest.mark.parametrize("source", ["org/name", "tiktoken:cl100k_base"])
def test_a_name_that_cannot_be_downloaded_is_an_error(source, monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")

    def refuse(*names, **options):
        raise ConnectionError("no\nnetwork.")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    monkeypatch.setattr(tiktoken, "get_encoding", refuse)
    with pytest.raises(TokenizerLoadingError, match=r": no network\. .*save_pretrained\(folder\)"):
        load_tokenizer(source)


@pytest.mark.parametrize(
    ("source", "library"),
    [("tiktoken:cl100k_base", "tiktoken"), ("llama2.model", "sentencepiece"), ("org/name", "transformers")],
)
def test_the_error_for_a_missing_library_says_how_to_install_it(source, library, tmp_path, monkeypatch):
    (tmp_path / "llama2.model").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TokenizerLoadingError, match=f"pip install {library}$"):
        load_tokenizer(source)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tekken.json", b'{"config": {"pattern": "."}}'),
        ("tokenizer.model", b""),
        ("llama3.model", b"IQ== 0\n"),  # ranks of tiktoken
        ("readme.txt", b"4"),
        ("folder/notes.txt", b"4"),
    ],
)
def test_other_files_are_an_error_that_says_to_pass_the_object(name, content, tmp_path):
    if ".model" in name:
        pytest.importorskip("sentencepiece")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerLoadingError, match=r"could be loaded.*inspect_tokenizer") as error:
        load_tokenizer(str(tmp_path / name.removesuffix("/notes.txt")))
    assert "\n" not in str(error.value)


def test_custom_code_of_a_tokenizer_is_not_run(tmp_path):
    auto_map = {"AutoTokenizer": ["code.Tokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    # transformers 4 looks for the model's configuration first, which is missing.
    with pytest.raises(TokenizerLoadingError, match=r"custom code|Unrecognized model"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("source", ["no/such/folder", "./gone", "gone/tokenizer.json", "gone.model", ""])
def test_a_missing_path_is_not_looked_up_on_the_hub(source):
    with pytest.raises(TokenizerLoadingError, match="no such file or folder"):
        load_tokenizer(source)
