"""`ntl compare`: `ntl train -m` with defaults for comparisons, several runs at a time, and a report of them.

    ntl compare
    ntl compare dataset_args=arithmetic dataset_args.data_dir=null training_args.seed=0,1
    ntl compare studies/sentiment/sweep.yaml

Repeating the command of an interrupted comparison keeps the finished runs and continues with the others.
"""

from collections.abc import Sequence

from ntl.train import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on Hydra's options and overrides; see `ntl.train.train`."""
    return train("compare", arguments, _with_defaults)


def _with_defaults(arguments: Sequence[str]) -> list[str]:
    """Sweep, unless another of Hydra's options is given, over the objectives or what replaces them."""
    keys = {argument.partition("=")[0] for argument in arguments}
    added = []
    if keys & {"loss", "model_args"} and "objective" not in keys:
        added.append("objective=none")  # what is given is what is compared
    if not any(argument.startswith("-") for argument in arguments):
        added.append("--multirun")
    return [*arguments, *added]
