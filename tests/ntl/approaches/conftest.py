import pytest
from approach_cases import make


@pytest.fixture
def tiny(tmp_path):
    """Return the folder of a tiny Llama that knows nothing of the lab."""
    approach = make("llama-tiny", family="decoder_only")
    del approach.model.config.ntl
    approach.model.save_pretrained(tmp_path / "tiny")
    approach.tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"
