"""The sweeps of studies/ compose, and their runs use what was selected; baselines read the same rows."""

import csv
import importlib
import io
import json
from pathlib import Path

import pytest
import yaml

pytest.importorskip("hydra")
from ntl.commands import compare
from ntl.layout import RESULTS
from ntl.report.contrasts import read_contrasts

ROOT = Path(__file__).parents[1]
FILES = [path for path in sorted((ROOT / "studies").glob("*/*.yaml")) if path.stem != "common"]
SWEEPS = [path for path in FILES if "\ndefaults:" in f"\n{path.read_text('utf-8')}"]  # others are contrasts
LOSSES = {path.stem for path in (ROOT / "src/ntl/conf/loss").glob("*.yaml")} | {"ce"}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_sweep_composes_and_contrasts_losses_that_it_trains_with_selected_settings(path, capsys):
    assert compare([str(path), "loss=ntl_was", "--cfg", "all"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    losses = {*config["hydra"]["sweeper"]["params"].get("loss", "ce").split(",")}
    assert losses <= LOSSES | {own.stem for own in path.parent.glob("loss/*.yaml")}
    contrasts = read_contrasts(config["contrasts"])
    # The regression head is another sweep into the same folder.
    assert {str(row).partition(",")[0] for c in contrasts for row in (c.of, c.minus)} <= {*losses, "head"}
    assert losses <= {*config.get("selected", losses)}
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


def test_a_run_of_a_sweep_has_the_weight_that_was_selected_for_its_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ntl.report.figures.draw_figures", lambda *_: [])
    sizes = [
        f"dataset_args.{part}_size={size}" for part, size in (("train", 8), ("validation", 2), ("test", 2))
    ]
    one = ["loss=ntl_was", "training_args.seed=0", "training_args.max_steps=1", "hydra/launcher=basic"]
    overrides = [*sizes, *one, "evaluation.read=[greedy]", f"training_args.output_dir={tmp_path}/out"]
    assert compare([str(ROOT / "studies/small_models/sums.yaml"), *overrides]) == 0
    (path,) = (tmp_path / "out").glob(f"*/test/{RESULTS}")
    loss = json.loads(path.read_text())["settings"]["loss"]
    assert (loss["criterion"], loss["weight"], loss["normalize_by"]) == ("ntl_was", 0.1, "numbers")


def test_models_without_language_read_the_rows_of_each_seed_and_trees_their_columns(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(ROOT / "studies/whole_numbers")
    baselines = importlib.import_module("baselines")
    rows = [f"{size / 4},{kind},{10 * size + 300 * (kind == 'b')}" for size in range(60) for kind in "ab"]
    (tmp_path / "made.csv").write_text("\n".join(["size,kind,price", *rows]))
    prompt = "A {kind} of {size} m. Price: "
    table = {"file": str(tmp_path / "made.csv"), "target": "price", "prompt": prompt, "longest": 40}
    (tmp_path / "made.yaml").write_text(yaml.safe_dump({"dataset_args": table}))
    sizes = {"train_size": 80, "validation_size": 5, "test_size": 20, "data_seed": "${seed}"}
    (tmp_path / "common.yaml").write_text(yaml.safe_dump({"dataset_args": sizes}))
    for name, value in {"FOLDER": tmp_path, "SEEDS": (3, 4), "OF_NUMBERS": ("made",)}.items():
        monkeypatch.setattr(baselines, name, value)
    baselines.main(["made"])
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["name"], row["seed"]) for row in found] == [
        ("ridge", "3"), ("trees", "3"), ("ridge", "4"), ("trees", "4")
    ]  # fmt: skip
    errors = [float(row["value"]) for row in found]
    assert len({*errors}) == 4  # each seed has rows of its own
    assert max(errors[1::2]) < min(errors[::2])
    assert max(errors) < 120  # the constant errs by about 190


def test_encoders_read_the_rows_of_each_seed_and_learn_what_their_words_say(tmp_path, monkeypatch, capsys):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(ROOT)
    alternatives = importlib.import_module("studies.ten_epochs.alternatives")
    tokenizers = pytest.importorskip("tokenizers")
    words = ("calm", "glad", "cross")
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", *words))}
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary), **shape)
    transformers.BertModel(config).save_pretrained(tmp_path / "encoder")
    splits = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    splits.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=splits, **special)
    tokenizer.save_pretrained(tmp_path / "encoder")
    rows = [
        f"{word} {size},{10 * place + size % 3}" for size in range(60) for place, word in enumerate(words)
    ]
    (tmp_path / "made.csv").write_text("\n".join(["text,score", *rows]))
    table = {"file": str(tmp_path / "made.csv"), "target": "score", "prompt": "{text}: "}
    (tmp_path / "made.yaml").write_text(yaml.safe_dump({"dataset_args": table}))
    sizes = {"train_size": 100, "validation_size": 20, "test_size": 20, "data_seed": "${seed}"}
    (tmp_path / "common.yaml").write_text(yaml.safe_dump({"dataset_args": sizes}))
    monkeypatch.setattr(alternatives, "FOLDER", tmp_path)
    encoder = f"{tmp_path / 'encoder'}"
    models = ["--frozen", f"frozen={encoder}", "--tuned", f"tuned={encoder}", "--rates", "1e-5", "1e-2"]
    alternatives.main(["made", "--seeds", "3", "5", *models])
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    names = ("constant", "ridge", "frozen", "tuned")
    assert [(row["seed"], row["name"]) for row in found] == [(s, n) for s in "34" for n in names]
    errors = [float(row["value"]) for row in found]
    assert errors[0] != errors[4]  # each seed has rows of its own
    of_seeds = errors[:4], errors[4:]
    assert all(max(encoders) < 1.5 < ridge < constant for constant, ridge, *encoders in of_seeds)


def test_jittered_labels_are_spread_as_the_targets_of_hl_gauss_and_less_so_at_the_end(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    jittered = importlib.import_module("studies.ten_epochs.jittered")
    from ntl.data.tabular import Tabular

    rows = [f"row {i},{i % 40 - 5}" for i in range(120)]
    (tmp_path / "made.csv").write_text("\n".join(["text,size", *rows]))
    table = {"file": str(tmp_path / "made.csv"), "target": "size", "prompt": "{text}: "}
    table |= {"train_size": 80, "validation_size": 20, "test_size": 20}
    true, moved = Tabular(**table).read(), jittered.Jittered(**table, epochs=50).read()
    assert (moved.validation, moved.tests) == (true.validation, true.tests)
    answers = {row.question: int(row.answer) for row in true.train}
    errors = [int(row.answer) - answers[row.question] for row in moved.train]
    assert len(errors) == 50 * len(answers)
    assert {row.question for row in moved.train[-80:]} == answers.keys()  # an epoch has every row
    assert all(int(row.answer) <= 99 for row in moved.train)
    assert all((int(row.answer) < 0) == (answers[row.question] < 0) for row in moved.train)
    early, late = (sum(map(abs, part)) / 1000 for part in (errors[:1000], errors[-1000:]))
    assert 3 < early < 6  # 0.8 of a standard deviation of 0.55 · 11.5, less where the sign limits it
    assert 0.5 < late < 1.5


def test_a_jittered_first_digit_is_as_likely_as_hl_gauss_wants_it(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    jittered = importlib.import_module("studies.ten_epochs.jittered")
    import numpy as np
    import torch

    from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

    rng = np.random.default_rng(0)
    first_digits = [jittered.draw(rng, 39, 5.0, 99) // 10 for _ in range(20_000)]
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
