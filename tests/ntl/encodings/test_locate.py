import pytest

from ntl.encodings.locate import digest_of_files
from ntl.errors import UserError


def test_damaged_weights_are_an_error_that_names_the_setting(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(UserError, match="start"):
        digest_of_files(str(tmp_path), "start")
