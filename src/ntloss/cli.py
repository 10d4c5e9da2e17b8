"""The `ntloss` command."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ntloss import __version__
from ntloss.tokenizer_loading import TokenizerLoadingError, load_tokenizer

_ABOUT = "Tools for number token losses. The losses themselves are in Python: import ntloss."
_EXAMPLES = """\
examples:
  ntloss inspect google-t5/t5-small
  ntloss inspect path/to/checkpoint --text train.jsonl

`ntloss inspect --help` says what it reports; `ntl --help` is the lab that trains and compares models."""
_INSPECT = """\
Say in one line how a tokenizer writes numbers and which criterion to train with, and then what share of the
digits of a text are tokens that are numbers. The text should be like the model's training data; without
--text it is one sentence.

TOKENIZER is one of
  a folder                that a Hugging Face tokenizer was saved to
  a file                  tokenizer.json, or a .model of SentencePiece (pip install sentencepiece)
  a name                  on the Hugging Face hub, such as google-t5/t5-small
  tiktoken:<encoding>     such as tiktoken:cl100k_base"""
_INSPECT_MORE = """\
examples:
  ntloss inspect google-t5/t5-small
  ntloss inspect path/to/checkpoint --text train.jsonl
  head -n 1000 corpus.txt | ntloss inspect tiktoken:cl100k_base --text - --json

The same from Python, for any tokenizer:
  from ntloss.numbers import inspect_tokenizer
  print(inspect_tokenizer(tokenizer, texts))
The exit code is 0 on success and 2 on an error."""

# A JSON file may be a single line. Encoding takes some fifty times the memory of the text, so long lines are
# split, at white space if possible, to keep numbers whole.
_PIECE = re.compile(r".{1,10000}(?=\s|$)|.{1,10000}", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with arguments, by default those of the command line, and return its exit code."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ntloss", description=_ABOUT, epilog=_EXAMPLES, formatter_class=raw)
    parser.add_argument("--version", action="version", version=f"ntloss {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    inspect = commands.add_parser(
        "inspect",
        help="report how a tokenizer represents numbers",
        description=_INSPECT,
        epilog=_INSPECT_MORE,
        formatter_class=raw,
    )
    inspect.add_argument(
        "tokenizer", metavar="TOKENIZER", help="folder, file, hub name or tiktoken:<encoding>"
    )
    inspect.add_argument("--text", metavar="FILE", help="UTF-8 text file; - for standard input")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    return _inspect(given)


def _inspect(given: argparse.Namespace) -> int:
    """Inspect a tokenizer, and return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals without the markers of tokenizers
    try:
        # The text comes first: reading it is fast, and the tokenizer may be a download.
        lines = None if given.text is None else _read_lines(given.text)
        tokenizer = load_tokenizer(given.tokenizer)
        from ntloss.numbers.inspection import SENTENCE, inspect_tokenizer  # slow: torch

        inspection = inspect_tokenizer(tokenizer, [SENTENCE] if lines is None else lines)
    except (TokenizerLoadingError, OSError, TypeError, ValueError) as error:
        print(f"ntloss: {error}", file=sys.stderr)
        return 2
    about = {"source": given.tokenizer, "text": given.text or SENTENCE}
    if given.json:
        print(json.dumps({**about, **dataclasses.asdict(inspection)}, indent=2))
    else:
        print(inspection)
    return 0


def _read_lines(text: str) -> list[str]:
    """Read the lines of a file, or of standard input for `-`."""
    content = sys.stdin.buffer.read() if text == "-" else Path(text).expanduser().read_bytes()
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{text} is not UTF-8 text (byte {error.start:,}). Convert it: iconv -f <its encoding> -t utf-8"
        ) from error
    return [piece for line in lines for piece in _PIECE.findall(line)]
