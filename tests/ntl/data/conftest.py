import pytest

from ntl.data import DATASETS, load_task


@pytest.fixture
def load():
    """Load a dataset with the given settings."""

    def load(name, **settings):
        return load_task(DATASETS[name](**settings))

    return load
