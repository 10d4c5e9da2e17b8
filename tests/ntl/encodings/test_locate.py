import pytest
from approach_cases import model_args

from ntl.approaches import build_approach
from ntl.config import LossSettings
from ntl.errors import UserError


def test_a_hub_name_fails_at_once_without_access_to_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"or pass model_args\.model_name_or_path=null to train from scratch"):
        build_approach(model_args(checkpoint="someone/some-t5"), LossSettings())
