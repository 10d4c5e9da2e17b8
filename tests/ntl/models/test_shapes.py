import pytest
from model_cases import make, model_args

from ntl.errors import UserError
from ntl.models import build
from ntl.models.shapes import get_shape


def test_shapes_are_found_by_name_and_in_folders(tmp_path):
    assert get_shape("t5-base")["num_layers"] == 12
    make().model.save_pretrained(tmp_path)
    shape = get_shape(str(tmp_path))
    assert get_shape("t5-tiny").items() <= shape.items()
    assert "vocab_size" not in shape
    build(model_args(config=shape))
    with pytest.raises(UserError, match="t5-huge"):
        get_shape("t5-huge")
