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

_ABOUT = "Tools for language models that write numbers. The losses are in Python: import ntloss."
_EXAMPLES = """\
examples:
  ntloss inspect google-t5/t5-small
  ntloss fit reviews.csv --target stars
  ntloss predict reviews-stars new.csv > predictions.csv

`ntloss COMMAND --help` says more."""
_FIT = """\
Train a small language model to predict one column of a table from the other columns (texts, categories,
numbers, dates, with gaps), calibrate its intervals on held-out rows, and compare it with simple models.

TABLE is CSV with any separator, JSON (an array, or an object a line), Parquet or .xlsx, also .csv.gz. Rows
without an answer are left out. If the command is interrupted, run it again: it continues."""
_FIT_MORE = """\
example:
  ntloss fit data/sentiment.csv --target sentiment --prompt "{text}\\nsentiment: "

The same in Python:
  from ntloss.regression import NumberRegressor
  model = NumberRegressor().fit(frame[["text"]], frame["sentiment"])"""
_PREDICT = """\
Write the rows of a table with three more columns, as CSV: prediction, lower and upper, the ends of an
interval that holds a share of the answers of new rows."""
_PREDICT_MORE = """\
example:
  ntloss predict sentiment-sentiment new.csv --truth sentiment > predictions.csv"""
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
    _add_regression(commands)
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may lack the characters of tokenizers and texts. Predictions are a file, in UTF-8.
        encoding = "utf-8" if given.command == "predict" else None
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")
    return _inspect(given) if given.command == "inspect" else _regression(given)


def _add_regression(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `fit` and `predict`."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "train a model to predict a column of a table, with intervals"
    fit = commands.add_parser("fit", help=about, description=_FIT, epilog=_FIT_MORE, formatter_class=raw)
    fit.add_argument("table", metavar="TABLE")
    fit.add_argument("--target", required=True, metavar="COLUMN", help="the numbers to predict")
    fit.add_argument("--prompt", help="the question, with columns in braces (default: all columns)")
    fit.add_argument("--output", metavar="FOLDER", help="where the model is saved (default: TABLE-COLUMN)")
    model = "HuggingFaceTB/SmolLM2-135M-Instruct"
    fit.add_argument("--model", default=model, help="folder or name on the hub (default: %(default)s)")
    fit.add_argument("--epochs", type=int, default=10, help="largest number of epochs (default: 10)")
    about = "the weights that are trained (default: upper_layers)"
    fit.add_argument("--train", choices=["all", "upper_layers", "lora"], default="upper_layers", help=about)
    about = "train again on all rows at the end; intervals are then only approximate"
    fit.add_argument("--refit", action="store_true", help=about)
    fit.add_argument(
        "--scale", choices=["plain", "log"], help="log for a long tail (default: by the answers)"
    )
    fit.add_argument("--drop", action="append", default=[], metavar="COLUMN", help="leave a column out")
    fit.add_argument("--sort-by", metavar="COLUMN", help="hold out the last rows by it, not random ones")
    fit.add_argument("--compare", metavar="ENCODER", help="also compare with this sentence encoder and SVR")
    about = "predict new rows with a fitted model"
    predict = commands.add_parser(
        "predict", help=about, description=_PREDICT, epilog=_PREDICT_MORE, formatter_class=raw
    )
    predict.add_argument("folder", metavar="FOLDER", help="that `ntloss fit` has written")
    predict.add_argument("table", metavar="TABLE", help="the rows, with the columns of the fitted table")
    predict.add_argument("--level", type=float, default=0.9, help="of the intervals (default: 0.9)")
    predict.add_argument("--truth", metavar="COLUMN", help="true answers, to print the errors")
    predict.add_argument("--plot", metavar="FILE", help="save a picture of predictions and true answers")
    for command in (fit, predict):
        command.add_argument("--decimal", choices=[".", ","], help="the mark before decimals of answers")
        command.add_argument(
            "--separator", metavar="MARK", help="what separates fields of CSV (default: found; ' ': blanks)"
        )
        command.add_argument("--no-header", action="store_true", help="columns are called x0, x1 and so on")
        about = "stands for a gap, such as -999; may be repeated"
        command.add_argument("--missing", action="append", default=[], metavar="TEXT", help=about)


def _regression(given: argparse.Namespace) -> int:
    """Fit or predict, and return the exit code."""
    try:
        from ntloss.regression import program  # slow: pandas

        code: int = program.fit(given) if given.command == "fit" else program.predict(given)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ntloss"):
            raise
        print(f"ntloss: {error.name} is not installed: pip install 'ntloss[regression]'", file=sys.stderr)
        return 2
    except (OSError, TypeError, ValueError) as error:
        print(f"ntloss: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a training that was interrupted has said how it goes on
        return 130
    return code


def _inspect(given: argparse.Namespace) -> int:
    """Inspect a tokenizer, and return the exit code."""
    try:
        # The text comes first: reading it is fast, and the tokenizer may be a download.
        lines = None if given.text is None else _read_lines(given.text)
        tokenizer = load_tokenizer(given.tokenizer)
        from ntloss.numbers.inspection import SENTENCE, inspect_tokenizer  # slow: torch

        inspection = inspect_tokenizer(tokenizer, SENTENCE if lines is None else lines)
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
