"""The published keys are translated into a model, a loss and a folder, or rejected together."""

import shlex
from itertools import product

import pytest
from published_commands import TRAINING

from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs
from ntloss import criterion_names

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
PADDED, MEDIAN = "model_args.number_format=padded", "evaluation.read=[greedy,median]"
LAYERS = "training_args.trained_layers=1"
WITHOUT_DIGITS = {
    "rt": "number_encoding=rt",
    "xval": "number_encoding=xval",
    "vanilla_t5_regression_head": "a regression head",
}
CONTRADICTIONS = {
    "model_args=vanilla_t5_ntl loss=smmd": "expected one of the two. Pass for example model_args=vanilla_t5",
    "model_args.gaussian_label_smoother=true loss=ntl_was": "together with model_args.gaussian",
    "model_args.config_overrides='{d_model: 8}'": "but the shape .* Omit model_args.config_overrides",
    "model_args=vanilla_t5_ntl model_args.gaussian_label_smoother=true": "together with NTL-MSE",
    "training_args=eval model_args.model_name_or_path=null": "model_args.model_name_or_path is null",
    "model_args=pretrained": "model_args=pretrained has no model",
    f"+training_args.fsdp=true {MEDIAN}": r"read=\[median\] needs the whole model in each process",
    f"+training_args.fsdp=true {LAYERS}": "trained_layers is given together with training_args.fsdp",
    f"model_args=xval {LAYERS}": "trained_layers=1 needs a language model .* number_encoding=xval",
}


def planned(command):
    (run,) = plan_runs(shlex.split(command))
    return run


@pytest.mark.parametrize("command", TRAINING)
def test_a_published_command_trains_with_its_published_loss(command):
    expected, weight = TRAINING[command]
    loss = planned(command).loss
    found = loss.options.get("loss", loss.criterion)
    assert (found, loss.weight if loss.criterion else None) == (expected, weight)
    assert (loss.mode, loss.reweigh) == ("add", False)


@pytest.mark.parametrize(
    ("command", "checkpoint", "steps"),
    [
        ("model_args=vanilla_t5_ntl", "google-t5/t5-small", 2_500_000),
        ("run_specific_config@_global_=mathematics_dataset_run", "google-t5/t5-base", 1_050_000),
        ("run_specific_config@_global_=gsm8k_runs", "google-t5/t5-3b", 2_500_000),
        ("run_specific_config@_global_=debug_config", None, 300),
        ("run_specific_config@_global_=gsm8k_runs training_args.max_steps=7", "google-t5/t5-3b", 7),
    ],
)
def test_a_run_specific_configuration_sets_model_and_steps_and_an_override_wins(command, checkpoint, steps):
    run = planned(command)
    assert (run.model.checkpoint, run.trainer["max_steps"]) == (checkpoint, steps)


SMOOTHED = "model_args.gaussian_label_smoother=true"
WASSERSTEIN = "model_args.number_token_loss_with_wasserstein=true"


@pytest.mark.parametrize(
    ("model", "encoding", "head", "name"),
    [
        ("vanilla_t5", "digits", "language", "T5"),
        ("vanilla_t5 model_args.tokenizer_type=auto", "auto", "language", "T5"),
        ("vanilla_t5_ntl", "digits", "language", "T5 + NTL-MSE"),
        ("rt", "rt", "language", "RT"),
        ("rt_ntl", "rt", "language", "RT + NTL-MSE"),
        ("xval", "xval", "language", "xVal"),
        ("vanilla_t5_regression_head", "digits", "regression", "T5 regression head"),
        ("decoder_only loss=smmd", "digits", "language", "Llama + SMMD"),
        ("vanilla_t5 loss=raft", "digits", "language", "T5 + RAFT"),
        (f"vanilla_t5 {SMOOTHED}", "digits", "language", "T5 + Gaussian smoothing"),
        (
            f"vanilla_t5_ntl {SMOOTHED} {WASSERSTEIN}",
            "digits",
            "language",
            "T5 + Gaussian smoothing + smoothed NTL-WAS",
        ),
    ],
)
def test_a_published_model_translates_to_an_encoding_a_head_and_a_loss(model, encoding, head, name):
    run = planned(f"model_args={model}")
    assert (run.model.encoding, run.model.head, run.objective) == (encoding, head, name)


@pytest.mark.parametrize("name", criterion_names())
def test_the_loss_group_accepts_every_criterion_of_the_library(name):
    loss = planned(f"loss=ce loss.criterion={name} loss.weight=0.5").loss
    assert (loss.criterion, loss.weight) == (name, 0.5)


@pytest.mark.parametrize("command", CONTRADICTIONS)
def test_values_that_contradict_each_other_are_an_error(command):
    with pytest.raises(UserError, match=CONTRADICTIONS[command]):
        planned(command)


NEED_TOKENS = "needs a token for each .* and {} has none"
NEEDS = {
    PADDED: "padded needs a model that writes numbers as text, and {} does not",
    MEDIAN: "median] needs the distribution of a number .* and {} has none",
    "model_args.family=decoder_only": "family=decoder_only does not support {}; expected t5",
    "loss=ntl_was": NEED_TOKENS,
    "model_args.number_token_loss=true": NEED_TOKENS,
}
FITTING = [("rt", "loss=ntl_was"), ("rt", "model_args.number_token_loss=true")]
FITTING.append(("vanilla_t5_regression_head", "model_args.family=decoder_only"))


@pytest.mark.parametrize(
    ("model", "override"), [pair for pair in product(WITHOUT_DIGITS, NEEDS) if pair not in FITTING]
)
def test_settings_that_need_digits_are_an_error_for_a_model_without_them(model, override):
    with pytest.raises(UserError, match=NEEDS[override].format(WITHOUT_DIGITS[model])):
        plan_runs([*SCRATCH, f"model_args={model}", override])


@pytest.mark.parametrize(
    "model", ["vanilla_t5_ntl", "decoder_only_ntl", "vanilla_t5 model_args.tokenizer_type=auto"]
)
def test_a_model_that_writes_digits_combines_a_loss_padded_answers_and_medians(model):
    run = planned(f"model_args={model} {PADDED} {MEDIAN} model_args.model_name_or_path=null")
    assert (run.model.number_format, run.generation.quantile_readings) == ("padded", ("median",))


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("", "vanilla_t5"),
        ("model_args=vanilla_t5_ntl", "vanilla_t5_ntl_NTL-MSE"),
        (f"model_args=vanilla_t5_ntl {WASSERSTEIN}", "vanilla_t5_ntl_NTL-WAS"),
        ("loss=smmd training_args.trial=a training_args.special_name=b", "a/vanilla_t5_SMMD_b"),
        (SMOOTHED, "vanilla_t5_Gaussian-smoothing"),
        (f"{PADDED} loss=ntl_was", "vanilla_t5_padded_NTL-WAS"),
    ],
)
def test_the_default_folder_names_model_format_and_loss(command, folder):
    assert str(planned(command).output_dir) == f"outputs/mathematics_dataset/{folder}"


def test_published_commands_of_different_losses_have_different_folders():
    losses: dict[str, set] = {}
    for command, (criterion, _) in TRAINING.items():
        losses.setdefault(str(planned(command).output_dir), set()).add(criterion)
    assert all(len(found) == 1 for found in losses.values())
