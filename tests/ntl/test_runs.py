"""Single runs: trained, killed and continued, evaluated again, refused."""

import json
import multiprocessing
import re
import shutil
import time

import pytest
from published_commands import scaled_down
from safetensors.torch import load_file
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, assert_close

from ntl.data import evenly_spaced
from ntl.train import main
from ntl.training.run_folder import RunFolder

PADDED = "model_args.number_format=padded"
MODELS = [
    "vanilla_t5", "rt_ntl", "xval", "vanilla_t5_regression_head", "decoder_only", "decoder_only_ntl",
    f"vanilla_t5 {PADDED}", f"decoder_only_ntl {PADDED}",
]  # fmt: skip


def small(tmp_path, *more, steps=2):
    return [*scaled_down(tmp_path, steps), *more]


def answer(tmp_path, checkpoint, *more):
    """Evaluate a model, with the rest of the published command."""
    kept = [
        option for option in small(tmp_path) if not option.startswith(("model_args.", "training_args.output"))
    ]
    return [*kept, "training_args=eval", f"model_args.model_name_or_path={checkpoint}", *more]


def results(folder, name="test"):
    return RunFolder(folder).evaluation(name).metrics()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a run of two steps with NTL-WAS, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(small(folder, "loss=ntl_was")) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """Return the folder of a finished run in `tmp_path`."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_saves_and_answers(model, tmp_path, capsys):
    name, *padded = model.split()
    shape = ["model_args.config_name=llama-tiny"] if "decoder" in model else []
    padded += ["model_args.number_width=7", "dataset_args=arithmetic"] if padded else []
    assert main(small(tmp_path, f"model_args={name}", *shape, *padded)) == 0, capsys.readouterr().err
    folder = tmp_path / "run"
    assert RunFolder(folder).record().status == "finished"
    for metrics in results(folder).values() if padded else ():
        assert (metrics["invalid"], metrics["outside_format"]) == (0, 0)
    elsewhere = [f"training_args.output_dir={tmp_path}/again", *padded]
    assert main(answer(tmp_path, folder / "checkpoint-2", *elsewhere)) == 0, capsys.readouterr().err
    assert_close(results(tmp_path / "again"), results(folder), ONE_COMPUTATION)


def test_cached_states_change_neither_the_weights_nor_the_losses_of_tests(tmp_path, capsys):
    arguments = ["model_args=decoder_only", "model_args.config_name=llama-tiny", "weights.trained_layers=1"]
    found = {}
    for size in (1, 0):
        folder = tmp_path / f"cache{size}"
        cached = [f"weights.state_cache_gb={size}", f"training_args.output_dir={folder}"]
        assert main(small(tmp_path, *arguments, *cached)) == 0, capsys.readouterr().err
        found[size] = load_file(folder / "model.safetensors")
        assert ("caching the output of the frozen layers" in capsys.readouterr().out) == bool(size)
    assert_close(found[1], found[0], TRAINED_BY_ADAM)
    cached, computed = (
        {name: metrics["ce"] for name, metrics in results(tmp_path / f"cache{size}").items()}
        for size in (1, 0)
    )
    assert_close(cached, computed, TRAINED_BY_ADAM)


@pytest.mark.parametrize("dataset", ["arithmetic", "gsm8k", "multiplication", "multirc", "rjokes"])
def test_every_dataset_can_be_trained_on_and_evaluated(dataset, tmp_path, capsys):
    assert main(small(tmp_path, f"dataset_args={dataset}")) == 0, capsys.readouterr().err
    for test in results(tmp_path / "run").values():
        assert ("accuracy" in test) == (dataset != "multirc")
        assert ("final_answer_accuracy" in test) == (dataset == "gsm8k")


def test_an_untouched_model_sees_examples_in_its_prompt(tmp_path, capsys):
    shots = ["dataset_args=tabular", "dataset_args.test_size=6", "dataset_args.validation_size=6"]
    command = [o for o in small(tmp_path, *shots, steps=0) if "data_dir" not in o]
    assert main([*command, "dataset_args.shots=2"]) == 0, capsys.readouterr().err
    (asked, *_) = RunFolder(tmp_path / "run").evaluation("test").predictions("test")
    assert asked.question.count("\n\n") == 2
    assert RunFolder(tmp_path / "run").record().steps == 0


def test_an_evaluation_uses_the_loss_that_the_run_was_trained_with(run, tmp_path):
    command = answer(tmp_path, run, "model_args=vanilla_t5_ntl", "evaluation.name=again")
    assert main(command) == 0  # the published command names NTL-MSE
    assert_close(results(run, "again"), results(run), ONE_COMPUTATION)
    record = RunFolder(run).evaluation("again").record()
    assert (record.label, record.steps) == ("T5 + NTL-WAS", 2)


def test_evaluating_again_replaces_the_evaluation_of_that_name_and_no_other(run, tmp_path):
    before = results(run)
    assert main(answer(tmp_path, run, "evaluation.samples=2", "evaluation.name=few")) == 0
    assert results(run) == before
    assert {metrics["count"] for metrics in results(run, "few").values()} == {2}
    assert main(answer(tmp_path, run, "evaluation.samples=3")) == 0
    assert {metrics["count"] for metrics in results(run).values()} == {3}


def test_a_finished_run_is_left_alone_and_other_readings_only_evaluate_it(run, tmp_path):
    weights = (run / "model.safetensors").stat().st_mtime_ns
    before = (run / "test/metrics.json").stat().st_mtime_ns
    again = small(tmp_path, "loss=ntl_was")
    assert main(again) == 0
    assert (run / "test/metrics.json").stat().st_mtime_ns == before
    assert main([*again, "evaluation.samples=3"]) == 0
    assert {metrics["count"] for metrics in results(run).values()} == {3}
    assert (run / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.usefixtures("run")
def test_a_run_with_other_settings_is_kept_until_it_is_overwritten(run, tmp_path, capsys):
    other = small(tmp_path, "loss=ntl_was", "training_args.learning_rate=1")
    assert main(other) == 2
    assert "training_args.learning_rate" in capsys.readouterr().err
    assert main([*other, "training_args.overwrite_output_dir=true"]) == 0
    assert RunFolder(run).record().config["training_args"]["learning_rate"] == 1


def test_overwriting_removes_the_run_and_nothing_else_and_only_if_the_new_one_can_start(run, tmp_path):
    assert main(answer(tmp_path, run, "evaluation.name=again")) == 0
    shutil.copytree(run, run / "inner")
    (run / "answers.csv").write_text("predicted")
    (run / "notes").mkdir()
    (run / "notes/metrics.json").write_text("mine")
    inner = sorted((run / "inner").rglob("*"))
    overwrite = small(tmp_path, "training_args.overwrite_output_dir=true", steps=1)
    assert main([*overwrite, "model_args.family=decoder_only"]) == 2
    assert RunFolder(run).record().status == "finished"
    assert results(run, "again")
    assert main(overwrite) == 0
    assert RunFolder(run).record().steps == 1
    assert not (run / "checkpoint-2").exists()
    assert not results(run, "again")
    assert sorted((run / "inner").rglob("*")) == inner
    assert (run / "answers.csv").read_text() == "predicted"
    assert (run / "notes/metrics.json").read_text() == "mine"


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_a_folder_with_other_files_is_not_changed(overwrite, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("years of work")
    assert main(small(tmp_path, f"training_args.overwrite_output_dir={overwrite}")) == 2
    assert (tmp_path / "run/thesis.tex").read_text() == "years of work"
    assert not (tmp_path / "run/run.json").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_a_folder_that_cannot_be_written_is_an_error_of_one_line(sweep, place, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    assert main([*sweep, *small(tmp_path, f"training_args.output_dir={tmp_path}/{place}")]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert re.fullmatch(
        rf"ntl train: {tmp_path}/{place} cannot be written \(.*\); expected a folder .*", err
    ), err
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_below_the_users_home_is_written_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    home = ["training_args.output_dir='~/run'"]
    assert main(small(tmp_path, *home, steps=0)) == 0, capsys.readouterr().err
    assert RunFolder(tmp_path / "home/run").record().status == "finished"
    sweep = ["-m", "hydra/launcher=basic", "training_args.output_dir='~/sweep'", "training_args.seed=1"]
    assert main(small(tmp_path, *sweep, steps=0)) == 0, capsys.readouterr().err
    assert [path.parent.parent for path in (tmp_path / "home").glob("sweep/*/run.json")] == [
        tmp_path / "home/sweep"
    ]
    again = ["training_args=eval", "model_args.model_name_or_path='~/run'", "training_args.output_dir=null"]
    assert main(small(tmp_path, *again, "evaluation.name=again")) == 0, capsys.readouterr().err
    assert results(tmp_path / "home/run", "again")
    assert not (tmp_path / "~").exists()


def test_a_record_of_an_older_version_is_read_with_defaults_for_missing_keys(run, tmp_path):
    record = json.loads((run / "run.json").read_text())
    old = {"format": 1, "name": "vanilla_t5", "objective": "T5 + NTL-WAS", "status": "finished"}
    old["config"] = {key: record["config"][key] for key in ("dataset_args", "model_args", "loss")}
    old["config"]["training_args"] = {"trained_layers": None, "seed": 3}
    (run / "run.json").write_text(json.dumps(old))
    assert RunFolder(run).record().label == "T5 + NTL-WAS"
    assert main(answer(tmp_path, run, "evaluation.name=again")) == 0
    assert_close(results(run, "again"), results(run), ONE_COMPUTATION)


def test_every_argument_of_the_trainer_can_be_given(tmp_path, capsys):
    given = [
        "eval_strategy=no",
        "save_strategy=no",
        "label_smoothing_factor=0.1",
        "predict_with_generate=true",
    ]
    given += ["load_best_model_at_end=false", "optim=sgd", "lr_scheduler_type=constant"]
    assert main(small(tmp_path, *(f"training_args.{each}" for each in given))) == 0, capsys.readouterr().err
    assert RunFolder(tmp_path / "run").curve() == []
    assert not [*(tmp_path / "run").glob("checkpoint-*")]


INVALID = [
    ("training_args.max_stepz=1", "max_steps"),
    ("training_args.overwrite_output_dir=maybe", "overwrite_output_dir"),
    ("training_args.lr_scheduler_type=cosin", "cosin"),
    ("training_args.metric_for_best_model=interval_coverage", "greater_is_better"),
    ("evaluation.beamz=1", "Did you mean beams"),
    ("evaluation.interval=1", "interval"),
    ("evaluation.read=[mode]", "greedy, median, mean"),
    ("model_args.family=t6", "decoder_only"),
    ("loss=nope", "ntl_was"),
    ("dataset_args.data_dir=nowhere", "nowhere"),
    ("dataset_args.cache_dir=/dev/null/cache", "cache_dir"),
    ("loss=ntl_was loss.options={p:2}", "option p;"),
    ("loss=ntl_was model_args=vanilla_t5_ntl", "number_token_loss"),
    ("loss=ntl_was model_args=xval", "number_encoding=xval"),
    ("weights.trained_layers=1 weights=lora", "weights.lora"),
    ("model_args=vanilla_t5_regression_head dataset_args=multirc", "number"),
    (f"{PADDED} dataset_args=gsm8k", "single number"),
    ("evaluation.read=[greedy,median] dataset_args=multirc", "single number"),
    ("training_args.resume_from_checkpoint=true", "no complete checkpoint"),
    ("model_args=pretrained", "model_name_or_path"),
]


@pytest.mark.parametrize(("arguments", "expected"), INVALID)
def test_an_invalid_setting_is_an_error_with_code_2_and_nothing_is_trained(
    arguments, expected, tmp_path, capsys
):
    assert main(small(tmp_path, *arguments.split())) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert "Traceback" not in message
    assert len(message.strip().splitlines()) <= 2
    assert not (tmp_path / "run/run.json").exists()


def test_diverging_training_is_an_error(tmp_path, capsys):
    wild = ["training_args.learning_rate=1e30", "training_args.max_grad_norm=0"]
    assert main(small(tmp_path, *wild, steps=3)) == 2
    assert "diverged" in capsys.readouterr().err


def test_a_killed_run_continues_to_the_same_result(tmp_path):
    steps = ["training_args.save_steps=5", "training_args.eval_steps=5", "training_args.logging_steps=1"]
    steps += ["model_args=vanilla_t5_ntl", "training_args.gradient_accumulation_steps=2"]

    def overrides(folder):
        return small(tmp_path, *steps, f"training_args.output_dir={folder}", steps=30)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(overrides(whole)) == 0
    process = multiprocessing.get_context("forkserver").Process(target=main, args=[overrides(broken)])
    process.start()
    deadline = time.monotonic() + 120
    while RunFolder(broken).last_checkpoint() is None:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # Nobody else may write into the folder meanwhile.
    assert main(overrides(broken)) == 2
    process.kill()
    process.join()
    assert RunFolder(broken).record().status == "running"
    # What remains if the run is killed while saving.
    (broken / "checkpoint-29").mkdir(exist_ok=True)
    (broken / "checkpoint-29/model.safetensors").write_bytes(b"half")
    assert main(overrides(broken)) == 0
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, broken))
    assert_close(other, one, TRAINED_BY_ADAM)
    assert_close(results(broken), results(whole), TRAINED_BY_ADAM)
    assert_close(RunFolder(broken).curve(), RunFolder(whole).curve(), TRAINED_BY_ADAM)


@pytest.mark.parametrize(
    "place", ["ntl.train.make_trainer", "ntl.evaluation.evaluate", "ntl.train.new_record"]
)
def test_a_run_that_is_killed_anywhere_is_continued_by_the_same_command(place, tmp_path):
    def die(*_, **__):
        raise KeyboardInterrupt

    command = small(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, die)
        assert main(command) == 130
    assert main(command) == 0
    assert RunFolder(tmp_path / "run").record().status == "finished"


def test_evenly_spaced_examples_are_chosen():
    assert list(evenly_spaced(list("abcdefghij"), 3)) == ["a", "d", "g"]
    assert evenly_spaced([1, 2], 5) == [1, 2]
    assert evenly_spaced([1, 2], None) == [1, 2]
