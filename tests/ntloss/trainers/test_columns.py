"""The columns `loss_weights` and `number_weights` weigh the loss, however a batch is collated and split."""

import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases
from processes import results_of
from tolerances import TRAINED, approx, assert_close
from trainer_cases import DIGITS, LENGTH, MODELS, ROWS, STEPS, number_aware_trainer, train_with
from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening, default_data_collator

from ntloss import NTLCrossEntropyLoss, number_level
from ntloss.trainers import make_number_aware
from ntloss.trainers.columns import COLUMNS, WithColumns

datasets = pytest.importorskip("datasets")
EITHER_COLUMN = pytest.mark.parametrize("column", COLUMNS)
EITHER_WAY = pytest.mark.parametrize("way", cases.WAYS)


def weighted_rows(column, count=ROWS * STEPS):
    made, drawn = [], torch.Generator().manual_seed(0)
    for row in cases.samples(count):
        chosen = torch.randint(4, row["labels"].shape, generator=drawn)
        made.append({**row, column: torch.tensor([0.0, 1.0, 0.25, 3.0])[chosen]})
    return made


def train_plainly(name, column, criterion="ntl_was"):
    """Train in a plain loop over whole steps, whose weighted mean the loss computes."""
    model, rows = MODELS[name](), weighted_rows(column)
    optimizer = torch.optim.SGD(model.parameters(), lr=cases.RATE)
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion, shift=name == "llama")
    losses = []
    for step in range(STEPS):
        inputs = cases.stack(rows[step * ROWS : (step + 1) * ROWS])
        weights = inputs.pop(column)
        loss = loss_fn(model(**inputs).logits, inputs["labels"], **{column: weights})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return cases.Trained(losses, {key: w.detach().clone() for key, w in model.state_dict().items()})


def assert_same(trained, expected):
    assert_close(trained.weights, expected.weights, TRAINED)
    assert trained.losses == cases.logged(expected.losses)


@EITHER_COLUMN
@EITHER_WAY
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_trainer_trains_the_weights_of_a_plain_loop(name, accumulate, way, column, tmp_path):
    trainer = number_aware_trainer(MODELS[name](), tmp_path, way, accumulate=accumulate)
    trainer.train_dataset = datasets.Dataset.from_list(
        [{k: v.tolist() for k, v in row.items()} for row in weighted_rows(column)]
    )
    assert_same(train_with(trainer), train_plainly(name, column))


def on_two(_rank, folder, column):
    options = {"ddp_backend": "gloo", **cases.split(2, 2)}
    trainer = number_aware_trainer(cases.llama(), folder, **options)
    trainer.train_dataset = weighted_rows(column)
    return train_with(trainer)


@EITHER_COLUMN
def test_two_processes_train_the_weights_of_a_plain_loop(column, tmp_path):
    for trained in results_of(on_two, (tmp_path, column), tmp_path):
        assert_same(trained, train_plainly("llama", column))


def test_whole_numbers_are_weighted(tmp_path):
    loss = {"criterion": number_level}
    trainer = number_aware_trainer(cases.llama(), tmp_path, loss=loss, accumulate=2)
    trainer.train_dataset = weighted_rows("number_weights")
    assert_same(train_with(trainer), train_plainly("llama", "number_weights", number_level))


@EITHER_COLUMN
@pytest.mark.parametrize("size", [1, 5, 24])
def test_an_evaluation_is_weighted_whatever_the_size_of_its_batches(size, column, tmp_path):
    model, rows = cases.llama(), weighted_rows(column)
    metrics = number_aware_trainer(model, tmp_path, per_device_eval_batch_size=size).evaluate(rows)
    inputs = cases.stack(rows)
    weights = inputs.pop(column)
    loss_fn = NTLCrossEntropyLoss(DIGITS, shift=True, return_terms=True)
    with torch.no_grad():
        terms = loss_fn(model(**inputs).logits, inputs["labels"], **{column: weights})
    wanted = {"eval_loss": terms.loss.item(), "eval_ce": terms.ce.item(), "eval_ntl": terms.ntl.item()}
    assert {name: metrics[name] for name in wanted} == approx(wanted)


def test_a_collator_may_make_the_column_itself(tmp_path):
    def collate(rows):
        batch = default_data_collator(rows)
        return {**batch, "loss_weights": torch.zeros(batch["labels"].shape)}

    trainer = number_aware_trainer(cases.llama(), tmp_path, accumulate=2)
    trainer.data_collator = WithColumns(collate)
    assert train_with(trainer).losses == [0.0] * STEPS


@EITHER_COLUMN
@pytest.mark.parametrize("where", ["dataset", "rows", "batch"])
def test_a_column_that_is_almost_called_so_is_an_error(where, column, tmp_path):
    wrong = column.removesuffix("s")
    rows = [{**row, wrong: torch.zeros(LENGTH)} for row in cases.samples()]
    as_lists = [{k: v.tolist() for k, v in row.items()} for row in rows]
    dataset = datasets.Dataset.from_list(as_lists) if where == "dataset" else rows
    trainer = cases.trainer_for(cases.llama(), tmp_path, remove_unused_columns=where != "batch")

    def train():
        if where != "batch":
            trainer.train_dataset = dataset
        make_number_aware(trainer, vocabulary=DIGITS)
        trainer.train_dataset = dataset
        trainer.train()

    with pytest.raises(ValueError, match=column):
        train()


# Collators


def rows_of(*labels):
    made = []
    for row, own in enumerate(labels):
        weights = [float(10 * row + i + 1) for i in range(len(own))]
        made.append({"input_ids": [abs(token) for token in own], "labels": own, "loss_weights": weights})
    return made


ROWS_OF_TWO_LENGTHS = rows_of([5, 6, 7], [-100, 8])


@pytest.mark.parametrize(
    ("side", "expected"),
    [("right", [[1.0, 2.0, 3.0], [11.0, 12.0, 0.0]]), ("left", [[1.0, 2.0, 3.0], [0.0, 11.0, 12.0]])],
)
def test_weights_are_padded_on_the_side_of_the_labels(side, expected):
    tokenizer = tiny_tokenizers.sentence_piece()
    tokenizer.padding_side = side
    collate = WithColumns(DataCollatorForSeq2Seq(tokenizer))
    assert collate(ROWS_OF_TWO_LENGTHS)["loss_weights"].tolist() == expected


def test_weights_of_joined_rows_are_joined():
    batch = WithColumns(DataCollatorWithFlattening())(ROWS_OF_TWO_LENGTHS)
    assert batch["loss_weights"].tolist() == [[1.0, 2.0, 3.0, 11.0, 12.0]]


def pad_with_tokens(rows):
    longest = max(len(row["labels"]) for row in rows)
    return {"labels": torch.tensor([row["labels"] + [0] * (longest - len(row["labels"])) for row in rows])}


def test_labels_may_be_padded_with_a_token():
    assert WithColumns(pad_with_tokens)(ROWS_OF_TWO_LENGTHS)["loss_weights"].tolist()[1] == [11.0, 12.0, 0.0]


def test_labels_may_be_ignored_and_may_come_from_the_ids():
    def ignoring(rows):
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"labels": ids.masked_fill(ids < 6, -100)}

    rows = [{"input_ids": [5, 6, 7], "number_weights": [0.5, 1, 2]}, {"input_ids": [6, 5, 5]}]
    found = WithColumns(ignoring)(rows)["number_weights"]
    assert found.tolist() == [[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]]


def test_a_batch_without_the_columns_or_without_labels_stays_as_it_is():
    rows = [{"input_ids": [1, 2]}]
    assert WithColumns(default_data_collator)(rows).keys() == {"input_ids"}
    assert WithColumns(default_data_collator)([{**rows[0], "loss_weights": [1, 1]}]).keys() == {"input_ids"}


@pytest.mark.parametrize(
    ("rows", "collate", "message"),
    [
        ([{"labels": [1, 2], "loss_weights": [1.0]}], pad_with_tokens, "loss_weights"),
        ([{"labels": [1, 2], "loss_weights": [1.0, -1.0]}], pad_with_tokens, "loss_weights"),
        ([{"labels": [1, 2], "number_weights": [1.0, float("nan")]}], pad_with_tokens, "number_weights"),
        ([{"text": "5", "number_weights": [1.0]}], lambda rows: {"labels": torch.ones(1, 1)}, "input_ids"),
        (rows_of([5, 6, 7]), lambda rows: {"labels": torch.tensor([[6, 7]])}, "aligned"),
        (rows_of([5, 6, 7]), lambda rows: {"labels": torch.tensor([[7, 6, 5]])}, "aligned"),
    ],
    ids=["too few", "negative", "NaN", "no tokens", "truncated", "reversed"],
)
def test_weights_that_do_not_fit_are_errors(rows, collate, message):
    with pytest.raises(ValueError, match=message):
        WithColumns(collate)(rows)
