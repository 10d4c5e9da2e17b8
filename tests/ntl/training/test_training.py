import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from published_commands import scaled_down
from tolerances import HALF_PRECISION, approx

from ntl.data.files import only_writer_in
from ntl.evaluation import EvaluationResult
from ntl.train import main
from ntl.training.run_folder import RunFolder


@pytest.fixture
def run(tmp_path, capsys):
    """Train with additional overrides, and return the run's folder and the logs of each step."""

    def train(*more, steps=4):
        assert main([*scaled_down(tmp_path, steps), *more]) == 0, capsys.readouterr().err
        state = json.loads((tmp_path / f"run/checkpoint-{steps}/trainer_state.json").read_text())
        return RunFolder(tmp_path / "run"), [entry for entry in state["log_history"] if "loss" in entry]

    return train


@pytest.mark.parametrize(
    ("options", "best", "rates"),
    [
        (["metric_for_best_model=accuracy"], 2, [1.0, 1.0, 1.0, 0.5]),
        (["metric_for_best_model=spearman"], 2, [1.0, 1.0, 1.0, 0.5]),
        (["metric_for_best_model=mae"], 1, [1.0, 1.0, 0.5, 0.25]),
        (["metric_for_best_model=loss"], 1, [1.0, 1.0, 0.5, 0.25]),
        (["metric_for_best_model=accuracy", "greater_is_better=false"], 1, [1.0, 1.0, 0.5, 0.25]),
    ],
)
def test_the_best_checkpoint_and_the_schedule_follow_the_direction_of_the_metric(
    run, monkeypatch, options, best, rates
):
    values = iter([0.1, 0.3, 0.2, 0.1])  # at steps 1 to 4

    def measure(*_):
        metrics = dict.fromkeys(("loss", "mae", "accuracy", "spearman"), next(values, 0.0))
        return EvaluationResult({"count": 1, **metrics}, [])

    monkeypatch.setattr("ntl.evaluation.evaluate", measure)
    options = [f"training_args.{option}" for option in options]
    options += ["training_args.eval_steps=1", "training_args.save_steps=1", "training_args.learning_rate=1.0"]
    options += ["training_args.lr_scheduler_kwargs={factor: 0.5, patience: 0}"]
    folder, log = run(*options)
    state = json.loads((folder.path / "checkpoint-4/trainer_state.json").read_text())
    assert state["best_global_step"] == best
    assert [entry["learning_rate"] for entry in log] == approx(rates)


def test_training_in_bfloat16_changes_the_losses_only_slightly(tmp_path):
    losses = []
    for kind in ("false", "true"):
        out = tmp_path / kind
        overrides = [*scaled_down(out, 2), f"training_args.bf16={kind}", "model_args=vanilla_t5_ntl"]
        assert main([*overrides, "model_args.config_overrides={dropout_rate: 0.0}"]) == 0
        state = json.loads((out / "run/checkpoint-2/trainer_state.json").read_text())
        losses.append([entry["loss"] for entry in state["log_history"] if "loss" in entry])
    assert losses[0] != losses[1]
    assert losses[0] == approx(losses[1], HALF_PRECISION)


def test_tensorboard_gets_the_loss_its_terms_and_the_final_metrics(run, monkeypatch, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def board():
        board = EventAccumulator(str(tmp_path / "board"))
        board.Reload()
        return board

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    folder, _ = run("training_args.report_to=tensorboard", "model_args=vanilla_t5_ntl")
    logged = {"train/loss", "train/ce", "train/ntl", "eval/loss", "eval/accuracy"}
    final = {
        f"test/{test}/{name}": value
        for test, metrics in folder.evaluation("test").metrics().items()
        for name, value in metrics.items()
        if value is not None
    }
    assert {"test/validation/accuracy", "test/interpolate/accuracy"} <= {*final}
    assert logged | {*final} <= {*board().Tags()["scalars"]}
    for name, value in final.items():
        (event,) = board().Scalars(name)
        assert (event.step, event.value) == (4, approx(value, HALF_PRECISION))  # a board keeps float32
    shutil.rmtree(tmp_path / "board")
    kept = [o for o in scaled_down(tmp_path) if o.startswith(("dataset", "evaluation")) or "cpu" in o]
    evaluate = [f"model_args.model_name_or_path={folder}", "training_args=eval"]
    assert main([*kept, *evaluate, "training_args.report_to=tensorboard"]) == 0
    assert {*final} <= {*board().Tags()["scalars"]}


def test_a_tracker_that_is_not_installed_is_an_error_that_says_how_to_install_it(
    tmp_path, monkeypatch, capsys
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("transformers.integrations.integration_utils.is_wandb_available", lambda: False)
    assert main([*scaled_down(tmp_path), "training_args.report_to=wandb"]) == 2
    message = capsys.readouterr().err
    assert "wandb" in message
    assert "pip install wandb" in message
    assert not (tmp_path / "run/run.json").exists()


def test_nothing_is_tracked_by_default(run, tmp_path):
    run()
    written = {Path(folder).relative_to(tmp_path).parts[0] for folder, _, files in os.walk(tmp_path) if files}
    assert written == {"run", "cache"}


def test_tokens_are_encoded_once(run, tmp_path):
    run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert before
    run("training_args.overwrite_output_dir=true", "training_args.seed=7")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")} == before


def test_gaussian_label_smoothing_replaces_cross_entropy_at_numbers(run):
    folder, _ = run("model_args.gaussian_label_smoother=true")
    assert folder.record().label == "T5 + Gaussian smoothing"
    assert folder.evaluation("test").metrics()["validation"]["ntl"] > 0


def test_each_module_has_its_own_test_set_on_request(tmp_path):
    command = [*scaled_down(tmp_path), "evaluation.samples=2", "dataset_args.mode=dataset_comparison"]
    assert main(command) == 0
    found = set(RunFolder(tmp_path / "run").evaluation("test").metrics())
    assert {"validation", "arithmetic__mul", "arithmetic__mul_big", "numbers__place_value"} < found
    assert len(found) == 1 + 13 + 7


def test_a_run_has_one_writer_at_a_time(run, tmp_path, capsys):
    folder, _ = run()
    kept = [path for path in folder.path.rglob("*") if path.suffix in (".json", ".safetensors", ".pt")]
    before = {path: path.stat().st_mtime_ns for path in kept}
    evaluate = [o for o in scaled_down(tmp_path) if o.startswith(("dataset", "evaluation")) or "cpu" in o]
    evaluate += ["training_args=eval", f"model_args.model_name_or_path={folder}"]
    overwrite = [*scaled_down(tmp_path), "training_args.overwrite_output_dir=true"]
    for held, command in ((folder.path, overwrite), (folder.path / "test", evaluate)):
        with only_writer_in(held):
            assert main(command) == 2
            assert f"{held} is being written by another process" in capsys.readouterr().err
            assert {path: path.stat().st_mtime_ns for path in before} == before
    for command in (overwrite, evaluate):
        assert main(command) == 0


def test_what_a_killed_run_has_left_does_not_hinder_another(run, tmp_path):
    for name in (".lock", ".run.json.x1y2.partial"):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).touch()
    run()
