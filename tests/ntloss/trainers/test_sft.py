"""TRL's SFTTrainer with a number-aware loss trains as without, plus the number term."""

from typing import Any

import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases
from processes import results_of
from tolerances import ONE_COMPUTATION, TRAINED, approx, assert_close
from transformers import PrinterCallback

from ntloss import NTLCrossEntropyLoss, number_level
from ntloss.numbers import sequence_ids_of
from ntloss.trainers import make_number_aware
from tests.ntloss.trainers.test_models import make

trl = pytest.importorskip("trl", "1.15", reason="needs TRL 1.15, which needs Python 3.11")
datasets = pytest.importorskip("datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
COMPLETIONS = [{"prompt": f"{i} a {i * 7}", "completion": f" {i * i} a. {i}"} for i in range(24)]
VOCAB = 300


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def sft(folder, peft_config=None, model=None, rows=None, **options):
    tokenizer = tiny_tokenizers.llama_like()
    tokenizer.pad_token = tokenizer.eos_token = "<unk>"
    own = {"bf16": False, "gradient_checkpointing": False}
    trainer = trl.SFTTrainer(
        cases.llama(vocab_size=VOCAB) if model is None else model,
        trl.SFTConfig(str(folder), **cases.PLAIN_STEPS | cases.split(1) | own | options),
        train_dataset=datasets.Dataset.from_list(COMPLETIONS if rows is None else rows),
        eval_dataset=datasets.Dataset.from_list(COMPLETIONS[:5]),
        processing_class=tokenizer,
        peft_config=peft_config,
    )
    trainer.remove_callback(PrinterCallback)
    return cases.in_order(trainer)


def number_aware_sft(folder, weight=0.7, chunked=None, **options):
    trainer = sft(folder, **options)
    make_number_aware(trainer, weight=weight, chunked=chunked)
    return trainer


def trained(trainer):
    weights = cases.train_with(trainer).weights
    return weights, [entry for entry in trainer.state.log_history if "loss" in entry]


def assert_same_training(found, expected, *names):
    """The same weights, and entries of these names in the log."""
    assert_close(found[0], expected[0], TRAINED)
    for entry, wanted in zip(found[1], expected[1], strict=True):
        for name in ("loss", *names):
            assert entry[name] == cases.logged(wanted[name]), name


WAYS: dict[str, dict[str, Any]] = {
    "completions": {},
    "whole text": {"completion_only_loss": False},
    "packing": {"packing": True, "max_length": 32, "per_device_train_batch_size": 2},
    "padding free": {"padding_free": True, "max_length": None},
}


@pytest.mark.parametrize("chunked", [None, False])
@pytest.mark.parametrize("way", WAYS)
def test_weight_zero_trains_and_logs_the_same_as_the_stock_loss(way, chunked, tmp_path):
    if way == "whole text" and cases.COUNTS_FIRST_LABEL:
        pytest.skip("this release also counts the first label, which nothing predicts")
    expected = trained(sft(tmp_path, **WAYS[way]))
    trainer = number_aware_sft(tmp_path, weight=0.0, chunked=chunked, **WAYS[way])
    assert_same_training(trained(trainer), expected, "entropy", "mean_token_accuracy", "num_tokens")


def mixture():
    return make("Mixtral", vocab_size=VOCAB, num_local_experts=4)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_routers_loss_is_added_once(accumulate, tmp_path):
    expected = trained(sft(tmp_path, model=mixture(), **cases.split(accumulate)))
    trainer = number_aware_sft(tmp_path, weight=0.0, model=mixture(), **cases.split(accumulate))
    assert_same_training(trained(trainer), expected, "aux_loss")


def test_micro_batches_train_the_same_weights(tmp_path):
    one, four = (number_aware_sft(tmp_path, **cases.split(accumulate)) for accumulate in (1, 4))
    assert_same_training(trained(one), trained(four))


# In the second half of each batch, which is the second rank's, completions have no numbers.
UNEVEN = [{**row, "completion": " a. a"} if i % 8 > 3 else row for i, row in enumerate(COMPLETIONS)]


def on_two(_rank, folder):
    """Train in each of two processes."""
    split = {"per_device_train_batch_size": 4, "ddp_backend": "gloo"}
    return trained(number_aware_sft(folder, rows=UNEVEN, **split))


@pytest.mark.slow
def test_two_processes_train_the_same_weights(tmp_path):
    of_two = results_of(on_two, (tmp_path,), tmp_path)
    assert_same_training(of_two[0], trained(number_aware_sft(tmp_path, rows=UNEVEN)))


def test_packed_sequences_are_separated(tmp_path):
    trainer = sft(
        tmp_path, packing=True, max_length=32, per_device_train_batch_size=1, completion_only_loss=False
    )
    inputs = next(iter(trainer.get_train_dataloader()))
    assert (inputs["position_ids"] == 0).sum() > 1
    model = trainer.model.train()
    unlabelled = {key: value for key, value in inputs.items() if key != "labels"}
    logits = model(
        **unlabelled, use_cache=False
    ).logits  # as the trainer calls it, because masks depend on it
    handle = make_number_aware(trainer, number_level)
    loss_fn = NTLCrossEntropyLoss(handle.loss.vocabulary, number_level, shift=True)
    sequence_ids = sequence_ids_of(inputs["position_ids"])
    expected = loss_fn(logits, loss_fn.prepare(inputs["labels"], sequence_ids=sequence_ids))
    assert_close(trainer.compute_loss(model, dict(inputs)), expected)


def peft_config_of(adapter):
    if adapter == "none":
        return None
    from tests.ntloss.trainers.test_adapters import lora  # skips the test without PEFT

    return lora(adapter, task_type="CAUSAL_LM")


@pytest.mark.parametrize("adapter", ["none", "head, too", "head trained whole", "tokens of the head"])
def test_the_loss_of_completions_equals_the_loss_from_their_logits(adapter, tmp_path):
    try:
        trainer = sft(tmp_path, peft_config=peft_config_of(adapter))
    except ValueError as error:
        if "adapter to `lm_head` is not supported" not in str(error):
            raise
        pytest.skip("this release of TRL refuses this adapter")
    model, inputs = trainer.model.train(), next(iter(trainer.get_train_dataloader()))
    logits = model(**{key: value for key, value in inputs.items() if key != "labels"}).logits
    handle = make_number_aware(trainer, weight=0.7)
    loss = NTLCrossEntropyLoss(handle.loss.vocabulary, weight=0.7, shift=True)(logits, inputs["labels"])
    assert (inputs["labels"] == -100).any()
    found_loss = trainer.compute_loss(model, dict(inputs))
    assert_close(found_loss, loss)
    trained_weights = [weight for weight in model.parameters() if weight.requires_grad]
    expected = torch.autograd.grad(loss, trained_weights)
    found = torch.autograd.grad(found_loss, trained_weights)
    for gradient, wanted in zip(found, expected, strict=True):
        assert wanted.abs().max() > 0
        assert_close(gradient, wanted)


def test_evaluation_keeps_the_trainers_metrics_and_undo_restores_its_loss(tmp_path):
    trainer = sft(tmp_path)
    stock = trainer.evaluate()
    handle = make_number_aware(trainer, weight=0.7)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] > stock["eval_loss"]
    assert metrics["eval_entropy"] == approx(stock["eval_entropy"], ONE_COMPUTATION)
    assert metrics["eval_ce"] == approx(stock["eval_loss"])
    assert metrics["eval_ce"] + 0.7 * metrics["eval_ntl"] == approx(metrics["eval_loss"])
    handle.undo()
    again = trainer.evaluate()
    assert again["eval_loss"] == approx(stock["eval_loss"], ONE_COMPUTATION)
    assert "eval_ce" not in again


@pytest.mark.parametrize("column", ["loss_weights", "number_weights"])
def test_weights_of_tokenized_rows_are_used(column, tmp_path):
    tokenizer = tiny_tokenizers.llama_like()
    rows = [{"input_ids": tokenizer(f"{i} a {i * i}").input_ids} for i in range(24)]
    rows = [{**row, column: [i % 3 / 2 for i in range(len(row["input_ids"]))]} for row in rows]
    trainer = number_aware_sft(tmp_path, rows=rows)
    inputs = next(iter(trainer.get_train_dataloader()))
    logits = trainer.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    loss_fn = NTLCrossEntropyLoss(trainer.compute_loss.__self__.loss.vocabulary, weight=0.7, shift=True)
    prepared = trainer.compute_loss.__self__.record_of(inputs)
    assert prepared._asdict()[column.removeprefix("loss_")].unique().tolist() == [0.0, 0.5, 1.0]
    expected = loss_fn(logits, prepared).detach()
    assert_close(trainer.compute_loss(trainer.model, dict(inputs)).detach(), expected)


def test_rows_that_are_packed_with_their_columns_keep_them(tmp_path):
    column, tokenizer = "number_weights", tiny_tokenizers.llama_like()
    ids = [tokenizer(f"{i} a {i * i}").input_ids for i in range(24)]
    rows = [{"input_ids": row, "labels": row, column: [i % 3 / 2 for i in range(len(row))]} for row in ids]
    packed = trl.pack_dataset(datasets.Dataset.from_list(rows), 32)
    trainer = number_aware_sft(tmp_path, rows=packed.to_list(), padding_free=True, max_length=None)
    inputs = next(iter(trainer.get_train_dataloader()))
    record = trainer.compute_loss.__self__.record_of(inputs)
    row = packed[0]
    width = len(row["input_ids"]) - 1
    assert record.number_weights[0, :width].tolist() == row[column][1:]


def test_another_objective_of_trl_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="dft"):
        make_number_aware(sft(tmp_path, loss_type="dft"))
    with pytest.raises(ValueError, match="label_smoothing_factor"):
        make_number_aware(sft(tmp_path, label_smoothing_factor=0.1))

    class DPOTrainer(type(sft(tmp_path)).__mro__[1]):
        """Stands for a trainer of TRL with another objective."""

    DPOTrainer.__module__ = "trl.trainer.dpo_trainer"
    other = object.__new__(DPOTrainer)
    other.compute_loss_func = None
    with pytest.raises(TypeError, match="DPOTrainer"):
        make_number_aware(other)
