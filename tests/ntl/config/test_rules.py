import shlex

import pytest

from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]
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


@pytest.mark.parametrize(("command", "expected"), INVALID.items())
def test_an_invalid_value_is_an_error_that_says_what_is_expected(command, expected):
    with pytest.raises(UserError, match=expected) as caught:
        plan_runs([*SCRATCH, *shlex.split(command)])
    assert "\n" not in str(caught.value)


def test_a_whole_number_stays_one_where_any_number_is_expected():
    (run,) = plan_runs([*SCRATCH, "training_args.learning_rate=1"])
    assert str(run.trainer["learning_rate"]) == "1"
