import shlex

import pytest
from ntl.config.schema import choices
from published_commands import DEBUG, TRAINING

from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
WITHOUT_EFFECT = {
    "model_args.number_token_loss_weight=0.5": (
        "model_args.number_token_loss is false. Pass for example model_args=vanilla_t5_ntl"
    ),
    "model_args.number_token_loss_with_wasserstein=true": "number_token_loss is false",
    "+model_args.number_token_loss_function=mae": "number_token_loss is false",
    "+model_args.number_token_loss_function=mae loss=ntl_was": "such as loss.weight",
    "model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=true "
    "model_args.number_token_loss_function=mae": "with_wasserstein=false",
    "model_args.label_smoother_sigma=2": "Pass model_args.gaussian_label_smoother=true",
    "loss=ntl_was model_args.number_token_loss_weight=0.5": "such as loss.weight",
    "loss=ce loss.weight=0.5": "loss.criterion is null. Pass for example loss=ntl_was",
    "loss=ce +loss.options.sigma=2": "loss.criterion is null. Pass for example loss=ntl_was",
    "model_args=xval model_args.tokenizer_type=auto": (
        "number_encoding is xval. Pass model_args.number_encoding=none"
    ),
    "model_args.log_scale_embeddings=false": "Pass model_args=rt",
    "model_args.model_name_or_path=some/model": "Pass model_args.model_name_or_path=null",
    "model_args.number_format=plain model_args.number_places=2": "number_format is plain",
    "dataset_args.dataset_name=gsm8k": "Pass dataset_args=NAME to choose another dataset",
    "dataset_args=gsm8k dataset_args.mode=dataset_comparison": "Pass dataset_args=mathematics_dataset",
    "dataset_args=arithmetic dataset_args.data_seed=1": "Pass dataset_args.data_dir=null",
    "dataset_args=tabular dataset_args.data_dir=sample": "dataset_args.dataset_name is tabular",
    "dataset_args=tabular dataset_args.data_seed=1 dataset_args.split_by=carat": (
        "Pass dataset_args.split_by=null to split at random"
    ),
    "evaluation.interval=0.5": r"evaluation.read is \[greedy\]. Pass evaluation.read=\[greedy,median\]",
    "+training_args.num_train_epochs=3": "Pass training_args.max_steps=-1",
    "training_args.warmup_steps=10": "lr_scheduler_type is reduce_lr_on_plateau",
    "+training_args.label_smoothing_factor=0.1": "Pass loss=ce loss.label_smoothing=0.1",
    "+training_args.bf16_full_eval=true": "Pass training_args.bf16=true",
    "+training_args.eval_strategy=epoch": "Pass training_args.eval_steps=1000",
    "+training_args.predict_with_generate=true": "Pass a key that --help lists",
}


@pytest.mark.parametrize("command", WITHOUT_EFFECT)
def test_a_key_without_effect_is_an_error_that_says_what_to_do(command):
    with pytest.raises(UserError, match=f"has no effect: .*{WITHOUT_EFFECT[command]}"):
        plan_runs([*SCRATCH, *shlex.split(command)])


@pytest.mark.parametrize("command", [*TRAINING, DEBUG])
def test_a_published_command_only_has_known_keys_with_an_effect(command):
    assert len(plan_runs(shlex.split(command))) == 1


def test_in_a_sweep_a_key_needs_an_effect_on_only_some_runs():
    weights = [*SCRATCH, "loss.weight=0.5"]
    ce, was = plan_runs([*weights, "loss=ce,ntl_was"], True)
    assert (ce.loss.criterion, was.loss.weight) == (None, 0.5)
    with pytest.raises(UserError, match="has no effect"):
        plan_runs([*weights, "loss=ce", "training_args.seed=1,2"], True)


@pytest.mark.parametrize("dataset", choices("dataset_args"))
def test_the_debug_configuration_composes_with_every_dataset(dataset):
    (run,) = plan_runs([f"dataset_args={dataset}", "run_specific_config@_global_=debug_config"])
    assert run.data["data_dir"] == "sample"
