import pytest
from model_cases import model_args

from ntl.errors import UserError
from ntl.models import build


def test_a_hub_name_fails_at_once_without_access_to_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="model_name_or_path=null"):
        build(model_args(checkpoint="someone/some-t5"))
