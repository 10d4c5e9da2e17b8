"""A step is the same however its batch is split: micro-batches, processes, sharded weights, chunked heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import integration_cases as cases
import pytest
import torch
from integration_cases import (
    ALONE,
    MODELS,
    ROWS,
    TOGETHER,
    Setting,
    Trained,
    number_aware_trainer,
    train,
    train_with,
    trainer_for,
)
from tolerances import HALF_PRECISION, ONE_COMPUTATION, TRAINED, approx, assert_close
from torch import Tensor
from transformers import LlamaForCausalLM, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer

from ntloss import NTLCrossEntropyLoss, NumberLevel
from ntloss.integrations.transformers import (
    NumberAwareLoss,
    NumberCountingMixin,
    WeightScheduleCallback,
    count_numbers,
    handle_of,
    make_number_aware,
    make_trainer_number_aware,
)

CLOSE = TRAINED[torch.float32]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """One process, batches of 8."""
    return {name: train(name, Setting(), tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Setting], Trained]:
    """What two processes made of every setting."""
    return cases.trained_together(tmp_path_factory.mktemp("two"))


def assert_same(trained: Trained, expected: Trained) -> None:
    losses, weights = trained.differences(expected)
    assert losses < CLOSE * max(expected.losses) + cases.LOSS_ROUNDING
    assert weights < CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_training_moves_weights_much_further_than_the_settings_may_differ(
    name: str, one: dict[str, Trained]
) -> None:
    before = MODELS[name]().state_dict()
    moved = [(one[name].weights[key] - weight).abs().max() for key, weight in before.items()]
    assert min(moved) > 10 * CLOSE


@pytest.mark.parametrize("setting", ALONE[1:], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_one_process_trains_the_same_in_micro_batches(
    name: str, setting: Setting, one: dict[str, Trained], tmp_path: Path
) -> None:
    # Some of them have no numbers, some no label at all.
    assert_same(train(name, setting, tmp_path), one[name])


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name in MODELS for setting in TOGETHER if cases.possible(name, setting)],
    ids=str,
)
def test_two_processes_train_the_same(
    name: str, setting: Setting, one: dict[str, Trained], two: dict[Any, Trained]
) -> None:
    assert_same(two[name, setting], one[name])


class _NoCounts(LlamaForCausalLM):
    accepts_loss_kwargs = False


@pytest.mark.parametrize(
    ("kind", "weight"),
    [(LlamaForCausalLM, 0.0), (LlamaForCausalLM, None), (_NoCounts, None)],
    ids=["weight of zero", "undone", "undone, no counts"],
)
def test_with_a_weight_of_zero_or_undone_a_trainer_trains_as_ever(
    kind: Any, weight: float | None, one: dict[str, Trained], tmp_path: Path
) -> None:
    weights = []
    for patched in (False, True):
        model = kind(cases.llama().config)
        model.load_state_dict(cases.llama().state_dict())
        trainer = trainer_for(model, tmp_path, accumulate=4)
        for row in trainer.train_dataset if weight is not None else ():
            row["labels"][0] = -100  # which nothing predicts, and older trainers count all the same
        if patched:
            handle = make_trainer_number_aware(trainer, cases.DIGITS, weight=weight)
            assert trainer.model_accepts_loss_kwargs
            if weight is None:
                handle.undo()
        weights.append(train_with(trainer).weights)
    assert_close(weights[0], weights[1], TRAINED)
    moved = [(weights[1][name] - weight).abs().max() for name, weight in one["llama"].weights.items()]
    assert max(moved) > 10 * CLOSE  # the number term takes part in the usual training


@pytest.mark.parametrize("way", ["own loss", "compute_loss_func"])
def test_only_a_batch_that_is_split_needs_counting(way: str, one: dict[str, Trained], tmp_path: Path) -> None:
    def uncounted(accumulate: int) -> Any:
        model, function = cases.llama(), None
        if way == "own loss":
            make_number_aware(model, cases.DIGITS)
        else:
            function = NumberAwareLoss(model, cases.DIGITS)
        return trainer_for(model, tmp_path, accumulate=accumulate, compute_loss_func=function)

    assert_same(train_with(uncounted(1)), one["llama"])
    with pytest.raises(ValueError, match=r"count_numbers\(trainer\)"):
        uncounted(4).train()


def number_aware_t5() -> Any:
    model = cases.t5()
    make_number_aware(model, cases.DIGITS)
    return model


@pytest.mark.parametrize("model_init", [None, number_aware_t5], ids=["a model", "one for each training"])
def test_the_mixin_serves_a_trainer_of_ones_own(
    model_init: Any, one: dict[str, Trained], tmp_path: Path
) -> None:
    class CountingTrainer(NumberCountingMixin, Seq2SeqTrainer):
        def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(model, *args, model_init=model_init, **kwargs)

    model = None if model_init else number_aware_t5()
    trainer = trainer_for(model, tmp_path, CountingTrainer, accumulate=4, arguments=Seq2SeqTrainingArguments)
    assert_same(train_with(trainer), one["t5"])


class _Simple(Trainer):
    """As in many a notebook."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class _HandingOn(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss = outputs.loss * (1 if num_items_in_batch is None else self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(
    ("kind", "accumulate"), [(_Simple, 1), (_HandingOn, 1), (_HandingOn, 4)], ids=["simple", "one", "four"]
)
def test_a_trainer_that_calls_the_model_itself_trains_the_same(
    kind: Any, accumulate: int, one: dict[str, Trained], tmp_path: Path
) -> None:
    trainer = number_aware_trainer(cases.llama(), tmp_path, cls=kind, accumulate=accumulate)
    assert_same(train_with(trainer), one["llama"])


@pytest.mark.parametrize("mode", ["add", "replace"])
def test_a_trainer_that_keeps_a_count_from_the_model_is_an_error(mode: str, tmp_path: Path) -> None:
    # Its loss would be the mean of each micro-batch, which nothing divides by the accumulation steps.
    trainer = trainer_for(cases.llama(), tmp_path, cls=_Simple, accumulate=4)
    make_trainer_number_aware(trainer, cases.DIGITS, mode=mode)
    with pytest.raises(ValueError, match=r"own compute_loss calls the model has to hand on"):
        trainer.train()


def test_an_encoder_decoder_gets_its_inputs_where_the_trainer_took_its_labels(tmp_path: Path) -> None:
    model = cases.t5()
    trainer = trainer_for(model, tmp_path, compute_loss_func=NumberAwareLoss(model, cases.DIGITS))
    inputs = cases.batch()
    # What the collator has made is left as it is.
    given = {**inputs, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(inputs["labels"])}
    with pytest.raises(ValueError, match=r"count_numbers\(trainer\)"):
        trainer.compute_loss(model, dict(given))
    count_numbers(trainer)
    loss = trainer.compute_loss(model, dict(inputs))
    assert_close(trainer.compute_loss(model, dict(given)), loss, ONE_COMPUTATION)
    with make_number_aware(model, cases.DIGITS):
        assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)


def test_compute_loss_func_has_what_a_trainer_does_not_hand_on(tmp_path: Path) -> None:
    model = cases.llama()
    ids = torch.tensor([[20, 4, 5, 6, 7, 8, 9, 21]])
    inputs = {"input_ids": ids, "labels": ids, "position_ids": torch.arange(8).view(1, -1) % 4}
    function = NumberAwareLoss(model, cases.DIGITS, criterion=NumberLevel())
    trainer = trainer_for(model, tmp_path, compute_loss_func=function)
    with pytest.raises(ValueError, match=r"packed sequences begin: call count_numbers\(trainer\)"):
        trainer.compute_loss(model, dict(inputs))
    count_numbers(trainer)
    loss = trainer.compute_loss(model, dict(inputs))
    shifted = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    assert_close(trainer.compute_loss(model, {**inputs, "shift_labels": shifted}), loss, ONE_COMPUTATION)
    with make_number_aware(model, cases.DIGITS, NumberLevel()):
        assert_close(model(**inputs).loss, loss, ONE_COMPUTATION)


def test_a_schedule_sets_the_weight_before_each_step(tmp_path: Path) -> None:
    trainer = trainer_for(cases.llama(), tmp_path, accumulate=4)
    handle = make_trainer_number_aware(trainer, cases.DIGITS, weight=0.5, chunked=True)
    seen = []

    def schedule(step: int) -> float:
        seen.append(step)
        return step / 2

    trainer.add_callback(WeightScheduleCallback(handle.loss, schedule))
    trainer.train()
    assert seen == [0, 1, 2]
    assert handle.loss.weight == 0.5


@pytest.mark.parametrize("chunked", [False, True])
def test_mixed_precision_training_is_close_and_can_be_undone(
    chunked: bool, one: dict[str, Trained], tmp_path: Path
) -> None:
    model = cases.llama()
    stock = model(**cases.batch()).loss
    trainer = trainer_for(model, tmp_path, bf16=True, max_steps=1)
    handle = make_trainer_number_aware(trainer, cases.DIGITS, chunked=chunked)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == approx(one["llama"].losses[0], HALF_PRECISION)
    trainer.save_model(str(tmp_path / "saved"))
    handle.undo()
    model.load_state_dict(cases.llama().state_dict())
    assert_close(model.float()(**cases.batch()).loss, stock, HALF_PRECISION)


def terms_of(model: Any, rows: list[dict[str, Tensor]]) -> dict[str, float]:
    """Both terms of all rows in one batch."""
    inputs = cases.stack(rows)
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=not model.config.is_encoder_decoder, return_terms=True)
    with torch.no_grad():
        terms = loss_fn(model.eval()(**inputs).logits, inputs["labels"])
    return {"ce": terms.ce.item(), "ntl": terms.ntl.item()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", cases.WAYS)
def test_evaluation_has_logits_and_both_terms_of_the_whole_set(name: str, way: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    # One batch; and some of 5 rows and of 4, with different counts of labels and numbers.
    trainer = number_aware_trainer(model, tmp_path, way, per_device_eval_batch_size=5)
    rows = cases.samples()
    trainer.eval_dataset = {"short": rows[4:ROWS], "long": rows}
    metrics = trainer.evaluate()
    logged = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    for dataset, part in trainer.eval_dataset.items():
        for term, wanted in terms_of(model, part).items():
            assert metrics[f"eval_{dataset}_{term}"] == logged[f"eval_{dataset}_{term}"] == approx(wanted)
    short = terms_of(model, rows[4:ROWS])
    assert metrics["eval_short_loss"] == approx(short["ce"] + 0.3 * short["ntl"])
    predictions, _, predicted = trainer.predict(rows)
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    assert logits.shape[-1] == cases.VOCAB
    assert {term: predicted[f"test_{term}"] for term in ("ce", "ntl")} == approx(terms_of(model, rows))
    unlabelled = [{key: value for key, value in row.items() if key != "labels"} for row in rows]
    if not model.config.is_encoder_decoder:
        assert "test_ce" not in trainer.predict(unlabelled).metrics
    if handle := handle_of(model):
        handle.undo()
        assert "eval_ce" not in trainer.evaluate(rows)


def test_a_metric_of_the_users_own_keeps_its_name(tmp_path: Path) -> None:
    trainer = trainer_for(cases.llama(), tmp_path)
    trainer.compute_metrics = lambda _: {"ce": -1.0}
    make_trainer_number_aware(trainer, cases.DIGITS)
    metrics = trainer.evaluate(cases.samples())
    assert metrics["eval_ce"] == -1.0
    assert metrics["eval_ntl"] > 0


def test_evaluation_by_generating_has_the_number_term_too(tmp_path: Path) -> None:
    model = cases.t5()
    options = {"arguments": Seq2SeqTrainingArguments, "predict_with_generate": True}
    trainer = trainer_for(model, tmp_path, Seq2SeqTrainer, **options)
    make_trainer_number_aware(trainer, cases.DIGITS, chunked=True)
    rows = cases.samples()[4:ROWS]
    prediction = trainer.predict(rows, max_new_tokens=3)
    assert prediction.predictions.shape[0] == len(rows)
    wanted = model(**cases.stack(rows)).loss.item()
    assert prediction.metrics["test_loss"] == approx(wanted, ONE_COMPUTATION)


def test_a_resumed_training_is_the_one_that_went_through(tmp_path: Path, one: dict[str, Trained]) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    number_aware_trainer(cases.llama(), tmp_path, accumulate=4, **options).train()
    second = number_aware_trainer(cases.llama(), tmp_path, accumulate=4)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_close(dict(second.model.state_dict()), one["llama"].weights, TRAINED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing= to make_number_aware"),
        ({"compute_loss_func": lambda *_, **__: None}, "leave compute_loss_func away"),
        (
            {
                "cls": lambda model, *args, **kwargs: Trainer(
                    None, *args, model_init=lambda: cases.llama(), **kwargs
                )
            },
            "model_init",
        ),
    ],
    ids=["label smoothing", "compute_loss_func", "model_init"],
)
def test_a_trainer_that_would_not_use_the_models_loss_is_an_error(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trainer = trainer_for(cases.llama(), tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        make_trainer_number_aware(trainer, cases.DIGITS)
    make_number_aware(trainer.model, cases.DIGITS)  # the error has left it as it was


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("args.use_liger_kernel", True, "chunked=True computes the loss without logits"),
        ("args._n_gpu", 2, "sees 2 GPUs and would copy the model"),
        ("get_sp_size", lambda: 2, "expected data, tensor or context parallelism"),
    ],
    ids=["Liger", "two GPUs", "shared sequences"],
)
def test_a_setup_in_which_the_number_term_would_be_lost_or_wrong_is_an_error(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    trainer = trainer_for(cases.llama(), tmp_path)
    owner = trainer.args if name.startswith("args.") else trainer
    setattr(owner, name.removeprefix("args."), value)  # one made so needs the library, or the GPUs
    with pytest.raises(ValueError, match=message):
        make_trainer_number_aware(trainer, cases.DIGITS)
    assert handle_of(trainer.model) is None


@pytest.mark.parametrize("way", cases.WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_any_label_trains_nothing(name: str, way: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    trainer = number_aware_trainer(model, tmp_path, way, accumulate=4, max_steps=1)
    for row in trainer.train_dataset:
        row["labels"][:] = -100
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == 0.0
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())


def test_label_smoothing_that_compute_loss_func_would_ignore_is_an_error(tmp_path: Path) -> None:
    model = cases.llama()
    function = NumberAwareLoss(model, cases.DIGITS)
    trainer = trainer_for(model, tmp_path, compute_loss_func=function, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match="is ignored by the Trainer"):
        count_numbers(trainer)


@pytest.mark.parametrize("line", [make_trainer_number_aware, count_numbers])
def test_a_model_where_a_trainer_is_expected_is_told(line: Any) -> None:
    with pytest.raises(TypeError, match="expected a Trainer, given LlamaForCausalLM"):
        line(cases.llama())


def test_a_trainer_without_a_number_loss_has_nothing_to_count(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no number-aware loss whose numbers"):
        count_numbers(trainer_for(cases.llama(), tmp_path))
    with pytest.raises(ValueError, match="pass the model's tokenizer"):
        make_trainer_number_aware(trainer_for(cases.llama(), tmp_path))
