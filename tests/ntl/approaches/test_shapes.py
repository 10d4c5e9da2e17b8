import pytest
from approach_cases import make, model_args

from ntl.approaches import build_approach
from ntl.approaches.shapes import get_shape
from ntl.config import LossSettings
from ntl.errors import UserError


def test_shapes_are_found_by_name_and_in_folders(tmp_path):
    assert get_shape("t5-base")["num_layers"] == 12
    make().model.save_pretrained(tmp_path)
    shape = get_shape(str(tmp_path))
    assert get_shape("t5-tiny").items() <= shape.items()
    assert "vocab_size" not in shape
    build_approach(model_args(config=shape), LossSettings())
    with pytest.raises(UserError, match="expected one of t5-tiny, t5-small"):
        get_shape("t5-huge")
