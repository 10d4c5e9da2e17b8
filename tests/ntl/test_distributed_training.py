"""Runs do not depend on how a batch is split: by accumulation, and at night over processes."""

from pathlib import Path

import pytest
import torch
from processes import printed_by
from published_commands import PROGRAM, scaled_down
from runs import logged, results
from safetensors.torch import load_file
from tolerances import TRAINED_BY_ADAM, approx, assert_close

from ntl.__main__ import main

ROOT = Path(__file__).parents[2]
SAME = ["model_args=vanilla_t5_ntl", "training_args.max_grad_norm=0.5", "evaluation.samples=7"]
# The reference is one process with batches of 8.
SPLITS = {
    "one": (1, 8, 1),
    "accumulated": (1, 2, 4),
    "ddp": (2, 2, 2),
}


def train(folder, split):
    processes, batch, accumulation = SPLITS[split]
    overrides = [
        *scaled_down(folder, steps=4), *SAME,
        f"training_args.per_device_train_batch_size={batch}",
        f"training_args.gradient_accumulation_steps={accumulation}",
        "model_args.config_overrides={dropout_rate: 0.0}",  # dropout masks depend on the split
    ]  # fmt: skip
    if processes == 1:
        assert main(["train", *overrides]) == 0
    else:
        printed_by(ROOT / PROGRAM, overrides, folder, processes)
    run = folder / "run"
    return torch.tensor(logged(run, "loss")), load_file(run / "model.safetensors"), results(run)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), "one")


@pytest.mark.parametrize("split", ["accumulated", pytest.param("ddp", marks=pytest.mark.slow)])
def test_losses_weights_and_metrics_do_not_depend_on_how_a_batch_is_split(split, reference, tmp_path):
    losses, weights, metrics = train(tmp_path, split)
    assert_close(losses, reference[0], TRAINED_BY_ADAM)
    assert_close(weights, reference[1], TRAINED_BY_ADAM)
    assert metrics.keys() == reference[2].keys()
    for test, expected in reference[2].items():
        assert metrics[test]["count"] == expected["count"] == 7
        assert metrics[test]["loss"] == approx(expected["loss"], TRAINED_BY_ADAM, scale=1)


@pytest.mark.parametrize("model", ["xval", "vanilla_t5_regression_head", "decoder_only_ntl"])
def test_the_weights_of_other_models_do_not_depend_on_accumulation_either(model, tmp_path):
    shape = ["model_args.config_name=llama-tiny"] if "decoder" in model else []
    given = [f"model_args={model}", *shape, "dataset_args=arithmetic", "training_args.max_grad_norm=0.5"]
    found = []
    for batch, accumulation in ((8, 1), (2, 4)):
        folder = tmp_path / str(batch)
        batches = [
            f"training_args.per_device_train_batch_size={batch}",
            f"training_args.gradient_accumulation_steps={accumulation}",
        ]
        undropped = [] if shape else ["model_args.config_overrides={dropout_rate: 0.0}"]
        assert main(["train", *scaled_down(folder, steps=3), *given, *batches, *undropped]) == 0
        found.append(load_file(folder / "run/model.safetensors"))
    assert_close(found[1], found[0], TRAINED_BY_ADAM)
