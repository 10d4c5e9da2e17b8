from __future__ import annotations

import pytest

from ntl.config.comparison import load_comparison
from ntl.errors import UserError


def test_runs_are_seeds_times_objectives_each_in_a_folder_of_its_own():
    runs = load_comparison(["objectives=[ntl_was,ce]", "seeds=[3,5]", "output_dir=out"]).runs
    assert list(runs) == ["ntl_was, seed 3", "ce, seed 3", "ntl_was, seed 5", "ce, seed 5"]
    assert [str(run.output_dir) for run in runs.values()][:2] == ["out/ntl_was/seed3", "out/ce/seed3"]
    assert [run.seed for run in runs.values()] == [3, 3, 5, 5]
    assert len({run.output_dir for run in runs.values()}) == 4


def test_a_comparison_accepts_the_groups_of_ntl_train():
    overrides = ["dataset_args=arithmetic", "dataset_args.data_dir=null", "training_args.max_steps=7"]
    run = load_comparison([*overrides, "seeds=[0]", "objectives=[ce]"]).runs["ce, seed 0"]
    assert (run.dataset, run.trainer["max_steps"]) == ("arithmetic", 7)
    assert str(run.output_dir) == "outputs/compare/arithmetic/ce/seed0"


def test_a_key_that_refers_to_the_seed_has_that_of_each_run():
    overrides = ["dataset_args=tabular", "dataset_args.train_seed=${training_args.seed}", "objectives=[ce]"]
    runs = load_comparison([*overrides, "seeds=[3,5]"]).runs.values()
    assert [run.data["train_seed"] for run in runs] == [3, 5]
    assert [run.seed for run in runs] == [3, 5]


def test_an_objective_is_a_loss_a_model_or_overrides_of_both():
    objectives = "objectives=[smmd,vanilla_t5_regression_head,'loss=ntl_was loss.weight=0.8 model_args=rt']"
    smmd, head, both = load_comparison([objectives, "seeds=[0]"]).runs.values()
    assert (smmd.loss.criterion, smmd.model.head) == ("smmd", "language")
    assert (head.loss.criterion, head.model.head) == (None, "regression")
    assert (both.loss.weight, both.model.encoding) == (0.8, "rt")


def test_models_with_a_number_token_loss_are_objectives():
    runs = load_comparison(["objectives=[vanilla_t5,vanilla_t5_ntl,rt_ntl]", "seeds=[0]"]).runs.values()
    assert [run.objective for run in runs] == ["T5", "T5 + NTL-MSE", "RT + NTL-MSE"]


def test_values_in_an_objective_may_hold_spaces():
    (run,) = load_comparison(
        ["objectives=['loss=dist2 loss.options={tau: 2.0, absolute: true}']", "seeds=[0]"]
    ).runs.values()
    assert run.loss.options == {"tau": 2.0, "absolute": True}


ONE = ["objectives=[ce]", "seeds=[0]"]
INVALID = [
    (["dataset_args=poetry"], "dataset_args=poetry is unknown; expected one of: arithmetic, gsm8k"),
    (["objectives=[ce,foo]"], "a name of the group loss or model_args, such as ce, crps"),
    (["objectives=[ce,'loss=foo']"], "loss=foo is unknown"),
    (["objectives=[]"], r"objectives is \[\]"),
    (["objectives=[ce,ce]"], "without duplicates"),
    (["objectives=ce"], "objectives is 'ce'; expected a non-empty list"),
    (["seeds=[]"], r"seeds is \[\]; expected a non-empty list"),
    (["seeds=3"], "seeds is 3; expected a non-empty list"),
    (["seeds=[-1]"], "a whole number from 0"),
    (["seeds=[0,1"], "cannot be read; expected key=value"),
    (["jobs=0"], "jobs is 0; expected null or a whole number of at least 1"),
    (["overwrite=maybe"], "overwrite is 'maybe'; expected true or false"),
    (["training_args.max_stepz=5"], "Did you mean training_args.max_steps?"),
    (["stepz=5"], "stepz is unknown; expected one of: evaluation, dataset_args"),
    (["+modle_args.family=t5"], "Did you mean model_args?"),
    (["~seeds"], "seeds is missing"),
    (["training_args.seed=3"], r"the comparison sets it. Omit it, or pass seeds=\[0,1\]"),
    ([*ONE, "loss.weight=0.5"], "has no effect"),
    (["objectives=['loss=ce training_args.seed=3']"], r"training_args.seed has no effect.*seeds=\[0,1\]"),
    (["objectives=['loss=ce jobs=3']"], "sets jobs, which belongs to the whole comparison"),
    (["objectives=['loss=ce loss.weight=0.8']"], "loss.weight has no effect"),
    (["objectives=['loss=smmd loss.weight=1','loss=smmd  loss.weight=1']"], "be written to one folder"),
]


@pytest.mark.parametrize(("overrides", "complaint"), INVALID)
def test_an_invalid_comparison_is_a_one_line_error_that_says_what_is_expected(overrides, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        load_comparison(overrides)
    assert "\n" not in str(caught.value)


def test_values_of_a_mapping_are_merged_into_those_of_the_files():
    (run,) = load_comparison([*ONE, "model_args.config_overrides={d_ff: 32}"]).runs.values()
    assert (run.model.config["d_ff"], run.model.config["dropout_rate"]) == (32, 0.0)
