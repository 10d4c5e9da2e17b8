"""Runs that train a part of a pretrained model: killed and resumed, read untrained, and loaded elsewhere."""

import pytest
from runs import results, scaled_down, train, train_until_saved, written
from safetensors.torch import load_file
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, assert_close, assert_identical
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from ntl.models import build
from ntl.settings import ModelArgs

HEAD = "model_args=pretrained_regression_head"
KINDS = {
    "layers": ["model_args=pretrained", "weights.trained_layers=1"],
    "lora": ["model_args=pretrained", "weights=lora", "weights.lora.r=2"],
    "head": [HEAD, "weights.trained_layers=1"],
    "head with lora": [HEAD, "weights.lora={r: 2, lora_alpha: 4}"],
}


def small(tmp_path, llama, *more, steps=4):
    dropped = ("model_args.", "dataset_args.data_dir")
    return [
        *(option for option in scaled_down(tmp_path, steps) if not option.startswith(dropped)),
        "dataset_args=tabular",
        "dataset_args.prompt='{carat} carat, {cut}. Price: '",
        "dataset_args.train_size=40",
        "dataset_args.test_size=6",
        "dataset_args.validation_size=6",
        f"model_args.model_name_or_path={llama}",
        "training_args.learning_rate=0.001",
        *more,
    ]


@pytest.mark.parametrize(
    "kind",
    ["head with lora", *(pytest.param(each, marks=pytest.mark.slow) for each in ("layers", "lora", "head"))],
)
def test_a_killed_run_continues_to_the_same_weights_which_transformers_loads(kind, tmp_path, llama, capsys):
    steps = [*KINDS[kind], "training_args.save_steps=2", "training_args.eval_steps=2"]
    steps += ["training_args.load_best_model_at_end=false"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert train(*small(tmp_path, llama, *steps, f"training_args.output_dir={whole}")) == 0, (
        capsys.readouterr().err
    )
    command = small(tmp_path, llama, *steps, f"training_args.output_dir={broken}")
    train_until_saved(*command)
    assert train(*command) == 0, capsys.readouterr().err
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, broken))
    assert_close(other, one, TRAINED_BY_ADAM)
    assert any(
        (one[name] - start).abs().max() > 1e-4
        for name, start in load_file(f"{llama}/model.safetensors").items()
    )
    loader = AutoModelForSequenceClassification if "head" in kind else AutoModelForCausalLM
    for folder in (broken, broken / "checkpoint-4"):
        model, found = loader.from_pretrained(folder, output_loading_info=True)
        assert not found["missing_keys"]
        assert not [key for key in found["unexpected_keys"] if "lora_" not in key]
        assert_close({k: v for k, v in model.state_dict().items() if k in one}, one, TRAINED_BY_ADAM)
    assert not found["unexpected_keys"] or "lora" in kind
    assert {*load_file(broken / "model.safetensors")} == {*one}
    assert not any("lora" in name for name in one)
    settings = {**written(broken)["settings"]["model_args"], "model_name_or_path": str(broken)}
    built = build(ModelArgs(**settings)).model
    assert not any("lora" in name for name, _ in built.named_modules())
    assert AutoTokenizer.from_pretrained(broken)("12").input_ids


def test_without_steps_the_untouched_model_is_read(tmp_path, llama, capsys):
    read = ["model_args=pretrained", "evaluation.read=[greedy,median]", "weights.trained_layers=1"]
    assert train(*small(tmp_path, llama, *read, steps=0)) == 0, capsys.readouterr().err
    folder = tmp_path / "run"
    assert written(folder)["steps"] == 0
    assert {"mae", "median_mae", "number_mass"} <= {*results(folder)["test"]}
    assert_identical(load_file(folder / "model.safetensors"), load_file(f"{llama}/model.safetensors"))


@pytest.mark.parametrize("options", [["weights=lora"], ["weights.trained_layers=1"]])
def test_a_run_that_trained_a_part_is_evaluated_as_an_ordinary_model(options, tmp_path, llama, capsys):
    command = small(tmp_path, llama, "model_args=pretrained", *options)
    assert train(*command) == 0, capsys.readouterr().err
    folder = tmp_path / "run"
    evaluation = ["training_args=eval", "evaluation.name=again", f"model_args.model_name_or_path={folder}"]
    kept = [option for option in command if not option.startswith(("model_args.model_name", "weights"))]
    kept = [option for option in kept if not option.startswith("training_args.output_dir")]
    assert train(*kept, *evaluation) == 0, capsys.readouterr().err
    assert_close(results(folder, "again"), results(folder), ONE_COMPUTATION)
