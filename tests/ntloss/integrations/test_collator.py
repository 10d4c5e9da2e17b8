"""The column `number_weights` weighs the number term alone, in every trainer and however a batch is split."""

import pickle

import integration_cases as cases
import pytest
import tiny_tokenizers
import torch
from integration_cases import DIGITS, LENGTH, MODELS, ROWS, STEPS, WAYS, batch
from processes import results_of
from tolerances import ONE_COMPUTATION, TRAINED, approx, assert_close, assert_identical
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
)

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberLevel
from ntloss.integrations.callback import NumberMetricsCallback
from ntloss.integrations.collator import NumberWeightsCollator
from ntloss.integrations.transformers import make_number_aware, make_trainer_number_aware

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
EITHER_MODEL = pytest.mark.parametrize("name", MODELS)
EITHER_WAY = pytest.mark.parametrize("way", WAYS)


def weights_for(labels, seed=0):
    """Weights of 0, 1 and others, in float32."""
    chosen = torch.randint(4, labels.shape, generator=torch.manual_seed(seed))
    return torch.tensor([0.0, 1.0, 0.25, 3.0])[chosen]


def weighted_rows(count=ROWS * STEPS):
    rows = cases.samples(count)
    return [{**row, "number_weights": weights_for(row["labels"], i)} for i, row in enumerate(rows)]


def weighted_batch(rows=4, first=4):
    return cases.stack(weighted_rows(first + rows)[first:])


def expected_terms(model, inputs, criterion=None):
    stock = {name: value for name, value in inputs.items() if name != "number_weights"}
    with torch.no_grad():
        logits = model(**stock).logits
    loss_fn = NTLCrossEntropyLoss(
        DIGITS, criterion, shift=not model.config.is_encoder_decoder, return_terms=True
    )
    return loss_fn(logits, inputs["labels"], number_weights=inputs["number_weights"])


@EITHER_MODEL
@EITHER_WAY
@pytest.mark.parametrize("criterion", [None, NumberLevel()], ids=["digits", "whole numbers"])
def test_the_loss_equals_that_of_the_weighted_logits(name, way, criterion):
    model, inputs = MODELS[name](), weighted_batch()
    expected = expected_terms(model, inputs, criterion)
    unweighted = expected_terms(model, {**inputs, "number_weights": torch.ones(inputs["labels"].shape)})
    handle = make_number_aware(model, DIGITS, criterion, chunked=way == "chunked")
    assert_close(model(**inputs).loss, expected.loss)
    assert_close(handle.terms, tuple(term.detach() for term in expected))
    assert abs(float(expected.ntl - unweighted.ntl)) > 1e-3
    assert_close(expected.ce, unweighted.ce)


def test_packed_sequences_keep_their_weights():
    model, rows = cases.llama(), weighted_rows(ROWS)[4:]
    lists = [{name: row[name].tolist() for name in ("input_ids", "labels", "number_weights")} for row in rows]
    packed = NumberWeightsCollator(DataCollatorWithFlattening())(lists)
    assert packed["labels"].shape == packed["number_weights"].shape == (1, 4 * LENGTH)
    counted = packed["labels"][0] != -100
    weights = torch.cat([row["number_weights"] for row in rows])
    assert_identical(packed["number_weights"][0][counted], weights[counted])
    expected = expected_terms(model, packed)
    make_number_aware(model, DIGITS)
    assert_close(model(**packed).loss, expected.loss)


def trainer_with(model, folder, way="own loss", **options):
    trainer = cases.trainer_for(model, folder, **options)
    trainer.train_dataset = [{**row, "source": "a column that is unused"} for row in weighted_rows()]
    make_trainer_number_aware(trainer, DIGITS, chunked=way == "chunked")
    return trainer


def trained_in_a_loop(name):
    """Train on batches of 8 with the loss of the logits."""
    model = MODELS[name]()
    loss_fn = NTLCrossEntropyLoss(DIGITS, shift=not model.config.is_encoder_decoder)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=cases.RATE), []
    for step in range(STEPS):
        inputs = weighted_batch(ROWS, step * ROWS)
        weights = inputs.pop("number_weights")
        loss = loss_fn(model(**inputs).logits, inputs["labels"], number_weights=weights)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return cases.Trained(losses, {key: w.detach().clone() for key, w in model.state_dict().items()})


@pytest.fixture(scope="module")
def expected():
    """Losses and weights of a plain loop."""
    return {name: trained_in_a_loop(name) for name in MODELS}


def assert_same_training(trained, expected):
    assert trained.losses == cases.logged(expected.losses)
    assert_close(trained.weights, expected.weights, TRAINED)


@EITHER_MODEL
@pytest.mark.parametrize(("way", "accumulate"), [("own loss", 4), ("chunked", 1), ("chunked", 4)])
def test_a_trainer_trains_on_the_column_of_its_dataset(name, way, accumulate, expected, tmp_path):
    trainer = trainer_with(MODELS[name](), tmp_path, way, accumulate=accumulate)
    assert trainer.args.remove_unused_columns
    assert_same_training(cases.train_with(trainer), expected[name])


def test_a_trainer_with_its_own_compute_loss_trains_on_the_column(expected, tmp_path):
    class OwnTrainer(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **_):
            return model(**inputs).loss

    trainer = trainer_with(cases.llama(), tmp_path, cls=OwnTrainer)
    assert_same_training(cases.train_with(trainer), expected["llama"])
    with pytest.raises(ValueError, match=r"own compute_loss calls the model has to pass on"):
        trainer_with(cases.llama(), tmp_path, cls=OwnTrainer, accumulate=4).train()


def on_two(_rank, folder):
    options = {**cases.split(2, ranks=2), "ddp_backend": "gloo", "per_device_eval_batch_size": 2}
    trainer = trainer_with(cases.llama(), folder, **options)
    return cases.train_with(trainer), trainer.evaluate(trainer.train_dataset[4:11])


def test_two_processes_train_and_evaluate_as_one(expected, tmp_path):
    for trained, metrics in results_of(on_two, (tmp_path,), tmp_path):
        assert_same_training(trained, expected["llama"])
        model = cases.llama()
        model.load_state_dict(expected["llama"].weights)
        terms = expected_terms(model.eval(), weighted_batch(7, 4))  # the eighth row repeats one
        found = [metrics["eval_ce"], metrics["eval_ntl"]]
        assert found == approx([terms.ce.item(), terms.ntl.item()], TRAINED)


@EITHER_WAY
def test_evaluation_weighs_the_number_term_of_the_set(way, tmp_path):
    model = cases.t5()
    trainer = trainer_with(model, tmp_path, way, per_device_eval_batch_size=5)
    metrics = trainer.evaluate(trainer.train_dataset)
    rows = weighted_batch(ROWS * STEPS, 0)
    terms = expected_terms(model.eval(), rows)
    assert [metrics["eval_ce"], metrics["eval_ntl"]] == approx([terms.ce.item(), terms.ntl.item()])
    NumberMetricsCallback().attach(trainer)
    metrics = trainer.evaluate(trainer.train_dataset)
    assert metrics["eval_ntl"] == approx(terms.ntl.item())
    # Its other metrics cover all number tokens, also those of weight 0.
    assert metrics["eval_number_tokens"] == int(((rows["labels"] >= 3) & (rows["labels"] < 13)).sum())


def weights_by_token(ids):
    return ids % 5 / 4


SFT_WAYS = {
    "padded": {"max_length": None},
    "padding free": {"padding_free": True, "max_length": None},
    "packed before": {"padding_free": True, "max_length": None, "per_device_train_batch_size": 2},
}


@pytest.mark.parametrize("sft_way", SFT_WAYS)
def test_an_sft_trainer_trains_on_the_column(sft_way, tmp_path):
    pytest.importorskip("trl")
    from datasets import Dataset
    from trl import pack_dataset

    from ntloss.integrations.trl import make_sft_number_aware
    from tests.ntloss.integrations import test_trl as trl_tests

    tokenizer, rows = tiny_tokenizers.llama_like(), []
    for text in trl_tests.COMPLETIONS:
        ids = torch.tensor(tokenizer(text["prompt"] + text["completion"])["input_ids"])
        rows.append(
            {"input_ids": ids.tolist(), "labels": ids.masked_fill(torch.arange(len(ids)) < 3, -100).tolist()}
        )
        rows[-1]["number_weights"] = weights_by_token(ids).tolist()
    if sft_way == "packed before":
        rows = pack_dataset(Dataset.from_list(rows), 32).to_list()
        assert max(len(row["seq_lengths"]) for row in rows) > 1
    trainer = trl_tests.sft(tmp_path, rows=rows, **SFT_WAYS[sft_way])
    handle = make_sft_number_aware(trainer, weight=0.7)
    model, inputs = trainer.model.train(), next(iter(trainer.get_train_dataloader()))
    counted = inputs["labels"] != -100
    assert_identical(inputs["number_weights"][counted], weights_by_token(inputs["labels"][counted]))
    stock = {name: value for name, value in inputs.items() if name not in ("labels", "number_weights")}
    logits = model(**stock, use_cache=False).logits
    loss_fn = NTLCrossEntropyLoss(handle.loss.vocabulary, weight=0.7, shift=True)
    expected = loss_fn(logits, inputs["labels"], number_weights=inputs["number_weights"])
    assert_close(trainer.compute_loss(model, dict(inputs)), expected)
    assert abs(float(expected - loss_fn(logits, inputs["labels"]))) > 1e-3
    trainer.train()


@EITHER_MODEL
@EITHER_WAY
def test_the_loss_of_samples_equals_that_of_the_logits(name, way):
    model, inputs = MODELS[name](), batch()
    samples = torch.tensor([[1.0, 30.0], [5.0, torch.nan], [torch.nan] * 2, [7.0, 7.5]])
    with torch.no_grad():
        logits = model(**inputs).logits
    loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss(9.0), shift=not model.config.is_encoder_decoder)
    expected = loss_fn(logits, inputs["labels"], number_samples=samples)
    make_number_aware(model, DIGITS, HLGauss(9.0), chunked=way == "chunked")
    assert_close(model(**inputs, number_samples=samples).loss, expected)
    assert abs(float(expected - loss_fn(logits, inputs["labels"]))) > 1e-3
    if not model.config.is_encoder_decoder:  # position ids of rows that are padded, not packed
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        assert_close(model(**inputs, number_samples=samples).loss, expected)
        packed = torch.arange(inputs["labels"].shape[1]).expand_as(inputs["labels"]) % 3
        with pytest.raises(ValueError, match="these pack several sequences"):
            model(**{**inputs, "position_ids": packed}, number_samples=samples)


def test_a_trainer_trains_on_samples_and_follows_the_schedule(tmp_path):
    rows = [{**row, "number_samples": [3.0, 4.0][: 1 + i % 2]} for i, row in enumerate(cases.samples(ROWS))]
    collated = NumberWeightsCollator(cases.stack)(rows[:2])
    assert_close(collated["number_samples"], torch.tensor([[3.0, torch.nan], [3.0, 4.0]]))
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    trainer.train_dataset = rows
    criterion = HLGauss((8.0, 1.0))
    handle = make_trainer_number_aware(trainer, DIGITS, criterion)
    seen = []
    handle.loss.register_forward_pre_hook(lambda *_: seen.append(float(criterion.sigma)))
    trainer.train()
    assert seen[0] == 8.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 8.0 or trainer.state.max_steps == 1
    assert float(criterion.sigma) == 1.0


@pytest.mark.parametrize(("samples", "error"), [("many", TypeError), ([[1.0]], ValueError)])
def test_samples_that_are_no_list_of_numbers_are_errors(samples, error):
    with pytest.raises(error, match="row 0 of a batch has number_samples"):
        NumberWeightsCollator(cases.stack)([{"labels": [1], "number_samples": samples}])


def test_without_labels_the_weights_are_ignored():
    model, inputs = cases.llama(), batch()
    labels = inputs.pop("labels")
    expected = model(**inputs).logits
    make_number_aware(model, DIGITS)
    outputs = model(**inputs, number_weights=weights_for(labels))
    assert outputs.loss is None
    assert_close(outputs.logits, expected, ONE_COMPUTATION)


def lora_of(model):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q"], task_type="SEQ_2_SEQ_LM"))


@pytest.mark.parametrize("wrap", [lambda model: model, lora_of], ids=["model", "adapter"])
def test_generate_does_not_see_the_weights(wrap, tmp_path):
    own = cases.t5()
    model, inputs = wrap(own), weighted_batch()
    stock = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    expected = model.generate(**stock, max_new_tokens=3, do_sample=False)
    options = {"arguments": Seq2SeqTrainingArguments, "predict_with_generate": True}
    trainer = cases.trainer_for(model, tmp_path, Seq2SeqTrainer, **options)
    handle = make_trainer_number_aware(trainer, DIGITS)
    found = model.generate(
        **stock, number_weights=inputs["number_weights"], max_new_tokens=3, do_sample=False
    )
    assert_close(found, expected)
    prediction = trainer.predict(weighted_rows(ROWS)[4:], max_new_tokens=3)
    assert_close(torch.from_numpy(prediction.predictions)[:, : expected.shape[1]], expected)
    assert prediction.metrics["test_loss"] == approx(model.eval()(**inputs).loss.item(), ONE_COMPUTATION)
    handle.undo()
    assert "generate" not in vars(own)
    with pytest.raises(ValueError, match="number_weights"):
        model.generate(**stock, number_weights=inputs["number_weights"])


def test_the_column_of_a_dataset_is_kept_until_undo_restores_the_collator(tmp_path):
    dataset = pytest.importorskip("datasets").Dataset.from_list([{"input_ids": [1], "number_weights": [1.0]}])
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    collator = trainer.data_collator
    assert trainer._remove_unused_columns(dataset).column_names == ["input_ids"]
    handle = make_trainer_number_aware(trainer, DIGITS)
    assert trainer._remove_unused_columns(dataset).column_names == ["input_ids", "number_weights"]
    handle.undo()
    assert trainer._remove_unused_columns(dataset).column_names == ["input_ids"]
    assert trainer.data_collator is collator


class Tokenizer:
    """Pads like a tokenizer, on one side."""

    pad_token_id = 0

    def __init__(self, side):
        self.padding_side = side

    def pad(self, rows, **_):
        longest = max(len(row["input_ids"]) for row in rows)
        assert all(set(row) == {"input_ids"} for row in rows)
        padding = [[0] * (longest - len(row["input_ids"])) for row in rows]
        padded = [
            row["input_ids"] + more if self.padding_side == "right" else more + row["input_ids"]
            for row, more in zip(rows, padding, strict=True)
        ]
        return {"input_ids": torch.tensor(padded)}


UNEVEN = [
    {"input_ids": [7, 3, 7], "labels": [-100, 3, 7], "number_weights": [1.0, 0.5, 0.25]},
    {"input_ids": [7], "labels": [7], "number_weights": [2.0]},
    {"input_ids": [7, 7], "labels": [-100, 7]},
]


@pytest.mark.parametrize("multiple", [None, 5])
@pytest.mark.parametrize("encoder", [False, True], ids=["a decoder", "inputs of other lengths"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_weights_are_padded_where_the_labels_are(side, encoder, multiple):
    rows = [{**row, "input_ids": [7] * (3 - i)} if encoder else row for i, row in enumerate(UNEVEN[::-1])]
    collated = NumberWeightsCollator(DataCollatorForSeq2Seq(Tokenizer(side), pad_to_multiple_of=multiple))(
        rows
    )
    assert collated["number_weights"].shape == collated["labels"].shape
    for row, labels, weights in zip(rows, collated["labels"], collated["number_weights"], strict=True):
        count = len(row["labels"])
        own = slice(0, count) if side == "right" else slice(len(labels) - count, None)
        assert labels[own].tolist() == row["labels"]
        assert weights[own].tolist() == row.get("number_weights", [1.0] * count)
        assert weights.count_nonzero() == count


def test_labels_that_the_collator_makes_from_inputs_are_weighted():
    def collate(rows):
        padded = Tokenizer("left").pad(rows)
        return {**padded, "labels": padded["input_ids"].masked_fill(padded["input_ids"] == 0, -100)}

    rows = [{"input_ids": [5, 5, 6], "number_weights": [1, 2, 3]}, {"input_ids": [5], "number_weights": [4]}]
    assert NumberWeightsCollator(collate)(rows)["number_weights"].tolist() == [[1, 2, 3], [0, 0, 4]]


def test_without_the_column_the_collator_is_called_as_it_is():
    rows = [{"labels": [1, 2], "number_weights": None}, "not a dict"]
    collated = NumberWeightsCollator(lambda rows, *more: (rows, more))(rows, "pt")
    assert collated == ([{"labels": [1, 2]}, "not a dict"], ("pt",))
    unlabelled = NumberWeightsCollator(lambda rows: {"labels": None})([UNEVEN[0]])
    assert unlabelled == {"labels": None}


def test_the_collator_passes_on_attributes_and_can_be_pickled():
    collator = NumberWeightsCollator(DataCollatorWithFlattening(return_position_ids=False))
    assert pickle.loads(pickle.dumps(collator)).return_position_ids is False
    with pytest.raises(AttributeError):
        _ = collator.tokenizer


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"number_weights": [1.0] * 2},
            r"row 1 of a batch has number_weights of shape \[2\], but labels of shape \[1\]",
        ),
        ({"number_weights": 1.0}, r"row 1 .* of shape \[\], .*: expected one weight per label"),
        ({"number_weights": [-1.0]}, "row 1 of a batch has number_weights with -1.0: expected finite"),
        ({"number_weights": [float("nan")]}, "row 1 .* with nan: expected finite weights, 0 or more"),
        ({"labels": None, "input_ids": None}, "row 1 .* has neither labels nor input_ids"),
        ({"number_weights": [None]}, r"row 1 .* has number_weights \[None\]: expected one number"),
        ("not a dict", "row 1 of a batch with number_weights is a str: expected a dict"),
    ],
    ids=["too many", "a scalar", "negative", "NaN", "no tokens", "None", "text"],
)
def test_weights_that_do_not_fit_a_row_are_errors(row, message):
    collator = NumberWeightsCollator(DataCollatorForSeq2Seq(Tokenizer("right")))
    with pytest.raises((TypeError, ValueError), match=message):
        collator([UNEVEN[0], {**UNEVEN[1], **row} if isinstance(row, dict) else row])


def with_a_first_token(rows):
    pad = DataCollatorForSeq2Seq(Tokenizer("right"))
    return pad([{name: [1, *tokens] for name, tokens in row.items()} for row in rows])


def longest_first(rows):
    return DataCollatorForSeq2Seq(Tokenizer("right"))(sorted(rows, key=lambda row: -len(row["labels"])))


def truncated(rows):
    return DataCollatorForSeq2Seq(Tokenizer("right"))(
        [{name: tokens[-2:] for name, tokens in row.items()} for row in rows]
    )


def randomly_masked(rows):
    batch = DataCollatorForSeq2Seq(Tokenizer("right"))(rows)
    masked = torch.rand(batch["labels"].shape) < 0.5
    return {**batch, "labels": batch["labels"].masked_fill(masked, -100)}


@pytest.mark.parametrize("collate", [with_a_first_token, longest_first, truncated, randomly_masked])
def test_weights_follow_tokens_that_the_collator_adds_moves_drops_or_masks(collate):
    rows = [
        {"input_ids": [5, 6], "labels": [-100, 6], "number_weights": [2, 3]},
        {"input_ids": [7, 3, 2], "labels": [-100, 8, 9], "number_weights": [1, 4, 5]},
    ]
    for _ in range(5):
        batch = NumberWeightsCollator(collate)(rows)
        counted = batch["labels"] > 1
        weight_of = {6: 3, 8: 4, 9: 5}
        expected = [weight_of[token] for token in batch["labels"][counted].tolist()]
        assert batch["number_weights"][counted].tolist() == expected
        assert not batch["number_weights"][batch["labels"] == 1].any()


def test_collators_that_make_labels_of_their_own_are_errors():
    def changed(rows):
        batch = DataCollatorForSeq2Seq(Tokenizer("right"))(rows)
        return {**batch, "labels": torch.where(batch["labels"] == 3, 5, batch["labels"])}

    for collate in (changed, lambda rows: {"labels": torch.tensor([[7, 3]])}):
        with pytest.raises(ValueError, match=r"labels, of shape .*, are not those of its rows"):
            NumberWeightsCollator(collate)(UNEVEN)
    with pytest.raises(TypeError, match="returned a tuple: expected a dict with labels"):
        NumberWeightsCollator(lambda rows: (1, 2))(UNEVEN)


def test_a_collator_that_looks_for_a_token_is_an_error_that_says_what_to_do():
    def after_marker(rows):
        (row,) = rows
        marker = row["input_ids"].index(7)
        return {"labels": torch.tensor([[-100] * marker + row["input_ids"][marker:]])}

    rows = [{"input_ids": [5, 7, 3], "number_weights": [0, 0, 1]}]
    with pytest.raises(ValueError, match="give the rows labels, or let the collator make a column number_w"):
        NumberWeightsCollator(after_marker)(rows)
    with pytest.raises(ValueError, match="7 is not in list"):  # without it, the collator's own error
        NumberWeightsCollator(after_marker)([{"input_ids": [5], "number_weights": [1]}])


def test_weights_beside_shifted_labels_are_an_error():
    model, inputs = cases.llama(), weighted_batch()
    make_number_aware(model, DIGITS)
    shifted = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=-100)
    with pytest.raises(ValueError, match=r"number_weights are aligned with labels, .* omit shift_labels"):
        model(**inputs, shift_labels=shifted)


def test_weights_of_another_shape_than_the_labels_are_an_error():
    model, inputs = cases.llama(), weighted_batch()
    make_number_aware(model, DIGITS)
    inputs["number_weights"] = inputs["number_weights"][:, 1:]
    with pytest.raises(
        ValueError, match=r"number_weights of shape \[4, 8\]: expected that of the labels, \[4, 9\]"
    ):
        model(**inputs)
