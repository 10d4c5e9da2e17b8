"""Datasets by their section of the configuration, and files for them."""

from ntl.config import compose_config
from ntl.data import load_task


def task(*overrides):
    """Load a dataset, given overrides of `ntl compare`."""
    return load_task(compose_config(overrides, "compare").dataset_args)


def tabular(*overrides):
    return task("dataset_args=tabular", *(f"dataset_args.{override}" for override in overrides))


def rows(data):
    """All examples of a dataset with one test set."""
    return [*data.train, *data.validation, *data.tests["test"]]


def splits(data):
    return {"train": list(data.train), "validation": list(data.validation)} | {
        test: list(examples) for test, examples in data.tests.items()
    }


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return str(folder)
