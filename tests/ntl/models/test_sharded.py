from pathlib import Path

import pytest
from processes import printed_by


@pytest.mark.slow
def test_a_sharded_model_has_the_same_answers_as_an_unsharded_one(tmp_path):
    printed_by(Path(__file__).parents[1] / "sharded_worker.py", [], tmp_path, world=2)
