"""The `ntloss` command."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ntloss.inspection import MARKERS, SENTENCE, Inspection, Reading, TokenGroup, inspect_tokenizer
from ntloss.tokenizer_loading import TokenizerLoadingError, load_tokenizer

_INSPECT = f"""\
What a number token loss makes of a tokenizer: which of its tokens are numbers and in how many forms, what
share of the digits of a text each reading of them sees, and which reading to choose.

The text should be like the one that the model is trained on. Without --text it is one sentence:
{SENTENCE!r}

TOKENIZER is one of
  a folder                that a Hugging Face tokenizer was saved to, or with tekken.json or *.model in it
  a file                  tokenizer.json, tekken.json, or a SentencePiece model
  a name                  on the Hugging Face hub, such as google-t5/t5-small
  tiktoken:<encoding>     such as tiktoken:cl100k_base"""
_INSPECT_MORE = """\
examples:
  ntloss inspect google-t5/t5-small
  ntloss inspect path/to/checkpoint --text train.jsonl
  head -n 1000 corpus.txt | ntloss inspect tiktoken:cl100k_base --text - --json

The same from Python:
  from ntloss.inspection import inspect_tokenizer
  inspect_tokenizer(tokenizer, texts)
The exit code is 0 where there is a report, 2 where something asked for cannot be done."""

# A file of JSON may be one line: it is cut before a space, where no number is cut, since a line is encoded
# at once and that takes some fifty times its memory.
_PIECE = re.compile(r".{1,10000}(?=\s|$)|.{1,10000}", re.DOTALL)


class _InputError(Exception):
    """Something asked for cannot be done; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those of the command line, without the program's name. Default: `sys.argv[1:]`.

    Returns:
        The exit code: 0 all is done, 2 something asked for cannot be done, 130 interrupted, 141 nobody
        reads on.
    """
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `ntloss inspect gpt2 | head -1` has read enough; the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # what a shell says of a program that a closed pipe ended


def _run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="ntloss", description="Number token losses: tools.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    inspect = commands.add_parser(
        "inspect",
        help="what a number token loss makes of a tokenizer, and of a text",
        description=_INSPECT,
        epilog=_INSPECT_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inspect.add_argument(
        "tokenizer", metavar="TOKENIZER", help="folder, file, hub name or tiktoken:<encoding>"
    )
    inspect.add_argument("--text", metavar="FILE", help="UTF-8 text, read line by line; - for standard input")
    inspect.add_argument("--json", action="store_true", help="print JSON instead of tables")
    given = parser.parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # other scripts' digits on a terminal without them
    try:
        print(_inspect(given.tokenizer, given.text, given.json))
    except (TokenizerLoadingError, _InputError) as error:
        print(f"ntloss: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ntloss: interrupted", file=sys.stderr)
        return 130
    return 0


def _inspect(source: str, text: str | None, as_json: bool) -> str:
    # The text first: it is read in no time, a tokenizer may be a download.
    lines = [SENTENCE] if text is None else _read_lines(text)
    with _quiet_libraries():
        tokenizer = load_tokenizer(source)
        try:
            inspection = inspect_tokenizer(tokenizer, lines)
        except (TypeError, ValueError) as error:
            raise _InputError(f"{source}: {error}") from error
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
            f"{where} is no UTF-8 text (byte {error.start:,}). Convert it: iconv -f <its encoding> -t utf-8"
        ) from error
    if content.count(0) * 4 > len(content):  # in UTF-16 there is a NUL beside each ASCII letter
        raise _InputError(f"{where} looks like UTF-16. Convert it: iconv -f utf-16le -t utf-8")
    if not any(line.strip() for line in lines):
        raise _InputError(f"{where} is empty. Expected a text like those that the model is trained on.")
    return [piece for line in lines for piece in _PIECE.findall(line)]


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    # They warn of texts longer than a model's context, which does not matter here.
    names = ("transformers", "huggingface_hub", "mistral_common")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def describe(inspection: Inspection, source: str, text: str) -> str:
    """An inspection as aligned plain text.

    Args:
        inspection: what `inspect_tokenizer` found.
        source: what the tokenizer is called.
        text: what the text is called.

    Returns:
        Lines, without a newline at the end.
    """
    lines = [
        f"{source} ({inspection.tokenizer}): {inspection.number_tokens:,} of {inspection.vocab_size:,} "
        f"tokens are numbers, {inspection.values:,} different values",
        "",
        *_forms(inspection),
        "",
        f"{text}: {inspection.digits:,} digits",
        "",
        *_table([_READING_HEAD, *(_reading_row(r, inspection) for r in inspection.readings)], "llrrrrl"),
        *(f"  {_arguments(r)}: {r.problem}." for r in inspection.readings if r.problem),
        "",
    ]
    if inspection.recommendation:
        lines += [f"Choose: {inspection.recommendation.code}", inspection.recommendation.reason]
    return "\n".join([*lines, *inspection.notes])


_READING_HEAD = ["digit_level", "space_prefixed", "tokens", "values", "digits seen", "share", "left out"]


def _reading_row(reading: Reading, inspection: Inspection) -> list[str]:
    digits = inspection.digits
    marked = " or ".join(marker for marker in _markers(inspection) if marker != "plain")
    reasons = ((reading.longer_left_out, "not one digit"), (reading.marked_left_out, marked))
    return [
        str(reading.digit_level),
        str(reading.space_prefixed),
        f"{reading.tokens:,}",
        f"{reading.values:,}",
        f"{reading.seen:,}",
        "unusable" if reading.problem else f"{reading.seen / digits:.1%}" if digits else "-",
        ", ".join(f"{count:,} {reason}" for count, reason in reasons if count) or "-",
    ]


def _arguments(reading: Reading) -> str:
    return f"digit_level={reading.digit_level}, space_prefixed={reading.space_prefixed}"


def _forms(inspection: Inspection) -> list[str]:
    markers = _markers(inspection)
    rows = [["number tokens", *markers]]
    for shape, groups in inspection.forms.items():
        rows.append([shape, *(_samples(groups[m]) if m in groups else "-" for m in markers)])
    others = [[f"{script} digits", _samples(group)] for script, group in inspection.other_scripts.items()]
    if inspection.mixed.count:
        others.insert(0, ["digits and more", _samples(inspection.mixed)])
    return _table(rows) + (["", *_table([["never counted", "tokens"], *others])] if others else [])


def _markers(inspection: Inspection) -> list[str]:
    return [m for m in MARKERS if any(m in groups for groups in inspection.forms.values())]


def _samples(group: TokenGroup) -> str:
    more = " ..." if group.count > len(group.samples) else ""
    return f"{group.count:,}: {' '.join(map(repr, group.samples))}{more}"


def _table(rows: list[list[str]], aligned: str = "") -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, aligned or "l" * len(row), strict=True)
        padded = (cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in cells)
        lines.append("  ".join(padded).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
