"""Runs that cannot be continued or written end with a one-line error, and existing files are kept."""

import errno
import resource
import shutil
from pathlib import Path

import pytest
from ntl.runs.sweep import main as compare
from published_commands import scaled_down

from ntl.run_language_modeling import main

RESUME = "training_args.resume_from_checkpoint=true"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def four_steps(tmp_path):
    return [*scaled_down(tmp_path, 4), "training_args.save_steps=2", "training_args.eval_steps=2"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Train a run of four steps that ends after two, which tests copy."""

    def die(*_, **__):
        raise KeyboardInterrupt

    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ntl.training.trainer.ApproachTrainer.record_progress", die)
        assert main(four_steps(folder)) == 130
    return folder


@pytest.fixture
def run(interrupted, tmp_path):
    """Return the folder of an interrupted run in `tmp_path`."""
    return shutil.copytree(interrupted / "run", tmp_path / "run")


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
@pytest.mark.parametrize("damage", ["junk", "missing"])
def test_a_damaged_checkpoint_is_reported_and_left_alone(file, damage, run, tmp_path, capsys):
    path = run / "checkpoint-2" / file
    if damage == "junk":
        path.write_bytes(b"junk" * 40)
    else:
        path.unlink()
    before = contents(run)
    assert main([*four_steps(tmp_path), RESUME]) == 2
    message = capsys.readouterr().err
    assert "checkpoint-2 is not a complete checkpoint" in message
    assert "Traceback" not in message
    assert contents(run) == before


def test_a_run_whose_only_checkpoint_is_incomplete_is_not_silently_restarted(run, tmp_path, capsys):
    (run / "checkpoint-2/trainer_state.json").write_text("{")
    before = contents(run)
    assert main([*four_steps(tmp_path), RESUME]) == 2
    message = capsys.readouterr().err
    assert f"{run} has no complete checkpoint" in message
    assert "training_args.overwrite_output_dir=true" in message
    assert contents(run) == before


def test_resuming_a_run_that_was_never_started_is_an_error_that_names_its_folder(tmp_path, capsys):
    assert main([*scaled_down(tmp_path), RESUME]) == 2
    assert f"{tmp_path}/run has no complete checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_full_disk_while_writing_a_checkpoint_keeps_the_run(tmp_path, capsys):
    # Room for the weights of the tiny model (0.95 MB), but not for its optimizer (twice that).
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_200_000, before[1]))
    try:
        assert main(four_steps(tmp_path)) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    message = capsys.readouterr().err
    assert "cannot be written" in message
    assert "Traceback" not in message
    assert (tmp_path / "run/run.json").exists()


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_while_writing_results_keeps_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ntl.training.run_folder.RunFolder.write_results", full)
    assert main(scaled_down(tmp_path)) == 2
    message = capsys.readouterr().err
    assert "the disk is full" in message
    assert "Traceback" not in message
    monkeypatch.undo()
    assert main([*scaled_down(tmp_path), RESUME]) == 0


def test_a_full_disk_while_drawing_a_comparisons_figures_keeps_its_runs(tiny, monkeypatch, capsys):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    assert compare(tiny) == 2
    message = capsys.readouterr().err
    assert "cannot be written (No space left on device)" in message
    assert "Traceback" not in message
    monkeypatch.undo()
    assert compare(tiny) == 0
    assert "2 of 2 runs are already finished" in capsys.readouterr().out


def test_an_error_with_another_cause_than_a_full_disk_keeps_its_traceback(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("ntl.training.run_folder.RunFolder.write_results", fail)
    with pytest.raises(OSError, match="Input/output"):
        main(scaled_down(tmp_path))
