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
from ntloss.numbers.inspection import SENTENCE, inspect_tokenizer
from ntloss.numbers.tokenizer_loading import TokenizerLoadingError, load_tokenizer

_INSPECT = f"""\
Report what share of the digits of a text are number tokens of a tokenizer, for each token set, and which
token set to choose. The text should be like the model's training data. Without --text it is one sentence:
{SENTENCE!r}

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
  from ntloss.numbers.inspection import inspect_tokenizer
  print(inspect_tokenizer(tokenizer, texts))
The exit code is 0 on success and 2 on an error."""

# A JSON file may be a single line. Encoding takes some fifty times the memory of the text, so long lines are
# split, at white space if possible, to keep numbers whole.
_PIECE = re.compile(r".{1,10000}(?=\s|$)|.{1,10000}", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with arguments, by default those of the command line, and return its exit code."""
    parser = argparse.ArgumentParser(prog="ntloss", description="Tools for number token losses.")
    parser.add_argument("--version", action="version", version=f"ntloss {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect = commands.add_parser(
        "inspect",
        help="report how a tokenizer represents numbers",
        description=_INSPECT,
        epilog=_INSPECT_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument(
        "tokenizer", metavar="TOKENIZER", help="folder, file, hub name or tiktoken:<encoding>"
    )
    inspect.add_argument("--text", metavar="FILE", help="UTF-8 text file; - for standard input")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of text")
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals without the markers of tokenizers
    try:
        # The text comes first: reading it is fast, and the tokenizer may be a download.
        lines = [SENTENCE] if given.text is None else _read_lines(given.text)
        inspection = inspect_tokenizer(load_tokenizer(given.tokenizer), lines)
    except (TokenizerLoadingError, OSError, TypeError, ValueError) as error:
        print(f"ntloss: {error}", file=sys.stderr)
        return 2
    about = {"source": given.tokenizer, "text": given.text or SENTENCE}
    if given.json:
        print(json.dumps({**about, **dataclasses.asdict(inspection), "code": inspection.code}, indent=2))
    else:
        print("{source}, {text!r}:".format_map(about), inspection, sep="\n")
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
