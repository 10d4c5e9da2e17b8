from __future__ import annotations

import pytest
from data_cases import task
from ntl.config.schema import format_setting


@pytest.fixture
def load(tmp_path):
    """Load a dataset with its section of the configuration and the given changes."""

    def load(name, **changes):
        changes = {"cache_dir": tmp_path / "cache", **changes}
        overrides = [f"dataset_args.{key}={format_setting(value)}" for key, value in changes.items()]
        return task(f"dataset_args={name}", *overrides)

    return load
