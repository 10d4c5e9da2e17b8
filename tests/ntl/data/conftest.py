import pytest

from ntl.data import DATASETS


@pytest.fixture
def load():
    """Load a dataset with the given settings."""

    def load(name, **settings):
        return DATASETS[name](**settings).read()

    return load
