import pytest
from model_cases import model_args

from ntl.encodings.locate import digest_of_files
from ntl.errors import UserError
from ntl.models import build


def test_a_hub_name_fails_at_once_without_access_to_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="model_name_or_path=null"):
        build(model_args(checkpoint="someone/some-t5"))


def test_damaged_weights_are_an_error_that_names_the_setting(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match="start"):
        digest_of_files(str(tmp_path), "start")
