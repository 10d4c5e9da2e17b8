"""Single runs: trained, killed and continued, evaluated again, replaced, refused."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hydra.errors import HydraException
from model_cases import logits_of, model_args, rows_of
from runs import logged, predictions, results, scaled_down, state, train, written
from safetensors.torch import load_file
from tokenizers_like import tokenizer_like
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, approx, assert_close

from ntl.data import evenly_spaced
from ntl.errors import UserError
from ntl.evaluate import Result
from ntl.layout import STATE
from ntl.models import build
from ntl.settings import compose_config
from ntl.trainer import LabTrainer, trainer_arguments
from ntloss import NTLoss

PADDED = "model_args.number_format=padded"


def small(tmp_path, *more, steps=2):
    return [*scaled_down(tmp_path, steps), *more]


def answer(tmp_path, checkpoint, *more):
    """Evaluate a model, with the rest of the published command."""
    kept = [
        option for option in small(tmp_path) if not option.startswith(("model_args.", "training_args.output"))
    ]
    return [*kept, "training_args=eval", f"model_args.model_name_or_path={checkpoint}", *more]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train a run of two steps with NTL-WAS, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    assert train(*small(folder, "loss=ntl_was")) == 0
    return folder


@pytest.fixture
def widths(monkeypatch):
    """Return the width of HL-Gauss at each step; None without a criterion."""
    seen, step = [], LabTrainer.training_step

    def record(self, *given, **more):
        loss = step(self, *given, **more)
        criterion = self.compute_loss.__self__.loss.criterion
        seen.append(None if criterion is None else criterion.sigma.item())
        return loss

    monkeypatch.setattr(LabTrainer, "training_step", record)
    return seen


@pytest.fixture
def run(finished, tmp_path):
    """Return the folder of a finished run in `tmp_path`."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.mark.parametrize("dataset", ["gsm8k", "multirc", "rjokes"])
def test_every_dataset_can_be_trained_on_and_evaluated(dataset, tmp_path, capsys):
    assert train(*small(tmp_path, f"dataset_args={dataset}")) == 0, capsys.readouterr().err
    for test in results(tmp_path / "run").values():
        assert ("accuracy" in test) == (dataset != "multirc")
        assert ("final_answer_accuracy" in test) == (dataset == "gsm8k")


# Runs of two steps, because what is saved of a run is read again by the next command.
@pytest.mark.parametrize(
    "kind",
    [
        ["model_args=decoder_only", "model_args.config_name=llama-tiny", PADDED, "loss=hl_gauss"],
        ["model_args=xval", "model_args.family=decoder_only", "model_args.config_name=llama-tiny"],
        ["model_args=rt_ntl"],
    ],
)
def test_a_model_that_is_evaluated_later_keeps_its_label_and_its_values(kind, tmp_path, capsys):
    given = [*kind, "dataset_args=arithmetic"]
    assert train(*small(tmp_path, *given)) == 0, capsys.readouterr().err
    again = ["evaluation.name=again", "dataset_args=arithmetic"]
    assert train(*answer(tmp_path, tmp_path / "run", *again)) == 0, capsys.readouterr().err
    first, second = (written(tmp_path / "run", name) for name in ("test", "again"))
    assert (second["label"], second["name"]) == (first["label"], first["name"])
    assert_close(second["metrics"], first["metrics"], ONE_COMPUTATION)
    if PADDED in kind:
        assert first["metrics"]["validation"]["invalid"] == 0


def test_an_evaluation_of_other_data_or_another_model_is_not_taken_for_the_runs_own(run, tmp_path, capsys):
    before = results(run)
    assert train(*answer(tmp_path, run, "dataset_args=arithmetic")) == 2
    assert "evaluation.name" in capsys.readouterr().err
    other = ["training_args.output_dir=" + str(run)]
    assert train(*answer(tmp_path, run / "checkpoint-2", *other)) == 2
    assert "evaluation.name" in capsys.readouterr().err
    assert results(run) == before
    assert train(*answer(tmp_path, run / "checkpoint-2", *other, "evaluation.name=more")) == 0
    assert written(run, "more")["model"] == "../checkpoint-2"


def test_a_finished_run_is_left_alone_and_other_readings_only_evaluate_it(run, tmp_path, capsys):
    weights = (run / "model.safetensors").stat().st_mtime_ns
    before = (run / "test/metrics.json").stat().st_mtime_ns
    again = small(tmp_path, "loss=ntl_was")
    assert train(*again) == 0
    printed = capsys.readouterr().out
    assert "finished" in printed
    assert "evaluating" not in printed
    assert (run / "test/metrics.json").stat().st_mtime_ns == before
    assert train(*again, "evaluation.samples=3") == 0
    assert "evaluating" in capsys.readouterr().out
    assert {metrics["count"] for metrics in results(run).values()} == {3}
    assert (run / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_run_with_other_settings_is_kept_until_it_is_overwritten(is_finished, run, tmp_path, capsys):
    if not is_finished:
        (run / STATE).unlink()
    other = small(tmp_path, "loss=ntl_was", "training_args.learning_rate=1")
    assert train(*other) == 2
    assert "training_args.learning_rate" in capsys.readouterr().err
    assert train(*other, "training_args.overwrite_output_dir=true") == 0
    assert written(run)["settings"]["training_args"]["learning_rate"] == 1


def test_overwriting_removes_the_run_and_nothing_else_and_only_if_the_new_one_can_start(run, tmp_path):
    assert train(*answer(tmp_path, run, "evaluation.name=again")) == 0
    shutil.copytree(run, run / "inner")
    (run / "answers.csv").write_text("predicted")
    (run / "notes").mkdir()
    (run / "notes/metrics.json").write_text("mine")
    inner = sorted((run / "inner").rglob("*"))
    overwrite = small(tmp_path, "training_args.overwrite_output_dir=true", steps=1)
    assert train(*overwrite, "model_args.family=decoder_only") == 2
    assert results(run)
    assert results(run, "again")
    assert train(*overwrite) == 0
    assert written(run)["steps"] == 1
    assert not (run / "checkpoint-2").exists()
    assert not (run / "again").exists()
    assert sorted((run / "inner").rglob("*")) == inner
    assert (run / "answers.csv").read_text() == "predicted"
    assert (run / "notes/metrics.json").read_text() == "mine"


def test_a_folder_below_the_users_home_is_written_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    home = ["training_args.output_dir='~/run'"]
    assert train(*small(tmp_path, *home, steps=0)) == 0, capsys.readouterr().err
    again = ["training_args=eval", "model_args.model_name_or_path='~/run'", "training_args.output_dir=null"]
    assert train(*small(tmp_path, *again, "evaluation.name=again")) == 0, capsys.readouterr().err
    assert results(tmp_path / "home/run", "again")
    assert not (tmp_path / "~").exists()


def test_every_argument_of_the_trainer_can_be_given(tmp_path, capsys):
    given = ["eval_strategy=no", "save_strategy=no", "label_smoothing_factor=0.1", "optim=sgd"]
    given += ["load_best_model_at_end=false", "lr_scheduler_type=constant"]
    assert train(*small(tmp_path, *(f"training_args.{each}" for each in given))) == 0, capsys.readouterr().err
    assert logged(tmp_path / "run", "eval_loss") == []
    assert not [*(tmp_path / "run").glob("checkpoint-*")]


def test_tokens_of_several_digits_are_trained_with_the_papers_losses(tmp_path, capsys):
    own = ["model_args.tokenizer_type=auto", f"model_args.tokenizer_name_or_path={tokenizer_like('t5')}"]
    by_loss = {}
    for loss in ("model_args=vanilla_t5", "model_args=vanilla_t5_ntl"):
        command = small(tmp_path, loss, *own, "training_args.overwrite_output_dir=true")
        assert train(*command) == 0, capsys.readouterr().err
        by_loss[loss] = load_file(tmp_path / "run/model.safetensors")["shared.weight"]
    assert (by_loss["model_args=vanilla_t5"] != by_loss["model_args=vanilla_t5_ntl"]).any()


WAS = "model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=true"
# What the settings alone show.
INVALID = [
    ("training_args.output_dir=", "training_args.output_dir"),
    ("training_args.resume_from_checkpoint=folder", "resume_from_checkpoint"),
    ("training_args.lr_scheduler_type=cosin", "cosin"),
    ("training_args.max_steps=-3", "training_args.max_steps"),
    ("training_args.per_device_train_batch_size=0", "training_args.per_device_train_batch_size"),
    ("training_args.bf16=maybe", "training_args.bf16"),
    ("training_args.load_best_model_at_end=true training_args.eval_strategy=no", "training_args"),
    ("training_args.warmup_steps=many", "training_args.warmup_steps"),
    ('training_args.warmup_steps="10"', "training_args.warmup_steps='10'"),
    ("training_args.gradient_accumulation_steps=2.5", "gradient_accumulation_steps"),
    ("training_args.metric_for_best_model=interval_coverage evaluation.read=[median]", "greater_is_better"),
    ("training_args.metric_for_best_model=median_mae", "evaluation.read"),
    ("training_args.metric_for_best_model=crps", "evaluation.read"),
    ("evaluation.interval=1", "interval"),
    ("evaluation.beams=0", "evaluation.beams"),
    ("dataset_args.dataset_name=tabular", "dataset_args=NAME"),
    ("loss=ntl_was model_args=vanilla_t5_ntl", "number_token_loss"),
    ("loss=ntl_was model_args=xval", "number_encoding=xval"),
    ("loss=hl_gauss loss.normalize_by=numbers", "loss.normalize_by"),
    ("model_args.gaussian_label_smoother=true loss.normalize_by=numbers", "loss.normalize_by"),
    ("loss=ce loss.mode=replace", "loss.mode"),
    ("model_args=vanilla_t5_ntl loss.weight=0.5", "loss.weight"),
    ("loss=ntl_was model_args.number_token_loss_weight=5", "number_token_loss_weight"),
    ("model_args.number_token_loss_with_wasserstein=true", "number_token_loss_with_wasserstein"),
    ("loss=ntl_mse model_args.number_token_loss_function=mae", "number_token_loss_function"),
    (f"{WAS} model_args.number_token_loss_function=mae", "number_token_loss_function"),
    ("loss=gaussian_smoothing model_args.label_smoother_sigma=3", "label_smoother_sigma"),
    ("model_args=vanilla_t5_regression_head loss.label_smoothing=0.1", "loss.label_smoothing"),
    ("weights.trained_layers=1 weights=lora", "weights.lora"),
    ("model_args=pretrained", "model_name_or_path"),
    ("training_args.num_train_epochs=1", "num_train_epochs"),  # beside the number of steps
    ("model_args.number_scale=log", "number_format=padded"),
    ("model_args.chat_template=true", "chat_template"),
    ("model_args.separator=x", "separator"),
    ("model_args.head_loss=absolute", "head_loss"),
    ("model_args=pretrained model_args.model_name_or_path=m model_args.head_loss=squared", "head_loss"),
]
# What a command has to explain, or finds only in the data or the model.
REFUSED = [
    ("training_args.max_stepz=1", "max_steps"),
    ("dataset_args.data_dir=nowhere", "nowhere"),
    ("loss=ntl_was loss.options={p:2}", "p"),
    ("loss=ce loss.criterion=nowhere:mine", "nowhere"),
    ("model_args=vanilla_t5_regression_head dataset_args=multirc", "number"),
    (f"{PADDED} dataset_args=gsm8k", "number_format"),
    ("evaluation.read=[greedy,median,mean] dataset_args=gsm8k", "evaluation.read"),
    ("dataset_args=noisy_regression dataset_args.weights=[]", "dataset_args.weights"),
]


@pytest.mark.parametrize(("arguments", "named"), INVALID)
def test_settings_that_cannot_be_used_together_or_alone_are_named(arguments, named, tmp_path):
    with pytest.raises((UserError, HydraException), match=re.escape(named)):
        trainer_arguments(compose_config(small(tmp_path, *arguments.split())), tmp_path)


@pytest.mark.parametrize(("arguments", "named"), REFUSED)
def test_an_invalid_setting_is_an_error_with_code_2_and_nothing_is_trained(
    arguments, named, tmp_path, capsys
):
    assert train(*small(tmp_path, *arguments.split())) == 2
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message
    assert not (tmp_path / "run/model.safetensors").exists()


@pytest.mark.parametrize("place", ["ntl.trainer.LabTrainer.save_state", "ntl.run.describe_run"])
def test_a_run_that_is_killed_anywhere_is_continued_by_the_same_command(place, tmp_path):
    def die(*_, **__):
        raise KeyboardInterrupt

    command = small(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, die)
        assert train(*command) == 130
    half = tmp_path / "run/checkpoint-99"  # what remains if a run is killed while it saves
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert train(*command) == 0
    assert written(tmp_path / "run")["steps"] == 2


@pytest.mark.parametrize(("smoothing", "family"), [(0.0, "t5"), (0.2, "t5"), (0.0, "decoder_only")])
def test_the_loss_is_cross_entropy_plus_a_mean_over_numbers_and_evaluations_report_plain_parts(
    smoothing, family, tmp_path, capsys
):
    # One update of two batches holds all training rows, and changes no weight.
    options = ["loss=ntl_was", f"loss.label_smoothing={smoothing}", "training_args.learning_rate=0.0"]
    options += ["dataset_args=arithmetic", "dataset_args.data_dir=null"]
    options += ["dataset_args.train_per_difficulty=2"]  # of three difficulties
    options += ["training_args.per_device_train_batch_size=3", "training_args.gradient_accumulation_steps=2"]
    if family == "t5":
        options.append("model_args.config_overrides={dropout_rate: 0.0}")
    else:
        options += ["model_args=decoder_only", "model_args.config_name=llama-tiny"]
    command = small(tmp_path, *options, steps=1)
    assert train(*command) == 0, capsys.readouterr().err
    built = build(model_args(checkpoint=str(tmp_path / "run"), family=family))
    numbers = torch.tensor(built.number_ids)

    def losses(questions, answers):
        with torch.no_grad():
            logits, labels = logits_of(built, rows_of(built, questions, answers), built.model.eval())
        flat = logits.flatten(0, 1), labels.flatten()
        smoothed = F.cross_entropy(*flat, label_smoothing=smoothing).item()
        ntl = NTLoss(built.vocabulary, reweigh=False)(logits, labels).item()
        each = F.cross_entropy(*flat, reduction="none")
        is_number, counts = torch.isin(flat[1], numbers), flat[1] != -100
        parts = {"ce": counts, "ce_numbers": is_number, "ce_text": counts & ~is_number}
        means = {name: each[part].mean().item() for name, part in parts.items()}
        return {"loss": smoothed + 0.3 * ntl, "ntl": ntl, **means}

    rows = predictions(tmp_path / "run", "validation")
    expected = losses(*[[row[key] for row in rows] for key in ("question", "answer")])
    found = results(tmp_path / "run")["validation"]
    assert {name: found[name] for name in expected} == approx(expected, TRAINED_BY_ADAM)
    rows = compose_config(command).dataset_args.read().train
    of_training = losses([row.question for row in rows], [row.answer for row in rows])
    assert logged(tmp_path / "run", "loss")[:1] == approx([of_training["loss"]], TRAINED_BY_ADAM)


@pytest.mark.parametrize("model", ["vanilla_t5_ntl", "xval", "vanilla_t5_regression_head"])
def test_the_losses_of_an_evaluation_do_not_depend_on_its_batch_size(model, tmp_path, capsys):
    # Solutions have different numbers of tokens and of numbers; a regression head answers one number.
    solutions = [] if "head" in model else ["dataset_args=gsm8k"]
    for size in (1, 4):
        more = [f"training_args.per_device_eval_batch_size={size}", f"evaluation.name=by{size}", *solutions]
        given = small(tmp_path, f"model_args={model}", *more, steps=0)
        assert train(*given) == 0, capsys.readouterr().err
    losses = [
        {test: found["loss"] for test, found in results(tmp_path / "run", name).items()}
        for name in ("by1", "by4")
    ]
    assert_close(losses[0], losses[1])


@pytest.mark.parametrize(
    ("options", "best", "rates"),
    [
        (["metric_for_best_model=accuracy"], 2, [1.0, 1.0, 1.0, 0.5]),
        (["metric_for_best_model=mae"], 1, [1.0, 1.0, 0.5, 0.25]),
        (["metric_for_best_model=accuracy", "greater_is_better=false"], 1, [1.0, 1.0, 0.5, 0.25]),
    ],
)
def test_the_best_checkpoint_and_the_schedule_follow_the_direction_of_the_metric(
    tmp_path, monkeypatch, options, best, rates
):
    values = iter([0.1, 0.3, 0.2, 0.1])  # at steps 1 to 4
    monkeypatch.setattr(
        "ntl.run.score_answers",
        lambda *_: Result({"count": 1, **dict.fromkeys(("mae", "accuracy"), next(values, 0.0))}, []),
    )
    options = [f"training_args.{option}" for option in options]
    options += ["training_args.eval_steps=1", "training_args.save_steps=1", "training_args.learning_rate=1.0"]
    options += ["training_args.lr_scheduler_kwargs={factor: 0.5, patience: 0}"]
    assert train(*small(tmp_path, *options, steps=4)) == 0
    assert state(tmp_path / "run/checkpoint-4")["best_global_step"] == best
    assert logged(tmp_path / "run", "learning_rate") == approx(rates)


def test_nothing_is_written_outside_of_the_runs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(*small(tmp_path)) == 0
    held = {Path(folder).relative_to(tmp_path).parts[0] for folder, _, files in os.walk(tmp_path) if files}
    assert held == {"run"}


def test_the_width_of_hl_gauss_follows_the_training_answers(tmp_path, widths, capsys):
    rows = [f"text {i},{40 + 10 * (i % 3)}" for i in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["text,score", *rows]), encoding="utf-8")
    command = [
        *(o for o in small(tmp_path) if "data_dir" not in o), "dataset_args=tabular", PADDED, "loss=hl_gauss",
        f"dataset_args.file={tmp_path}/table.csv", "dataset_args.target=score", "dataset_args.columns=[text]",
        "dataset_args.validation_size=6", "dataset_args.test_size=6",
    ]  # fmt: skip
    assert train(*command) == 0, capsys.readouterr().err
    assert widths[0] == approx(0.55 * 8.1650, 0.05)  # 40, 50 and 60 equally often
    assert widths[1] < widths[0]


def test_cross_entropy_alone_computes_no_number_loss_in_training(tmp_path, widths, capsys):
    assert train(*small(tmp_path, "loss=ce")) == 0, capsys.readouterr().err
    assert widths == [None, None]
    assert results(tmp_path / "run")["validation"]["ntl"] > 0  # what evaluations report


def test_evenly_spaced_examples_are_chosen():
    assert list(evenly_spaced(list("abcdefghij"), 3)) == ["a", "d", "g"]
    assert evenly_spaced([1, 2], 5) == [1, 2]
    assert evenly_spaced([1, 2], None) == [1, 2]
