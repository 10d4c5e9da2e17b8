"""What training makes of its rows: labels with noise, and batches without padding."""

import statistics

import pytest
from model_cases import ANSWERS, QUESTIONS, gradient, make, rows_of
from runs import logged, scaled_down, train, train_until_saved
from safetensors.torch import load_file
from tolerances import GRADIENT_OF_MODEL, OF_DRAWS, TRAINED_BY_ADAM, approx, assert_close

from ntl.errors import UserError
from ntl.losses import LabelNoise
from ntl.models import PACKED
from ntl.trainer import LabTrainer


def command(folder, llama, *more):
    """Write a command that trains the Llama for three epochs on twelve diamonds."""
    kept = [
        option
        for option in scaled_down(folder, 6)
        if not option.startswith(("model_args.", "dataset_args.", "training_args.output_dir"))
    ]
    kept += ["dataset_args=tabular", "dataset_args.train_size=12", "dataset_args.test_size=4"]
    kept += ["dataset_args.validation_size=4", "training_args.per_device_train_batch_size=6"]
    kept += ["model_args=pretrained", f"model_args.model_name_or_path={llama}"]
    kept += ["training_args.learning_rate=0.001", "training_args.save_steps=3", "training_args.eval_steps=3"]
    return [*kept, "training_args.load_best_model_at_end=false", f"training_args.output_dir={folder}", *more]


@pytest.mark.parametrize("number_format", ["plain", "padded"])
def test_packed_rows_have_the_gradient_of_padded_ones(number_format):
    built = make("llama-tiny", family="decoder_only", number_format=number_format)
    built.fit(ANSWERS)
    rows = rows_of(built, [*QUESTIONS, "a question that is longer than the others: 1 + 2"], [*ANSWERS, "3"])
    packed = [{**row, PACKED: True} for row in rows]
    built.check_packing(packed)
    assert built.collate(packed)["input_ids"].numel() < built.collate(rows)["input_ids"].numel()
    assert_close(gradient(built, packed), gradient(built, rows), GRADIENT_OF_MODEL)


@pytest.mark.parametrize("shape", ["mamba-tiny", "t5-tiny"])
def test_a_model_that_cannot_read_packed_rows_is_refused(shape):
    built = make(shape, family="t5" if shape == "t5-tiny" else "decoder_only")
    with pytest.raises(UserError, match="packed"):
        built.check_packing(rows_of(built))


def test_packed_training_with_frozen_layers_is_padded_training(tmp_path, llama, capsys, monkeypatch):
    # A loss that counts labels and numbers, and kept states of the frozen layers, must read packed batches.
    shapes = {}

    def step(self, model, inputs, *given, **options):
        shapes.setdefault(name, set()).add(len(inputs["input_ids"]))
        return training_step(self, model, inputs, *given, **options)

    training_step = LabTrainer.training_step
    monkeypatch.setattr(LabTrainer, "training_step", step)
    for name, more in {"padded": [], "packed": ["training_args.packed=true"]}.items():
        more += ["weights.trained_layers=1", "loss=ntl_was"]
        assert train(*command(tmp_path / name, llama, *more)) == 0, capsys.readouterr().err
    assert shapes == {"padded": {6}, "packed": {1}}  # rows of a batch
    packed, padded = (tmp_path / name for name in ("packed", "padded"))
    assert logged(packed, "loss") == approx(logged(padded, "loss"), TRAINED_BY_ADAM)
    weights = [load_file(folder / "model.safetensors") for folder in (packed, padded)]
    assert_close(*weights, TRAINED_BY_ADAM)


def test_a_killed_run_with_noise_continues_to_the_same_weights(tmp_path, llama, capsys, monkeypatch):
    # The labels of an epoch are drawn again by another process, in the middle of the epoch.
    noise, epochs, draw = ["loss=ce", "loss.label_noise=auto"], set(), LabelNoise.draw

    def drawn(self, answer, row):
        epochs.add(self.epoch)
        return draw(self, answer, row)

    monkeypatch.setattr(LabelNoise, "draw", drawn)
    whole, broken, clean = (tmp_path / name for name in ("whole", "broken", "clean"))
    assert train(*command(whole, llama, *noise)) == 0, capsys.readouterr().err
    assert epochs == {0, 1, 2}
    train_until_saved(*command(broken, llama, *noise))
    assert train(*command(broken, llama, *noise)) == 0, capsys.readouterr().err
    weights = [load_file(folder / "model.safetensors") for folder in (broken, whole)]
    assert_close(*weights, TRAINED_BY_ADAM)
    assert train(*command(clean, llama, "loss=ce")) == 0, capsys.readouterr().err
    assert logged(clean, "loss") != approx(logged(whole, "loss"), TRAINED_BY_ADAM)


def test_noise_falls_from_epoch_to_epoch_within_the_range_of_the_answers():
    answers = ["0.00", "100.00", *["50.00"] * 500]
    noise, found = LabelNoise(answers, [10, 1], seed=0), []
    noise.epochs = 3
    for noise.epoch in range(3):
        drawn = [noise.draw(answer, row) for row, answer in enumerate(answers)]
        assert drawn == [noise.draw(answer, row) for row, answer in enumerate(answers)]
        assert all(0 <= float(label) <= 100 and label[-3] == "." for label in drawn)
        found.append(statistics.stdev(map(float, drawn[2:])))
    assert found == approx([8.5, 5.5, 2.5], OF_DRAWS)


def test_noise_is_rounded_as_its_answer_within_the_range_of_all():
    answers = ["-0.4", "3", "7.5", "0"]
    noise = LabelNoise(answers, 4.0, seed=0)
    for answer in answers:
        drawn = {noise.draw(answer, row) for row in range(200)}
        assert {len(label.partition(".")[2]) for label in drawn} == {len(answer.partition(".")[2])}
        assert -0.4 <= min(map(float, drawn)) <= max(map(float, drawn)) <= 7.5
        assert not {"-0", "-0.0"} & drawn


@pytest.mark.parametrize("width", ["wide", 0, [4, -1], [1, 2, 3], {"sigma": 4}, True])
def test_a_width_that_is_none_is_refused(width):
    with pytest.raises(UserError, match="label_noise"):
        LabelNoise(["1", "2"], width, seed=0)


@pytest.mark.parametrize("answer", ["four", ""])
def test_noise_needs_numbers(answer):
    with pytest.raises(UserError, match="label_noise"):
        LabelNoise(["1", answer], 1.0, seed=0)
