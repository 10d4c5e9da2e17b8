"""Load a tokenizer from a folder, a `tokenizer.json`, a SentencePiece model, a hub name or tiktoken."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from multiprocessing import TimeoutError
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

_TIKTOKEN = "tiktoken:"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_PROBE_TIMEOUT = 10.0  # seconds
DOWNLOAD_TIMEOUT = 60.0
_OTHER_KINDS = (
    "Load any other tokenizer (Tekken, tiktoken ranks, custom code) with its own library, and "
    "pass the object to ntloss.numbers.inspection.inspect_tokenizer or NumberVocabulary.from_tokenizer."
)


class TokenizerLoadingError(Exception):
    """A tokenizer could not be loaded; the message is one line and says what to do."""


def load_tokenizer(source: str) -> Any:
    """Load a tokenizer for `NumberVocabulary.from_tokenizer`, without running code that comes with it.

    `source` is a folder or a name on the Hugging Face hub, loaded by transformers' `AutoTokenizer`; a
    `tokenizer.json` file; a `.model` file of SentencePiece; or `tiktoken:<encoding>`. A hub name is looked up
    in the cache first, and in the cache alone if HF_HUB_OFFLINE is set. tiktoken downloads an encoding that
    it has not cached. If any of it fails, a `TokenizerLoadingError` says why.
    """
    path = Path(source).expanduser()
    if source.startswith(_TIKTOKEN):
        return _load_encoding(source.removeprefix(_TIKTOKEN))
    if path.is_file():
        if ".model" in path.suffixes:  # tokenizer.model, and Mistral's tokenizer.model.v3
            processor = _import("sentencepiece").SentencePieceProcessor
            return _load(source, processor, model_file=str(path))
        if path.suffix != ".json":
            raise TokenizerLoadingError(
                f"{source}: expected a folder, a tokenizer.json or a SentencePiece .model. {_OTHER_KINDS}"
            )
        return _load(source, _import("transformers").PreTrainedTokenizerFast, tokenizer_file=str(path))
    if source and path.is_dir():  # Path("") is the working directory
        auto_tokenizer = _import("transformers").AutoTokenizer.from_pretrained
        return _load(source, auto_tokenizer, str(path), local_files_only=True, trust_remote_code=False)
    if not _HUB_NAME.fullmatch(source) or source.endswith((".json", ".model", ".tiktoken")):
        raise TokenizerLoadingError(
            f"{source!r}: no such file or folder. Expected the folder of a tokenizer, a tokenizer.json, a "
            f"SentencePiece .model, a name on the Hugging Face hub, or {_TIKTOKEN}<encoding>."
        )
    return _load_from_hub(source)


def _load_from_hub(name: str) -> Any:
    auto_tokenizer = _import("transformers").AutoTokenizer.from_pretrained
    try:
        return auto_tokenizer(name, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise TokenizerLoadingError(f"{name}: {_one_line(error)}") from error
    except Exception:  # missing or incomplete in the cache; transformers raises many types
        pass
    hub = _import("huggingface_hub")
    try:
        # Asked once: transformers itself retries for most of a minute.
        hub.HfApi().model_info(name, timeout=_PROBE_TIMEOUT)
    except hub.utils.HfHubHTTPError:  # an answer, which transformers explains
        pass
    except Exception as error:  # of the hub's offline mode, or of the network
        raise TokenizerLoadingError(
            f"{name!r} is neither a folder nor in the hub's cache, and {hub.constants.ENDPOINT} cannot be "
            f"asked: {_one_line(error)} Check the spelling, or run tokenizer.save_pretrained(folder) on a "
            "machine with network access and pass that folder."
        ) from error
    return _load(name, auto_tokenizer, name, trust_remote_code=False)


def _load_encoding(name: str) -> Any:
    tiktoken = _import("tiktoken")
    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerLoadingError(f"tiktoken has no encoding {name!r}. Expected one of {', '.join(known)}.")
    # tiktoken downloads an encoding that is not in its cache, without a timeout.
    pool = ThreadPool(1)
    try:
        return pool.apply_async(tiktoken.get_encoding, [name]).get(DOWNLOAD_TIMEOUT)
    except Exception as error:
        hangs = isinstance(error, TimeoutError)
        why = f"no answer within {DOWNLOAD_TIMEOUT:.0f} s" if hangs else type(error).__name__
        raise TokenizerLoadingError(
            f"the encoding {name!r} is not in tiktoken's cache and cannot be downloaded ({why}). Set "
            "TIKTOKEN_CACHE_DIR to a folder, load the encoding on a machine with network access, and copy "
            "the folder."
        ) from error


def _import(library: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise TokenizerLoadingError(f"this tokenizer needs {library}: pip install {library}") from error


def _load(source: str, load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return load(*arguments, **options)
    except Exception as error:  # transformers and tokenizers raise many types
        raise TokenizerLoadingError(
            f"{source}: no tokenizer could be loaded: {_one_line(error)} {_OTHER_KINDS}"
        ) from error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rstrip(".") + "." if len(text) <= 300 else text[:300] + " ..."
