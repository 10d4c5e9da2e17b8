"""The commands that the paper's repository published, and overrides that scale them down for tests."""

PROGRAM = "src/ntl/run_language_modeling.py"
_ARITHMETIC = (
    "dataset_args=arithmetic model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=false "
    "model_args.number_token_loss_weight={weight} training_args.special_name=NTL-MSE_Lambda{weight}"
)
_FUNCTION = (
    "dataset_args=arithmetic model_args=vanilla_t5_ntl +model_args.number_token_loss_function={name} "
    "training_args.special_name=NTL-{upper}_Lambda0.3"
)
_MATHEMATICS = "run_specific_config@_global_=mathematics_dataset_run {model} dataset_args=mathematics_dataset"

# Maps the arguments of each command to its criterion, the criterion's options and λ.
TRAINING = {
    "dataset_args=mathematics_dataset model_args=vanilla_t5_ntl training_args=train": ("ntl_mse", 0.3),
    "model_args=vanilla_t5_ntl training_args=train training_args.per_device_train_batch_size=8 "
    "model_args.number_token_loss_weight=0.3": ("ntl_mse", 0.3),
    _MATHEMATICS.format(model="model_args=vanilla_t5"): (None, None),
    _MATHEMATICS.format(model="model_args=vanilla_t5_ntl"): ("ntl_mse", 0.3),
    _MATHEMATICS.format(
        model="model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=true"
    ): ("ntl_was", 0.3),
    _ARITHMETIC.format(weight=0.3): ("ntl_mse", 0.3),
    _ARITHMETIC.format(weight=0.8): ("ntl_mse", 0.8),
    _ARITHMETIC.format(weight=2.0): ("ntl_mse", 2.0),
    _FUNCTION.format(name="mae", upper="MAE"): ("ntl_mae", 0.3),
    _FUNCTION.format(name="huber", upper="HUBER"): ("ntl_huber", 0.3),
    "run_specific_config@_global_=gsm8k_runs model_args=vanilla_t5 dataset_args=gsm8k": (None, None),
    "run_specific_config@_global_=gsm8k_runs model_args=vanilla_t5_ntl dataset_args=gsm8k "
    "model_args.number_token_loss_weight=0.3": ("ntl_was", 0.3),
}
DEBUG = "model_args=vanilla_t5 training_args=train run_specific_config@_global_=debug_config"
EVALUATION = "model_args=vanilla_t5_ntl training_args=eval model_args.model_name_or_path={checkpoint}"


def scaled_down(output_dir, steps=2):
    """Return overrides that make any command take seconds: a tiny model from scratch on the shipped data."""
    return [
        "dataset_args.data_dir=sample",
        f"training_args.output_dir={output_dir}/run",
        "model_args.model_name_or_path=null",
        "model_args.config_name=t5-tiny",
        f"training_args.max_steps={steps}",
        f"training_args.eval_steps={steps}",
        f"training_args.save_steps={steps}",
        "training_args.logging_steps=1",
        "training_args.per_device_train_batch_size=4",
        "training_args.use_cpu=true",
        "training_args.disable_tqdm=true",
        "evaluation.beams=2",
        "evaluation.max_new_tokens=4",
        "evaluation.samples=6",
        "evaluation.samples_during_training=4",
    ]
