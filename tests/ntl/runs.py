"""Start the lab's commands in this process, and read what runs have written."""

import json
from pathlib import Path

import pytest

from ntl.__main__ import main
from ntl.layout import PREDICTIONS, RESULTS, STATE


def train(*arguments):
    return main(["train", *arguments])


def train_until_saved(*arguments):
    """Kill a run when it has saved its first checkpoint."""
    from ntl.trainer import LabTrainer

    save = LabTrainer._save_checkpoint

    def die(self, *given):
        save(self, *given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabTrainer, "_save_checkpoint", die)
        assert train(*arguments) == 130


def compare(*arguments):
    return main(["compare", *arguments])


def written(folder, name="test"):
    """Read the whole `metrics.json` of an evaluation."""
    return json.loads((Path(folder) / name / RESULTS).read_text(encoding="utf-8"))


def results(folder, name="test"):
    """Read the metrics of an evaluation, by test set."""
    return written(folder, name)["metrics"]


def predictions(folder, test, name="test"):
    lines = (Path(folder) / name / PREDICTIONS).read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["test"] == test]


def state(folder):
    """Read what the trainer has written of a run or a checkpoint."""
    return json.loads((Path(folder) / STATE).read_text(encoding="utf-8"))


def logged(folder, key):
    """Read what the trainer has logged under a name, in order."""
    return [entry[key] for entry in state(folder)["log_history"] if key in entry]


def scaled_down(output_dir, steps=2):
    """Return overrides that make any command take seconds: a tiny model from scratch on the shipped data."""
    return [
        "dataset_args.data_dir=sample",
        f"training_args.output_dir={output_dir}/run",
        "model_args.model_name_or_path=null",
        "model_args.config_name=t5-tiny",
        f"training_args.max_steps={steps}",
        f"training_args.eval_steps={steps}",
        f"training_args.save_steps={steps}",
        "training_args.logging_steps=1",
        "training_args.per_device_train_batch_size=4",
        "training_args.use_cpu=true",
        "training_args.disable_tqdm=true",
        "evaluation.beams=2",
        "evaluation.max_new_tokens=4",
        "evaluation.samples=6",
        "evaluation.samples_during_training=4",
    ]
