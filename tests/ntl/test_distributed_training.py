"""Runs do not depend on how a batch is split: by accumulation, and at night over processes."""

from pathlib import Path

import pytest
import torch
from processes import printed_by
from runs import logged, results, scaled_down
from safetensors.torch import load_file
from tolerances import TRAINED_BY_ADAM, approx, assert_close

from ntl.__main__ import main

ROOT = Path(__file__).parents[2]
# The reference is one process with batches of 8.
SPLITS = {
    "one": (1, 8, 1),
    "accumulated": (1, 2, 4),
    "ddp": (2, 2, 2),
}
MODELS = ("vanilla_t5_ntl", "xval", "vanilla_t5_regression_head", "decoder_only_ntl")


def train(folder, model, split):
    processes, batch, accumulation = SPLITS[split]
    # Dropout masks depend on the split.
    decoder, undropped = (
        "model_args.config_name=llama-tiny",
        "model_args.config_overrides={dropout_rate: 0.0}",
    )
    overrides = [
        *scaled_down(folder, steps=4), f"model_args={model}", decoder if "decoder" in model else undropped,
        f"training_args.per_device_train_batch_size={batch}",
        f"training_args.gradient_accumulation_steps={accumulation}",
        "training_args.max_grad_norm=0.5",
        "evaluation.samples=7",
    ]  # fmt: skip
    if processes == 1:
        assert main(["train", *overrides]) == 0
    else:
        folder.mkdir()
        printed_by(ROOT / "src/ntl/run_language_modeling.py", overrides, folder, processes)
    run = folder / "run"
    return torch.tensor(logged(run, "loss")), load_file(run / "model.safetensors"), results(run)


@pytest.mark.parametrize(
    ("model", "split"),
    [
        *((model, "accumulated") for model in MODELS),
        pytest.param(MODELS[0], "ddp", marks=pytest.mark.slow),
    ],
)
def test_losses_weights_and_metrics_do_not_depend_on_how_a_batch_is_split(model, split, tmp_path):
    # Only updates show how losses and gradients of their parts are added.
    (*expected, wanted), (*found, metrics) = (train(tmp_path / each, model, each) for each in ("one", split))
    assert_close(found, expected, TRAINED_BY_ADAM)
    assert metrics.keys() == wanted.keys()
    for test in wanted:
        assert metrics[test]["count"] == wanted[test]["count"] == 7
        assert metrics[test]["loss"] == approx(wanted[test]["loss"], TRAINED_BY_ADAM, scale=1)
