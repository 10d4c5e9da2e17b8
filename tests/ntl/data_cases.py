"""Datasets by their settings, and files for them."""

from omegaconf import OmegaConf

from ntl.data import DATASETS


def task(name, *settings):
    """Load a dataset, given settings as on the command line, but without `dataset_args.`."""
    defaults = OmegaConf.structured(DATASETS[name])
    return OmegaConf.to_object(OmegaConf.merge(defaults, OmegaConf.from_dotlist([*settings]))).read()


def tabular(*settings):
    return task("tabular", *settings)


def rows(data):
    """All examples of a dataset with one test set."""
    return [*data.train, *data.validation, *data.tests["test"]]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    return str(folder)
