"""Training does not depend on how a batch is split: micro-batches, processes, shards, chunked heads."""

import integration_cases as cases
import pytest
import torch
from integration_cases import (
    ALONE,
    MODELS,
    ROWS,
    TOGETHER,
    Setting,
    number_aware_trainer,
    train,
    train_with,
    trainer_for,
)
from tolerances import HALF_PRECISION, ONE_COMPUTATION, TRAINED, approx, assert_close
from transformers import LlamaForCausalLM, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer

from ntloss import HLGauss, NTLCrossEntropyLoss
from ntloss.integrations.transformers import (
    WeightScheduleCallback,
    handle_of,
    make_number_aware,
    make_trainer_number_aware,
)

CLOSE = TRAINED[torch.float32]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """One process, batches of 8."""
    return {name: train(name, Setting(), tmp_path_factory.mktemp(name)) for name in MODELS}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Results of two processes, for every setting."""
    return cases.trained_together(tmp_path_factory.mktemp("two"))


def assert_same(trained, expected):
    losses, weights = trained.differences(expected)
    assert losses < CLOSE * max(expected.losses) + cases.LOSS_ROUNDING
    assert weights < CLOSE


@pytest.mark.parametrize("name", MODELS)
def test_training_changes_weights_by_much_more_than_the_tolerance(name, one):
    before = MODELS[name]().state_dict()
    moved = [(one[name].weights[key] - weight).abs().max() for key, weight in before.items()]
    assert min(moved) > 10 * CLOSE


@pytest.mark.parametrize("setting", ALONE[1:], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_micro_batches_train_the_same_weights_in_one_process(name, setting, one, tmp_path):
    # Some micro-batches have no numbers, some no label at all.
    assert_same(train(name, setting, tmp_path), one[name])


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name in MODELS for setting in TOGETHER if cases.possible(name, setting)],
    ids=str,
)
def test_two_processes_train_the_same_weights(name, setting, one, two):
    assert_same(two[name, setting], one[name])


class _NoCounts(LlamaForCausalLM):
    accepts_loss_kwargs = False


@pytest.mark.parametrize(
    ("kind", "weight"),
    [(LlamaForCausalLM, 0.0), (LlamaForCausalLM, None), (_NoCounts, None)],
    ids=["weight of zero", "undone", "undone, no counts"],
)
def test_weight_zero_and_undo_restore_stock_training(kind, weight, one, tmp_path):
    weights = []
    for patched in (False, True):
        model = kind(cases.llama().config)
        model.load_state_dict(cases.llama().state_dict())
        trainer = trainer_for(model, tmp_path, accumulate=4)
        for row in trainer.train_dataset if weight is not None else ():
            row["labels"][0] = -100  # nothing predicts it, but older trainers count it
        if patched:
            handle = make_trainer_number_aware(trainer, cases.DIGITS, weight=weight)
            assert trainer.model_accepts_loss_kwargs
            if weight is None:
                handle.undo()
        weights.append(train_with(trainer).weights)
    assert_close(weights[0], weights[1], TRAINED)
    moved = [(weights[1][name] - weight).abs().max() for name, weight in one["llama"].weights.items()]
    assert max(moved) > 10 * CLOSE  # the number term changes training


def test_undo_restores_the_trainer_and_a_second_call_changes_nothing(tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path)
    callbacks, kind = [*trainer.callback_handler.callbacks], type(trainer)
    for _ in range(2):
        handle = make_trainer_number_aware(trainer, cases.DIGITS, HLGauss((8.0, 1.0)))
        made = [*trainer.callback_handler.callbacks]
        assert len(made) == len(callbacks) + 1
        assert make_trainer_number_aware(trainer) is handle
        assert trainer.callback_handler.callbacks == made
        handle.undo()
        assert type(trainer) is kind
        assert trainer.callback_handler.callbacks == callbacks


def number_aware_t5():
    model = cases.t5()
    make_number_aware(model, cases.DIGITS)
    return model


@pytest.mark.parametrize("model_init", [None, number_aware_t5], ids=["a model", "one for each training"])
def test_a_trainer_made_after_its_model_is_number_aware_trains_the_same_weights(model_init, one, tmp_path):
    def make(model, *args, **kwargs):
        return Seq2SeqTrainer(model, *args, model_init=model_init, **kwargs)

    model = None if model_init else number_aware_t5()
    trainer = trainer_for(model, tmp_path, make, accumulate=4, arguments=Seq2SeqTrainingArguments)
    assert_same(train_with(trainer), one["t5"])


def test_a_trainer_of_a_number_aware_model_keeps_its_loss_and_evaluates_both_terms(tmp_path):
    model = cases.llama()
    handle = make_number_aware(model, cases.DIGITS, weight=0.7)
    trainer = trainer_for(model, tmp_path)
    assert make_trainer_number_aware(trainer) is handle
    assert trainer.evaluate(cases.samples())["eval_ntl"] > 0
    with pytest.raises(ValueError, match="already number-aware"):
        make_trainer_number_aware(trainer, cases.DIGITS, weight=0.3)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_compute_loss_func_made_of_the_loss_trains_the_same_weights(accumulate, one, tmp_path):
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=True)

    def compute_loss(outputs, labels, num_items_in_batch=None):
        return loss_fn(outputs["logits"], labels, num_items_in_batch=num_items_in_batch)

    trainer = trainer_for(cases.llama(), tmp_path, accumulate=accumulate, compute_loss_func=compute_loss)
    assert_same(train_with(trainer), one["llama"])


class _Simple(Trainer):
    """Calls the model without counts, as many notebooks do."""

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class _PassingCounts(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        loss = outputs.loss * (1 if num_items_in_batch is None else self.accelerator.num_processes)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize(
    ("kind", "accumulate"),
    [(_Simple, 1), (_PassingCounts, 1), (_PassingCounts, 4)],
    ids=["simple", "one", "four"],
)
def test_a_trainer_with_its_own_compute_loss_trains_the_same_weights(kind, accumulate, one, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, cls=kind, accumulate=accumulate)
    assert_same(train_with(trainer), one["llama"])


@pytest.mark.parametrize("mode", ["add", "replace"])
def test_a_trainer_that_does_not_pass_its_count_to_the_model_is_an_error(mode, tmp_path):
    # Its loss would be the mean of each micro-batch, not divided by the accumulation steps.
    trainer = trainer_for(cases.llama(), tmp_path, cls=_Simple, accumulate=4)
    make_trainer_number_aware(trainer, cases.DIGITS, mode=mode)
    with pytest.raises(ValueError, match=r"own compute_loss calls the model has to pass on"):
        trainer.train()


def test_a_schedule_sets_the_weight_before_each_step(tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path, accumulate=4)
    handle = make_trainer_number_aware(trainer, cases.DIGITS, weight=0.5, chunked=True)
    seen = []

    def schedule(step):
        seen.append(step)
        return step / 2

    trainer.add_callback(WeightScheduleCallback(handle.loss, schedule))
    trainer.train()
    assert seen == [0, 1, 2]
    assert handle.loss.weight == 0.5
    callback = WeightScheduleCallback(handle.loss, lambda step: -1.0, weight=0.2)
    with pytest.raises(ValueError, match=r"weight=-0\.2: expected a finite number"):
        callback.on_step_begin(trainer.args, trainer.state, trainer.control)
    for loss, schedule_ in ((handle, schedule), (handle.loss, 0.5)):
        with pytest.raises(TypeError, match=r"expected a loss with a weight, such as handle\.loss"):
            WeightScheduleCallback(loss, schedule_)


@pytest.mark.parametrize("chunked", [False, True])
def test_mixed_precision_training_is_close_and_can_be_undone(chunked, one, tmp_path):
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


def terms_of(model, rows):
    """Both terms over all rows, as one batch."""
    inputs = cases.stack(rows)
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=not model.config.is_encoder_decoder, return_terms=True)
    with torch.no_grad():
        terms = loss_fn(model.eval()(**inputs).logits, inputs["labels"])
    return {"ce": terms.ce.item(), "ntl": terms.ntl.item()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", cases.WAYS)
def test_evaluation_returns_logits_and_both_terms_of_the_set(name, way, tmp_path):
    model = MODELS[name]()
    # One evaluation set is one batch, the other several, with different counts of labels and numbers.
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


def test_a_user_metric_of_the_same_name_has_precedence(tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path)
    trainer.compute_metrics = lambda _: {"ce": -1.0}
    make_trainer_number_aware(trainer, cases.DIGITS)
    metrics = trainer.evaluate(cases.samples())
    assert metrics["eval_ce"] == -1.0
    assert metrics["eval_ntl"] > 0


def test_predict_with_generate_includes_the_number_term(tmp_path):
    model = cases.t5()
    options = {"arguments": Seq2SeqTrainingArguments, "predict_with_generate": True}
    trainer = trainer_for(model, tmp_path, Seq2SeqTrainer, **options)
    make_trainer_number_aware(trainer, cases.DIGITS, chunked=True)
    rows = cases.samples()[4:ROWS]
    prediction = trainer.predict(rows, max_new_tokens=3)
    assert prediction.predictions.shape[0] == len(rows)
    wanted = model(**cases.stack(rows)).loss.item()
    assert prediction.metrics["test_loss"] == approx(wanted, ONE_COMPUTATION)


def test_resumed_training_reaches_the_same_weights(tmp_path, one):
    options = {"save_strategy": "steps", "save_steps": 2}
    number_aware_trainer(cases.llama(), tmp_path, accumulate=4, **options).train()
    second = number_aware_trainer(cases.llama(), tmp_path, accumulate=4)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_close(dict(second.model.state_dict()), one["llama"].weights, TRAINED)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing_factor": 0.1}, "label_smoothing= to make_number_aware"),
        ({"compute_loss_func": lambda *_, **__: None}, "omit compute_loss_func"),
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
def test_trainer_options_that_replace_the_models_loss_are_errors(options, message, tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        make_trainer_number_aware(trainer, cases.DIGITS)
    make_number_aware(trainer.model, cases.DIGITS)  # the error left the model unchanged


@pytest.mark.parametrize("name", MODELS)
def test_a_compute_loss_func_cannot_replace_the_number_aware_loss(name, tmp_path):
    trainer = number_aware_trainer(MODELS[name](), tmp_path)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch: outputs.logits.sum()
    with pytest.raises(ValueError, match="would replace the model's number-aware loss"):
        trainer.train()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("args.use_liger_kernel", True, "chunked=True also computes the loss without logits"),
        ("args._n_gpu", 2, "sees 2 GPUs and would copy the model"),
        ("get_sp_size", lambda: 2, "expected data, tensor or context parallelism"),
    ],
    ids=["Liger", "two GPUs", "shared sequences"],
)
def test_setups_that_lose_or_distort_the_number_term_are_errors(name, value, message, tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path)
    owner = trainer.args if name.startswith("args.") else trainer
    setattr(owner, name.removeprefix("args."), value)  # a real one would need the library, or GPUs
    with pytest.raises(ValueError, match=message):
        make_trainer_number_aware(trainer, cases.DIGITS)
    assert handle_of(trainer.model) is None


@pytest.mark.parametrize("way", cases.WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_without_labels_changes_no_weights(name, way, tmp_path):
    model = MODELS[name]()
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    trainer = number_aware_trainer(model, tmp_path, way, accumulate=4, max_steps=1)
    for row in trainer.train_dataset:
        row["labels"][:] = -100
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == 0.0
    assert all(torch.equal(weight, before[key]) for key, weight in model.state_dict().items())


def test_a_model_or_a_trainer_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="expected a Trainer, given LlamaForCausalLM"):
        make_trainer_number_aware(cases.llama())
    with pytest.raises(ValueError, match="pass the model's tokenizer"):
        make_trainer_number_aware(trainer_for(cases.llama(), tmp_path))
