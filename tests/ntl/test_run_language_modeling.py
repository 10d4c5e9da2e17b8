import json
import multiprocessing
import shutil
import time
from dataclasses import replace

import pytest
from published_commands import scaled_down
from safetensors.torch import load_file
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, assert_close, assert_identical

import ntl.runs.run
from ntl.evaluation import evenly_spaced
from ntl.run_language_modeling import main
from ntl.training.folders import last_complete_checkpoint
from ntl.training.run_folder import RunFolder

PADDED = "model_args.number_format=padded"
MODELS = [
    "vanilla_t5", "rt_ntl", "xval", "vanilla_t5_regression_head", "decoder_only", "decoder_only_ntl",
]  # fmt: skip


def small(tmp_path, *more, steps=2):
    return [*scaled_down(tmp_path, steps), *more]


def answer(tmp_path, checkpoint, *more):
    """Evaluate a checkpoint whose folder holds its configuration."""
    options = [option for option in small(tmp_path) if "config_name" not in option]
    return [*options, "training_args=eval", f"model_args.model_name_or_path={checkpoint}", *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a run of two steps, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(small(folder)) == 0
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """Return a finished run in `tmp_path`."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return RunFolder(tmp_path / "run")


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_saves_and_answers(model, tmp_path, capsys):
    shape = ["model_args.config_name=llama-tiny"] if "decoder" in model else []
    arguments = small(tmp_path, f"model_args={model}", *shape)
    assert main(arguments) == 0, capsys.readouterr().err
    folder = RunFolder(tmp_path / "run")
    assert folder.record().status == "finished"
    small_eval = [o for o in arguments if not o.startswith(("model_args.", "training_args.output_dir"))]
    again = [*small_eval, "training_args=eval", f"model_args.model_name_or_path={folder}"]
    again += [f"training_args.output_dir={tmp_path}/again"]
    assert main(again) == 0, capsys.readouterr().err
    assert_close(RunFolder(tmp_path / "again").metrics(), folder.metrics(), ONE_COMPUTATION)


def test_training_from_cached_states_gives_the_weights_of_training_without_a_cache(tmp_path, capsys):
    arguments = [
        "model_args=decoder_only",
        "model_args.config_name=llama-tiny",
        "training_args.trained_layers=1",
    ]
    found = {}
    for size in (1, 0):
        folder = tmp_path / f"cache{size}"
        cached = [f"training_args.state_cache_gb={size}", f"training_args.output_dir={folder}"]
        assert main(small(tmp_path, *arguments, *cached)) == 0, capsys.readouterr().err
        found[size] = load_file(folder / "model.safetensors")
        assert ("caching the output of the frozen layers" in capsys.readouterr().out) == bool(size)
    assert_close(found[1], found[0], TRAINED_BY_ADAM)


@pytest.mark.parametrize("dataset", ["arithmetic", "gsm8k", "multiplication", "multirc", "rjokes"])
def test_every_dataset_can_be_trained_on_and_evaluated(dataset, tmp_path, capsys):
    assert main(small(tmp_path, f"dataset_args={dataset}")) == 0, capsys.readouterr().err
    metrics = RunFolder(tmp_path / "run").metrics()
    for test in metrics.values():
        assert ("accuracy" in test) == (dataset != "multirc")
        assert ("final_answer_accuracy" in test) == (dataset == "gsm8k")


def test_a_sweep_over_losses_and_weights_writes_each_run_to_its_own_folder(tmp_path, capsys):
    sweep = ["--multirun", "loss=ntl_was,smmd", "loss.weight=0.1,0.3"]
    assert main([*sweep, *small(tmp_path, "evaluation.samples=2")]) == 0, capsys.readouterr().err
    runs = sorted((tmp_path / "run").glob("*/run.json"))
    records = [json.loads(path.read_text()) for path in runs]
    found = {(r["objective"], r["config"]["loss"]["weight"]) for r in records}
    assert found == {(f"T5 + {n}", w) for n in ("NTL-WAS", "SMMD") for w in (0.1, 0.3)}


@pytest.mark.parametrize("state", ["is new", "has no checkpoint"])
def test_one_command_continues_a_killed_sweep(state, tmp_path, capsys):
    sweep = ["--multirun", "training_args.seed=1,2", *small(tmp_path, "evaluation.samples=2")]
    assert main(sweep) == 0, capsys.readouterr().err
    finished, lost = (RunFolder(tmp_path / f"run/training_args.seed={seed}") for seed in (1, 2))
    shutil.rmtree(finished.path / "checkpoint-2")  # as of a run with save_total_limit=0
    before = finished.record_path.read_bytes()
    record = replace(lost.record(), status="running", steps=0)
    shutil.rmtree(lost.path)
    if state == "has no checkpoint":
        lost.write_record(record)
    assert main([*sweep, "training_args.resume_from_checkpoint=true"]) == 0
    assert f"{lost} {state}" in capsys.readouterr().err
    assert lost.record().status == "finished"
    assert finished.record_path.read_bytes() == before


def test_a_sweep_goes_on_after_a_failed_run_and_names_it(tmp_path, capsys, monkeypatch):
    def fails(settings, *rest):
        if settings.seed == 1:
            raise RuntimeError("out of memory")
        return train(settings, *rest)

    train = ntl.runs.run.train
    monkeypatch.setattr("ntl.runs.run.train", fails)
    sweep = ["--multirun", "training_args.seed=1,2", *small(tmp_path, "evaluation.samples=2")]
    assert main(sweep) == 1
    failed, finished = (tmp_path / f"run/training_args.seed={seed}" for seed in (1, 2))
    printed = capsys.readouterr().err
    assert "RuntimeError: out of memory" in printed
    assert printed.endswith(f"failed: {failed}\n")
    assert RunFolder(finished).record().status == "finished"
    monkeypatch.undo()
    assert main([*sweep, "training_args.resume_from_checkpoint=true"]) == 0
    assert RunFolder(failed).record().status == "finished"


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ("loss=ntl_was,nope", "loss=nope is unknown; expected one of: ce"),
        ("training_args.seed=1,2,-3", "seed is -3"),
        ("training_args.seed=[1,2", "cannot be read; expected key=value"),
    ],
)
def test_every_value_of_a_sweep_is_checked_before_the_first_run(sweep, expected, tmp_path, capsys):
    assert main(["--multirun", sweep, *small(tmp_path)]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("model_args=xval", "was trained with encoding=digits, not xval"),
        ("model_args.config_overrides={d_ff: 32}", ", not [32, 64]; expected a checkpoint"),
    ],
)
def test_a_checkpoint_of_another_model_is_not_continued(other, expected, finished, tmp_path, capsys):
    checkpoint = f"training_args.resume_from_checkpoint={finished}/run/checkpoint-2"
    assert main(small(tmp_path, checkpoint, other, f"training_args.output_dir={tmp_path}/other")) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_folder_that_holds_a_run_is_not_overwritten(run, tmp_path, capsys):
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert main(small(tmp_path)) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("overwrite", ["false", "true"])
def test_a_folder_with_other_files_is_not_changed(overwrite, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.tex").write_text("years of work")
    assert main(small(tmp_path, f"training_args.overwrite_output_dir={overwrite}")) == 2
    assert "holds files but no run" in capsys.readouterr().err
    assert (tmp_path / "run/thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("overwrite", ["false", "true"])
@pytest.mark.usefixtures("run")
def test_a_run_is_not_continued_with_another_configuration(overwrite, tmp_path, capsys):
    more = ["training_args.resume_from_checkpoint=true", "training_args.learning_rate=1"]
    assert main(small(tmp_path, f"training_args.overwrite_output_dir={overwrite}", *more)) == 2
    expected = "holds a run with training_args.learning_rate=0.0001, but training_args.learning_rate=1"
    assert expected in capsys.readouterr().err


def test_an_evaluation_on_another_dataset_is_not_mixed_with_a_run(run, tmp_path, capsys):
    model = f"model_args.model_name_or_path={run}"
    other = [o for o in small(tmp_path, "training_args=eval", model) if "config_name" not in o]
    assert main([*other, "dataset_args=arithmetic"]) == 2
    assert "holds a run on mathematics_dataset" in capsys.readouterr().err
    elsewhere = f"training_args.output_dir={tmp_path}/elsewhere"
    assert main([*other, "dataset_args=arithmetic", elsewhere]) == 0
    trained, record = run.record(), RunFolder(tmp_path / "elsewhere").record()
    assert (record.dataset, record.steps, record.parameters) == ("arithmetic", 2, trained.parameters)


def test_an_evaluation_with_other_settings_does_not_replace_the_runs_own(run, tmp_path, capsys):
    own = (
        p for p in run.path.rglob("*") if p.is_file() and p.name != "training_args.bin"
    )  # names the folder
    before = {path: path.read_bytes() for path in own}
    assert main(answer(tmp_path, run, "evaluation.samples=2", "evaluation.beams=1")) == 0
    assert f"{tmp_path}/run/evaluations/beams=1,samples=2" in capsys.readouterr().out
    # A finished run that is "resumed" with other settings is also evaluated again.
    assert main(small(tmp_path, "training_args.resume_from_checkpoint=true", "evaluation.samples=3")) == 0
    assert {path: path.read_bytes() for path in before} == before
    few, resumed = run.evaluations()
    assert {m["count"] for m in run.metrics().values()} == {6}
    assert {m["count"] for m in few.metrics().values()} == {2}
    assert {m["count"] for m in resumed.metrics().values()} == {3}
    assert len(few.predictions("interpolate")) == 2
    assert (few.record().status, few.record().config["evaluation"]["samples"]) == ("finished", 2)


def test_the_runs_own_evaluation_is_not_repeated(run, tmp_path):
    before = run.metrics_path.stat().st_mtime_ns
    assert main(answer(tmp_path, run)) == 0
    assert run.metrics_path.stat().st_mtime_ns == before
    assert not run.evaluations()


def test_resuming_a_finished_run_changes_nothing(run, tmp_path):
    before, metrics = load_file(run.path / "model.safetensors"), run.metrics()
    assert main(small(tmp_path, "training_args.resume_from_checkpoint=true")) == 0
    assert_identical(load_file(run.path / "model.safetensors"), before)
    assert run.metrics() == metrics


INVALID = [
    (["training_args.overwrite_output_dir=maybe"], "'maybe'; expected true or false"),
    (["training_args.adam_beta1=2"], "Invalid beta parameter"),
    (["training_args.dataloader_num_workers=-1"], "num_workers option should be non-negative"),
    (["training_args.dataloader_persistent_workers=true"], "persistent_workers option needs"),
    (["training_args.optim_args=three"], "training_args cannot be used (ValueError"),
    (["training_args.log_level=loud"], "'loud'"),
    (["training_args.report_to=wandbb"], "wandbb is not supported"),
    (["training_args.lr_scheduler_kwargs={color: red}"], "color"),
    (["training_args.lr_scheduler_type=cosin"], "cosin"),
    (["dataset_args.cache_dir=/dev/null/cache"], "cache_dir=/dev/null/cache cannot be written"),
    (["dataset_args.data_dir=nowhere"], "nowhere"),
    (["model_args.tokenizer_name_or_path=/", "dataset_args.data_dir=nowhere"], "holds no tokenizer"),
    (["loss=ntl_was", "loss.options={p: 2}", "dataset_args.data_dir=nowhere"], "has no option 'p'"),
    (["model_args=vanilla_t5_regression_head", "dataset_args=multirc"], "number"),
    ([PADDED, "dataset_args=gsm8k"], "is not a single number"),
    ([PADDED, "dataset_args=multirc"], "is not a single number"),
    ([PADDED, "model_args.number_width=1"], "digits before the point; expected at most 1"),
]


@pytest.mark.parametrize(("arguments", "expected"), INVALID)
def test_an_invalid_setting_is_a_one_line_error_and_nothing_is_written(arguments, expected, tmp_path, capsys):
    assert main(small(tmp_path, *arguments)) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert len(message.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_an_output_folder_that_cannot_be_created_is_an_error(name, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    assert main(small(tmp_path, f"training_args.output_dir={tmp_path}/{name}")) == 2
    assert "is not a folder and cannot be created" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "kept"


def test_a_killed_run_continues_to_the_same_result(tmp_path):
    steps = ["training_args.save_steps=5", "training_args.eval_steps=5", "training_args.logging_steps=1"]
    steps += ["model_args=vanilla_t5_ntl", "training_args.gradient_accumulation_steps=2"]

    def overrides(folder, *more):
        return small(tmp_path, *steps, f"training_args.output_dir={folder}", *more, steps=30)

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(overrides(whole)) == 0
    process = multiprocessing.get_context("forkserver").Process(target=main, args=[overrides(broken)])
    process.start()
    deadline = time.monotonic() + 120
    while last_complete_checkpoint(broken) is None:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.join()
    assert RunFolder(broken).record().status == "running"
    # What remains if the run is killed while saving.
    (broken / "checkpoint-29").mkdir(exist_ok=True)
    (broken / "checkpoint-29/model.safetensors").write_bytes(b"half")
    assert main(overrides(broken, "training_args.resume_from_checkpoint=true")) == 0
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, broken))
    assert_close(other, one, TRAINED_BY_ADAM)
    assert_close(RunFolder(broken).metrics(), RunFolder(whole).metrics(), TRAINED_BY_ADAM)
    assert_close(RunFolder(broken).curve(), RunFolder(whole).curve(), TRAINED_BY_ADAM)


def test_evenly_spaced_examples_are_chosen():
    assert list(evenly_spaced(list("abcdefghij"), 3)) == ["a", "d", "g"]
    assert evenly_spaced([1, 2], 5) == [1, 2]
    assert evenly_spaced([1, 2], None) == [1, 2]
