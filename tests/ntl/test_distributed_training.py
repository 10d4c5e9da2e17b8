"""Runs do not depend on how a batch is split: by accumulation, and at night over processes."""

import shutil
from pathlib import Path

import pytest
import torch
from processes import printed_by
from published_commands import PROGRAM, scaled_down
from runs import logged, results
from safetensors.torch import load_file
from tolerances import TRAINED_BY_ADAM, approx, assert_close

from ntl.__main__ import main
from ntl.layout import STATE

ROOT = Path(__file__).parents[2]
SAME = ["model_args=vanilla_t5_ntl", "training_args.max_grad_norm=0.5", "evaluation.samples=7"]
# The reference is one process with batches of 8.
SPLITS = {
    "one": (1, 8, 1, []),
    "accumulated": (1, 2, 4, []),
    "ddp": (2, 2, 2, []),
    "fsdp": (2, 4, 1, ["+training_args.fsdp=true"]),
}

OFTEN = ["training_args.save_steps=2", "training_args.eval_steps=2"]


def train(folder, split, *extra):
    processes, batch, accumulation, more = SPLITS[split]
    overrides = [
        *scaled_down(folder, steps=4), *SAME, *more, *extra,
        f"training_args.per_device_train_batch_size={batch}",
        f"training_args.gradient_accumulation_steps={accumulation}",
        "model_args.config_overrides={dropout_rate: 0.0}",  # dropout masks depend on the split
    ]  # fmt: skip
    if processes == 1:
        assert main(["train", *overrides]) == 0
    else:
        printed_by(ROOT / PROGRAM, overrides, folder, processes)
    run = folder / "run"
    # accelerate silently trains replicas if it does not shard.
    assert (run / "checkpoint-4/pytorch_model_fsdp.bin").exists() == (split == "fsdp")
    return torch.tensor(logged(run, "loss")), load_file(run / "model.safetensors"), results(run)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one"), "one")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    return folder, train(folder, "fsdp", *OFTEN)


@pytest.mark.parametrize(
    "split", ["accumulated", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ddp", "fsdp"))]
)
def test_losses_weights_and_metrics_do_not_depend_on_how_a_batch_is_split(
    split, reference, request, tmp_path
):
    is_sharded = split == "fsdp"
    losses, weights, metrics = request.getfixturevalue("sharded")[1] if is_sharded else train(tmp_path, split)
    assert_close(losses, reference[0], TRAINED_BY_ADAM)
    assert_close(weights, reference[1], TRAINED_BY_ADAM)
    assert metrics.keys() == reference[2].keys()
    for test, expected in reference[2].items():
        assert metrics[test]["count"] == expected["count"] == 7
        assert metrics[test]["loss"] == approx(expected["loss"], TRAINED_BY_ADAM, scale=1)


@pytest.mark.slow
def test_a_sharded_run_continues_to_the_same_weights(sharded, tmp_path):
    folder, (_, whole, _) = sharded
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    # As if the run had been killed between the two checkpoints.
    shutil.rmtree(tmp_path / "run/checkpoint-4")
    for name in ("model.safetensors", STATE):
        (tmp_path / "run" / name).unlink()
    _, resumed, _ = train(tmp_path, "fsdp", *OFTEN, "training_args.resume_from_checkpoint=true")
    assert_close(resumed, whole, TRAINED_BY_ADAM)


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
