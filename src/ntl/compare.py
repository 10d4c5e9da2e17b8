"""`ntl compare`: `ntl train -m` with defaults for comparisons, several runs at a time, and a report of them.

    ntl compare
    ntl compare dataset_args=arithmetic dataset_args.data_dir=null training_args.seed=0,1
    ntl compare studies/sentiment/sweep.yaml

Repeating the command of an interrupted comparison keeps the finished runs and continues with the others.
"""

import shlex
import sys
from collections.abc import Sequence

from ntl import sweep
from ntl.program import run_hydra, run_program
from ntl.train import task


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on Hydra's options and overrides; see `ntl.program.run_program`.

    Returns:
        The exit code: 0 if all runs are finished, 1 if one failed, otherwise that of `run_program`.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["ntl", "compare", *arguments])
    return run_program("ntl compare", _compare, arguments, f"To continue: {command}")


def _compare(arguments: Sequence[str]) -> int:
    keys = {argument.partition("=")[0] for argument in arguments}
    if keys & {"loss", "model_args"} and "objective" not in keys:
        arguments = [*arguments, "objective=none"]  # what is given is what is compared
    if not any(argument.startswith("-") for argument in arguments):
        arguments = [*arguments, "--multirun"]
    try:
        return run_hydra("compare", task, arguments)
    finally:
        sweep.stop()
