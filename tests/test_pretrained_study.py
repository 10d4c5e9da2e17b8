"""The programs of studies/pretrained: readings of the tree of answers, the arms, and the committed tables."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from tolerances import DISTRIBUTION, ONE_COMPUTATION, TRAINED, TWO_PATHS, assert_close

pytest.importorskip("transformers")
from ntl.config.settings import LossSettings, ModelSettings

from ntl.approaches import build_approach
from ntl.errors import UserError
from studies.pretrained import tables
from studies.pretrained.answers import AnswerTree
from studies.pretrained.model import Rows, UpperLayers
from studies.pretrained.run import RUNS, STUDY, Task
from studies.pretrained.solutions import IGNORED, Solutions
from studies.pretrained.training import Settings, Trainer
from studies.small_models.trees import typed

ROOT = Path(__file__).parents[1]
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
PROMPTS = ["Rome", "an airport with a longer name", "x"]
TRAINING = {"batch": 2, "warmup": 0.1, "betas": [0.9, 0.98], "weight_decay": 0.01, "clip": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    approach = build_approach(ModelSettings(family="decoder_only", config=LLAMA), LossSettings())
    approach.model.save_pretrained(folder)
    approach.tokenizer.save_pretrained(folder)
    return UpperLayers(str(folder), 1)


@pytest.fixture
def rows(model, tmp_path):
    tree = AnswerTree(model.tokenizer, 1, signed=True)
    prompts = model.tokenizer(PROMPTS, add_special_tokens=False).input_ids
    return Rows(prompts, tree, tmp_path / "states", model.frozen.width)


def all_logits(model, rows):
    nodes = rows.tree.all_nodes.expand(len(PROMPTS), -1)
    with torch.no_grad():
        return model.head(model(rows, range(len(PROMPTS)), nodes), rows.tree.columns)


@pytest.mark.parametrize("cached", [True, False])
def test_an_answers_probability_is_the_product_of_its_tokens(model, rows, cached):
    if not cached:
        rows = Rows(rows.prompts, rows.tree)
    found = rows.tree.log_probs(all_logits(model, rows))
    for prompt, row in zip(rows.prompts, found, strict=True):
        expected = []
        for number in range(-9, 10):
            _, ids = rows.tree.chain(number)
            with torch.no_grad():
                logits = model.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            signs, digits = (model.tokenizer.convert_tokens_to_ids(list(s)) for s in ("+-", "0123456789"))
            first = logits[0, signs].log_softmax(-1)[signs.index(ids[0])]
            below = digits if ids[0] == signs[0] else digits[1:]  # there is no -0
            expected.append(first + logits[1, below].log_softmax(-1)[below.index(ids[1])])
        assert_close(row, torch.stack(expected), TWO_PATHS)


def test_readings_are_those_of_the_distribution(model, rows):
    tree = rows.tree
    logits = all_logits(model, rows)
    read, probs = tree.read(logits), tree.log_probs(logits).double().exp()
    assert_close(probs.sum(-1).float(), torch.ones(3), DISTRIBUTION)
    for k in range(3):
        total, median = 0.0, None
        for value, p in zip(tree.values.tolist(), probs[k].tolist(), strict=True):
            total += p
            median = value if median is None and total >= 0.5 else median
        assert read.median[k] == median
        assert read.lower[k] <= read.median[k] <= read.upper[k]
        steps = tree.step_log_probs(logits)[k]
        sign = tree.columns[steps[0].argmax()]
        node = 1 + rows.tree.tokens.tolist().index(int(sign))
        digit = int(model.tokenizer.decode([int(tree.columns[steps[node].argmax()])]))
        assert read.greedy[k] == (digit if model.tokenizer.decode([int(sign)]) == "+" else -digit)


def test_crps_is_the_expected_distance_less_half_the_spread(rows):
    tree = rows.tree
    probs = torch.rand(2, len(tree.values), generator=torch.Generator().manual_seed(0)).double()
    probs /= probs.sum(-1, keepdim=True)
    gaps = (tree.values[:, None] - tree.values).abs()
    spread = 0.5 * torch.einsum("ri,ij,rj->r", probs, gaps, probs)
    answers = torch.tensor([-3.0, 7.0]).double()
    expected = (probs * (tree.values - answers[:, None]).abs()).sum(-1) - spread
    assert_close(tree.crps(probs, answers), expected, DISTRIBUTION)
    raters = torch.tensor([[-3.0, 7.0, 7.0]]).double()
    below = (raters[0, :, None] <= tree.values).double().mean(0)[None]
    each = torch.stack([tree.crps(probs[:1], one.view(1)) for one in raters[0]]).mean(0)
    assert_close(tree.rater_crps(probs[:1], below), each, DISTRIBUTION)


@pytest.mark.parametrize(
    ("arm", "criterion"), [("ce", None), ("ntl_was", "wasserstein"), ("raft", None), ("head", None)]
)
def test_each_arm_learns_its_rows_and_leaves_the_lower_layers(model, rows, arm, criterion):
    trainer = Trainer(model, rows.tree, rows, torch.tensor([-7, 2, 8]), TRAINING)
    lower = {name: weight.clone() for name, weight in model.frozen.frozen_weights()}
    settings = Settings(arm, 80, 0.02, 0, criterion, 0.3)
    losses = trainer.fit([0, 1, 2], settings)
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])
    found = trainer.predict([0, 1, 2], arm)
    answers = found if arm == "head" else trainer.tree.read(found).mean
    assert (answers - trainer.answers).abs().mean() < 4.0  # always the mean: 5.3
    assert all(torch.equal(lower[name], weight) for name, weight in model.frozen.frozen_weights())


def test_adapters_learn_in_all_layers_and_start_anew(model, rows, tmp_path):
    adapted = UpperLayers(model.tokenizer.name_or_path, 1, lora=4)
    uncached = Rows(rows.prompts, rows.tree)
    trainer = Trainer(adapted, rows.tree, uncached, torch.tensor([-7, 2, 8]), TRAINING)
    assert len(adapted.trained) == 2 * 7 * LLAMA["num_hidden_layers"]  # two matrices for each linear layer
    first = trainer.fit([0, 1, 2], Settings("ce", 120, 0.03, 0))
    assert sum(first[-5:]) < 0.95 * sum(first[:5])
    again = trainer.fit([0, 1, 2], Settings("ce", 3, 0.02, 0))
    assert_close(again[0], first[0], TRAINED)


def test_a_run_starts_from_the_pretrained_weights(model, rows):
    trainer = Trainer(model, rows.tree, rows, torch.tensor([-7, 2, 8]), TRAINING)
    model.reset()
    before = all_logits(model, rows)
    trainer.fit([0, 1, 2], Settings("ce", 5, 0.02, 0))
    assert (all_logits(model, rows) - before).abs().max() > 0.01
    trainer.fit([0, 1, 2], Settings("zero_shot", 0, 0.0, 0))
    assert_close(all_logits(model, rows), before, TWO_PATHS)


@pytest.fixture
def solutions(model, tmp_path):
    rows = [
        {"question": f"Add {k} and 2.", "answer": f"It is {k + 2}, not {k}.\n#### {k + 2}"} for k in range(7)
    ]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"file": str(tmp_path / "problems.jsonl"), "prompt": "{question} ", "longest": 60, "batch": 2}
    return Solutions(model, options | {"test": 2, "validation": 1, "pool": 4}, TRAINING, tmp_path / "states")


def test_the_losses_of_solutions_are_those_of_the_model_on_their_tokens_alone(model, solutions):
    model.reset()
    text, numbers, errors = [], [], []
    for place in solutions.test:
        ids, labels = solutions.rows[place]
        with torch.no_grad():
            logits = model.model(ids[None]).logits[0, :-1]
        costs = F.cross_entropy(logits, labels[1:], reduction="none", ignore_index=IGNORED)
        for row, cost, label in zip(logits, costs, labels[1:].tolist(), strict=True):
            if label == IGNORED:
                continue
            written = model.tokenizer.decode([label])
            (numbers if written.isdigit() else text).append(cost)
            if written.isdigit():
                digits = model.tokenizer.convert_tokens_to_ids(list("0123456789"))
                errors.append(row[digits].softmax(-1) @ (torch.arange(10) - int(written)).abs().float())
    found = solutions.measure(solutions.test)
    assert_close(found["text_loss"], torch.stack(text).mean().item(), TWO_PATHS)
    assert_close(found["number_loss"], torch.stack(numbers).mean().item(), TWO_PATHS)
    assert_close(found["digit_error"], torch.stack(errors).mean().item(), TWO_PATHS)
    assert_close(found["loss"], torch.stack(text + numbers).mean().item(), TWO_PATHS)


@pytest.mark.parametrize("normalize_by", ["items", "numbers"])
def test_solutions_are_learned_and_a_weight_that_decays_ends_as_cross_entropy(solutions, normalize_by):
    settings = Settings("ntl_was", 40, 0.02, 0, "wasserstein", 0.3, normalize_by)
    losses = solutions.fit([*solutions.pool], settings)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    decaying = solutions.fit([*solutions.pool], settings._replace(decays=True))
    assert_close(decaying[0], losses[0], ONE_COMPUTATION)
    assert decaying[-1] < losses[-1]


def test_a_largest_answer_prunes_the_tree(model):
    whole, pruned = AnswerTree(model.tokenizer, 2), AnswerTree(model.tokenizer, 2, largest=19)
    assert (len(whole.all_nodes), len(pruned.all_nodes)) == (10, 2)
    logits = torch.randn(3, 11, 10, generator=torch.manual_seed(0))
    given = whole.log_probs(logits)[:, :20].log_softmax(-1)  # of answers that are at most 19
    kept = logits[:, [0, 1, 2]]
    kept[:, 0, :2] = given.view(3, 2, 10).logsumexp(-1)
    assert_close(pruned.log_probs(kept), given)
    assert (pruned.values == torch.arange(20)).all()


def test_trees_take_numbers_as_numbers_and_words_as_categories():
    columns = typed(pd.DataFrame({"size": ["1", "2.5", None], "color": ["red", "7", "red"]}))
    assert columns["size"].tolist()[:2] == [1, 2.5]
    assert columns["size"].isna()[2]
    assert columns["color"].dtype == "category"


def test_a_task_leaves_out_rows_without_an_answer_and_repeated_prompts(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text(
        "city,sales,median\nParis,7,2600\nWaco,NA,1400\nParis,7,9900\nTyler,5,NA\nAustin,NA,3500\n"
    )
    options = {"file": path, "missing": "NA", "answer": "median / 1000", "longest": 60, "pool": 1}
    options["prompt"] = "{city}, {sales} sales: "
    monkeypatch.setitem(STUDY["tasks"], "tiny", options)
    monkeypatch.setitem(STUDY, "test", 1)
    monkeypatch.setitem(STUDY, "validation", 1)
    task = Task("tiny")
    assert sorted(task.used) == [0, 1, 4]
    assert [*task.test, *task.validation, *task.pool] == task.used
    assert {task.prompts[k]: int(task.answers[k]) for k in task.used} == {
        "Paris, 7 sales: ": 3,
        "Waco, NA sales: ": 1,
        "Austin, NA sales: ": 4,
    }
    assert task.columns["sales"].isna().sum() == 2
    monkeypatch.setitem(options, "pool", 2)
    with pytest.raises(UserError, match="has 3 short rows; expected at least 4"):
        Task("tiny")


def test_a_digit_that_is_no_token_is_an_error(model):
    class Words:
        unk_token_id = 0

        def convert_tokens_to_ids(self, tokens):
            return [0 if token == "7" else 1 for token in tokens]

    with pytest.raises(ValueError, match="no token '7'"):
        AnswerTree(Words(), 2)


def test_the_committed_tables_are_those_of_the_packed_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(RUNS, "folder", tmp_path)  # without runs that are not packed
    text = RUNS.pack.with_name("tables.md").read_text("utf-8")
    assert "\n".join(tables.lines()) + "\n" == text
