"""Sweeps: `ntl train -m` and `ntl compare`, in one process and in several, failed, killed and continued."""

import csv
import multiprocessing
import re
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from processes import IMPORTED
from runs import compare, logged, main, results, written
from safetensors.torch import load_file
from tolerances import TRAINED_BY_ADAM, assert_close, assert_identical

from ntl.layout import RESULTS, STATE
from ntl.metrics.registry import find_metric
from ntl.settings import default_jobs, name_run
from ntl.trainer import LabTrainer

NAMES = ["loss-ce_seed-0", "loss-ntl_was_seed-0"]
pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def changed(tiny, *more):
    """Return the overrides with others in place of those of the same keys."""
    keys = {option.partition("=")[0] for option in more}
    return [*(option for option in tiny if option.partition("=")[0] not in keys), *more]


def write_more(tiny, settings):
    """Let the study `tiny` be one that extends it."""
    study = Path(tiny[0])
    study.with_name("base.yaml").write_text(study.read_text())
    study.write_text(f"defaults: [base, _self_]\n{settings}\n")


def finished(folder):
    """Return the names of the finished runs."""
    return [path.parent.parent.name for path in sorted(folder.glob(f"*/test/{RESULTS}"))]


def test_a_comparison_writes_runs_and_a_report_and_a_second_call_continues(tiny, out, capsys):
    assert compare(*tiny) == 0
    printed = capsys.readouterr()
    assert "| T5 + NTL-WAS |" in printed.out
    assert finished(out) == NAMES
    assert (out / "report/table.md").read_text() in printed.out
    for name in NAMES:
        assert len(logged(out / name, "eval_loss")) == 2
        found = results(out / name)["test"]
        assert found["noise_mae"] > 0
        assert all(map(find_metric, found))
    # One more loss, without new runs of the others.
    before = {name: (out / name / STATE).stat().st_mtime_ns for name in NAMES}
    assert compare(*changed(tiny, "loss=ce,ntl_was,crps")) == 0
    assert "| T5 + CRPS |" in capsys.readouterr().out
    assert before == {name: (out / name / STATE).stat().st_mtime_ns for name in NAMES}
    # A regression head is another sweep into the same folder.
    head = ["model_args=vanilla_t5_regression_head", "model_args.number_format=padded", "loss=ce"]
    assert compare(*changed(tiny, *head, "evaluation.read=[greedy,median]")) == 0
    printed = capsys.readouterr().out
    assert "| T5 regression head |" in printed
    assert "| T5 + CRPS |" in printed
    assert len(finished(out)) == 4


@pytest.mark.parametrize(
    ("settings", "meant"),
    [
        ("trainig_args: {max_steps: 3}", "training_args?"),
        ("learning_rate: 0.5", "learning_rate"),
    ],
)
def test_a_key_of_a_study_that_nothing_reads_is_an_error(settings, meant, tiny, out, capsys):
    write_more(tiny, settings)
    assert compare(*changed(tiny, "loss=ntl_was")) == 2
    assert meant in capsys.readouterr().err
    assert finished(out) == []


@pytest.mark.parametrize(
    "settings",
    ["weight: {ntl_was: 0.1}\nloss: {weight: '${weight.${hydra:runtime.choices.loss}}'}", "names: {}"],
)
def test_a_study_may_have_keys_of_its_own_that_others_read(settings, tiny, out):
    write_more(tiny, settings)
    assert compare(*changed(tiny, "loss=ntl_was")) == 0
    assert len(finished(out)) == 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ("contrasts=[{off: ce, minus: head}]", "off"),
        ("contrasts=[{of: ce, minus: head, metric: maee}]", "maee"),
        ("margin=wide", "margin"),
    ],
)
def test_a_sweep_with_a_wrong_contrast_is_refused_before_its_first_run(wrong, named, tiny, out, capsys):
    assert compare(*changed(tiny, wrong)) == 2
    assert named in capsys.readouterr().err
    assert finished(out) == []


@pytest.mark.slow
def test_processes_find_own_data_encodings_and_losses_and_give_the_metrics_of_one_process(
    tiny, tmp_path, out, monkeypatch
):
    (tmp_path / "my_losses.py").write_text(
        "def squared(probs, values, target):\n    return (probs @ values - values[target]).square()\n"
    )
    page = (Path(__file__).parents[2] / "docs/lab.md").read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(code)
    study = Path(tiny[0])
    study.write_text(
        study.read_text()
        .replace("[compare, _self_]", "[compare, override dataset_args: own, _self_]")
        .replace(
            "{train_size: 64, validation_size: 8, test_size: 20}", "{load: my_data:sums, options: {rows: 9}}"
        )
    )
    own = ["loss=ce", "loss.criterion=null,my_losses:squared", "evaluation.samples=6"]
    own = changed(tiny, *own, "model_args.number_encoding=my_encoding:Backwards")
    monkeypatch.chdir(tmp_path)
    assert compare(*changed(own, "hydra/launcher=local", "hydra.launcher.n_jobs=2")) == 0
    runs = {name: written(out / name) for name in finished(out)}
    assert {run["name"] for run in runs.values()} == {"ce", "my_losses:squared"}
    assert {run["dataset"] for run in runs.values()} == {"sums"}
    assert compare(*changed(own, f"training_args.output_dir={tmp_path}/again")) == 0
    for name, run in runs.items():
        assert_close(results(tmp_path / "again" / name), run["metrics"], TRAINED_BY_ADAM)


def test_a_run_has_one_folder_however_its_settings_are_given_and_other_settings_another(tiny, out):
    write_more(tiny, 'hydra: {sweeper: {params: {loss: "ce,ntl_was", training_args.seed: "1"}}}')
    study, launcher, folder = (option for option in tiny if "loss=" not in option and "seed" not in option)
    by_study = {"loss-ce_seed-1", "loss-ntl_was_seed-1"}
    swept = ["training_args.seed=0,1", "loss=ce", "evaluation.beams=2"]  # a finished run is evaluated again
    by_both = {*by_study, "loss-ce_seed-0"}
    one = ["training_args.seed=1", "loss=ntl_was", "training_args.per_device_eval_batch_size=4"]
    head = ["training_args.seed=1", "loss=ce", "model_args=vanilla_t5_regression_head"]
    commands = {
        (): by_study,
        tuple(swept): by_both,
        tuple(one): by_both,
        tuple(head): {*by_both, "loss-ce_model_args-vanilla_t5_regression_head_seed-1"},
    }
    states = {}
    for given, folders in commands.items():
        assert compare(study, launcher, folder, *given) == 0
        assert {*finished(out)} == folders
        found = {run: (out / run / STATE).stat().st_mtime_ns for run in folders}
        assert states.items() <= found.items()
        states = found
    assert written(out / "loss-ce_seed-1")["settings"]["evaluation"]["beams"] == 2


def test_several_values_of_a_setting_that_only_evaluates_are_several_runs(tiny, out):
    assert compare(*changed(tiny, "loss=ce", "evaluation.samples=2,3")) == 0
    assert finished(out) == [f"evaluation.samples-{count}_loss-ce_seed-0" for count in (2, 3)]


def test_names_of_runs_differ_if_their_settings_do():
    pairs = [
        ("model_args.separator-a b", "model_args.separator-a-b"),
        ("dataset_args.prompt-" + "ü" * 300, "dataset_args.prompt-" + "ü" * 301),
        ("dataset_args.data_seed-1", "training_args.data_seed-1"),
        ("loss.weight--1", "loss.weight-1"),
    ]
    for one, other in pairs:
        names = [name_run(f"{each}_training_args.seed-7", 7) for each in (one, other)]
        assert names[0] != names[1]
        assert all("seed-7" in name and len(name.encode()) < 255 for name in names)
        assert all(re.fullmatch(r"[\w.+-]+", name, re.ASCII) for name in names)


def test_keys_that_follow_the_seed_have_the_value_of_each_run(tiny, out):
    seeds = ["training_args.seed=0,1", "loss=ce", "dataset_args.data_seed=${training_args.seed}"]
    assert compare(*changed(tiny, *seeds)) == 0
    runs = [written(out / name) for name in finished(out)]
    assert {(r["seed"], r["settings"]["dataset_args"]["data_seed"]) for r in runs} == {(0, 0), (1, 1)}
    assert [f"seed-{seed}-" in name for seed, name in enumerate(finished(out))] == [True, True]


def test_a_failed_run_does_not_end_the_sweep_and_is_named_at_the_end(tiny, out, capsys):
    sweep = ["loss=ce", "training_args.learning_rate=1e30,0.001", "training_args.max_grad_norm=0"]
    assert compare(*changed(tiny, *sweep)) == 1
    failed, succeeded = (
        f"loss-ce_learning_rate-{rate}_max_grad_norm-0_seed-0" for rate in ("1e+30", "0.001")
    )
    assert finished(out) == [succeeded]
    assert f"{failed} has no results" in capsys.readouterr().err
    assert "diverged" in (out / failed / "train.log").read_text()
    assert (out / "report/table.md").exists()


@pytest.mark.slow
def test_a_killed_sweep_continues_to_the_metrics_of_an_undisturbed_one(tiny, tmp_path, out):
    write_more(
        tiny,
        "training_args: {max_steps: 40, eval_steps: 20, save_steps: 5, gradient_accumulation_steps: 2}",
    )
    first, second = (out / name for name in NAMES)
    multiprocessing.set_forkserver_preload(IMPORTED)
    process = multiprocessing.get_context("forkserver").Process(target=compare, args=tiny)
    process.start()
    deadline = time.monotonic() + 240
    while not [*second.glob(f"checkpoint-*/{STATE}")] and time.monotonic() < deadline:
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert (first / STATE).exists()
    assert not (second / STATE).exists()
    # What remains if the run is killed while saving.
    (second / "checkpoint-99").mkdir(exist_ok=True)
    (second / "checkpoint-99/model.safetensors").write_bytes(b"half")
    stamp = (first / STATE).stat().st_mtime_ns
    assert compare(*tiny) == 0
    assert (first / STATE).stat().st_mtime_ns == stamp
    assert compare(*changed(tiny, f"training_args.output_dir={tmp_path}/undisturbed")) == 0
    for run in (first, second):
        whole = tmp_path / "undisturbed" / run.name
        assert_close(results(run), results(whole), TRAINED_BY_ADAM)
        assert_close(logged(run, "eval_loss"), logged(whole, "eval_loss"), TRAINED_BY_ADAM)
        one, other = (load_file(folder / "model.safetensors") for folder in (whole, run))
        assert_close(other, one, TRAINED_BY_ADAM)


def test_a_study_in_one_file_is_swept_and_its_contrasts_are_tested(tiny, tmp_path, capsys):
    write_more(
        tiny,
        """
evaluation: {read: [greedy, median]}
model_args: {number_format: padded}
hydra:
  sweeper:
    params: {loss: "ce,ntl_was", training_args.seed: "0,1"}
contrasts:
  - {of: ntl_was, minus: ce}
  - {of: "ce, median", minus: {name: ce}, metric: rmse}
margin: 1.0e+9
""",
    )
    kept = [option for option in tiny if not option.startswith(("loss", "training_args.seed"))]
    assert compare(*kept) == 0, capsys.readouterr().err
    with (tmp_path / "out/report/contrasts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["of"], row["seeds"]) for row in rows] == [("ntl_was", "2"), ("ce, median", "2")]
    own = ["--study", tiny[0], "--output", str(tmp_path / "again")]
    assert main(["report", str(tmp_path / "out"), *own]) == 0
    assert (tmp_path / "again/contrasts.csv").exists()


def test_all_losses_of_one_seed_see_the_same_weights_and_batches(tiny, monkeypatch):
    runs = []
    step = LabTrainer.training_step

    def recorded(self, model, inputs, *args):
        if self.state.global_step == 0:
            body = getattr(self.model, "transformer", self.model)
            runs.append(({key: value.clone() for key, value in body.state_dict().items()}, []))
        runs[-1][1].append(inputs["input_ids"].tolist())
        return step(self, model, inputs, *args)

    monkeypatch.setattr(LabTrainer, "training_step", recorded)
    assert compare(*tiny) == 0
    assert compare(*changed(tiny, "model_args=vanilla_t5_regression_head", "loss=ce")) == 0
    (ce, batches), (ntl, of_ntl), (head, of_head) = runs
    assert_identical(ntl, ce)
    assert_identical(head, {key: ce[key] for key in head})
    assert batches == of_ntl == of_head
    assert len({str(batch) for batch in batches}) == 4


def test_a_comparison_uses_a_gpu_where_there_is_one_run_at_a_time(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    on_cpu = OmegaConf.create({"training_args": {"use_cpu": True}})
    for is_available in (False, True):
        monkeypatch.setattr("torch.accelerator.is_available", lambda found=is_available: found)
        jobs = [default_jobs(OmegaConf.create({"training_args": {}})), default_jobs(on_cpu)]
        assert (jobs[0] == 1) == is_available
        assert jobs[1] > 1
