"""The digest that tells a folder's weights from others that take their place."""

import shutil

import pytest
import torch
from safetensors.torch import save_file

from ntloss.writing import digest_of_weights


@pytest.mark.parametrize(
    ("file", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)]
)
def test_trained_weights_are_told_from_copied_ones(file, save, tmp_path):
    weights = {"embedding": torch.rand(3000, 40), "head": torch.rand(3), "norm": torch.rand(40)}
    folder, copy = tmp_path / "model", tmp_path / "copy"
    folder.mkdir()
    save(weights, folder / file)
    shutil.copytree(folder, copy)
    (copy / "metrics.json").write_text("{}")
    assert digest_of_weights(copy) == digest_of_weights(folder)
    for name in weights:
        save({**weights, name: weights[name] + 0.1}, copy / file)
        assert digest_of_weights(copy) != digest_of_weights(folder)


def test_a_name_on_the_hub_has_no_digest_and_a_damaged_file_is_an_error(tmp_path):
    assert digest_of_weights("HuggingFaceTB/SmolLM2-135M-Instruct") is None
    for damaged in (b"", b"half", b"version https://git-lfs", b"\x02" + bytes(7) + b"[]"):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=str(tmp_path)):
            digest_of_weights(tmp_path)
