"""axolotl: `make test-trainers TRAINER=axolotl`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_model import ROWS, save_model

pytest.importorskip("axolotl", reason="axolotl is not installed: make test-trainers TRAINER=axolotl")
CONFIG = Path(__file__).parents[2] / "examples" / "trainers" / "axolotl.yaml"
TOLERANCE = 1 / 10_000  # of a logged loss


def run(tmp_path, **changes):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = yaml.safe_load(CONFIG.read_text())
    config |= {"base_model": str(save_model(tmp_path / "model")), "output_dir": str(tmp_path / "run")}
    config |= {"datasets": [{"path": str(tmp_path / "rows.jsonl"), "ds_type": "json", "type": "alpaca"}]}
    config |= {"max_steps": 1, "logging_steps": 1, "sequence_len": 512, "gradient_accumulation_steps": 2}
    config |= {"dataset_prepared_path": str(tmp_path / "prepared"), "optimizer": "adamw_torch", "seed": 1}
    config |= {
        **dict.fromkeys(("bf16", "fp16", "tf32", "use_tensorboard"), False),
        "attn_implementation": "eager",
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | changes))
    command = [sys.executable, "-m", "axolotl.cli.train", str(tmp_path / "config.yaml")]
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "AXOLOTL_DO_NOT_TRACK": "1",
    }
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)


def logged_loss(folder):
    (state,) = folder.rglob("trainer_state.json")
    entries = json.loads(state.read_text())["log_history"]
    return next(float(entry["loss"]) for entry in entries if "loss" in entry)


def test_axolotl_trains_on_cross_entropy_and_the_number_term(tmp_path):
    losses = []
    for weight in (0.0, 0.3, 0.6):
        done = run(tmp_path, ntl_weight=weight, output_dir=str(tmp_path / f"run{weight}"))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        losses.append(logged_loss(tmp_path / f"run{weight}"))
    assert losses[1] - losses[0] > 0.01
    assert abs(losses[2] - 2 * losses[1] + losses[0]) < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ntl_criterion": "wasserstien"}, "criterion='wasserstien'"),
        ({"ntl_thousands": ";"}, "thousands=';'"),
        ({"chunked_cross_entropy": True}, "chunked_cross_entropy: True replaces the model's loss"),
    ],
)
def test_what_would_train_without_the_term_is_an_error(tmp_path, changes, message):
    done = run(tmp_path, **changes)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
