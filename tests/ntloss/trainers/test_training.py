"""A number-aware trainer trains and evaluates as a plain loop does, and `undo` restores it."""

import pickle

import numpy as np
import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases
from accelerate.state import GradientState
from graphs import functions_entered
from processes import results_of
from tokenizers import Tokenizer, models
from tolerances import HALF_PRECISION, ONE_COMPUTATION, TRAINED, approx, assert_close, assert_identical
from trainer_cases import MODELS, ROWS, STEPS, assert_same_training, number_aware_trainer, train_with
from transformers import (
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
)

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary, number_level
from ntloss.numbers import LabelNumbers
from ntloss.trainers import make_number_aware
from ntloss.trainers.columns import PREPARED
from ntloss.trainers.first_labels import NumberLabelsMissingWarning
from ntloss.trainers.number_aware import NumberAware, handle_of

CLOSE = TRAINED[torch.float32]
EITHER_MODEL = pytest.mark.parametrize("name", MODELS)
EITHER_WAY = pytest.mark.parametrize("way", cases.WAYS)


@pytest.fixture(scope="module")
def one():
    """A plain loop over batches of 8."""
    return {name: cases.train_plainly(name) for name in MODELS}


@EITHER_MODEL
def test_training_changes_weights_by_much_more_than_the_tolerance(name, one):
    before = MODELS[name]().state_dict()
    moved = [(one[name].weights[key] - weight).abs().max() for key, weight in before.items()]
    assert min(moved) > 10 * CLOSE


@EITHER_WAY
@EITHER_MODEL
def test_a_falling_width_follows_the_steps_of_training(name, way, tmp_path):
    criterion = HLGauss((2.0, 0.2))
    expected = cases.train_plainly(name, criterion, 6, lambda loss_fn, step: loss_fn.anneal(step / 6))
    loss = {"criterion": HLGauss((2.0, 0.2))}
    trainer = number_aware_trainer(MODELS[name](), tmp_path, way, loss, accumulate=2, max_steps=6)
    trainer.train_dataset = cases.samples(6 * ROWS)
    assert_same_training(train_with(trainer), expected)
    trainer.evaluate(cases.samples())
    assert float(loss["criterion"].sigma) == approx(0.2)


class _Anneal(TrainerCallback):
    def __init__(self, loss_fn):
        self.loss_fn = loss_fn

    def on_step_begin(self, args, state, control, **kwargs):
        self.loss_fn.anneal(state.global_step / state.max_steps)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_models_loss_function_trains_as_the_one_line(accumulate, tmp_path):
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, HLGauss((2.0, 0.2)), shift=True)

    def number_aware_loss(logits, labels, vocab_size, num_items_in_batch=None, **others):
        return loss_fn(logits, labels, count=num_items_in_batch)

    model = cases.llama()
    model.loss_function = number_aware_loss
    trainer = cases.trainer_for(model, tmp_path, accumulate=accumulate)
    trainer.add_callback(_Anneal(loss_fn))
    given = {"criterion": HLGauss((2.0, 0.2))}
    expected = number_aware_trainer(cases.llama(), tmp_path, loss=given, accumulate=accumulate)
    assert_same_training(train_with(trainer), train_with(expected))


class _NoCounts(LlamaForCausalLM):
    accepts_loss_kwargs = False


@pytest.mark.parametrize("way", ["weight of zero", "undone", "undone by another's undo", "with block"])
@pytest.mark.parametrize("kind", [LlamaForCausalLM, _NoCounts])
def test_weight_zero_and_undo_train_as_the_stock_trainer(kind, way, one, tmp_path):
    if way == "weight of zero" and kind is _NoCounts:
        pytest.skip("stock training depends on how a batch is split")
    weights = []
    for patched in (False, True):
        model = kind(cases.llama().config)
        model.load_state_dict(cases.llama().state_dict())
        trainer = cases.trainer_for(model, tmp_path, accumulate=4)
        before = dict(vars(trainer))
        if patched:
            handle = make_number_aware(trainer, weight=0.0 if "zero" in way else 0.3, vocabulary=cases.DIGITS)
            if way == "with block":
                with handle:
                    pass
            elif "undone" in way:
                if "another" in way:
                    handle = make_number_aware(trainer, "crps", vocabulary=cases.DIGITS)
                handle.undo()
            if "zero" not in way:
                after = vars(trainer)
                assert after.keys() - before.keys() == set()
                assert all(
                    after[name] is value for name, value in before.items() if name != "_signature_columns"
                )
        weights.append(train_with(trainer).weights)
    assert_close(weights[0], weights[1], TRAINED)
    moved = [(weights[1][name] - weight).abs().max() for name, weight in one["llama"].weights.items()]
    assert max(moved) > 10 * CLOSE  # the number term changes training


@pytest.mark.parametrize("name", ["pad", "eos"])
def test_number_tokens_that_are_special_to_the_tokenizer_are_an_error(name, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)  # and stays so
    tokens = {text: i for i, text in enumerate(["<pad>", "<end>", *"0123456789"])}
    backend = Tokenizer(models.WordLevel(tokens, "<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<end>")
    trainer.processing_class = tokenizer
    special = getattr(tokenizer, f"{name}_token_id")
    levels = NumberVocabulary.from_mapping({3: 1.0, special: 10.0}, vocab_size=cases.VOCAB)
    before = dict(vars(trainer))
    with pytest.raises(ValueError, match=name):
        make_number_aware(trainer, vocabulary=levels)
    assert vars(trainer) == before


def test_a_second_call_replaces_the_first(one, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, loss={"weight": 7.0})
    callbacks = list(trainer.callback_handler.callbacks)
    make_number_aware(trainer, vocabulary=cases.DIGITS)
    assert trainer.callback_handler.callbacks == callbacks
    assert_same_training(train_with(trainer), one["llama"])


def test_a_trainer_keeps_its_class_and_can_be_pickled(tmp_path):
    GradientState._reset_state()  # after other training in this process, no Trainer can be pickled
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    assert type(trainer) is Trainer
    del trainer._get_train_sampler  # a function of these tests
    again = pickle.loads(pickle.dumps(trainer))
    inputs = cases.batch()
    losses = [each.compute_loss(each.model, dict(inputs)) for each in (trainer, again)]
    assert_close(losses[1], losses[0], ONE_COMPUTATION)


class _Simple(Trainer):
    """Calls the model without counts, as many notebooks do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class _Averaged(_Simple):
    """Says that its losses are means of batches, as transformers advises from 5.19 on."""

    loss_is_scaled_for_ga = False


class _Adding(Trainer):
    """Adds to the loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.calls = getattr(self, "calls", 0) + 1
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


class _WithKeywords(_Simple):
    """Takes the count as one of any keywords, which is how most notebooks mend an old signature."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)


class _InAnotherOrder(_Simple):
    def compute_loss(self, model, inputs, num_items_in_batch=None, return_outputs=False):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)


@pytest.mark.parametrize("kind", [_Simple, _Averaged, _Adding, _WithKeywords, _InAnotherOrder])
def test_a_compute_loss_of_a_subclass_is_called_with_the_number_aware_loss(kind, one, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, cls=kind, accumulate=4)
    assert_same_training(train_with(trainer), one["llama"])
    assert kind is not _Adding or trainer.calls == 4 * STEPS


def simple_on_two(_rank, folder):
    trainer = number_aware_trainer(
        cases.llama(), folder, cls=_Simple, ddp_backend="gloo", **cases.split(1, 2)
    )
    with pytest.raises(ValueError, match="num_items_in_batch"):
        trainer.train()


@pytest.mark.slow
def test_a_compute_loss_without_counts_is_an_error_in_several_processes(tmp_path):
    results_of(simple_on_two, (tmp_path,), tmp_path)


@EITHER_WAY
def test_mixed_precision_training_is_close(way, one, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, way, bf16=True)
    trained = train_with(trainer)
    assert trained.losses[0] == approx(one["llama"].losses[0], HALF_PRECISION)
    assert_close(trained.weights, one["llama"].weights, HALF_PRECISION)


@EITHER_WAY
def test_a_compiled_model_trains_the_same_weights(way, one, tmp_path):
    torch.compiler.reset()
    options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    assert_same_training(
        train_with(number_aware_trainer(cases.llama(), tmp_path, way, **options)), one["llama"]
    )


def test_each_training_of_a_trainer_with_model_init_looks_at_its_first_labels(one, tmp_path):
    def make(_, *args, **kwargs):
        return Trainer(None, *args, model_init=lambda: cases.llama(), **kwargs)

    trainer = number_aware_trainer(None, tmp_path, cls=make, accumulate=2)
    for _ in range(2):  # as in a search for hyperparameters
        assert_same_training(train_with(trainer), one["llama"])
        assert sum("number_share" in entry for entry in trainer.state.log_history) == 1


def test_the_weight_may_be_assigned_at_each_step(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, "chunked", accumulate=4)
    handle = make_number_aware(trainer, weight=0.0, vocabulary=cases.DIGITS)

    class Schedule(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            handle.loss.weight = state.global_step / 2

    trainer.add_callback(Schedule())
    expected = cases.train_plainly(
        "llama", before_step=lambda loss_fn, step: setattr(loss_fn, "weight", step / 2)
    )
    assert_same_training(train_with(trainer), expected)


@EITHER_WAY
@EITHER_MODEL
def test_a_step_without_labels_changes_no_weights(name, way, tmp_path):
    model = MODELS[name]()
    before = {key: weight.clone() for key, weight in model.state_dict().items()}
    trainer = number_aware_trainer(model, tmp_path, way, accumulate=4, max_steps=1)
    for row in trainer.train_dataset:
        row["labels"][:] = -100
    with pytest.warns(NumberLabelsMissingWarning):
        trained = train_with(trainer)
    assert trained.losses == [0.0]
    assert_identical(dict(model.state_dict()), before)


def test_number_tokens_that_belong_to_no_number_are_a_warning(tmp_path):
    """Training looks at the first labels: `k1k1...` is a name."""
    tokens = {token.token_id: token.text for token in cases.DIGITS.tokens}
    vocabulary = NumberVocabulary.from_mapping({**tokens, 20: "k"}, vocab_size=cases.VOCAB)
    trainer = number_aware_trainer(
        cases.llama(), tmp_path, loss={"vocabulary": vocabulary, "criterion": "number_level"}, max_steps=1
    )
    for row in trainer.train_dataset:
        row["labels"][::2], row["labels"][1::2] = 20, 4
    with pytest.warns(NumberLabelsMissingWarning):
        train_with(trainer)


# Evaluation


def terms_of(model, rows, **options):
    """Both terms over all rows, as one batch."""
    inputs = cases.stack(rows)
    shift = not model.config.is_encoder_decoder
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=shift, **options)
    with torch.no_grad():
        terms = loss_fn.terms(model.eval()(**inputs).logits, inputs["labels"])
        plain = NTLCrossEntropyLoss(
            cases.DIGITS, None, shift=shift, label_smoothing=options.get("label_smoothing", 0)
        )
        ce = plain(model(**inputs).logits, inputs["labels"])
    return {"loss": terms.loss.item(), "ce": ce.item(), "ntl": terms.ntl.item()}


@pytest.mark.parametrize("options", [{}, {"criterion": HLGauss(2.0), "label_smoothing": 0.1}], ids=str)
@pytest.mark.parametrize("size", [1, 5, 24])
@EITHER_WAY
@EITHER_MODEL
def test_an_evaluation_does_not_depend_on_the_size_of_its_batches(name, way, size, options, tmp_path):
    model = MODELS[name]()
    trainer = number_aware_trainer(model, tmp_path, way, options, per_device_eval_batch_size=size)
    rows = cases.samples()
    metrics = trainer.evaluate(rows)
    for term, value in terms_of(model, rows, **options).items():
        assert metrics[f"eval_{term}"] == approx(value), term
        assert trainer.state.log_history[-1][f"eval_{term}"] == metrics[f"eval_{term}"]


def test_options_of_the_loss_that_are_assigned_hold_in_the_next_evaluation(tmp_path):
    model, rows = cases.llama(), cases.samples()
    trainer = number_aware_trainer(model, tmp_path, loss={"criterion": HLGauss(2.0)})
    trainer.evaluate(rows)
    loss = handle_of(trainer).loss
    loss.weight, loss.label_smoothing = 0.5, 0.1
    inputs = cases.stack(rows)
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, HLGauss(2.0), 0.5, shift=True, label_smoothing=0.1)
    expected = loss_fn(model.eval()(**inputs).logits, inputs["labels"]).item()
    assert trainer.evaluate(rows)["eval_loss"] == approx(expected)


@EITHER_WAY
def test_an_evaluation_without_a_label_that_counts_is_nan_as_that_of_stock(way, tmp_path):
    rows = cases.samples()[2:4]  # whose labels are all ignored
    trainer = number_aware_trainer(cases.llama(), tmp_path, way)
    metrics = trainer.evaluate(rows)
    assert all(np.isnan(metrics[f"eval_{term}"]) for term in ("loss", "ce", "ntl"))
    assert np.isnan(cases.trainer_for(cases.llama(), tmp_path).evaluate(rows)["eval_loss"])


class _Penalty(Trainer):
    """Adds a constant, and the loss of the first row again."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        first = {name: each[:1] for name, each in inputs.items()}
        loss = loss + 100 + model(**first).loss
        return (loss, outputs) if return_outputs else loss


@EITHER_WAY
def test_what_a_subclass_adds_to_the_loss_is_in_the_evaluations(way, tmp_path):
    rows = cases.samples()[4:ROWS]
    trainer = number_aware_trainer(cases.llama(), tmp_path, way, cls=_Penalty)
    first, all_rows = (terms_of(trainer.model, each)["loss"] for each in (rows[:1], rows))
    assert trainer.evaluate(rows)["eval_loss"] == approx(all_rows + 100 + first)


@EITHER_WAY
def test_prediction_and_several_evaluation_sets_have_logits_and_terms(way, tmp_path):
    model, rows = cases.llama(), cases.samples()
    trainer = number_aware_trainer(model, tmp_path, way, per_device_eval_batch_size=5)
    trainer.eval_dataset = {"short": rows[4:ROWS], "long": rows}
    metrics = trainer.evaluate()
    for dataset, part in trainer.eval_dataset.items():
        assert metrics[f"eval_{dataset}_ce"] == approx(terms_of(model, part)["ce"])
    predictions, _, predicted = trainer.predict(rows)
    logits = predictions[0] if isinstance(predictions, tuple) else predictions
    assert logits.shape[-1] == cases.VOCAB
    assert predicted["test_ntl"] == approx(terms_of(model, rows)["ntl"])
    unlabelled = [{key: value for key, value in row.items() if key != "labels"} for row in rows]
    assert "test_ce" not in trainer.predict(unlabelled).metrics


class _Constant(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss + 100, outputs) if return_outputs else loss + 100


def evaluate_on_two(_rank, folder):
    # Five rows: the sampler repeats one to give both processes as many.
    options = {"ddp_backend": "gloo", "per_device_eval_batch_size": 3, "cls": _Constant}
    return number_aware_trainer(cases.llama(), folder, **options).evaluate(cases.samples(13)[8:])


def test_rows_that_a_distributed_evaluation_repeats_count_once(tmp_path):
    wanted = terms_of(cases.llama(), cases.samples(13)[8:])
    wanted["loss"] += 100
    for metrics in results_of(evaluate_on_two, (tmp_path,), tmp_path):
        assert {term: metrics[f"eval_{term}"] for term in wanted} == approx(wanted)


def test_a_metric_may_predict(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    expected = trainer.evaluate(cases.samples(8))

    def predict(_):
        trainer.compute_metrics = None
        return {"of_others": trainer.predict(cases.samples(16)[8:]).metrics["test_ce"]}

    trainer.compute_metrics = predict
    found = trainer.evaluate(cases.samples(8))
    for name in ("eval_loss", "eval_ce", "eval_ntl"):
        assert found[name] == approx(expected[name], ONE_COMPUTATION)
    assert found["eval_of_others"] != found["eval_ce"]


def test_a_metric_of_compute_metrics_goes_before_ours(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    trainer.compute_metrics = lambda _: {"ce": -1.0}
    metrics = trainer.evaluate(cases.samples())
    assert metrics["eval_ce"] == -1.0
    assert metrics["eval_ntl"] > 0


@EITHER_WAY
@pytest.mark.parametrize("criterion", ["ntl_was", "number_level"])
def test_predict_with_generate_has_the_number_aware_loss(criterion, way, tmp_path):
    model = cases.t5()
    options = {"arguments": Seq2SeqTrainingArguments, "predict_with_generate": True, "cls": Seq2SeqTrainer}
    trainer = number_aware_trainer(model, tmp_path, way, {"criterion": criterion}, **options)
    rows = [{**row, "number_weights": torch.ones(cases.LENGTH)} for row in cases.samples()[4:ROWS]]
    prediction = trainer.predict(rows, max_new_tokens=3)
    assert prediction.predictions.shape[0] == len(rows)
    expected = terms_of(model, cases.samples()[4:ROWS], criterion=criterion)
    assert prediction.metrics["test_loss"] == approx(expected["loss"])


# Numbers of labels are found where the batches are made.


@pytest.fixture
def not_at_the_call(monkeypatch):
    """Labels have to come prepared."""
    own = NumberAware.record_of

    def record_of(handle, batch, is_own=True):
        assert PREPARED in batch
        assert is_own
        return own(handle, batch)

    monkeypatch.setattr(NumberAware, "record_of", record_of)


@pytest.mark.usefixtures("not_at_the_call")
@pytest.mark.parametrize("workers", [0, 1])
@EITHER_WAY
@EITHER_MODEL
def test_the_processes_of_a_loader_find_the_numbers(name, way, workers, tmp_path):
    options = {"dataloader_num_workers": workers}
    trainer = number_aware_trainer(MODELS[name](), tmp_path, way, {"criterion": HLGauss(2.0)}, **options)
    trainer.train()
    first = trainer.state.log_history[0]["first_numbers"]
    assert first.count("± 2") == 3
    assert first in repr(handle_of(trainer))
    assert trainer.evaluate(cases.samples())["eval_ntl"] > 0


def test_the_labels_separator_of_thousands_is_given_with_a_tokenizer(tmp_path):
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    with pytest.raises(ValueError, match="thousands"):
        make_number_aware(trainer, vocabulary=cases.DIGITS, thousands=",")
    assert make_number_aware(trainer, vocabulary=cases.DIGITS).loss.vocabulary.thousands is None
    tokenizer = tiny_tokenizers.llama_like()
    trainer = cases.trainer_for(cases.llama(vocab_size=len(tokenizer)), tmp_path)
    handle = make_number_aware(trainer, HLGauss(2.0), vocabulary=tokenizer, thousands="")
    ids = torch.tensor([tokenizer.encode("1,234")])
    assert LabelNumbers.unpack(handle.loss.prepare(ids).numbers).magnitude.unique().tolist() == [0, 1, 234]


def test_labels_that_the_trainer_cuts_are_read_again(tmp_path):
    class Cuts(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            inputs = {name: value[:, :-2] if value.dim() == 2 else value for name, value in inputs.items()}
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    loss = {"criterion": HLGauss(2.0)}
    trainer = number_aware_trainer(cases.llama(), tmp_path, loss=loss, cls=Cuts)
    trainer.train()
    assert trainer.state.log_history[0]["number_share"] > 0


# Subclasses with a `compute_loss` of their own


class FromLogits(Trainer):
    """The example of transformers' page: it pops the labels, and ignores the model's loss."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels") if self.pops else inputs["labels"]
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        )
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("pops", [True, False])
def test_a_trainer_whose_loss_is_not_the_models_is_an_error(pops, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, cls=type("Own", (FromLogits,), {"pops": pops}))
    with pytest.raises(ValueError, match="Own"):
        trainer.train()


class _Evaluate(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = True


class _OwnStep(Trainer):
    """Never calls `compute_loss`, unless it is told to."""

    calls = False

    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.calls:
            return super().training_step(model, inputs, num_items_in_batch)
        loss = model(**inputs).loss
        loss.backward()
        return loss.detach()


def test_a_training_step_without_compute_loss_is_an_error(one, tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, cls=_OwnStep, accumulate=4)
    trainer.eval_dataset = cases.samples()
    trainer.add_callback(_Evaluate())  # which calls compute_loss
    with pytest.raises(ValueError, match="_OwnStep"):
        trainer.train()
    trainer.model.load_state_dict(cases.llama().state_dict())
    trainer.calls = True
    assert_same_training(train_with(trainer), one["llama"])


@EITHER_WAY
@EITHER_MODEL
@pytest.mark.parametrize("returns_dict", [True, False])
def test_the_loss_is_the_first_output(returns_dict, name, way, one, tmp_path):
    class First(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            given = {} if returns_dict else {"return_dict": False}
            outputs = model(**inputs, **given, num_items_in_batch=num_items_in_batch)
            return (outputs[0], outputs) if return_outputs else outputs[0]

    assert_same_training(
        train_with(number_aware_trainer(MODELS[name](), tmp_path, way, cls=First)), one[name]
    )


def test_a_loss_function_that_is_assigned_afterwards_is_an_error(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs["logits"].sum()
    with pytest.raises(ValueError, match="compute_loss_func"):
        trainer.train()


def test_a_stream_with_a_length_is_no_list_of_rows(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(cases.samples())

        def __len__(self):
            return ROWS * STEPS

    trainer = cases.trainer_for(cases.llama(), tmp_path)
    trainer.train_dataset = Stream()
    make_number_aware(trainer, vocabulary=cases.DIGITS)
    trainer.train()
    assert trainer.state.log_history[0]["number_share"] >= 0


def test_an_evaluation_counts_all_rows_of_a_collator_that_multiplies_them(tmp_path):
    rows = cases.samples()[3:ROWS]  # 5 rows, in batches of 4
    trainer = number_aware_trainer(cases.llama(), tmp_path, per_device_eval_batch_size=4)
    expected = trainer.evaluate(rows + rows)
    own = trainer.data_collator
    trainer.data_collator = lambda batch: own(batch + batch)
    metrics = trainer.evaluate(rows)
    assert metrics["eval_ce"] == approx(expected["eval_ce"])


def test_the_first_rows_are_collated_in_batches(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    own, sizes, draws = trainer.data_collator, list[int](), list[float]()

    def collate(batch):
        sizes.append(len(batch))
        draws.append(np.random.random())
        return own(batch)

    trainer.data_collator = collate
    np.random.seed(0)
    expected = [np.random.random() for _ in range(STEPS)]
    np.random.seed(0)
    trainer.train()
    assert {*sizes} == {ROWS}
    assert draws[0] == expected[0]
    assert draws[-1] == expected[-1]


# What is said


def test_a_reader_of_the_line_and_of_a_step_follows_few_functions(tmp_path):
    trainer, criterion = cases.trainer_for(cases.llama(), tmp_path), HLGauss(2.0)
    make_number_aware(trainer, criterion, vocabulary=cases.DIGITS).undo()
    assert functions_entered(lambda: make_number_aware(trainer, criterion, vocabulary=cases.DIGITS)) <= 40
    loader = trainer.get_train_dataloader()
    inputs = loader.collate_fn(cases.samples(ROWS))
    trainer.compute_loss(trainer.model.train(), inputs)  # looks at the first labels
    assert functions_entered(lambda: trainer.compute_loss(trainer.model, inputs)) <= 40


def test_the_share_of_number_tokens_is_logged_before_the_first_step(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path)
    trainer.train()
    labels = torch.cat([row["labels"] for row in trainer.train_dataset])
    labels = labels[labels != -100]
    share = torch.isin(labels, torch.tensor(cases.DIGITS.token_ids)).float().mean().item()
    first = trainer.state.log_history[0]
    assert first["step"] == 0
    assert first["number_share"] == approx(share)


def test_a_handle_says_what_the_loss_does(tmp_path):
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    with make_number_aware(trainer, weight=0.25, vocabulary=cases.DIGITS, chunked=True) as handle:
        for part in ("cross-entropy", "0.25", "ntl_was", "10 number tokens", "hidden states"):
            assert part in repr(handle)
    assert "Undone" in repr(handle)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("compute_loss_func", lambda *_, **__: None, "compute_loss_func"),
        ("label_smoother", object(), "label_smoothing_factor"),
        ("args.use_liger_kernel", True, "use_liger_kernel"),
        ("args._n_gpu", 2, "2 GPUs"),
        ("accelerator.parallelism_config", type("Config", (), {"sp_enabled": True})(), "Ulysses"),
        ("accelerator.parallelism_config", type("Config", (), {"cp_enabled": True})(), "context parallelism"),
    ],
)
def test_setups_that_lose_or_distort_the_number_term_are_errors(name, value, message, tmp_path, monkeypatch):
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    *owner, attribute = name.split(".")
    # Real ones would need the library, or several GPUs.
    if attribute == "parallelism_config":
        monkeypatch.setattr(type(trainer.accelerator), attribute, value, raising=False)
    else:
        setattr(getattr(trainer, owner[0]) if owner else trainer, attribute, value)
    with pytest.raises(ValueError, match=message):
        make_number_aware(trainer, number_level, vocabulary=cases.DIGITS)


def test_a_model_or_a_trainer_without_a_tokenizer_is_an_error(tmp_path):
    with pytest.raises(TypeError, match="LlamaForCausalLM"):
        make_number_aware(cases.llama())
    with pytest.raises(ValueError, match="vocabulary"):
        make_number_aware(cases.trainer_for(cases.llama(), tmp_path))
    for unknown in ({"wieght": 0.1}, {"reduction": "sum"}, {"normalize_by": "numbers"}):
        with pytest.raises(TypeError, match=next(iter(unknown))):
            make_number_aware(cases.trainer_for(cases.llama(), tmp_path), vocabulary=cases.DIGITS, **unknown)
