"""Share of a text's digits that a number token loss sees, for each reading of a tokenizer.

    python benchmarks/coverage.py TOKENIZER_FOLDER [TEXT_FILE]

Without a file, the sentence of the README is read. Prints one row of a Markdown table.
"""

import argparse
import warnings
from pathlib import Path

from transformers import AutoTokenizer

from ntloss import NumberTokensLeftOut, NumberVocabulary

SENTENCE = "The answer is 42, or 3.14 in 2019."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="folder of a Hugging Face tokenizer")
    parser.add_argument("text", type=Path, nargs="?", help="UTF-8 text; default: the README's sentence")
    arguments = parser.parse_args()
    if not arguments.tokenizer.is_dir():
        parser.error(f"{arguments.tokenizer} is no folder. Give the folder of a Hugging Face tokenizer.")
    warnings.simplefilter("ignore", NumberTokensLeftOut)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    lines = [SENTENCE] if arguments.text is None else arguments.text.read_text(encoding="utf-8").splitlines()
    coverage = NumberVocabulary.from_tokenizer(tokenizer).coverage(lines)
    shares = [f"{seen / coverage.digits:.1%}" for seen in coverage.seen_by_reading.values()]
    text = "sentence" if arguments.text is None else arguments.text.name
    print("|", " | ".join([arguments.tokenizer.name, text, f"{coverage.digits:,}", *shares]), "|")


if __name__ == "__main__":
    main()
