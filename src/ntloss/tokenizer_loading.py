"""Load a tokenizer from a folder, a `tokenizer.json`, a SentencePiece model, a hub name or tiktoken."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_TIKTOKEN = "tiktoken:"
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class TokenizerLoadingError(Exception):
    """A tokenizer could not be loaded; the message is one line and says what to do."""


def load_tokenizer(source: str) -> Any:
    """Load a tokenizer for `NumberVocabulary.from_tokenizer`, without running code that comes with it.

    `source` is a folder or a name on the Hugging Face hub, loaded by transformers' `AutoTokenizer`; a
    `tokenizer.json` file; a `.model` file of SentencePiece; or `tiktoken:<encoding>`. If it cannot be loaded,
    a `TokenizerLoadingError` says why.
    """
    is_name = bool(_HUB_NAME.fullmatch(source)) and not source.endswith((".json", ".model", ".tiktoken"))
    if not (is_name or source.startswith(_TIKTOKEN) or (source and Path(source).expanduser().exists())):
        raise TokenizerLoadingError(
            f"{source!r}: no such file or folder. Expected the folder of a tokenizer, a tokenizer.json, a "
            f"SentencePiece .model, a name on the Hugging Face hub, or {_TIKTOKEN}<encoding>."
        )
    try:
        return _load(source)
    except Exception as error:  # transformers and tokenizers raise many types
        if isinstance(error, ModuleNotFoundError):
            missing = f"this tokenizer needs {error.name}: pip install {error.name}"
            raise TokenizerLoadingError(missing) from error
        why = " ".join(str(error).split()) or type(error).__name__
        raise TokenizerLoadingError(
            f"{source}: no tokenizer could be loaded: {why[:300].rstrip('.')}. Expected a folder, a "
            "tokenizer.json, a SentencePiece .model, or a name. Load any other tokenizer (Tekken, tiktoken "
            "ranks, custom code) with its own library, and pass the object to "
            "ntloss.numbers.inspect_tokenizer or NumberVocabulary.from_tokenizer. Without network "
            "access, pass the folder of tokenizer.save_pretrained(folder)."
        ) from error


def _load(source: str) -> Any:
    path = Path(source).expanduser()
    if source.startswith(_TIKTOKEN):
        return import_module("tiktoken").get_encoding(source.removeprefix(_TIKTOKEN))
    if path.is_file() and ".model" in path.suffixes:  # tokenizer.model, and Mistral's tokenizer.model.v3
        return import_module("sentencepiece").SentencePieceProcessor(model_file=str(path))
    transformers = import_module("transformers")
    if path.is_file():
        return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    name = str(path) if path.is_dir() else source
    return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
