"""The digest that tells a folder's weights from others that take their place."""

import shutil

import pytest

from ntloss.writing.weights import digest_of_weights


@pytest.mark.parametrize("size", [2**20, 200 * 2**20])
def test_weights_are_told_from_others_of_their_size_and_from_no_copy(tmp_path, size):
    folder, copy = tmp_path / "model", tmp_path / "copy"
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)  # takes no room on the disk
    shutil.copytree(folder, copy)
    (copy / "metrics.json").write_text("{}")
    assert digest_of_weights(copy) == digest_of_weights(folder)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(range(256)) * 2**10)  # a matrix of 256 kB
    assert digest_of_weights(copy) != digest_of_weights(folder)


def test_a_name_on_the_hub_has_no_digest():
    assert digest_of_weights("HuggingFaceTB/SmolLM2-135M-Instruct") is None
