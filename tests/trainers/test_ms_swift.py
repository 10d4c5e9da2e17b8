"""ms-swift: `make test-trainers TRAINER=ms_swift`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny_model import expected_loss, save_model, save_rows

pytest.importorskip("swift", reason="ms-swift is not installed: make test-trainers TRAINER=ms_swift")
PLUGIN = Path(__file__).parents[2] / "examples" / "trainers" / "ms_swift.py"
TOLERANCE = 1 / 10_000  # of a logged loss
# Saves what the loss is called with.
SPY = """
import torch
from swift.loss import loss_map

{plugin}

calls = []

class Spy(loss_map["ntl"]):
    def __call__(self, outputs, labels, **kwargs):
        loss = super().__call__(outputs, labels, **kwargs)
        calls.append((outputs.logits.detach(), labels))
        torch.save(calls, {file!r})
        return loss

loss_map["ntl"] = Spy
"""


def swift(tmp_path, plugin, *arguments):
    command = ["swift", "sft", "--model", str(save_model(tmp_path / "model")), "--model_type", "qwen2"]
    command += ["--template", "qwen2_5", "--dataset", str(save_rows(tmp_path / "rows.json"))]
    command += ["--output_dir", str(tmp_path / "runs"), "--external_plugins", str(plugin)]
    command += ["--loss_type", "ntl", "--tuner_type", "full", "--torch_dtype", "float32"]
    command += ["--max_steps", "1", "--logging_steps", "1"]
    command += ["--learning_rate", "1e-4", "--report_to", "none", "--split_dataset_ratio", "0", *arguments]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= {"USE_HF": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("batch_size", ["1", "4"])  # of one row, ms-swift keeps only the answer's logits
def test_swift_sft_trains_on_cross_entropy_and_the_number_term(tmp_path, batch_size):
    from transformers import AutoTokenizer

    spy, called = tmp_path / "spy.py", tmp_path / "called.pt"
    spy.write_text(SPY.format(plugin=PLUGIN.read_text(), file=str(called)))
    arguments = ["--per_device_train_batch_size", batch_size, "--gradient_accumulation_steps", "2"]
    arguments += ["--use_logits_to_keep", "true"]
    done = swift(tmp_path, spy, *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    calls = torch.load(called)
    assert len(calls) == 2
    (log,) = (tmp_path / "runs").rglob("logging.jsonl")
    logged = next(line["loss"] for line in map(json.loads, log.read_text().splitlines()) if "loss" in line)
    assert (
        abs(logged - expected_loss(AutoTokenizer.from_pretrained(tmp_path / "model"), calls, 0.3)) < TOLERANCE
    )


def test_an_unknown_option_is_an_error_before_training(tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN.read_text().replace("weight=0.3", "lambda_=0.3"))
    done = swift(tmp_path, plugin)
    assert done.returncode != 0
    assert "lambda_" in done.stderr


@pytest.mark.parametrize(
    ("template", "criterion", "message"),
    [
        ({"sequence_parallel_size": 2, "padding_free": False}, "ntl_was", "sequence_parallel_size=2"),
        ({"sequence_parallel_size": 1, "padding_free": True}, "number_level", "--padding_free false"),
    ],
)
def test_what_would_be_a_wrong_loss_is_an_error(tmp_path, template, criterion, message):
    from swift.loss import loss_map
    from transformers import AutoTokenizer

    from ntloss.trainers.ms_swift import register_number_loss

    register_number_loss("tested", criterion=criterion)
    tokenizer = AutoTokenizer.from_pretrained(save_model(tmp_path))
    trainer = SimpleNamespace(template=SimpleNamespace(tokenizer=tokenizer, **template))
    outputs, labels = SimpleNamespace(logits=torch.zeros(1, 3, 300)), torch.tensor([[5, 6, 7]])
    with pytest.raises(ValueError, match=message):
        loss_map["tested"](None, trainer)(outputs, labels)
