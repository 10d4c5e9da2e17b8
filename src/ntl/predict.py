"""`ntl predict`: answers of a trained model to new rows, with intervals, as CSV.

Help and a mistyped folder are answered here, without the seconds that the imports of `ntl.answers` take.
"""

from collections.abc import Sequence
from pathlib import Path

from ntl.errors import UserError
from ntl.program import HELP_OPTIONS, run_program

HELP = """\
usage: ntl predict RUN [key=value ...]

Answer new rows with a trained model, and write them as CSV with the columns
  greedy              the number that the model writes (written: its text, if it was trained on texts)
  median              the number with the smallest expected error
  lower, upper        the interval that holds 90 % of the model's distribution
  number_probability  how likely the model is to write a number here at all
Where the rows have a column of this name, it is predicted_greedy, predicted_median, ...

RUN is the folder of a run or of one of its checkpoints; or, with prompt=..., any causal or encoder-decoder
model: a folder, a .gguf file, or a name on the hub.

  data=new.csv           rows to answer: CSV, TSV, Parquet or JSON lines; data=- reads CSV from standard input
  text="I love it"       one text to answer, on one line; text=- (or only -) reads one from each line
                         of standard input, and writes CSV
  output=answers.csv     where to write; without it, standard output. The same command continues an
                         interrupted one, and answers only the rows that are not in this file yet
  level=0.9              share of the distribution in the interval; level=none: neither median nor interval
  calibrate=true         widens or narrows the intervals to hold that share of the run's validation answers
                         (by a factor where these have a long tail); the default for runs of `ntl fit`.
                         calibrate=labelled.csv: of the answers in a table's column truth=...;
                         calibrate=false: the model's own intervals
  truth=price            column with the true answers, to print the errors
  prompt="{text} ... "   the question, with names of columns in braces; for models that are not runs
  digits=3               how many digits all answers have, or format=+00.0, a sign, two digits and a decimal;
                         for models that are not runs. Without it, numbers of any length

examples:
  ntl predict outputs/demo/ce/seed0 text="What a wonderful surprise!"
  ntl predict outputs/sentiment data=new.csv output=answers.csv
"""
KEYS = ("data", "text", "output", "level", "calibrate", "prompt", "truth", "digits", "format")
ADVICE = "With output=FILE, the same command continues."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl predict`; see `ntl.program.run_program`."""
    return run_program("ntl predict", _predict, arguments, ADVICE)


def _predict(arguments: Sequence[str]) -> int:
    if not arguments or HELP_OPTIONS & {*arguments}:
        print(HELP)
        return 0
    if arguments[0] == "-" or arguments[0].partition("=")[0] in KEYS:
        raise UserError(
            f"{arguments[0]!r} is given where the model is expected. Pass the folder of a run first: ntl "
            f"predict RUN {arguments[0]}."
        )
    model, options = arguments[0], _options(arguments[1:])
    if "prompt" not in options and not Path(model).expanduser().exists():
        raise UserError(
            f"there is no {model}; expected a folder that `ntl fit`, `ntl train` or `ntl compare` wrote, or "
            'any other model with a prompt. Correct the folder, or pass prompt="... {column} ...".'
        )
    from ntl.answers import write_answers

    return write_answers(model, options)


def _options(given: Sequence[str]) -> dict[str, str]:
    pairs = [("text", "=", "-") if each == "-" else each.partition("=") for each in given]
    if wrong := [
        each for each, (key, equals, _) in zip(given, pairs, strict=True) if not equals or key not in KEYS
    ]:
        known = ", ".join(f"{key}=" for key in KEYS)
        raise UserError(f"{wrong[0]!r} cannot be read; expected one of {known}. See `ntl predict --help`.")
    options = {key: value for key, _, value in pairs}
    if ("data" in options) == ("text" in options):
        count = "both" if "data" in options else "neither"
        raise UserError(f"data=FILE and text=TEXT say what to answer; expected one of them, given {count}.")
    if "digits" in options and "format" in options:
        raise UserError("digits=N and format=FORM both say how answers are written; expected one of them.")
    if options.get("calibrate", "true") not in ("true", "false") and "truth" not in options:
        raise UserError(
            f"calibrate={options['calibrate']} needs a column of true answers; expected true, false, or "
            "a table together with truth=COLUMN. Correct it, or add truth."
        )
    return options
