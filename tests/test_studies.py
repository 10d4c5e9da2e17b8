"""Studies: sweeps compose, and packs are merged and measured."""

import importlib
import json
from pathlib import Path

import pytest
import yaml
from tolerances import approx

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("hydra")
from ntl.commands import compare
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import read_runs
from ntl.settings import compose_config
from ntloss.criteria import CRITERIA, fact

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "studies").glob("*/*.yaml")) if path.stem != "common"]
SWEEPS = [path for path in FILES if "\ndefaults:" in f"\n{path.read_text('utf-8')}"]  # others are contrasts
LOSSES = {"ce", *CRITERIA}


@pytest.mark.parametrize("name", CRITERIA)
def test_each_criterion_is_a_loss_of_the_lab_that_replaces_cross_entropy_where_the_criterion_does(name):
    loss = compose_config([f"loss={name}"], "compare").loss
    assert (loss.criterion, loss.mode == "replace") == (name, bool(fact(CRITERIA[name], "replaces")))
    assert loss.weight == (1.0 if loss.mode == "replace" or name == "del_loss" else 0.3)


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_sweep_composes_and_contrasts_losses_that_it_trains_with_selected_settings(path, capsys):
    assert compare([str(path), "loss=ntl_was", "--cfg", "all"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    losses = {*config["hydra"]["sweeper"]["params"].get("loss", "ce").split(",")}
    assert losses <= LOSSES | {own.stem for own in path.parent.glob("loss/*.yaml")}
    contrasts = read_contrasts(config["contrasts"])
    # The regression head is another sweep into the same folder.
    assert {str(row).partition(",")[0] for c in contrasts for row in (c.of, c.minus)} <= {*losses, "head"}
    named = "/".join(dict.fromkeys(["outputs", path.parent.name, path.stem]))
    assert config["training_args"]["output_dir"].startswith(named)


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"studies.{name}")


def made_run(seed, arm="ce", median=10.0):
    """A run whose interval is its median ± 1; half of the test answers are the validation rows' 10."""
    truths = {"validation": [10.0] * 19, "test": [10.0] * 10 + [16.0] * 10}
    row = [median] * 20 + [median - 1, median, median + 1]
    read = {
        part: {"answers": [median + seed] * len(of_part), "quantiles": [row] * len(of_part)}
        for part, of_part in truths.items()
    }
    which = {"table": "sentiment", "arm": arm, "seed": seed, "steps": 74, "rate": 3e-4}
    return {**which, "truths": truths, "read": [{"step": 74, **read}]}


def test_validation_rows_calibrate_intervals(study):
    results = study("schedules.results")
    right, wrong = (results.measures(*results._read(made_run(27, median=x))) for x in (10.0, 20.0))
    assert (right["median_mae"], right["mae"]) == (3, (27 + 21) / 2)
    assert (right["interval_width"], right["calibrated_width"]) == (2, 0)
    assert (wrong["interval_coverage"], wrong["calibrated_coverage"]) == (0, 1)


def test_packs_grow_keep_what_the_outputs_lack_and_are_compared(study, tmp_path):
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    for seeds in ((27, 28), (28, 29)):
        for old in outputs.glob("*.json"):
            old.unlink()
        for seed in seeds:
            for arm, median in (("ce", 20.0), ("hl_gauss", 10.0)):
                (outputs / f"{arm}{seed}.json").write_text(json.dumps(made_run(seed, arm, median)))
        study("schedules.results").main(["--outputs", str(outputs), "--results", str(tmp_path)])
    plan = yaml.safe_load((ROOT / "studies/schedules/contrasts.yaml").read_text("utf-8"))
    found, _ = compare_rows(read_runs([tmp_path])[0], read_contrasts(plan["contrasts"]), plan["margin"])
    medians = found[found["of"] == "hl_gauss, median"]
    assert medians["seeds"].tolist() == [3]
    assert medians["percent"].tolist() == [approx(100 * (3 - 7) / 7, scale=100)]
