from pathlib import Path

import pytest

from ntl.config import DATASET_BY_NAME
from ntl.data import load_task


@pytest.fixture
def load(tmp_path):
    """Load a dataset with its section of the configuration and the given changes."""

    def load(name, **changes):
        changes = {"cache_dir": tmp_path / "cache", **changes}
        return load_task(DATASET_BY_NAME[name](**{key: _plain(value) for key, value in changes.items()}))

    return load


def _plain(value):
    return str(value) if isinstance(value, Path) else value
