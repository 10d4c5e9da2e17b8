import shlex
from importlib import resources

import pytest
from omegaconf import OmegaConf
from published_commands import DEBUG, TRAINING

from ntl.config.comparison import KEYS as COMPARISON_KEYS
from ntl.config.comparison import load_comparison
from ntl.config.compose import compose_config
from ntl.config.schema import choices
from ntl.config.settings import read_settings
from ntl.errors import UserError
from ntl.run_language_modeling import plan_runs

SCRATCH = ["model_args.model_name_or_path=null", "model_args.config_name=t5-tiny"]


@pytest.mark.parametrize("command", [*TRAINING, DEBUG])
def test_a_published_command_only_has_known_keys_with_an_effect(command):
    assert len(plan_runs(shlex.split(command))) == 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("+model_args.number_token_loss_functon=mae", "Did you mean model_args.number_token_loss_function?"),
        ("+trainin_args.bf16=true", "trainin_args is unknown. Did you mean training_args?"),
        ("+training_args.bf61=true", "Did you mean training_args.bf16?"),
        ("training_args.gradient_checkpoint=true", "Did you mean training_args.gradient_checkpointing?"),
        ("+evaluation.sampels=3", "Did you mean evaluation.samples?"),
        ("+loss.wieght=3", "Did you mean loss.weight?"),
        ("+dataset_args.max_token=3", "Did you mean dataset_args.max_new_tokens?"),
        ("+color=red", "color is unknown; expected one of: evaluation, dataset_args, model_args"),
        ("~evaluation.beams", "evaluation.beams is missing"),
        ("~training_args.seed", "training_args.seed is missing"),
        ("dataset_args.dataset_name=gsm8k", "Pass dataset_args=NAME to choose another dataset"),
        ("=3", "Correct the override"),
        ("~loss", "loss is missing"),
        ("+evaluation=3", "evaluation is 3; expected keys and values"),
    ],
)
def test_an_unknown_key_is_an_error_that_suggests_the_closest_one(override, expected):
    with pytest.raises(UserError, match=expected):
        plan_runs([*SCRATCH, override])


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["model_args.number_token_loss_weight=0.5"],
            "model_args.number_token_loss is false. Pass for example model_args=vanilla_t5_ntl",
        ),
        (["model_args.number_token_loss_with_wasserstein=true"], "number_token_loss is false"),
        (["+model_args.number_token_loss_function=mae"], "number_token_loss is false"),
        (["+model_args.number_token_loss_function=mae", "loss=ntl_was"], "such as loss.weight"),
        (
            [
                "model_args=vanilla_t5_ntl",
                "model_args.number_token_loss_with_wasserstein=true",
                "model_args.number_token_loss_function=mae",
            ],
            "with_wasserstein=false",
        ),
        (["model_args.label_smoother_sigma=2"], "Pass model_args.gaussian_label_smoother=true"),
        (["loss=ntl_was", "model_args.number_token_loss_weight=0.5"], "such as loss.weight"),
        (["loss=ce", "loss.weight=0.5"], "loss.criterion is null. Pass for example loss=ntl_was"),
        (["loss=ce", "+loss.options.sigma=2"], "loss.criterion is null. Pass for example loss=ntl_was"),
        (
            ["model_args=xval", "model_args.tokenizer_type=auto"],
            "number_encoding is xval. Pass model_args.number_encoding=none",
        ),
        (["model_args.log_scale_embeddings=false"], "Pass model_args=rt"),
        (["model_args.model_name_or_path=some/model"], "Pass model_args.model_name_or_path=null"),
        (
            ["dataset_args=gsm8k", "dataset_args.mode=dataset_comparison"],
            "Pass dataset_args=mathematics_dataset",
        ),
        (["dataset_args=arithmetic", "dataset_args.data_seed=1"], "Pass dataset_args.data_dir=null"),
        (
            ["dataset_args=tabular", "dataset_args.data_seed=1", "dataset_args.split_by=carat"],
            "Pass dataset_args.split_by=null to split at random",
        ),
        (["+training_args.num_train_epochs=3"], "Pass training_args.max_steps=-1"),
        (["training_args.warmup_steps=10"], "lr_scheduler_type is reduce_lr_on_plateau"),
        (["+training_args.label_smoothing_factor=0.1"], "Pass loss=ce loss.label_smoothing=0.1"),
        (["+training_args.bf16_full_eval=true"], "Pass training_args.bf16=true"),
        (["+training_args.eval_strategy=epoch"], "Pass training_args.eval_steps=1000"),
    ],
)
def test_a_key_without_effect_is_an_error_that_says_what_to_do(overrides, expected):
    with pytest.raises(UserError, match=f"has no effect: .*{expected}"):
        plan_runs([*SCRATCH, *overrides])


def test_in_a_sweep_a_key_needs_an_effect_on_only_some_runs():
    weights = [*SCRATCH, "loss.weight=0.5"]
    ce, was = plan_runs([*weights, "loss=ce,ntl_was"], True)
    assert (ce.loss.criterion, was.loss.weight) == (None, 0.5)
    with pytest.raises(UserError, match="has no effect"):
        plan_runs([*weights, "loss=ce", "training_args.seed=1,2"], True)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_the_plus_of_a_key_that_no_file_has_is_optional(plus):
    epochs = [f"{plus}training_args.num_train_epochs=3", f"{plus}training_args.max_steps=-1"]
    (run,) = plan_runs([*SCRATCH, *epochs])
    assert (run.trainer["num_train_epochs"], run.trainer["max_steps"]) == (3, -1)


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
            assert section in COMPARISON_KEYS or set(keys) <= set(run.config[section])


@pytest.mark.parametrize("dataset", choices("dataset_args"))
def test_the_debug_configuration_composes_with_every_dataset(dataset):
    debug = [f"dataset_args={dataset}", "run_specific_config@_global_=debug_config"]
    (run,) = plan_runs(debug)
    assert run.data["data_dir"] == "sample"
    if dataset in ("noisy_regression", "tabular"):
        with pytest.raises(UserError, match=r"data_dir has no effect: dataset_args.dataset_name is"):
            plan_runs([*debug, "dataset_args.data_dir=sample"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("+training_args.max_stpes=3", "Did you mean training_args.max_steps?"),
        ("+modle_args.family=t5", "Did you mean model_args?"),
        ("+dataset_args.data_sed=3", "Did you mean dataset_args.data_seed?"),
        ("+dataset_args.mode=x", "mode is 'x'; expected null or one of: dataset_comparison"),
        ("~training_args.max_steps", "training_args.max_steps is missing"),
        ("~seeds", "seeds is missing"),
        ("training_args.seed=3", r"the comparison sets it. Omit it, or pass seeds=\[0,1\]"),
        ("loss.weight=0.5", "has no effect"),
    ],
)
def test_an_unknown_missing_or_ineffective_key_of_a_comparison_is_an_error(override, expected):
    with pytest.raises(UserError, match=expected):
        load_comparison(["objectives=[ce]", override])


def test_a_name_may_be_written_as_a_number():
    (run,) = plan_runs([*SCRATCH, "training_args.output_dir=5", "model_args.tokenizer_name_or_path=5"])
    assert (str(run.output_dir), run.model.tokenizer) == ("5", "5")
    with pytest.raises(UserError, match="config_name is None; expected the name of a shape, or a folder"):
        plan_runs(["model_args.model_name_or_path=null", "model_args.config_name=null"])


def folder_of(command):
    config = compose_config("run_language_modeling", shlex.split(command), "ntl-train")
    return str(read_settings(config).output_dir)


def test_published_commands_of_different_losses_have_different_folders():
    losses: dict[str, set] = {}
    for command, (criterion, _) in TRAINING.items():
        losses.setdefault(folder_of(command), set()).add(criterion)
    assert all(len(found) == 1 for found in losses.values())


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        ("", "vanilla_t5"),
        ("model_args=vanilla_t5_ntl", "vanilla_t5_ntl_NTL-MSE"),
        (
            "model_args=vanilla_t5_ntl model_args.number_token_loss_with_wasserstein=true",
            "vanilla_t5_ntl_NTL-WAS",
        ),
        ("loss=smmd training_args.trial=a training_args.special_name=b", "a/vanilla_t5_SMMD_b"),
        ("model_args.gaussian_label_smoother=true", "vanilla_t5_Gaussian-smoothing"),
    ],
)  # fmt: skip
def test_the_default_folder_names_model_and_loss(command, folder):
    assert folder_of(command) == f"outputs/mathematics_dataset/{folder}"
