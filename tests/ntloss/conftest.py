"""What the tests of the library share."""

import os
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import HealthCheck, settings
from torch.torch_version import TorchVersion

from ntloss import NumberVocabulary
from ntloss.numbers.vocabulary import warn_once

ROOT = Path(__file__).resolve().parents[2]

settings.register_profile(
    "ntloss", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.load_profile("ntloss")


@pytest.fixture(autouse=True)
def _forget_warnings():
    """What is said once in a process is said once in a test."""
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def _forget_mixed_precision(monkeypatch):
    """transformers 4 hands bfloat16 on to accelerate by the environment, and so to the next test."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def tokenizer_folder():
    """The folder of the real tokenizers (NTLOSS_TOKENIZERS, or `shared` beside the repository)."""
    folder = Path(os.environ.get("NTLOSS_TOKENIZERS", ROOT.parent / "shared" / "tokenizers"))
    if not (folder / "t5").is_dir() or not (folder / "gpt2").is_dir():
        pytest.skip(f"no real tokenizers in {folder}: set NTLOSS_TOKENIZERS to a folder with t5/ and gpt2/")
    return folder


@pytest.fixture(scope="session")
def real_tokenizer(tokenizer_folder):
    """A fresh "t5" or "gpt2" tokenizer at each call."""

    def load(name):
        if name == "t5" and TorchVersion(transformers.__version__) < TorchVersion("5"):
            pytest.skip("transformers 5 saved the T5 folder: older ones cannot read its special tokens")
        return transformers.AutoTokenizer.from_pretrained(tokenizer_folder / name, local_files_only=True)

    return load


@pytest.fixture(scope="session")
def digits():
    """Ten digits and two texts: ids 0 to 9, and 10 and 11."""
    return NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=12)


@pytest.fixture(scope="session")
def irregular():
    """Values with irregular gaps and several forms (7, ` 7`, 007; 0, -0), texts in between."""
    return NumberVocabulary.from_mapping(
        {1: "7", 2: " 7", 4: "007", 5: "-3", 7: "0", 8: "-0", 9: "3.14", 11: "1e3", 12: "250", 14: ".5"},
        vocab_size=17,
    )


@pytest.fixture
def batch():
    """Random logits that ask for a gradient, and labels: `batch(vocab, 2, 3)` is `[2, 3, vocab]`."""

    def make(vocab, *shape, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(*shape, vocab, generator=generator, dtype=torch.float64)
        labels = torch.randint(vocab, shape, generator=generator)
        return logits.to(dtype).requires_grad_(), labels

    return make


@pytest.fixture(scope="session")
def published():
    """The folder of the published package, which only other processes import."""
    folder = Path(os.environ.get("NTLOSS_PUBLISHED") or ROOT / ".published")
    if not (folder / "ntloss").is_dir():
        pytest.skip(f"ntloss 0.3.2 is not in {folder}: run `make published`, or set NTLOSS_PUBLISHED")
    return folder
