import json
import shutil

from published_commands import scaled_down
from safetensors.torch import load_file
from tolerances import TRAINED_BY_ADAM, assert_close

from ntl.train import main
from ntl.training.run_folder import RunFolder


def small(tmp_path, *more, steps=2):
    return [*scaled_down(tmp_path, steps), *more]


def test_a_run_that_counts_epochs_is_continued_to_its_last_epoch(tmp_path):
    epochs = ["training_args.max_steps=-1", "training_args.per_device_train_batch_size=78"]
    epochs += ["training_args.eval_steps=2", "training_args.save_steps=2"]
    assert main(small(tmp_path, *epochs, "+training_args.num_train_epochs=1")) == 0
    folder = RunFolder(tmp_path / "run")
    before = load_file(folder.path / "model.safetensors")
    assert folder.record().steps == 4  # of 312 examples
    shutil.rmtree(folder.path / "checkpoint-4")
    (folder.path / "model.safetensors").unlink()
    epochs += ["+training_args.num_train_epochs=1"]
    folder.update(status="running")
    assert main(small(tmp_path, *epochs)) == 0
    after = load_file(folder.path / "model.safetensors")
    assert_close(after, before, TRAINED_BY_ADAM)


def test_terms_logged_after_a_resumption_cover_only_later_updates(tmp_path):
    def logged(*more):
        arguments = small(
            tmp_path, "training_args.save_steps=2", "training_args.eval_steps=2", *more, steps=6
        )
        assert main([*arguments, "training_args.logging_steps=3", "training_args.save_total_limit=9"]) == 0
        state = json.loads((tmp_path / "run/checkpoint-6/trainer_state.json").read_text())
        return next(entry for entry in state["log_history"] if entry["step"] == 3 and "loss" in entry)

    logged()
    for step in (4, 6):
        shutil.rmtree(tmp_path / f"run/checkpoint-{step}")
    RunFolder(tmp_path / "run").update(status="running")
    entry = logged()
    assert 0.5 < entry["ce"] / entry["loss"] < 1.5
