import shutil

import pytest
import torch
from model_cases import model_args
from safetensors.torch import save_file

from ntl.encodings.locate import digest_of_weights
from ntl.errors import UserError
from ntl.models import build


def test_a_hub_name_fails_at_once_without_access_to_the_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="model_name_or_path=null"):
        build(model_args(checkpoint="someone/some-t5"))


@pytest.mark.parametrize(
    ("file", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)]
)
def test_a_digest_of_weights_tells_trained_from_copied_ones(file, save, tmp_path):
    weights = {"embedding": torch.rand(300, 40), "head": torch.rand(3), "norm": torch.rand(40)}
    folder = tmp_path / "model"
    folder.mkdir()
    save(weights, folder / file)
    before = digest_of_weights(str(folder), "model")
    shutil.copytree(folder, tmp_path / "copy")
    assert digest_of_weights(str(tmp_path / "copy"), "model") == before
    for name in weights:
        save({**weights, name: weights[name] + 0.1}, folder / file)
        assert digest_of_weights(str(folder), "model") != before


def test_names_on_the_hub_and_damaged_files_have_no_digest(tmp_path):
    assert digest_of_weights("google-t5/t5-small", "model") is None
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match=str(tmp_path)):
        digest_of_weights(str(tmp_path), "model")
