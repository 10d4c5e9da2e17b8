"""Tokenizers from what a user types: a folder, a file, a hub's name, `tiktoken:` and an encoding's name.

The libraries that read them are imported here and only when one is asked for.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

TIKTOKEN = "tiktoken:"
_HUGGING_FACE_FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.json", "vocab.txt")
# "tokenizer.model", "spiece.model", and mistral-common's "tokenizer.model.v3" and "....model.v7m1"
_SENTENCE_PIECE_FILE = re.compile(r".*\.model(\.v\d+(m\d+)?)?")
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_PATIENCE = 10.0  # seconds until a server that does not answer counts as out of reach
_PATIENCE_WITH_DOWNLOAD = 60.0
_TIKTOKEN_FILE_ADVICE = (
    "a file of tiktoken's ranks alone does not say how it splits numbers. Name the encoding, such as "
    "tiktoken:cl100k_base, give the folder with the tokenizer.json that goes with it, or build the "
    "tiktoken.Encoding and pass it to ntloss.inspection.inspect_tokenizer"
)


class TokenizerLoadingError(Exception):
    """A tokenizer could not be loaded; the message is one line and says what to do."""


def load_tokenizer(source: str) -> Any:
    """Load a tokenizer without running code that comes with it.

    Args:
        source: a folder; a `tokenizer.json`, Tekken JSON or SentencePiece file; `tiktoken:<encoding>`; or a
            name on the Hugging Face hub. The hub's cache is looked at first; the network is left alone where
            HF_HUB_OFFLINE is set.

    Returns:
        A tokenizer that `NumberVocabulary.from_tokenizer` takes.

    Raises:
        TokenizerLoadingError: there is none, it cannot be read, or the library that reads it is missing.
    """
    path = Path(source).expanduser()
    if source.startswith(TIKTOKEN):
        return _load_encoding(source.removeprefix(TIKTOKEN))
    if source and path.is_dir():  # Path("") is the working folder
        return _load_folder(path)
    if path.is_file():
        return _load_file(path)
    if not _HUB_NAME.fullmatch(source) or source.endswith((".json", ".model", ".tiktoken")):
        raise TokenizerLoadingError(
            f"{source!r} is no file or folder here. Expected the folder or file of a tokenizer, a name on "
            f"the Hugging Face hub, or {TIKTOKEN}<encoding>."
        )
    return _load_from_hub(source)


def _load_folder(folder: Path) -> Any:
    files = sorted(path.name for path in folder.iterdir() if path.is_file())
    if any(name in files for name in _HUGGING_FACE_FILES):
        return _read(folder, lambda: _auto_tokenizer(str(folder), local_files_only=True))
    for name in files:
        if _is_tekken(name) or _SENTENCE_PIECE_FILE.fullmatch(name):
            return _load_file(folder / name)
    shown = ", ".join(files[:5]) + (", ..." if len(files) > 5 else "") if files else "no files"
    raise TokenizerLoadingError(
        f"no tokenizer in the folder {folder}: expected {', '.join(_HUGGING_FACE_FILES)}, tekken.json or "
        f"*.model, found {shown}. Save one there with tokenizer.save_pretrained(folder)."
    )


def _load_file(path: Path) -> Any:
    if _SENTENCE_PIECE_FILE.fullmatch(path.name):
        if _holds_ranks(path):
            raise TokenizerLoadingError(f"{path}: {_TIKTOKEN_FILE_ADVICE}.")
        sentencepiece = _library("sentencepiece", "sentencepiece")
        return _read(path, lambda: sentencepiece.SentencePieceProcessor(model_file=str(path)))
    if path.suffix == ".tiktoken":
        raise TokenizerLoadingError(f"{path}: {_TIKTOKEN_FILE_ADVICE}.")
    if path.suffix != ".json":
        raise TokenizerLoadingError(
            f"{path}: expected a tokenizer.json, a Tekken JSON file or a SentencePiece model (*.model)."
        )
    content = _read(path, lambda: json.loads(path.read_text(encoding="utf-8")))
    # "config" and "model" are words of a vocabulary too, each with an id.
    if isinstance(content, dict) and "pattern" in _section(content, "config"):
        tekken = _library("mistral_common.tokens.tokenizers.tekken", "mistral-common")
        return _read(path, lambda: tekken.Tekkenizer.from_file(path))
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise TokenizerLoadingError(
            f"{path}: this JSON file holds no tokenizer. Expected a tokenizer.json or a Tekken JSON file; of "
            "a tokenizer in several files (vocab.json, merges.txt) give the folder."
        )
    transformers = _library("transformers", "transformers")
    return _read(path, lambda: transformers.PreTrainedTokenizerFast(tokenizer_file=str(path)))


def _section(content: dict[str, Any], name: str) -> dict[str, Any]:
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _is_tekken(name: str) -> bool:
    return name.startswith("tekken") and name.endswith(".json")


def _holds_ranks(path: Path) -> bool:
    # Llama 3's tokenizer.model is a file of tiktoken: base64, a space, a rank.
    with path.open("rb") as file:
        return re.fullmatch(rb"[A-Za-z0-9+/]+=* \d+\r?\n?", file.readline(1000)) is not None


def _load_from_hub(name: str) -> Any:
    _library("transformers", "transformers")
    switches = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_on(name)]
    try:
        return _auto_tokenizer(name, local_files_only=True)
    except ImportError as error:
        raise TokenizerLoadingError(f"{name}: {_one_line(error)}") from error
    except Exception:  # not in the cache, or not all of it; the libraries raise whatever they meet
        pass
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if switches or not _answers(endpoint):
        why = f"{switches[0]} is set" if switches else f"{endpoint} does not answer"
        raise TokenizerLoadingError(
            f"{name!r} is no folder here, it is not in the hub's cache, and {why}. Check the spelling, or "
            "save the tokenizer where there is a network, with tokenizer.save_pretrained(folder), and give "
            "that folder."
        )
    return _read(name, lambda: _auto_tokenizer(name, local_files_only=False))


def _load_encoding(name: str) -> Any:
    tiktoken = _library("tiktoken", "tiktoken")
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerLoadingError(f"tiktoken has no encoding {name!r}. Expected one of {', '.join(known)}.")
    outcome: list[Any] = []

    def load() -> None:
        try:
            outcome.append(tiktoken.get_encoding(name))
        except Exception as error:
            outcome.append(error)

    # tiktoken downloads what is not in its cache, and sets no limit to how long it waits.
    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(_PATIENCE_WITH_DOWNLOAD)
    if outcome and not isinstance(outcome[0], Exception):
        return outcome[0]
    why = type(outcome[0]).__name__ if outcome else f"no answer within {_PATIENCE_WITH_DOWNLOAD:.0f} s"
    raise TokenizerLoadingError(
        f"tiktoken has the encoding {name!r} not in its cache and cannot download it. Load it once where "
        f"there is a network, with TIKTOKEN_CACHE_DIR set to a folder, and bring that folder here ({why})."
    )


def _auto_tokenizer(name: str, local_files_only: bool) -> Any:
    transformers = _library("transformers", "transformers")
    return transformers.AutoTokenizer.from_pretrained(
        name, local_files_only=local_files_only, trust_remote_code=False
    )


def _library(module: str, distribution: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise TokenizerLoadingError(
            f"this tokenizer is read with {distribution}, which is not installed: pip install {distribution}"
        ) from error


def _read(source: object, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except TokenizerLoadingError:
        raise
    except Exception as error:  # the libraries raise whatever they meet
        raise TokenizerLoadingError(f"{source}: the tokenizer cannot be read: {_one_line(error)}") from error


def _is_on(switch: str) -> bool:
    return os.environ.get(switch, "").upper() in ("1", "ON", "YES", "TRUE")


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + " ..."


def _answers(url: str) -> bool:
    # Asked once: the libraries would try for the better part of a minute.
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_PATIENCE).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(
            error.reason, ssl.SSLError
        )  # somebody is there; certificates are the library's affair
    except OSError:
        return False
    return True
