import pytest
from model_cases import save_pretrained


@pytest.fixture
def tiny(tmp_path):
    """Return the folder of a tiny Llama that knows nothing of the lab."""
    return save_pretrained(tmp_path / "tiny")
