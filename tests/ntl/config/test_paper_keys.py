import shlex

import pytest
from published_commands import TRAINING

from ntl.config.compose import compose_config
from ntl.config.settings import loss_settings, model_settings, objective_name
from ntl.errors import UserError
from ntloss import criterion_names


def composed(command):
    return compose_config("run_language_modeling", shlex.split(command), "ntl-train")


def settings(command):
    config = composed(command)
    return model_settings(config["model_args"]), loss_settings(config["model_args"], config["loss"])


@pytest.mark.parametrize("command", TRAINING)
def test_a_published_command_trains_with_its_published_loss(command):
    expected, weight = TRAINING[command]
    _, loss = settings(command)
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
    ],
)
def test_a_run_specific_configuration_sets_model_and_steps(command, checkpoint, steps):
    config = composed(command)
    assert config["model_args"]["model_name_or_path"] == checkpoint
    assert config["training_args"]["max_steps"] == steps


def test_an_override_wins_over_a_run_specific_configuration():
    command = "run_specific_config@_global_=gsm8k_runs training_args.max_steps=7"
    assert composed(command)["training_args"]["max_steps"] == 7


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
        (
            "vanilla_t5 model_args.gaussian_label_smoother=true",
            "digits",
            "language",
            "T5 + Gaussian smoothing",
        ),
        (
            "vanilla_t5_ntl model_args.gaussian_label_smoother=true "
            "model_args.number_token_loss_with_wasserstein=true",
            "digits",
            "language",
            "T5 + Gaussian smoothing + smoothed NTL-WAS",
        ),
    ],
)
def test_a_published_model_translates_to_an_encoding_a_head_and_a_loss(model, encoding, head, name):
    found, loss = settings(f"model_args={model}")
    assert (found.encoding, found.head, objective_name(found, loss)) == (encoding, head, name)


@pytest.mark.parametrize("name", criterion_names())
def test_the_loss_group_accepts_every_criterion_of_the_library(name):
    _, loss = settings(f"loss=ce loss.criterion={name} loss.weight=0.5")
    assert (loss.criterion, loss.weight) == (name, 0.5)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("dataset_args=gsm9k", "dataset_args=gsm9k is unknown; expected one of: .*gsm8k.*multirc"),
        ("model_args=vanilla_t6", "model_args=vanilla_t6 is unknown; expected one of: .*vanilla_t5_ntl"),
        ("loss=ntl_wass", "loss=ntl_wass is unknown; expected one of: .*ntl_was"),
        ("training_args=training", "training_args=training is unknown; expected one of: eval, train"),
        ("run_specific_config@_global_=debug", "debug is unknown; expected one of: debug_config"),
        (
            "training_args.batch=3",
            "training_args.batch is unknown; expected one of: .*per_device_train_batch",
        ),
        ("model_args.number_token_los=true", "Did you mean model_args.number_token_loss"),
        (
            "loss=ce loss.criterion=wassertein",
            "loss.criterion is 'wassertein'; expected null or one of: .*smmd",
        ),
        (
            "model_args=vanilla_t5_ntl loss=smmd",
            "expected one of the two. Pass for example model_args=vanilla_t5",
        ),
        ("model_args=vanilla_t5_ntl +model_args.number_token_loss_function=rmse", "one of: mse, mae, huber"),
        (
            "model_args.gaussian_label_smoother=true loss=ntl_was",
            "together with model_args.gaussian_label_smoother",
        ),
        (
            "model_args.gaussian_label_smoother=maybe",
            "gaussian_label_smoother is 'maybe'; expected true or false",
        ),
        ("model_args.number_encoding=roman", "one of: none, none_regression_head, rt, xval"),
        ("model_args.config_overrides={d_model: 8}", "config_overrides is .* but the shape"),
        ("model_args=vanilla_t5_ntl model_args.number_token_loss_weight=-1", "a number that is at least 0"),
    ],
)
def test_an_invalid_value_is_an_error_that_lists_the_choices(command, expected):
    with pytest.raises(UserError, match=expected):
        settings(command.replace("{d_model: 8}", "'{d_model: 8}'"))
