"""The switch `--rounding` of the suite; rounding.py says what it does."""

from __future__ import annotations

import pytest
import rounding
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rounding",
        metavar="SEED",
        type=int,
        nargs="?",
        const=0,
        help="add noise of one rounding to every matrix product; tests must pass with any seed",
    )


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("rounding")
    if seed is not None:
        if not hasattr(torch.library, "get_kernel"):
            raise pytest.UsageError("--rounding needs torch.library.get_kernel, which this PyTorch lacks")
        rounding.install(seed)
        config.pluginmanager.register(Switch(seed))


class Switch:
    """Restarts the noise for each test, the doctests of src included."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("exact_rounding"):
            rounding.stop()
        else:
            rounding.restart(rounding.seed_of(self.seed, item.nodeid))
