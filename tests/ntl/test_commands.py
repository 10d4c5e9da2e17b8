"""The commands that the paper's repository published."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException
from pages import blocks
from runs import logged, predictions, results, scaled_down, train, written
from tolerances import assert_close

from ntl.errors import UserError
from ntl.settings import compose_config
from ntl.trainer import trainer_arguments

ROOT = Path(__file__).parents[2]
PROGRAM = "src/ntl/run_language_modeling.py"
_ARITHMETIC = (
    "dataset_args=arithmetic model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=false "
    "model_args.number_token_loss_weight={weight} training_args.special_name=NTL-MSE_Lambda{weight}"
)
_FUNCTION = (
    "dataset_args=arithmetic model_args=vanilla_t5_ntl +model_args.number_token_loss_function={name} "
    "training_args.special_name=NTL-{upper}_Lambda0.3"
)
_MATHEMATICS = "run_specific_config@_global_=mathematics_dataset_run {model} dataset_args=mathematics_dataset"

# Maps the arguments of each command to its criterion, the criterion's options and λ.
TRAINING = {
    "dataset_args=mathematics_dataset model_args=vanilla_t5_ntl training_args=train": ("ntl_mse", 0.3),
    "model_args=vanilla_t5_ntl training_args=train training_args.per_device_train_batch_size=8 "
    "model_args.number_token_loss_weight=0.3": ("ntl_mse", 0.3),
    _MATHEMATICS.format(model="model_args=vanilla_t5"): (None, None),
    _MATHEMATICS.format(model="model_args=vanilla_t5_ntl"): ("ntl_mse", 0.3),
    _MATHEMATICS.format(
        model="model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=true"
    ): ("ntl_was", 0.3),
    _ARITHMETIC.format(weight=0.3): ("ntl_mse", 0.3),
    _ARITHMETIC.format(weight=0.8): ("ntl_mse", 0.8),
    _ARITHMETIC.format(weight=2.0): ("ntl_mse", 2.0),
    _FUNCTION.format(name="mae", upper="MAE"): ("ntl_mae", 0.3),
    _FUNCTION.format(name="huber", upper="HUBER"): ("ntl_huber", 0.3),
    "run_specific_config@_global_=gsm8k_runs model_args=vanilla_t5 dataset_args=gsm8k": (None, None),
    "run_specific_config@_global_=gsm8k_runs model_args=vanilla_t5_ntl dataset_args=gsm8k "
    "model_args.number_token_loss_weight=0.3": ("ntl_was", 0.3),
}
DEBUG = "model_args=vanilla_t5 training_args=train run_specific_config@_global_=debug_config"
EVALUATION = "model_args=vanilla_t5_ntl training_args=eval model_args.model_name_or_path={checkpoint}"


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


# One of each dataset by day: which loss a command chooses is tested below.
BY_DAY = [[*TRAINING][i] for i in (4, 5, 11)]


@pytest.mark.parametrize(
    "command",
    [*BY_DAY, *(pytest.param(each, marks=pytest.mark.slow) for each in TRAINING if each not in BY_DAY)],
)
def test_a_published_command_trains_and_evaluates_the_test_sets(command, tmp_path, capsys):
    assert train(*shlex.split(command), *scaled_down(tmp_path)) == 0, capsys.readouterr().err
    folder = tmp_path / "run"
    assert written(folder)["steps"] == 2
    assert {"validation"} < set(results(folder))
    for test, metrics in results(folder).items():
        assert metrics["count"] == len(predictions(folder, test)) == 6
        assert metrics["loss"] > 0
    assert (folder / "model.safetensors").exists()
    assert len(logged(folder, "eval_loss")) == 1


@pytest.mark.slow
def test_the_documented_debug_command_runs_from_any_folder_and_ends_as_its_page_says(tmp_path):
    short = ["training_args.max_steps=2", "evaluation.samples=4", "evaluation.samples_during_training=4"]
    done = subprocess.run(
        [sys.executable, ROOT / PROGRAM, *shlex.split(DEBUG), *short],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert results(tmp_path / "outputs/mathematics_dataset/debug/vanilla_t5")
    last = next(text for language, text in blocks("docs/paper.md") if language == "text")
    assert done.stdout.splitlines()[-1] == last.strip()


@pytest.mark.parametrize(
    ("loss", "name"), [("", "NTL-MSE"), ("model_args.number_token_loss_with_wasserstein=true", "NTL-WAS")]
)
def test_the_evaluation_command_evaluates_a_checkpoint_with_its_own_loss(loss, name, tmp_path, capsys):
    command = f"model_args=vanilla_t5_ntl training_args=train {loss}"
    assert train(*shlex.split(command), *scaled_down(tmp_path)) == 0, capsys.readouterr().err
    checkpoint = tmp_path / "run/checkpoint-2"
    small = [
        o for o in scaled_down(tmp_path) if not o.startswith(("model_args.", "training_args.output_dir"))
    ]
    evaluation = shlex.split(EVALUATION.format(checkpoint=checkpoint))
    assert train(*evaluation, *small) == 0, capsys.readouterr().err
    assert_close(results(checkpoint), results(tmp_path / "run"))
    assert written(checkpoint)["label"] == f"T5 + {name}"


def test_a_hub_model_fails_at_once_without_a_network_and_with_advice(tmp_path, capsys):
    kept = ("dataset_args", "training_args.output_dir", "training_args.use_cpu")
    small = [o for o in scaled_down(tmp_path) if o.startswith(kept)]
    assert train(*shlex.split([*TRAINING][-1]), *small) == 2
    message = capsys.readouterr().err
    assert "google-t5/t5-" in message
    assert "model_args.model_name_or_path=null" in message


def read(command):
    """Return the configuration of a command."""
    return compose_config([override.replace("+model_args", "model_args") for override in command])


@pytest.mark.parametrize("command", TRAINING)
def test_a_published_command_chooses_its_loss(command):
    loss = read(shlex.split(command)).loss
    found = loss.options.get("loss", loss.criterion)
    assert (found, loss.weight if loss.criterion else None) == TRAINING[command]


def test_names_of_the_papers_configuration_are_unknown_and_what_replaces_them_is_not(tmp_path):
    table = (ROOT / "docs/paper.md").read_text().partition("| there | here |")[2].partition("\n\n")[0]
    rows = [
        re.findall(r"`([^`]*=[^`]*)`", cell)
        for line in table.split("\n")[2:]
        for cell in line.split("|")[1:3]
    ]
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        for name in theirs:
            with pytest.raises((UserError, HydraException)):
                trainer_arguments(read(shlex.split(name)), tmp_path)
        for replacement in ours:
            read(shlex.split(replacement))
    assert len(rows) > 10
