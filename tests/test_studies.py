"""Studies: sweeps compose, runs are made once and continued, and packs are merged and measured."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tolerances import TRAINED_BY_ADAM, approx

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("hydra")
import tokenizers
import torch
import transformers

from ntl.commands import compare
from ntl.report.contrasts import compare_rows, read_contrasts
from ntl.report.runs import read_runs
from ntl.settings import criteria
from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import CRITERIA, fact

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "studies").glob("*/*.yaml")) if path.stem != "common"]
SWEEPS = [path for path in FILES if "\ndefaults:" in f"\n{path.read_text('utf-8')}"]  # others are contrasts
LOSSES = {"ce", *CRITERIA}


def test_the_losses_of_the_lab_are_the_criteria_with_their_facts():
    facts = {name: fact(each, "replaces") for name, each in CRITERIA.items()}
    assert facts.pop("hl_gauss")  # whose width has a default in the lab: conf/loss/hl_gauss.yaml
    assert criteria() == facts


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


@pytest.mark.parametrize(("study", "others"), [("whole_numbers", set()), ("ten_epochs", {"encoder"})])
def test_contrasts_over_several_tables_name_the_sweeps_beside_them(study, others):
    folder = ROOT / "studies" / study
    planned = read_contrasts(yaml.safe_load((folder / "contrasts.yaml").read_text())["contrasts"])
    losses = yaml.safe_load((folder / "common.yaml").read_text())["hydra"]["sweeper"]["params"]["loss"]
    named = {str(row).partition(",")[0] for c in planned for row in (c.of, c.minus)}
    assert others <= named <= {*losses.split(","), "head", *others}
    assert {c.dataset for c in planned} == {p.stem for p in SWEEPS if p.parent == folder}


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"studies.{name}")


@pytest.fixture
def tiny(tmp_path):
    """A folder with a small causal model whose tokens are characters."""
    characters = ["[END]", *' -+.,0123456789:abcdefghijklmnopqrstuvwxyz{}"_']
    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="[END]")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    plain.decoder = tokenizers.decoders.Fuse()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="[END]").save_pretrained(tmp_path)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=len(characters), eos_token_id=0, bos_token_id=None, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def command(study, tiny, tmp_path, monkeypatch):
    """Arguments of short runs on a small table, without a folder of outputs; the first seed tunes."""
    fine_tuning, train, results = map(study, ("fine_tuning", "schedules.train", "schedules.results"))
    words = ("calm", "glad", "cross")
    rows = [f"{word} {chr(97 + k)},{10 * i}" for k in range(26) for i, word in enumerate(words, -1)]
    (tmp_path / "whole.csv").write_text("\n".join(["text,score", *rows]))
    table = {"file": str(tmp_path / "whole.csv"), "target": "score", "prompt": "{text}: "}
    sizes = {"train_size": 32, "validation_size": 20, "test_size": 20}
    values = {"COMMON": sizes, "TABLES": {"whole": table}, "STEPS": (4, 20), "TRIED": (1e-2,)}
    for module in (fine_tuning, train, results):
        for name, value in {**values, "RESULTS": tmp_path}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    given = ["--model", str(tiny), "--seeds", "12", "--products", "float32", "--tables", "whole"]
    return lambda outputs, *more: train.main([*given, "--outputs", str(outputs), *more])


# These train, because what a stopped run lacks is seen in its weights alone.
def test_each_arm_writes_one_file_that_is_kept_and_locked_runs_are_left_to_others(command, tmp_path):
    import fcntl

    outputs = tmp_path / "outputs"
    outputs.mkdir()
    with open(outputs / "whole-ce-12-4-1e-02.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command(outputs, "--arms", "ce")
    before = {path: path.stat().st_mtime_ns for path in outputs.glob("*.json")}
    assert [path.name for path in before] == ["whole-ce-12-20-1e-02.json"]
    command(outputs)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    runs = [json.loads(path.read_text()) for path in sorted(outputs.glob("*.json"))]
    assert len(runs) == 6
    for run in runs:
        (read,) = run["read"]
        assert read["step"] == run["steps"]
        for part, truths in run["truths"].items():
            assert len(truths) == len(read[part]["answers"]) == len(read[part]["quantiles"]) == 20
    assert all(run["losses"][-1] < run["losses"][0] for run in runs if run["steps"] == 20)


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(study, command, tmp_path, monkeypatch):
    fine_tuning = study("fine_tuning")
    monkeypatch.setattr(study("schedules.train"), "settings_of", lambda *_: [(20, 1e-3)])
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    command(whole, "--arms", "jittered")
    command(pieces, "--arms", "jittered", "--until", "00:00")
    monkeypatch.setattr(fine_tuning, "SAVE_EVERY", 0)
    step = fine_tuning.FineTuning._train_step

    def killed(run):
        if run.step == 7:
            raise KeyboardInterrupt
        return step(run)

    monkeypatch.setattr(fine_tuning.FineTuning, "_train_step", killed)
    with pytest.raises(KeyboardInterrupt):
        command(pieces, "--arms", "jittered")
    assert [*pieces.glob("*.state")]
    assert not [*pieces.glob("*.json")]
    monkeypatch.setattr(fine_tuning.FineTuning, "_train_step", step)
    command(pieces, "--arms", "jittered")
    made = [json.loads(next(folder.glob("*.json")).read_text()) for folder in (whole, pieces)]
    assert made[1]["losses"] == approx(made[0]["losses"], TRAINED_BY_ADAM)
    assert not [*pieces.glob("*.state")]


def made_run(seed, arm="ce", median=10.0, steps=74, rate=1e-4):
    """A run whose interval is its median ± 1; half of the test answers are the validation rows' 10."""
    truths = {"validation": [10.0] * 19, "test": [10.0] * 10 + [16.0] * 10}
    row = [median] * 20 + [median - 1, median, median + 1]
    read = {
        part: {"answers": [median + seed] * len(of_part), "quantiles": [row] * len(of_part)}
        for part, of_part in truths.items()
    }
    which = {"table": "sentiment", "arm": arm, "seed": seed, "steps": steps, "rate": rate}
    return {**which, "truths": truths, "read": [{"step": steps, **read}]}


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


def test_the_second_tuning_seed_tries_the_best_of_the_first_and_the_lowest_mean_is_chosen(study):
    results = study("schedules.results")
    tried = [(steps, rate) for steps in results.STEPS for rate in results.TRIED]
    errors = dict(zip(tried, range(12), strict=True))
    runs = [made_run(12, "ce", 10.0 + error, *setting) for setting, error in errors.items()]
    which = ("sentiment", "ce")
    assert results.best_settings(runs[:-1]) == {}
    assert results.best_settings(runs)[which] == tried[:3]
    assert results.chosen_settings(runs) == {}
    runs += [
        made_run(13, "ce", 20.0 - 5 * errors[setting], *setting)
        for setting in results.best_settings(runs)[which]
    ]
    assert results.chosen_settings(runs)[which] == [tried[2]]


def test_a_jittered_first_digit_is_as_likely_as_hl_gauss_wants_it(study):
    rng = np.random.default_rng(0)
    first_digits = [study("fine_tuning").draw(rng, 39, 5.0, 99) // 10 for _ in range(20_000)]
    shares = np.bincount(first_digits, minlength=10) / 20_000
    wanted = []

    class Recorded(HLGauss):
        def targets(self, *given):
            wanted.append(super().targets(*given))
            return wanted[-1]

    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=16)
    loss = NTLCrossEntropyLoss(digits, Recorded(5.0, leading_zeros=True))
    loss(torch.zeros(1, 2, 16), torch.tensor([[3, 9]]))
    assert np.abs(shares - wanted[0][0].numpy()).max() < 0.015  # four standard errors
