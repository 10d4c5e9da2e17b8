from __future__ import annotations

import pytest

from ntl.comparison.configuration import describe_config, load_config
from ntl.errors import UserError


def test_the_task_sets_the_number_of_steps_unless_it_is_overridden():
    assert load_config([])["task"]["name"] == "noisy_regression"
    arithmetic = load_config(["task=arithmetic"])
    assert arithmetic["task"]["name"] == "arithmetic"
    assert load_config(["task=arithmetic", "training.steps=7"])["training"]["steps"] == 7
    assert load_config(["task=arithmetic"])["output_dir"] == "outputs/compare/arithmetic"


def test_an_objective_can_be_added_on_the_command_line():
    mine = "+objective.mine={head: language, term: wasserstein, weight: 1.0, reweigh: false}"
    config = load_config([mine, "objectives=[ce,mine]"])
    assert config["objective"]["mine"]["weight"] == 1.0


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["task=poetry"], "task=poetry is unknown; expected one of: arithmetic, noisy_regression"),
        (["objectives=[ce,foo]"], "names among: ce, ntl_was, ntl_mse, regression_head"),
        (["objectives=[]"], r"objectives is \[\]"),
        (["objectives=[ce,ce]"], "without repetition"),
        (["seeds=[]"], r"seeds is \[\]; expected a list, not empty"),
        (["seeds=3"], "seeds is 3; expected a list"),
        (["seeds=[-1]"], "whole numbers of at least 0"),
        (["jobs=0"], "jobs is 0; expected a whole number of at least 1"),
        (["training.steps=-5"], "training.steps is -5"),
        (["training.steps=1.5"], "training.steps is 1.5"),
        (["training.learning_rate=0"], "training.learning_rate is 0; expected a number that is above 0"),
        (["training.warmup=1"], "at least 0 and below 1"),
        (["training.gradient_accumulation_steps=7"], "a divisor of training.batch_size=64"),
        (["training.schedule=wavy"], "training.schedule is 'wavy'; expected one of: linear"),
        (["training.stepz=5"], "training.stepz is unknown. Did you mean training.steps?"),
        (["stepz=5"], "stepz is unknown; expected one of: objectives"),
        (["task=arithmetic", "task.datadir=x"], "Did you mean task.data_dir?"),
        (["model.num_layers=0"], "model.num_layers is 0"),
        (["objective.ntl_was.term=euclid"], "null or one of: wasserstein, squared_error"),
        (["objective.ntl_was.weight=-1"], "objective.ntl_was.weight is -1"),
        (["seeds=[0,1"], "cannot be read; expected key=value"),
        (["--fast"], "'--fast' cannot be read"),
    ],
)
def test_an_error_says_what_was_given_and_what_is_expected(overrides, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        load_config(overrides)
    assert "\n" not in str(caught.value)


def test_the_help_shows_every_key():
    text = describe_config()
    for key in ("objectives:", "seeds:", "ntl_was:", "learning_rate:", "data_dir:", "noise:"):
        assert key in text
