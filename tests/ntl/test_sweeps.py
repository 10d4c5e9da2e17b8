"""Sweeps: `ntl train -m` and `ntl compare`, in one process and in several, failed, killed and continued."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
import torch
from omegaconf import OmegaConf
from published_commands import scaled_down
from tolerances import TRAINED_BY_ADAM, approx, assert_close, assert_identical

from ntl.approaches.language_model import LanguageModel
from ntl.approaches.regression_head import RegressionHead
from ntl.cli import main
from ntl.compare import main as compare
from ntl.config import compose_config, default_jobs
from ntl.scores import is_metric
from ntl.train import main as train
from ntl.training.run_folder import RunFolder

COMMAND = "import sys; from ntl.cli import main; sys.exit(main())"
NAMES = ["objective-ce", "objective-ntl_was"]


@pytest.fixture(autouse=True)
def quick_figures(monkeypatch):
    """Leave figures out, which take seconds; test_figures.py draws them."""
    monkeypatch.setattr("ntl.report.figures.draw_dataset", lambda *_: [])


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def changed(tiny, *more):
    """Return the overrides with others in place of those of the same keys."""
    keys = {option.partition("=")[0] for option in more}
    return [*(option for option in tiny if option.partition("=")[0] not in keys), *more]


def statuses(folder):
    runs = (RunFolder(path.parent) for path in sorted(folder.glob("*/run.json")))
    return {run.path.name: run.record().status for run in runs}


def metrics(folder):
    return RunFolder(folder).evaluation("test").metrics()


def test_a_comparison_writes_runs_and_a_report_and_a_second_call_continues(tiny, out, capsys):
    assert main(["compare", *tiny]) == 0
    printed = capsys.readouterr()
    assert "| T5 + NTL-WAS |" in printed.out
    assert "2 of 2 runs finished" in printed.err
    assert statuses(out) == dict.fromkeys(NAMES, "finished")
    assert (out / "report/table.md").read_text() in printed.out
    for name in NAMES:
        assert [point["step"] for point in RunFolder(out / name).curve()] == [2, 4]
        assert metrics(out / name)["test"]["noise_mae"] > 0
        assert all(map(is_metric, metrics(out / name)["test"]))
    # One more objective, without new runs of the others.
    before = {name: (out / name / "run.json").stat().st_mtime_ns for name in NAMES}
    assert compare(changed(tiny, "objective=ce,ntl_was,head")) == 0
    printed = capsys.readouterr()
    assert "3 of 3 runs finished" in printed.err
    assert "| T5 regression head |" in printed.out
    assert "test MAE vs T5 |" in printed.out
    # Runs of earlier calls are reported, too, but they are no progress of this one.
    assert compare(changed(tiny, "objective=head,ce")) == 0
    printed = capsys.readouterr()
    assert "100% of all updates, 2 of 2 runs finished" in printed.err
    assert "| T5 + NTL-WAS |" in printed.out
    assert before == {name: (out / name / "run.json").stat().st_mtime_ns for name in NAMES}


@pytest.mark.parametrize("wrong", ["off: ce, minus: head", "of: ce, minus: head, metric: maee"])
def test_a_malformed_contrast_is_refused_before_the_first_run(wrong, tiny, out, capsys):
    assert compare([*tiny, f"contrasts=[{{{wrong}}}]"]) == 2
    assert "contrasts: " in capsys.readouterr().err
    assert statuses(out) == {}


def test_rows_are_in_the_order_of_the_objectives_and_differences_are_relative_to_the_first(tiny, capsys):
    assert compare(changed(tiny, "objective=head,ce")) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert "MAE vs T5 regression head" in rows[0]
    assert [row.split(" | ")[0] for row in rows[1:3]] == ["| T5 regression head", "| T5"]


def test_what_is_given_is_what_is_compared(tiny, out):
    assert compare([*tiny[:1], *tiny[2:], "model_args=vanilla_t5,vanilla_t5_ntl"]) == 0
    labels = {RunFolder(path.parent).record().label for path in out.glob("*/run.json")}
    assert labels == {"T5", "T5 + NTL-MSE"}


@pytest.mark.parametrize("launcher", ["local", "submitit_local", "ray"])
def test_processes_of_every_launcher_give_the_metrics_of_one_process(launcher, tiny, tmp_path, out):
    plugin = {"local": "joblib", "submitit_local": "submitit"}.get(launcher, launcher)
    if not find_spec(f"hydra_plugins.hydra_{plugin}_launcher"):
        pytest.skip(f"needs hydra-{plugin}-launcher")
    assert compare(tiny) == 0
    other = changed(tiny, f"hydra/launcher={launcher}", f"training_args.output_dir={tmp_path}/other")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "compare", *other], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "other/report/table.md").exists()
    for name in NAMES:
        assert_close(metrics(tmp_path / "other" / name), metrics(out / name), TRAINED_BY_ADAM)


@pytest.mark.skipif(not find_spec("hydra_plugins.hydra_optuna_sweeper"), reason="needs the extra optuna")
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_optuna_searches_for_the_weight_with_the_best_validation_metric(direction, tiny, out, capsys):
    search = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.sweeper.n_jobs=1", "loss=ntl_was"]
    search += ["loss.weight=choice(0.1,-1,2)", "minimize=loss", "hydra.sweeper.sampler.seed=1"]
    kept = ["preset=small_t5", *(option for option in tiny if not option.startswith("objective"))]
    code = train(["-m", "objective=none", *kept, *search, f"hydra.sweeper.direction={direction}"])
    found = OmegaConf.load(out / "optimization_results.yaml")
    measured = {run.parent.name: metrics(run.parent)["validation"]["loss"] for run in out.glob("*/test")}
    best = {"minimize": min, "maximize": max}[direction](measured.values())
    assert found.best_value == approx(best)
    assert found.best_params["loss.weight"] > 0
    assert code == 1  # a run that fails is the worst, and does not end the search
    assert [path.parent.name for path in out.glob("*/error.txt")] == ["loss.weight--1"]
    assert (out / "report/table.md").exists()


def test_a_sweep_over_losses_and_weights_writes_each_run_to_its_own_folder(tmp_path, capsys):
    sweep = ["--multirun", "loss=ntl_was,smmd", "loss.weight=0.1,0.3", "evaluation.samples=2"]
    assert train([*scaled_down(tmp_path), *sweep]) == 0, capsys.readouterr().err
    records = [RunFolder(path.parent).record() for path in (tmp_path / "run").glob("*/run.json")]
    found = {(record.label, record.config["loss"]["weight"]) for record in records}
    assert found == {(f"T5 + {n}", w) for n in ("NTL-WAS", "SMMD") for w in (0.1, 0.3)}
    # Names of folders can be passed back as they are.
    assert not [path for path in (tmp_path / "run").iterdir() if {*path.name} & {*"=,{} "}]


def test_keys_that_follow_the_seed_have_the_value_of_each_run(tiny, out):
    seeds = ["training_args.seed=0,1", "objective=ce", "dataset_args.data_seed=${training_args.seed}"]
    assert compare(changed(tiny, *seeds)) == 0
    records = [RunFolder(path.parent).record() for path in out.glob("*/run.json")]
    assert {(r.seed, r.config["dataset_args"]["data_seed"]) for r in records} == {(0, 0), (1, 1)}


def test_a_failed_run_does_not_end_the_sweep_and_is_named_at_the_end(tiny, out, capsys):
    sweep = ["objective=ce", "training_args.learning_rate=1e30,0.001", "training_args.max_grad_norm=0"]
    assert compare(changed(tiny, *sweep)) == 1
    failed, finished = "learning_rate-1e+30", "learning_rate-0.001"
    assert statuses(out) == {failed: "running", finished: "finished"}
    *_, last_but_one, last = capsys.readouterr().err.strip().splitlines()
    assert last_but_one.startswith(f"{failed} is not finished: ")
    assert "the same command continues" in last
    assert (out / "report/table.md").exists()


def start(command):
    """Start a command in a process group of its own, without a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Background processes of a shell ignore Ctrl-C, and a child of these tests would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def send(process, number, reached):
    """Send a signal to a command and its processes at a moment, and return what they printed."""
    deadline = time.monotonic() + 240
    while not reached() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    os.killpg(process.pid, number)
    printed, _ = process.communicate(timeout=120)
    return printed


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
def test_a_sweep_killed_at_three_places_gives_the_metrics_of_an_undisturbed_one(tiny, tmp_path, out):
    steps = ["training_args.max_steps=200", "training_args.eval_steps=200", "training_args.save_steps=100"]
    steps += ["training_args.per_device_eval_batch_size=5", "weights=null", "objective=ce,ntl_was,ntl_mse"]
    assert compare(changed(tiny, *steps, f"training_args.output_dir={tmp_path}/undisturbed")) == 0
    command = changed(tiny, *steps, "hydra/launcher=local", "hydra.launcher.n_jobs=2")
    first, second, third = (RunFolder(out / f"objective-{name}") for name in ("ce", "ntl_was", "ntl_mse"))
    places = {
        "training, before a checkpoint": lambda: first.holds_run() and first.record().steps > 0,
        "training, after a checkpoint": lambda: first.last_checkpoint() is not None,
        "evaluation": lambda: third.holds_run() and third.record().status == "trained",
    }
    for place, reached in places.items():
        printed = send(start(["compare", *command]), signal.SIGKILL, reached)
        assert (first.last_checkpoint() is None) == (place == "training, before a checkpoint"), printed
        assert (first.record().status == "running") == (place != "evaluation"), printed
    assert third.record().status == "trained"
    assert not third.evaluation("test").is_complete()
    finished = [run for run in (first, second) if run.record().status == "finished"]
    assert finished  # the third run had to wait for one of them
    stamps = [run.record_path.stat().st_mtime_ns for run in finished]
    assert compare(changed(tiny, *steps)) == 0
    assert [run.record_path.stat().st_mtime_ns for run in finished] == stamps
    for run in (first, second, third):
        assert_close(metrics(run.path), metrics(tmp_path / "undisturbed" / run.path.name), TRAINED_BY_ADAM)


@pytest.mark.skipif(os.name != "posix", reason="needs process groups to send Ctrl-C")
def test_an_interrupted_sweep_says_how_to_continue(tiny, out):
    steps = ["training_args.max_steps=1000", "training_args.eval_steps=1000", "training_args.save_steps=20"]
    process = start(["compare", *changed(tiny, *steps, "hydra/launcher=local", "hydra.launcher.n_jobs=2")])
    printed = send(process, signal.SIGINT, lambda: RunFolder(out / NAMES[0]).last_checkpoint() is not None)
    assert process.returncode == 130, printed
    assert "To continue from what is saved: ntl compare" in printed


def test_a_study_in_one_file_is_swept_and_its_contrasts_are_tested(tiny, tmp_path, capsys):
    study = tmp_path / "study.yaml"
    study.write_text(
        """
defaults: [small_t5]
evaluation: {read: [greedy, median]}
model_args: {number_format: padded}
hydra:
  sweeper:
    params: {objective: "ce,ntl_was", training_args.seed: "0,1,2"}
contrasts:
  - {of: ntl_was, minus: ce}
  - {of: "ce, median", minus: {objective: ce}, metric: rmse}
margin: 1.0e+9
"""
    )
    kept = [option for option in tiny if not option.startswith(("objective", "training_args.seed"))]
    assert compare([str(study), *kept]) == 0, capsys.readouterr().err
    with (tmp_path / "out/report/contrasts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["of"], row["seeds"]) for row in rows] == [("ntl_was", "3"), ("ce, median", "3")]
    assert "Declared contrasts" in capsys.readouterr().out
    own = ["--study", str(study), "--output", str(tmp_path / "again")]
    assert main(["report", str(tmp_path / "out"), *own]) == 0
    assert (tmp_path / "again/contrasts.csv").exists()


@pytest.mark.parametrize("name", ["demo", "none", "my study"])
def test_a_study_may_have_the_name_of_a_preset_of_the_lab(name, tmp_path, capsys):
    study = tmp_path / f"{name}.yaml"
    study.write_text("training_args: {learning_rate: 0.125}")
    assert train([str(study), "--cfg", "job"]) == 0, capsys.readouterr().err
    assert "learning_rate: 0.125" in capsys.readouterr().out


@pytest.mark.parametrize("sweep", ["loss=ntl_was,nope", "training_args.seed=[1,2", "evaluation.beamz=1,2"])
def test_an_invalid_sweep_is_an_error_with_code_2_or_fails_each_run(sweep, tmp_path, capsys):
    assert train(["--multirun", *scaled_down(tmp_path), sweep]) != 0
    assert capsys.readouterr().err
    assert "finished" not in statuses(tmp_path / "run").values() or "nope" in sweep


@pytest.mark.parametrize("command", ["train", "compare"])
def test_hydras_options_work(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"usage: ntl {command}" in capsys.readouterr().out
    assert main([command, "--cfg", "job", "loss=null", "weights=lora"]) == 0
    printed = capsys.readouterr().out
    assert "criterion" not in printed
    assert "lora_alpha" in printed
    assert main([command, "--cfg", "job", "~weights", "hydra.verbose=true"]) == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ntl pr", "prepare"),
        ("ntl train loss=ntl_w", "loss=ntl_was"),
        ("ntl compare objective=h", "objective=head"),
    ],
)
def test_words_are_completed(line, expected, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    words = capsys.readouterr().out.split()
    assert words.count(expected) == 1
    assert "model" not in words


def test_completion_offers_no_commands_after_one(monkeypatch, capsys):
    for line in ("ntl prepare gs", "ntl report "):
        monkeypatch.setenv("COMP_LINE", line)
        assert (main(["-sc", "query=bash"]), capsys.readouterr().out) == (0, "")
    assert main(["-sc"]) == 2
    assert "expected install=bash" in capsys.readouterr().err


def test_all_objectives_of_one_seed_see_the_same_weights_and_batches(tiny, out, monkeypatch):
    seen: dict[str, list] = {}
    started: dict[str, dict] = {}

    def record(kind):
        collate, fit = kind.collate, kind.fit

        def recorded(self, rows):
            seen.setdefault(type(self).__name__ + str(id(self)), []).append(
                [row["input_ids"] for row in rows]
            )
            return collate(self, rows)

        def fitted(self, answers):
            body = getattr(self.model, "transformer", self.model)
            started[len(started)] = {key: value.clone() for key, value in body.state_dict().items()}
            return fit(self, answers)

        monkeypatch.setattr(kind, "collate", recorded)
        monkeypatch.setattr(kind, "fit", fitted)

    record(LanguageModel)
    record(RegressionHead)
    assert compare(changed(tiny, "objective=ce,ntl_was,head", "training_args.eval_steps=4")) == 0
    ce, ntl, head = started.values()
    assert_identical(ntl, ce)
    assert_identical(head, {key: ce[key] for key in head})
    batches = [[rows for rows in found if len(rows) == 8][:4] for found in seen.values()]
    assert batches[0] == batches[1] == batches[2]
    assert len({tuple(map(tuple, rows)) for rows in batches[0]}) == 4
    assert json.loads((out / "objective-head/run.json").read_text())["label"] == "T5 regression head"
    assert torch.is_tensor(next(iter(ce.values())))


def test_a_comparison_uses_a_gpu_where_there_is_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    composed = compose_config([], "compare")
    assert not getattr(composed.training_args, "use_cpu", False)
    on_cpu = OmegaConf.create({"training_args": {"use_cpu": True}})
    for is_available in (False, True):
        monkeypatch.setattr("torch.accelerator.is_available", lambda found=is_available: found)
        jobs = [default_jobs(OmegaConf.create({"training_args": {}})), default_jobs(on_cpu)]
        assert (jobs[0] == 1) == is_available
        assert jobs[1] > 1
