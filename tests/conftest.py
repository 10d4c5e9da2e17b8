"""The switch `--rounding` of the suite, which rounding.py explains, and a pretrained model."""

import gc
import os
from pathlib import Path

import pytest
import rounding
import torch

MODELS = Path(os.environ.get("NTLOSS_MODELS") or Path(__file__).parents[1] / ".models")


@pytest.fixture(autouse=True, scope="module")
def cheap_garbage_collection():
    """Take what earlier modules left out of each collection: accelerate collects after every training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def smollm2():
    """Tokenizer and model of SmolLM2-135M-Instruct in float32, loaded once; leave both as they are."""
    transformers = pytest.importorskip("transformers")
    folder = MODELS / "smollm2"
    if not folder.exists():
        pytest.skip(f"SmolLM2 is not in {MODELS}: `make model` puts it there")
    if int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("`make model` saved the tokenizer with transformers 5, which older releases cannot load")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    return tokenizer, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def pytest_addoption(parser):
    parser.addoption(
        "--rounding",
        metavar="SEED",
        type=int,
        nargs="?",
        const=0,
        help="add noise of one rounding to every matrix product; tests must pass with any seed",
    )


def pytest_configure(config):
    seed = config.getoption("rounding")
    if seed is not None:
        if not hasattr(torch.library, "get_kernel"):
            raise pytest.UsageError("--rounding needs torch.library.get_kernel, which this PyTorch lacks")
        rounding.install()
        config.pluginmanager.register(Switch(seed))


class Switch:
    """Restarts the noise for each test, the doctests of src included."""

    def __init__(self, seed):
        self.seed = seed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        if item.get_closest_marker("exact_rounding"):
            rounding.stop()
        else:
            rounding.restart(self.seed, item.nodeid)
