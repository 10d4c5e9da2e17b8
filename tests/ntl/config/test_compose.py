"""Unknown keys, malformed overrides and invalid values are errors of one line that say what is expected."""

import shlex
from importlib import resources

import pytest
from omegaconf import OmegaConf

from ntl.config.comparison import KEYS, load_comparison
from ntl.config.compose import describe_config
from ntl.config.schema import choices
from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
UNKNOWN = {
    "+model_args.number_token_loss_functon=mae": "Did you mean model_args.number_token_loss_function?",
    "+trainin_args.bf16=true": "trainin_args is unknown. Did you mean training_args?",
    "+training_args.bf61=true": "Did you mean training_args.bf16?",
    "training_args.gradient_checkpoint=true": "Did you mean training_args.gradient_checkpointing?",
    "training_args.batch=3": "batch is unknown; expected one of: .*per_device_train_batch",
    "+training_args.xyzzy=1": "training_args.xyzzy is unknown; expected one of: trial",
    "+evaluation.sampels=3": "Did you mean evaluation.samples?",
    "+loss.wieght=3": "Did you mean loss.weight?",
    "+dataset_args.max_token=3": "Did you mean dataset_args.max_new_tokens?",
    "+color=red": "color is unknown; expected one of: evaluation, dataset_args, model_args",
    "~evaluation.beams": "evaluation.beams is missing",
    "~training_args.seed": "training_args.seed is missing",
    "~loss": "loss is missing",
    "dataset_args=gsm9k": "dataset_args=gsm9k is unknown; expected one of: .*gsm8k.*multirc",
    "model_args=vanilla_t6": "model_args=vanilla_t6 is unknown; expected one of: .*vanilla_t5_ntl",
    "loss=ntl_wass": "loss=ntl_wass is unknown; expected one of: .*ntl_was",
    "training_args=training": "training_args=training is unknown; expected one of: eval, train",
    "run_specific_config@_global_=debug": "debug is unknown; expected one of: debug_config",
    "loss=null": "loss=null names no file of the group loss",
    "'loss={weight: 0.1}'": "names no file of the group loss",
    "hydra.run.dir=elsewhere": "hydra.run.dir=elsewhere has no effect",
    "--config-dir=elsewhere": "'--config-dir=elsewhere' cannot be read; expected key=value",
    "=3": "Correct the override",
}
INVALID = {
    "+evaluation=3": "evaluation is 3; expected keys and values",
    "loss=ce loss.criterion=wassertein": "criterion is 'wassertein'; expected null or one of: .*smmd",
    "model_args=vanilla_t5_ntl +model_args.number_token_loss_function=rmse": "one of: mse, mae, huber",
    "model_args.gaussian_label_smoother=maybe": "gaussian_label_smoother is 'maybe'; expected true or false",
    "model_args.number_encoding=roman": "one of: none, none_regression_head, rt, xval",
    "model_args=vanilla_t5_ntl model_args.number_token_loss_weight=-1": "a number that is at least 0",
    "model_args.number_width=0": "number_width is 0; expected null",
    "model_args.number_places=few": "number_places is 'few'; expected null",
    "model_args.number_format=roman": "'roman'; expected one of: plain, padded",
    "model_args.config_name=null": "config_name is None; expected the name of a shape, or a folder",
    "model_args.config_name=t5-gigantic": "'t5-gigantic' is unknown; expected one of t5-tiny",
    "training_args.overwrite_output_dir=maybe": "'maybe'; expected true or false",
    "training_args.per_device_eval_batch_size=0": "a whole number of at least 1",
    "training_args.seed=-1": "a whole number from 0 to 4294967295",
    "training_args.seed=4294967296": "a whole number from 0 to 4294967295",
    "training_args.max_steps=-2": "or -1 with training_args.num_train_epochs",
    "training_args.max_steps=-1 +training_args.num_train_epochs=-1": "above 0",
    "training_args.learning_rate=fast": "learning_rate is 'fast'; expected a number",
    "training_args.learning_rate=-1": "learning_rate is -1; expected a number that is at least 0",
    "training_args.eval_steps=-1": "expected null or a number that is at least 0",
    "training_args.save_total_limit=x": "expected null or a whole number",
    "training_args.lr_scheduler_kwargs=3": "expected null or keys and values",
    "training_args.resume_from_checkpoint=3.5": "is 3.5; expected null or true or false or",
    "training_args.resume_from_checkpoint=nowhere": "nowhere is not a folder",
    "training_args.resume_from_checkpoint=/": "/ is not a folder with trainer_state.json",
    "+training_args.gradient_checkpointing=maybe": "is 'maybe'; expected null or true or false",
    "+training_args.adam_beta1=small": "adam_beta1 is 'small'; expected a number",
    "loss=ce loss.label_smoothing=1": "expected a number of at least 0 and below 1",
    "evaluation.interval=1": "expected a number that is above 0 and below 1",
    "evaluation.read=[greedy,mode]": "each item is one of: greedy, median, mean",
    "evaluation.read=[]": "each item is one of: greedy, median, mean",
    "evaluation.read=median": "each item is one of: greedy, median, mean",
    "dataset_args=noisy_regression dataset_args.weights=[]": "one number per integer of the question",
    "dataset_args=arithmetic dataset_args.mode=x": "mode is 'x'; expected null or one of: dataset_comparison",
}


@pytest.mark.parametrize(("command", "expected"), [*UNKNOWN.items(), *INVALID.items()])
def test_an_unknown_key_or_an_invalid_value_is_an_error_that_says_what_is_expected(command, expected):
    with pytest.raises(UserError, match=expected) as caught:
        plan_runs([*SCRATCH, *shlex.split(command)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_plus_of_a_key_that_no_file_has_is_optional(plus):
    epochs = [f"{plus}training_args.num_train_epochs=3", f"{plus}training_args.max_steps=-1"]
    (run,) = plan_runs([*SCRATCH, *epochs])
    assert (run.trainer["num_train_epochs"], run.trainer["max_steps"]) == (3, -1)


def test_a_name_may_be_written_as_a_number_and_fsdp_as_true():
    names = ["training_args.output_dir=5", "model_args.tokenizer_name_or_path=5", "training_args.fsdp=true"]
    (run,) = plan_runs([*SCRATCH, *names])
    assert (str(run.output_dir), run.model.tokenizer, run.trainer["fsdp"]) == ("5", "5", True)


def test_a_whole_number_stays_one_where_any_number_is_expected():
    (run,) = plan_runs([*SCRATCH, "training_args.learning_rate=1"])
    assert str(run.trainer["learning_rate"]) == "1"


@pytest.mark.parametrize("name", choices("run_specific_config"))
def test_a_run_specific_configuration_only_sets_keys_of_the_other_files(name):
    (run,) = plan_runs([f"run_specific_config@_global_={name}"])
    text = (resources.files("ntl.config") / f"run_specific_config/{name}.yaml").read_text()
    for section, keys in OmegaConf.create(text).items():
        assert set(keys) <= set(run.config[section])


@pytest.mark.parametrize("name", choices("preset"))
def test_a_preset_of_a_comparison_composes_and_only_sets_keys_of_the_other_files(name):
    text = (resources.files("ntl.config") / f"preset/{name}.yaml").read_text()
    runs = load_comparison([f"preset={name}"]).runs
    assert len(runs) > 1
    for section, keys in OmegaConf.create(text).items():
        for run in runs.values():
            assert section in {*KEYS, "defaults"} or set(keys) <= set(run.config[section])


@pytest.mark.parametrize("root", ["compare", "run_language_modeling"])
def test_the_help_shows_the_comments_of_the_files_and_the_choices_of_every_group(root):
    text = describe_config(root)
    for part in ("loss: ce, crps, digit_entropy", "# a value below 1 is a share", "noisy_regression", "# λ"):
        assert part in text
    assert "training_args=train\n# Training as published." in text
    assert "# null: all weights.\ntrained_layers: null" in text.replace("behind them; ", "# ")
    assert ("objectives:" in text) == (root == "compare")
