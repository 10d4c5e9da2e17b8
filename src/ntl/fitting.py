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
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ntl.data.files import only_writer_in, write_atomically
from ntl.errors import UserError, unknown_key, writing_to
from ntl.program import GROUPS, HELP_OPTIONS, escape, find_overrides, literal
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on what follows `ntl fit`; see `ntl.train.train`."""
    return train("fit", arguments, overrides)


def overrides(arguments: Sequence[str]) -> list[str]:
    """Translate a table and the words that stand for keys into overrides of Hydra.

    Example:
        >>> overrides(["houses.csv", "dataset_args.target=price", "prompt={a}: ", "output=out", "model=."])
        ... # doctest: +NORMALIZE_WHITESPACE
        ["dataset_args.file='houses.csv'", 'dataset_args.target=price', "dataset_args.prompt='{a}: '",
         "training_args.output_dir='out'", "model_args.model_name_or_path='.'"]
    """
    tables = [each for each in find_overrides(arguments) if _is_table(each)]
    if not arguments or (not tables and {*HELP_OPTIONS, "--hydra-help", "--info"} & {*arguments}):
        return [*(arguments or ["--help"])]
    if len(tables) != 1:
        found = " and ".join(tables) or "none"
        raise UserError(f"expected one table, given {found}. Pass it first: ntl fit TABLE.csv target=COLUMN.")
    given, translated = {}, [f"dataset_args.file={escape(quoted(tables[0]))}"]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if argument in tables:
            continue
        if value and key.isidentifier() and key not in (*WORDS, *GROUPS, *OTHERS):
            raise unknown_key("", key, WORDS)
        given[WORDS.get(key, key)] = value
        translated.append(f"{WORDS[key]}={quoted(value)}" if key in WORDS and equals else argument)
    if not any(argument.startswith(f"{WORDS['target']}=") for argument in arguments):
        _check_target(tables[0], given.get(WORDS["target"]))
    if not {WORDS["output"], "training_args.do_only_eval"} & {*given}:
        name = _slug(f"{Path(tables[0]).stem}-{given[WORDS['target']]}")
        translated.append(f"{WORDS['output']}={quoted(f'outputs/{name}')}")
    return translated


def _is_table(argument: str) -> bool:
    """Return whether an argument is a path and no override, such as key=value or ~group (without one)."""
    return os.path.isfile(os.path.expanduser(argument)) or re.match(r"[^=]*=|~[^/]", argument) is None


def _check_target(file: str, target: str | None) -> None:
    """Raise a UserError, before anything slow is imported, if a table has no such column."""
    from ntl.data.table_files import read_table

    columns = read_table(file, "the table").columns
    if not target:
        found = "no column to predict is given" if target is None else "target= is empty"
        raise UserError(f"{found}; expected target=COLUMN, one of {', '.join(columns)}. Add it.")
    if target not in columns:
        raise unknown_key("target=", target, columns)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


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
            continues, or returns what it has done. None means not given for these four.

    Returns:
        The trained model, as `ntl.load` returns it; `report` has its errors, and `save` copies it.

    Raises:
        UserError: The table, a key or the model cannot be used.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ntl.config import compose_config
    from ntl.predictor import load
    from ntl.training.run_folder import RunFolder

    optional = (*WORDS, WORDS["output"])
    keys = {key: value for key, value in keys.items() if value is not None or key not in optional}
    path = Path(table).expanduser() if isinstance(table, str | Path) else _stored(table, keys)
    given = [_override(key, value) for key, value in {"target": target, **keys}.items()]
    _check_target(str(path), str(target))
    if not {"output", WORDS["output"]} & {*keys}:
        digest = hashlib.sha256(repr((path.read_bytes(), given)).encode()).hexdigest()[:8]
        given.append(f"output=outputs/{_slug(str(target))}-{digest}")
    try:
        config = compose_config([literal(each) for each in overrides([str(path), *given])], "fit")
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"the keys cannot be used: {error}") from None
    folder = RunFolder(Path(str(config.training_args.output_dir)).expanduser())
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
    folder = Path(keys.get("dataset_args.cache_dir", "outputs/cache")).expanduser() / "tables"
    path = folder / f"{hashlib.sha256(content.encode()).hexdigest()[:16]}.csv"
    advice = "Pass another dataset_args.cache_dir."
    with writing_to(folder, "a folder that can be written to", advice):
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
