"""The `ntloss` command."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ntloss import __version__
from ntloss.numbers.inspection import MARKERS, SENTENCE, Inspection, TokenGroup, inspect_tokenizer
from ntloss.numbers.tokenizer_loading import TokenizerLoadingError, load_tokenizer

_INSPECT = f"""\
Report how a tokenizer represents numbers: which of its tokens are numbers and in which forms, what share of
the digits of a text each token set covers, and which token set to choose.

The text should be like the model's training data. Without --text it is one sentence:
{SENTENCE!r}

TOKENIZER is one of
  a folder                that a Hugging Face tokenizer was saved to
  a file                  tokenizer.json, or a .model of SentencePiece (pip install sentencepiece)
  a name                  on the Hugging Face hub, such as google-t5/t5-small
  tiktoken:<encoding>     such as tiktoken:cl100k_base
Load any other tokenizer from Python, as below."""
_INSPECT_MORE = """\
examples:
  ntloss inspect google-t5/t5-small
  ntloss inspect path/to/checkpoint --text train.jsonl
  head -n 1000 corpus.txt | ntloss inspect tiktoken:cl100k_base --text - --json

The same from Python:
  from ntloss.numbers.inspection import inspect_tokenizer
  inspect_tokenizer(tokenizer, texts)
The exit code is 0 on success and 2 on an error."""

# A JSON file may be a single line. Encoding takes some fifty times the memory of the text, so long lines are
# split, at white space if possible, to keep numbers whole.
_PIECE = re.compile(r".{1,10000}(?=\s|$)|.{1,10000}", re.DOTALL)


class _InputError(Exception):
    """The text or the tokenizer cannot be used; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with arguments, by default those of the command line, and return its exit code.

    It is 0 for success, 2 for an error, 130 if interrupted, and 141 if the output pipe was closed.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as in `ntloss inspect gpt2 | head -1`; the rest of the output is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the shell's exit code for a program that a closed pipe ended


def _run(arguments: Sequence[str] | None) -> int:
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
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that lack other scripts' digits
    try:
        print(_inspect(given.tokenizer, given.text, given.json))
        return 0
    except (TokenizerLoadingError, _InputError, KeyboardInterrupt) as error:
        print(f"ntloss: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 2


def _inspect(source: str, text: str | None, as_json: bool) -> str:
    # The text comes first: reading it is fast, and the tokenizer may be a download.
    lines = [SENTENCE] if text is None else _read_lines(text)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # such as warnings about texts longer than the model's context
    try:
        inspection = inspect_tokenizer(load_tokenizer(source), lines)
    except (TypeError, ValueError) as error:
        raise _InputError(f"{source}: {error}") from error
    finally:
        logging.disable(disabled)
    if as_json:
        described = {"source": source, "text": text or SENTENCE, **dataclasses.asdict(inspection)}
        return json.dumps(described, indent=2)
    return describe(inspection, source, "standard input" if text == "-" else text or repr(SENTENCE))


def _read_lines(text: str) -> list[str]:
    where = "standard input" if text == "-" else text
    try:
        content = sys.stdin.buffer.read() if text == "-" else Path(text).expanduser().read_bytes()
    except OSError as error:
        raise _InputError(f"cannot read the text {text}: {error.strerror or error}") from error
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise _InputError(
            f"{where} is not UTF-8 text (byte {error.start:,}). Convert it: iconv -f <its encoding> -t utf-8"
        ) from error
    if content.count(0) * 4 > len(content):  # UTF-16 has a NUL beside each ASCII letter
        raise _InputError(f"{where} looks like UTF-16. Convert it: iconv -f utf-16le -t utf-8")
    if not any(line.strip() for line in lines):
        raise _InputError(f"{where} is empty. Expected a text like the model's training data.")
    return [piece for line in lines for piece in _PIECE.findall(line)]


def describe(inspection: Inspection, source: str, text: str) -> str:
    """Format an inspection as aligned plain text; `source` names the tokenizer, and `text` the text."""
    forms, coverage = inspection.forms, inspection.coverage
    markers = [marker for marker in MARKERS if any(marker in groups for groups in forms.values())]
    never = {
        "digits with other characters": inspection.mixed,
        "digits of other scripts": inspection.other_scripts,
    }
    never_counted = [[name, _samples(group)] for name, group in never.items() if group.count]
    columns = ["digit_level", "space_prefixed", "tokens", "values", "digits seen", "share", "left out"]
    marked = " or ".join(marker for marker in markers if marker != "plain")
    token_sets = []
    for row in coverage.rows:
        share = f"{row.seen / coverage.digits:.1%}" if coverage.digits else "-"
        reasons = ((row.longer_left_out, "not one digit"), (row.marked_left_out, marked))
        left_out = ", ".join(f"{count:,} {reason}" for count, reason in reasons if count) or "-"
        counts = [f"{count:,}" for count in (row.tokens, row.values, row.seen)]
        options = [str(row.digit_level), str(row.space_prefixed)]
        token_sets.append([*options, *counts, "unusable" if row.problem else share, left_out])
    lines = [
        f"{source} ({inspection.tokenizer}): {inspection.number_tokens:,} of {inspection.vocab_size:,} "
        f"tokens are numbers, {inspection.values:,} different values",
        "",
        *_table(
            ["number tokens", *markers],
            [[shape, *(_samples(groups.get(m)) for m in markers)] for shape, groups in forms.items()],
        ),
        *(["", *_table(["never counted", "tokens"], never_counted)] if never_counted else []),
        "",
        f"{text}: {coverage.digits:,} digits",
        "",
        *_table(columns, token_sets, "llrrrrl"),
    ]
    lines += [
        f"  digit_level={row.digit_level}, space_prefixed={row.space_prefixed}: {row.problem}."
        for row in coverage.rows
        if row.problem
    ]
    chosen = inspection.recommendation
    advice = [f"Choose: {chosen.code}", chosen.reason] if chosen else []
    return "\n".join([*lines, "", *advice, *inspection.notes])


def _samples(group: TokenGroup | None) -> str:
    if group is None:
        return "-"
    more = " ..." if group.count > len(group.samples) else ""
    return f"{group.count:,}: {' '.join(map(repr, group.samples))}{more}"


def _table(head: list[str], rows: list[list[str]], aligned: str = "") -> list[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in [head, *rows]:
        cells = zip(row, widths, aligned or "l" * len(row), strict=True)
        padded = (cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in cells)
        lines.append("  ".join(padded).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
