from importlib import resources

import pytest
from ntl.config.comparison import KEYS, load_comparison
from ntl.config.compose import describe_config
from ntl.config.schema import choices
from omegaconf import OmegaConf

from ntl.run_language_modeling import plan_runs


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
