"""The columns of the loss have the same effect however a batch is collated and split."""

import pickle
from functools import partial

import pytest
import tiny_tokenizers
import torch
import torch.nn.functional as F
import trainer_cases as cases
from processes import results_of
from tolerances import TRAINED, approx, assert_close
from trainer_cases import (
    DIGITS,
    LENGTH,
    MODELS,
    ROWS,
    STEPS,
    assert_same_training,
    number_aware_trainer,
    train_with,
)
from transformers import DataCollatorForSeq2Seq, DataCollatorWithFlattening, Trainer, default_data_collator

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary, SoftTargets, number_level
from ntloss.criteria.soft import pad_pairs
from ntloss.engine.targets import PreparedLabels
from ntloss.trainers import make_number_aware
from ntloss.trainers.columns import COLUMNS, PREPARED, collate
from ntloss.trainers.first_labels import NumberLabelsMissingWarning
from ntloss.trainers.number_aware import handle_of

datasets = pytest.importorskip("datasets")
# Criteria that read a column; NTL-WAS reads the weights.
CRITERIA = {"number_sigma": HLGauss(2.0), "soft_labels": "crps"}
EITHER_COLUMN = pytest.mark.parametrize("column", COLUMNS)
EITHER_WAY = pytest.mark.parametrize("way", cases.WAYS)


def weighted_rows(column, count=ROWS * STEPS):
    made, drawn = [], torch.Generator().manual_seed(0)
    for row in cases.samples(count):
        chosen = torch.randint(4, row["labels"].shape, generator=drawn)
        values = torch.tensor([0.0, 1.0, 0.25, 3.0])[chosen]
        if column == "soft_labels":  # raters who gave the label, or one of two digits
            is_number = (row["labels"] >= 3) & (row["labels"] < 13)
            values = [
                [[label, 0.5], [3, 0.25], [12, 0.25]] if soft and rated else []
                for label, soft, rated in zip(row["labels"].tolist(), chosen, is_number, strict=True)
            ]
        made.append({**row, column: values})
    return made


def as_lists(row):
    return {name: values.tolist() if hasattr(values, "tolist") else values for name, values in row.items()}


def stacked(loss_fn, rows, column):
    """A batch, and its labels with a column beside them."""
    inputs = cases.stack([{k: v for k, v in row.items() if k != column} for row in rows])
    if column != "soft_labels":
        name = {"loss_weights": "weights", "number_sigma": "sigma"}.get(column, column)
        beside = {name: torch.stack([row[column] for row in rows])}
    else:
        flat = pad_pairs([pairs for row in rows for pairs in row[column]])
        beside = {"soft": SoftTargets(*[each.reshape(*inputs["labels"].shape, -1) for each in flat])}
    return inputs, loss_fn.prepare(inputs["labels"], **beside)


def collator_of(collator, criterion=None):
    return partial(collate, NTLCrossEntropyLoss(DIGITS, criterion).term.reader, collator)


def record_of(collator, rows):
    return PreparedLabels.unpack(collator(rows)[PREPARED], collator.args[0])


def of_trainer(trainer):
    """The collator of a trainer's loaders."""
    return partial(collate, handle_of(trainer).loss.term.reader, trainer.data_collator)


def train_plainly(name, column, criterion=None):
    """Train in a plain loop over whole steps, whose weighted mean the loss computes."""
    criterion = CRITERIA.get(column, "ntl_was") if criterion is None else criterion
    prepare = partial(stacked, column=column)
    return cases.train_plainly(name, criterion, prepare=prepare, rows=weighted_rows(column))


@pytest.mark.parametrize(
    ("column", "criterion"),
    [*((column, CRITERIA.get(column, "ntl_was")) for column in COLUMNS), ("number_weights", number_level)],
)
@EITHER_WAY
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_trainer_trains_the_weights_of_a_plain_loop(name, accumulate, way, column, criterion, tmp_path):
    loss = {"criterion": criterion}
    trainer = number_aware_trainer(MODELS[name](), tmp_path, way, loss, accumulate=accumulate)
    trainer.train_dataset = datasets.Dataset.from_list([*map(as_lists, weighted_rows(column))])
    assert_same_training(train_with(trainer), train_plainly(name, column, criterion))


class _Naming(Trainer):
    """Names the inputs of its model, as many notebooks do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        names = ("input_ids", "attention_mask", "labels")
        outputs = model(**{name: inputs[name] for name in names}, num_items_in_batch=num_items_in_batch)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


@EITHER_COLUMN
def test_columns_need_not_be_named_in_a_compute_loss_of_ones_own(column, tmp_path):
    loss = {"criterion": CRITERIA.get(column, "ntl_was")}
    trainer = number_aware_trainer(cases.llama(), tmp_path, loss=loss, cls=_Naming)
    trainer.train_dataset = weighted_rows(column)
    assert_same_training(train_with(trainer), train_plainly("llama", column))
    if column == "number_sigma":
        widths = [
            part.rpartition("± ")[2] for part in trainer.state.log_history[0]["first_numbers"].split(", ")
        ]
        assert {*widths} <= {"2", "1", "0.25", "3"}
        assert {*widths} - {"2"}


class _Reversing(Trainer):
    """Reverses the rows of a batch, with the columns that it names."""

    names = ("input_ids", "attention_mask", "labels")

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        given = {name: inputs[name].flip(0) for name in self.names}
        outputs = model(**given, num_items_in_batch=num_items_in_batch)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class _Editing(Trainer):
    """Writes other labels, in place or into a copy."""

    in_place = True

    def compute_loss(self, model, inputs, *args, **kwargs):
        labels = inputs["labels"] if self.in_place else inputs["labels"].clone()
        labels[:, 2:4] = 3
        return super().compute_loss(model, {**inputs, "labels": labels}, *args, **kwargs)


OF_FIELDS = HLGauss.for_fields({"first": [1, 90], "second": [1, 2]}, by="order")


@pytest.mark.parametrize("criterion", [HLGauss(20.0), OF_FIELDS], ids=["one width", "fields"])
@pytest.mark.parametrize("in_place", [True, False])
def test_numbers_and_widths_are_those_of_labels_that_a_subclass_changes(in_place, criterion, tmp_path):
    rows, places = cases.samples()[4:ROWS], torch.tensor([2, 3])
    edited = [{**row, "labels": row["labels"].index_fill(0, places, 3)} for row in rows]
    editing = type("_Own", (_Editing,), {"in_place": in_place})
    losses = []
    for cls, given in ((Trainer, edited), (editing, rows)):
        trainer = number_aware_trainer(cases.llama(), tmp_path, loss={"criterion": criterion}, cls=cls)
        losses.append(cases.gradients(trainer, **of_trainer(trainer)(given))[0].item())
    assert losses[0] == approx(losses[1])


class _ReversingWeights(_Reversing):
    names = (*_Reversing.names, PREPARED)


@pytest.mark.parametrize("cls", [_Reversing, _ReversingWeights])
@pytest.mark.parametrize("criterion", ["ntl_was", number_level, "ntil"])
def test_other_labels_have_numbers_and_weights_of_their_own(criterion, cls, tmp_path):
    rows = weighted_rows("number_weights")
    names = ("input_ids", "attention_mask", "labels")
    plain_rows = [{name: row[name] for name in names} for row in rows]
    found = []
    for kind, own in ((Trainer, rows if cls is _ReversingWeights else plain_rows), (cls, rows)):
        trainer = number_aware_trainer(cases.llama(), tmp_path, loss={"criterion": criterion}, cls=kind)
        metrics = trainer.evaluate(own)
        loss, gradients = cases.gradients(trainer, **of_trainer(trainer)(own[:ROWS]))
        found.append((loss.item(), metrics["eval_loss"], gradients))
    (usual, usual_evaluated, expected), (loss, evaluated, gradients) = found
    assert (loss, evaluated) == approx((usual, usual_evaluated))
    assert_close(gradients, expected, TRAINED)


def on_two(_rank, folder, column):
    options = {"ddp_backend": "gloo", **cases.split(2, 2)}
    loss = {"criterion": CRITERIA.get(column, "ntl_was")}
    trainer = number_aware_trainer(cases.llama(), folder, loss=loss, **options)
    trainer.train_dataset = weighted_rows(column)
    return train_with(trainer)


@pytest.mark.slow
@EITHER_COLUMN
def test_two_processes_train_the_weights_of_a_plain_loop(column, tmp_path):
    for trained in results_of(on_two, (tmp_path, column), tmp_path):
        assert_same_training(trained, train_plainly("llama", column))


@EITHER_COLUMN
@pytest.mark.parametrize("size", [1, 5, 24])
def test_an_evaluation_is_weighted_whatever_the_size_of_its_batches(size, column, tmp_path):
    model, rows = cases.llama(), weighted_rows(column)
    criterion = CRITERIA.get(column, "ntl_was")
    trainer = number_aware_trainer(
        model, tmp_path, loss={"criterion": criterion}, per_device_eval_batch_size=size
    )
    metrics = trainer.evaluate(rows)
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion, shift=True)
    inputs, labels = stacked(loss_fn, rows, column)
    with torch.no_grad():
        logits = model(**inputs).logits
        terms = loss_fn.terms(logits, labels)
        ce = NTLCrossEntropyLoss(DIGITS, None, shift=True)(logits, labels)
    wanted = {"eval_loss": terms.loss.item(), "eval_ce": ce.item(), "eval_ntl": terms.ntl.item()}
    assert {name: metrics[name] for name in wanted} == approx(wanted)


def test_a_collator_may_make_the_column_itself(tmp_path):
    def collate(rows):
        batch = default_data_collator(rows)
        return {**batch, "loss_weights": torch.zeros(batch["labels"].shape)}

    trainer = number_aware_trainer(cases.llama(), tmp_path, accumulate=2)
    trainer.data_collator = collate
    assert train_with(trainer).losses == [0.0] * STEPS


@pytest.mark.parametrize("call", ["train", "evaluate", "evaluate all", "predict"])
@pytest.mark.parametrize("kind", ["dataset", "rows"])
def test_a_column_that_is_almost_called_so_is_an_error(kind, call, tmp_path):
    rows = [{**row, "number_weight": torch.ones(LENGTH)} for row in cases.samples()]
    rows = datasets.Dataset.from_list([*map(as_lists, rows)]) if kind == "dataset" else rows
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    trainer.eval_dataset = {"right": cases.samples(), "wrong": rows}
    if call == "train":
        trainer.train_dataset = rows
    given = [rows] if call in ("evaluate", "predict") else []
    with pytest.raises(ValueError, match="number_weights"):
        getattr(trainer, call.partition(" ")[0])(*given)


def test_such_a_column_is_an_error_in_a_batch_of_ones_own_loader(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    with pytest.raises(ValueError, match="number_weights"):
        cases.gradients(trainer, **cases.batch(), number_weight=torch.ones(4, LENGTH))


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
    collate = collator_of(DataCollatorForSeq2Seq(tokenizer))
    assert record_of(collate, ROWS_OF_TWO_LENGTHS).weights.tolist() == expected


def test_weights_of_joined_rows_are_joined():
    record = record_of(collator_of(DataCollatorWithFlattening()), ROWS_OF_TWO_LENGTHS)
    assert record.weights.tolist() == [[1.0, 2.0, 3.0, 11.0, 12.0]]


def pad_with_tokens(rows):
    longest = max(len(row["labels"]) for row in rows)
    return {"labels": torch.tensor([row["labels"] + [0] * (longest - len(row["labels"])) for row in rows])}


def test_labels_may_be_padded_with_a_token():
    record = record_of(collator_of(pad_with_tokens), ROWS_OF_TWO_LENGTHS)
    assert record.weights.tolist()[1] == [11.0, 12.0, 0.0]


def test_labels_may_be_ignored_and_may_come_from_the_ids():
    def ignoring(rows):
        ids = torch.tensor([row["input_ids"] for row in rows])
        return {"labels": ids.masked_fill(ids < 6, -100)}

    rows = [{"input_ids": [5, 6, 7], "number_weights": [0.5, 1, 2]}, {"input_ids": [6, 5, 5]}]
    found = record_of(collator_of(ignoring), rows).number_weights
    assert found.tolist() == [[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]]


def test_a_batch_without_the_columns_or_without_labels_stays_as_it_is():
    rows = [{"input_ids": [1, 2]}]
    collate = collator_of(default_data_collator)
    assert collate(rows).keys() == {"input_ids"}
    assert collate([{**rows[0], "loss_weights": [1, 1]}]).keys() == {"input_ids"}


def test_the_collator_of_a_loader_can_be_pickled_and_the_trainers_stays_the_callers(tmp_path):
    collator = DataCollatorForSeq2Seq(padded_tokenizer())
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    trainer.data_collator = collator
    make_number_aware(trainer, vocabulary=DIGITS)
    loader = trainer.get_train_dataloader()
    assert trainer.data_collator is collator
    collator.pad_to_multiple_of = 4
    row = {"input_ids": [5, 6], "labels": [5, 6], "loss_weights": [1.0, 2.0]}
    for bound in (loader.collate_fn, pickle.loads(pickle.dumps(loader.collate_fn))):
        record = PreparedLabels.unpack(bound([row])[PREPARED], handle_of(trainer).loss.term.reader)
        assert record.weights[0, :3].tolist() == [2.0, 0.0, 0.0]  # of the next labels


def reads_both(log_probs, target_probs, number_sigma=None):
    return (log_probs * target_probs).sum(-1)


def test_soft_labels_and_widths_are_padded_as_the_labels_are():
    rows = [
        {"labels": [5, 6, 7], "soft_labels": [[], [[6, 0.5], [7, 0.5]], None], "number_sigma": [1, None, 2]},
        {"labels": [4, 8], "soft_labels": [[[4, 1.0]], []]},
    ]
    record = record_of(collator_of(pad_with_tokens, reads_both), rows)
    assert record.soft.token_ids.tolist() == [[[0, 0], [6, 7], [0, 0]], [[4, 0], [0, 0], [0, 0]]]
    assert record.soft.weights.tolist() == [[[0, 0], [0.5, 0.5], [0, 0]], [[1, 0], [0, 0], [0, 0]]]
    assert record.sigma.nan_to_num().tolist() == [[1, 0, 2], [0, 0, 0]]


@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_soft_labels_of_a_formatted_table_are_those_of_its_lists(form):
    table = datasets.Dataset.from_list(
        [{"labels": [5, 6], "soft_labels": [[], [[6, 0.5], [7, 0.5]]]}, {"labels": [4], "soft_labels": [[]]}]
    )
    rows = [{**row, "labels": row["labels"].tolist()} for row in table.with_format(form)]
    collate = collator_of(pad_with_tokens, "crps")
    expected, found = (record_of(collate, each).soft for each in (list(table), rows))
    assert_close([*found], [*expected])


@pytest.mark.parametrize("column", COLUMNS)
def test_an_empty_column_is_in_a_batch_if_it_is_one_of_weights(column):
    batch = collator_of(pad_with_tokens)([{"labels": [5, 6], column: None}, {"labels": [4]}])
    assert (PREPARED in batch) == column.endswith("weights")


def padded_tokenizer():
    tokenizer = tiny_tokenizers.qwen_like()
    tokenizer.pad_token = "x"
    return tokenizer


def test_widths_of_fields_need_no_column(tmp_path):
    tokenizer = padded_tokenizer()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    model = cases.llama(vocab_size=vocabulary.vocab_size)
    texts = ["size: 12, dose=0.5", "size: 3, dose=0.25"] * 2
    rows = [{"input_ids": ids, "labels": ids} for ids in tokenizer(texts)["input_ids"]]
    criterion = HLGauss.for_fields({"size": [3, 12], "dose": [0.25, 0.5]})
    trainer = cases.trainer_for(model, tmp_path, accumulate=2)
    trainer.train_dataset, trainer.data_collator = rows, DataCollatorForSeq2Seq(tokenizer)
    handle = make_number_aware(trainer, criterion, vocabulary=vocabulary)
    batch, sigma = trainer.data_collator(rows), record_of(of_trainer(trainer), rows).sigma
    assert_close(sigma, handle.loss.prepare(batch["labels"]).sigma.double())
    assert sorted({round(width, 4) for width in sigma.flatten().tolist()}) == [0, 0.0688, 2.475]
    of_field = sigma[0]  # of the next label
    given = F.pad(torch.where(of_field > 2, 1.5, 0.0), (1, 0))[:-1]  # another size, none for the dose
    row = record_of(of_trainer(trainer), [{**rows[0], "number_sigma": given.tolist()}]).sigma[0]
    assert_close(row, torch.where(of_field > 2, 1.5, of_field))
    losses = train_with(trainer).losses
    assert len(losses) == STEPS
    assert all(map(torch.isfinite, torch.tensor(losses)))


def trainer_of(texts, folder, fields, is_stream=False):
    tokenizer = padded_tokenizer()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    rows = [{"input_ids": ids, "labels": ids} for ids in tokenizer(texts)["input_ids"]]
    trainer = cases.trainer_for(cases.llama(vocab_size=vocabulary.vocab_size), folder, accumulate=8)
    trainer.train_dataset, trainer.data_collator = rows, DataCollatorForSeq2Seq(tokenizer)
    if is_stream:
        trainer.train_dataset = datasets.Dataset.from_list(rows).to_iterable_dataset()
    make_number_aware(trainer, HLGauss.for_fields(fields), vocabulary=vocabulary)
    return trainer


def test_fields_are_an_error_if_the_labels_have_none_of_them(tmp_path):
    trainer = trainer_of(["size: 12", "size: 3"], tmp_path, {"dose": [1, 2], "Size (m)": [3, 12]})
    with pytest.raises(ValueError, match="dose"):
        trainer.train()


@pytest.mark.parametrize(
    ("texts", "is_stream"),
    [
        (["size: 12"] * 100 + ["dose: 3"] * 100, False),
        (["size: 12", "dose: 3"] * 12, True),
        (["none"] * 12 + ["size: 12", "dose: 3"] * 6, True),
    ],
    ids=["late", "not in the first batch of a stream", "none in the first batch of a stream"],
)
def test_training_goes_on_if_a_field_is_not_in_the_first_rows(texts, is_stream, tmp_path):
    trainer = trainer_of(texts, tmp_path, {"size": [3, 12], "dose": [1, 2]}, is_stream)
    with pytest.warns(NumberLabelsMissingWarning, match="dose"):
        assert len(train_with(trainer).losses) == STEPS


@pytest.mark.parametrize(
    ("rows", "collate", "message"),
    [
        ([{"labels": [1, 2], "loss_weights": [1.0]}], pad_with_tokens, "loss_weights"),
        ([{"labels": [1, 2], "loss_weights": [1.0, -1.0]}], pad_with_tokens, "weights"),
        ([{"labels": [1, 2], "number_weights": [1.0, float("nan")]}], pad_with_tokens, "number_weights"),
        ([{"text": "5", "number_weights": [1.0]}], lambda rows: {"labels": torch.ones(1, 1)}, "input_ids"),
        (rows_of([5, 6, 7]), lambda rows: {"labels": torch.tensor([[6, 7]])}, "aligned"),
        (rows_of([5, 6, 7]), lambda rows: {"labels": torch.tensor([[7, 6, 5]])}, "aligned"),
        ([{"labels": [1, 2], "number_sigma": [1.0, -1.0]}], pad_with_tokens, "sigma"),
        ([{"labels": [1, 2], "soft_labels": [[1, 0.5], []]}], pad_with_tokens, "soft_labels"),
    ],
    ids=["too few", "negative", "NaN", "no tokens", "truncated", "reversed", "negative width", "one pair"],
)
def test_weights_that_do_not_fit_are_errors(rows, collate, message):
    with pytest.raises(ValueError, match=message):
        collator_of(collate)(rows)
