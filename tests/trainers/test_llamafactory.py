"""LLaMA-Factory: `make test-trainers TRAINER=llamafactory`."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_model import expected_loss, save_model, save_rows

pytest.importorskip("llamafactory", reason="it is not installed: make test-trainers TRAINER=llamafactory")
CONFIG = Path(__file__).parents[2] / "examples" / "trainers" / "llamafactory.yaml"
TOLERANCE = 1 / 10_000  # of a logged loss


def config_of(tmp_path, **changes):
    save_rows(tmp_path / "rows.json")
    (tmp_path / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))
    given = {"model_name_or_path": str(save_model(tmp_path / "model")), "dataset": "rows", "cutoff_len": 128}
    given |= {"dataset_dir": str(tmp_path), "output_dir": str(tmp_path / "run"), "max_steps": 1}
    given |= {"logging_steps": 1, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    given |= {"report_to": "none", "use_cpu": True, "overwrite_cache": True, "preprocessing_num_workers": 1}
    return yaml.safe_load(CONFIG.read_text()) | given | changes


def logged_loss(folder):
    state = json.loads((folder / "trainer_state.json").read_text())
    return next(float(entry["loss"]) for entry in state["log_history"] if "loss" in entry)


def test_run_exp_trains_on_cross_entropy_and_the_number_term(tmp_path):
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    from ntloss.trainers import llamafactory

    calls, forward = [], Qwen2ForCausalLM.forward

    @functools.wraps(forward)
    def recorded(model, *args, **inputs):
        outputs = forward(model, *args, **inputs)
        calls.append((outputs.logits.detach(), inputs["input_ids"]))
        return outputs

    Qwen2ForCausalLM.forward = recorded
    try:
        llamafactory.run_exp(config_of(tmp_path))
    finally:
        Qwen2ForCausalLM.forward = forward
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(calls) == 2
    # The labels are those of the answers, which follow the last marker of a turn.
    marker = tokenizer("<|im_start|>assistant\n").input_ids
    masked = []
    for logits, ids in calls:
        labels = ids.clone()
        for row in labels:
            starts = [i for i in range(len(row)) if row[i : i + len(marker)].tolist() == marker]
            row[: starts[-1] + len(marker)] = -100
            row[row == tokenizer.pad_token_id] = -100
        masked.append((logits, labels))
    assert abs(logged_loss(tmp_path / "run") - expected_loss(tokenizer, masked, 0.3)) < TOLERANCE


def run(tmp_path, **changes):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_of(tmp_path, **changes)))
    config = str(tmp_path / "config.yaml")
    command = [sys.executable, "-m", "ntloss.trainers.llamafactory", "train", config]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)


def test_the_command_reads_its_keys_from_the_yaml_file(tmp_path):
    losses = []
    for weight in (0.0, 0.3, 0.6):
        done = run(tmp_path, ntl_weight=weight, overwrite_output_dir=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        losses.append(logged_loss(tmp_path / "run"))
    assert losses[1] - losses[0] > 0.1
    assert abs(losses[2] - 2 * losses[1] + losses[0]) < TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ntl_lambda": 0.3}, "lambda"),
        ({"ntl_thousands": ";"}, "thousands"),
        ({"use_dft_loss": True}, "compute_loss_func"),
        ({"use_unsloth": True}, "use_unsloth"),
    ],
)
def test_what_would_train_without_the_term_is_an_error(tmp_path, changes, message):
    done = run(tmp_path, **changes)
    assert done.returncode != 0
    assert message in done.stderr
