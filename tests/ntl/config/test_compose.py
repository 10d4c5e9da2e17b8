"""Unknown keys and malformed overrides are errors of one line that say what is expected."""

import shlex
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("command", "expected"), UNKNOWN.items())
def test_an_unknown_key_is_an_error_that_says_what_is_expected(command, expected):
    with pytest.raises(UserError, match=expected) as caught:
        plan_runs([*SCRATCH, *shlex.split(command)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_plus_of_a_key_that_no_file_has_is_optional(plus):
    epochs = [f"{plus}training_args.num_train_epochs=3", f"{plus}training_args.max_steps=-1"]
    (run,) = plan_runs([*SCRATCH, *epochs])
    assert (run.trainer["num_train_epochs"], run.trainer["max_steps"]) == (3, -1)


@pytest.mark.parametrize("path", ["out/loss=ntl_was,seed=1", "out/a,b (2)/[x]", "~/it's=1", "'out/a=b'"])
def test_a_path_needs_no_quotes(path):
    (run,) = plan_runs([*SCRATCH, f"training_args.output_dir={path}", f"dataset_args.data_dir={path}"])
    expected = path.strip("'") if path.startswith("'") else path
    assert (str(run.output_dir), run.data["data_dir"]) == (str(Path(expected).expanduser()), expected)


def test_a_name_may_be_written_as_a_number_and_fsdp_as_true():
    names = ["training_args.output_dir=5", "model_args.tokenizer_name_or_path=5", "training_args.fsdp=true"]
    (run,) = plan_runs([*SCRATCH, *names])
    assert (str(run.output_dir), run.model.tokenizer, run.trainer["fsdp"]) == ("5", "5", True)


@pytest.mark.parametrize("prompt", ["{text} costs ${y}", "${dataset_args.target}", "$5: {text}$", "$${text}"])
def test_dollars_in_a_prompt_stand_for_themselves(prompt):
    (run,) = plan_runs([*SCRATCH, "dataset_args=tabular", f"dataset_args.prompt='{prompt}'"])
    assert run.data["prompt"] == prompt
