import json

import pytest
from published_commands import scaled_down
from tolerances import ONE_COMPUTATION, assert_close

from ntl.train import main
from ntl.training.run_folder import RunFolder
from ntloss.numbers import NumberFormat


def command(tmp_path, model, *more):
    shape = [] if model == "vanilla_t5" else ["model_args.config_name=llama-tiny"]
    padded = [f"model_args={model}", *shape, "model_args.number_format=padded", "dataset_args=arithmetic"]
    return [*scaled_down(tmp_path), *padded, *more]


def again(tmp_path, model, checkpoint, *more):
    """Evaluate a model whose folder holds its configuration into another folder."""
    options = [o for o in command(tmp_path, model, *more) if "config_name" not in o]
    return [
        *options,
        "training_args=eval",
        f"model_args.model_name_or_path={checkpoint}",
        f"training_args.output_dir={tmp_path}/again",
    ]


@pytest.mark.parametrize("model", ["vanilla_t5", "decoder_only_ntl"])
def test_a_run_saves_its_format_and_is_evaluated_again_from_its_folder(model, tmp_path, capsys):
    assert main(command(tmp_path, model, "model_args.number_width=7")) == 0, capsys.readouterr().err
    folder = RunFolder(tmp_path / "run")
    for path in (folder.path, folder.path / "checkpoint-2"):
        ntl = json.loads((path / "config.json").read_text())["ntl"]
        found = {key: ntl[key] for key in ("number_width", "number_places", "number_signed")}
        assert found == {"number_width": 7, "number_places": 0, "number_signed": True}
    own = folder.evaluation("test")
    for test, metrics in own.metrics().items():
        assert (metrics["invalid"], metrics["outside_format"]) == (0, 0)
        assert all(NumberFormat(7, 0, True).fits(p.text) for p in own.predictions(test))
    assert main(again(tmp_path, model, folder.path / "checkpoint-2")) == 0, capsys.readouterr().err
    results = RunFolder(tmp_path / "again").evaluation("test").metrics()
    assert_close(results, own.metrics(), ONE_COMPUTATION)
