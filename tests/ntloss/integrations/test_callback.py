"""The callback's metrics cover the whole data, however it is batched, and every tracker sees them."""

from functools import partial
from typing import Any

import pytest
import torch
from processes import results_of
from tolerances import TRAINED, approx, assert_close

pytest.importorskip("transformers")
import integration_cases as cases
from integration_cases import DIGITS, ROWS, STEPS, number_aware_trainer, samples, stack, trainer_for
from transformers import Trainer, TrainerCallback

from ntloss import NTLCrossEntropyLoss
from ntloss.integrations.callback import NumberMetricsCallback
from ntloss.integrations.transformers import handle_of, make_trainer_number_aware
from ntloss.integrations.transformers.trainer import TermSums
from ntloss.metrics import TokenMetrics
from ntloss.numbers.spans import find_numbers, token_kinds

FROZEN = {"learning_rate": 0.0}  # the model is the same in all steps
OF_TOKENS = {
    "number_accuracy": "token_accuracy",
    "number_value_accuracy": "value_accuracy",
    "number_error": "expected_absolute_error",
    "number_mass": "mass",
    "number_ce": "cross_entropy",
    "text_number_mass": "text_mass",
    "text_ce": "text_cross_entropy",
}


@torch.no_grad()
def expected(model, rows, **options):
    """All metrics over all rows at once, for a loss with these options."""
    shift = not model.config.is_encoder_decoder
    inputs = stack(rows)
    labels = inputs.pop("labels")  # with labels, the model would call the loss that the callback listens to
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    logits = model.eval()(**inputs).logits
    terms = NTLCrossEntropyLoss(DIGITS, shift=shift, return_terms=True, **options)(logits, labels)
    places = find_numbers(labels, token_kinds(DIGITS), decimals=True).place
    batch = (logits[:, :-1], labels[:, 1:], places[:, 1:]) if shift else (logits, labels, places)
    metrics = TokenMetrics(DIGITS, places=range(-2, 5)).update(*batch)
    model.train()
    totals = metrics.compute()
    result = {"ce": float(terms.ce), "ntl": float(terms.ntl), "number_tokens": totals["number_tokens"]}
    result |= {name: totals[theirs] for name, theirs in OF_TOKENS.items()}
    for place, row in metrics.compute_by_place().items():
        if row["count"]:
            result[f"number_error_place_{place}"] = row["expected_absolute_error"]
    return result


def assert_logged(entry, metrics, prefix=""):
    assert {name: entry.get(prefix + name) for name in metrics} == approx(metrics)


def measured_trainer(model, folder, train_every=1, **options):
    trainer = number_aware_trainer(model, folder, **options)
    NumberMetricsCallback(train_every=train_every).attach(trainer)
    return trainer


def logged(trainer, name):
    return [entry for entry in trainer.state.log_history if name in entry]


@pytest.fixture(params=["llama", "t5"])
def model(request):
    return cases.MODELS[request.param]()


@pytest.mark.parametrize("accumulate", [1, 4])
def test_training_metrics_cover_all_rows_since_the_last_entry(accumulate, model, tmp_path):
    trainer = measured_trainer(model, tmp_path, accumulate=accumulate, logging_steps=STEPS, **FROZEN)
    trainer.train()
    (entry,) = logged(trainer, "loss")
    assert_logged(entry, expected(model, samples()))
    assert "number_error_place_1" in entry
    assert "number_error_place_-1" not in entry  # there are no points, so no tenths


@pytest.mark.parametrize("way", ["own loss", "chunked"])
def test_evaluation_metrics_cover_all_rows(way, model, tmp_path):
    trainer = measured_trainer(model, tmp_path, way=way, per_device_eval_batch_size=3)
    rows = samples(10)
    returned = trainer.evaluate(rows)
    assert_logged(returned, expected(model, rows), "eval_")
    assert_logged(trainer.state.log_history[-1], expected(model, rows), "eval_")
    # A second evaluation starts from zero, and uses its own prefix.
    returned = trainer.evaluate(rows[4:], metric_key_prefix="eval_more")
    assert_logged(returned, expected(model, rows[4:]), "eval_more_")
    assert_logged(trainer.predict(rows).metrics, expected(model, rows), "test_")


def test_a_loss_from_hidden_states_logs_both_terms_in_training_and_the_rest_in_evaluation(tmp_path):
    model = cases.llama()
    evaluating = partial(Trainer, eval_dataset=samples(5))
    options = {"eval_strategy": "steps", "eval_steps": STEPS, "logging_steps": STEPS, **FROZEN}
    trainer = measured_trainer(model, tmp_path, way="chunked", cls=evaluating, **options)
    trainer.train()
    (training,), (evaluation,) = logged(trainer, "loss"), logged(trainer, "eval_loss")
    metrics = expected(model, samples())
    assert_logged(training, {name: metrics[name] for name in ("ce", "ntl")})
    assert "number_tokens" not in training
    assert_logged(evaluation, expected(model, samples(5)), "eval_")


def test_terms_cover_every_step_and_other_metrics_the_measured_steps(tmp_path):
    model = cases.llama()
    trainer = measured_trainer(model, tmp_path, train_every=2, logging_steps=STEPS, **FROZEN)
    trainer.train()
    (entry,) = logged(trainer, "loss")
    rows = samples()
    metrics = expected(model, rows)
    assert_logged(entry, {name: metrics[name] for name in ("ce", "ntl")})
    measured = expected(model, rows[:ROWS] + rows[2 * ROWS :])
    assert_logged(entry, {name: measured[name] for name in ("number_tokens", *OF_TOKENS)})


def test_a_second_training_run_logs_nothing_of_the_first(tmp_path):
    trainer = measured_trainer(cases.llama(), tmp_path, logging_steps=2, **FROZEN)
    entries = []
    for _ in range(2):
        trainer.train()  # three steps, of which the last is not logged
        entries.append(logged(trainer, "loss")[0])
    names = ("ce", "ntl", "number_tokens", "number_error")
    assert_logged(entries[1], {name: entries[0][name] for name in names})


def test_trackers_added_before_see_the_metrics(tmp_path):
    seen: list[dict[str, Any]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, **kwargs):
            seen.append(dict(kwargs["logs"]))

    trainer = trainer_for(cases.llama(), tmp_path)
    trainer.add_callback(Tracker())
    make_trainer_number_aware(trainer, DIGITS)
    NumberMetricsCallback().attach(trainer)
    trainer.train()
    assert {"loss", "ce", "ntl", "number_error"} <= set(seen[0])
    assert "number_error" not in seen[1]  # steps 0, 10, 20, ... are measured
    assert "ntl" in seen[1]


def test_the_best_model_can_be_chosen_by_a_number_metric(tmp_path):
    evaluating = partial(Trainer, eval_dataset=samples(ROWS))
    options = {"metric_for_best_model": "eval_number_error", "greater_is_better": False}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best"}
    trainer = measured_trainer(cases.llama(), tmp_path, cls=evaluating, **options)
    trainer.train()
    assert trainer.state.best_metric == min(
        e["eval_number_error"] for e in logged(trainer, "eval_number_error")
    )


def test_several_callbacks_listen_to_one_loss(tmp_path):
    trainer = number_aware_trainer(cases.llama(), tmp_path, logging_steps=STEPS, **FROZEN)
    loss = handle_of(trainer.model).loss
    before = loss.return_terms, len(loss._forward_hooks)
    first, second = (NumberMetricsCallback(train_every=1).attach(trainer) for _ in range(2))
    first.detach()
    trainer.train()
    assert_logged(logged(trainer, "loss")[0], expected(trainer.model, samples()))
    second.detach()
    assert (loss.return_terms, len(loss._forward_hooks)) == before
    assert not {first, second} & set(trainer.callback_handler.callbacks)
    assert "eval_number_error" not in trainer.evaluate(samples(6))


def test_terms_of_fractional_items_are_means_over_all_batches():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, DIGITS.vocab_size, generator=generator)
    labels = torch.randint(DIGITS.vocab_size, (4, 5), generator=generator)
    weights = torch.rand(4, 5, generator=generator) / 20  # less than one item in each batch
    loss = NTLCrossEntropyLoss(DIGITS, normalize_by="numbers", return_terms=True)
    sums = TermSums()
    for row in range(4):
        inputs = {"logits": logits[row], "labels": labels[row], "loss_weights": weights[row]}
        absent = ("sequence_ids", "number_weights", "num_items_in_batch")
        sums.add(loss, {**inputs, **dict.fromkeys(absent)}, loss(**inputs))
    whole = loss(logits, labels, loss_weights=weights)
    assert sums.pop() == approx({"ce": float(whole.ce), "ntl": float(whole.ntl)})


def test_the_callback_does_not_change_training(tmp_path):
    without = cases.train_with(number_aware_trainer(cases.llama(), tmp_path))
    measured = cases.train_with(measured_trainer(cases.llama(), tmp_path))
    assert_close(measured.weights, without.weights, TRAINED)


@pytest.mark.parametrize("options", [{"mode": "replace"}, {"weight": 0.0}], ids=str)
def test_logged_terms_are_those_of_the_loss(options, tmp_path):
    model = cases.llama()
    trainer = trainer_for(model, tmp_path, accumulate=4, logging_steps=STEPS, **FROZEN)
    make_trainer_number_aware(trainer, DIGITS, **options)
    NumberMetricsCallback().attach(trainer)
    trainer.train()
    (entry,) = logged(trainer, "loss")
    metrics = expected(model, samples(), **options)
    assert_logged(entry, {name: metrics[name] for name in ("ce", "ntl")})


def test_places_end_where_a_packed_sequence_does(tmp_path):
    ids = torch.tensor([20, 3, 4, 5, 20])  # 34, and a sequence that begins with 5
    row = {"input_ids": ids, "labels": ids, "position_ids": torch.tensor([0, 1, 2, 0, 1])}
    trainer = trainer_for(cases.llama(), tmp_path)
    make_trainer_number_aware(trainer, DIGITS)
    NumberMetricsCallback().attach(trainer)
    found = trainer.evaluate([row, row])
    assert {name for name in found if "place" in name} == {f"eval_number_error_place_{i}" for i in (0, 1)}


def on_two(_rank, folder):
    """Evaluate in each of two processes: 10 rows, so that the last batch repeats some."""
    results = {}
    for way in ("own loss", "chunked"):
        model = cases.llama()
        options = {"per_device_eval_batch_size": 3, "logging_steps": STEPS, "ddp_backend": "gloo", **FROZEN}
        trainer = number_aware_trainer(model, folder, way, **cases.split(2, ranks=2), **options)
        without_callback = trainer.evaluate(samples(10))
        NumberMetricsCallback(train_every=1).attach(trainer)
        trainer.train()
        results[way] = (logged(trainer, "loss")[0], trainer.evaluate(samples(10)), without_callback)
    return results


def test_two_processes_log_the_same_as_one(tmp_path):
    training = expected(cases.llama(), samples())
    evaluation = expected(cases.llama(), samples(10))
    for results in results_of(on_two, (tmp_path,), tmp_path):
        assert_logged(results["own loss"][0], training)
        assert_logged(results["chunked"][0], {name: training[name] for name in ("ce", "ntl")})
        terms = {name: evaluation[name] for name in ("ce", "ntl")}
        for _, with_callback, without in results.values():
            assert_logged(with_callback, evaluation, "eval_")
            assert_logged(without, terms, "eval_")


def test_invalid_arguments_are_errors(tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path)
    with pytest.raises(ValueError, match="no number-aware loss to listen to"):
        NumberMetricsCallback().attach(trainer)
    with pytest.raises(TypeError, match="expected a Trainer, given LlamaForCausalLM"):
        NumberMetricsCallback().attach(trainer.model)
    make_trainer_number_aware(trainer, DIGITS)
    callback = NumberMetricsCallback().attach(trainer)
    with pytest.raises(ValueError, match="attached already"):
        callback.attach(trainer)
    with pytest.raises(ValueError, match="not attached"):
        NumberMetricsCallback().detach()
    with pytest.raises(ValueError, match="train_every=0"):
        NumberMetricsCallback(train_every=0)
    with pytest.raises(ValueError, match="expected consecutive places"):
        NumberMetricsCallback(places=range(0, 4, 2)).attach(trainer_for(trainer.model, tmp_path))


def test_a_callback_that_is_added_but_not_attached_is_an_error(tmp_path):
    trainer = trainer_for(cases.llama(), tmp_path)
    make_trainer_number_aware(trainer, DIGITS)
    trainer.add_callback(NumberMetricsCallback())
    for call in (trainer.train, lambda: trainer.predict(samples(6))):
        with pytest.raises(ValueError, match=r"expected NumberMetricsCallback\(\).attach\(trainer\)"):
            call()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_an_sft_trainer_logs_number_metrics_beside_its_own(tmp_path):
    pytest.importorskip("trl")
    from tests.ntloss.integrations.test_trl import number_aware_sft

    trainer = number_aware_sft(tmp_path, logging_steps=3, per_device_train_batch_size=4, **FROZEN)
    NumberMetricsCallback(train_every=1).attach(trainer)
    trainer.train()
    (entry,) = logged(trainer, "loss")
    assert {"ce", "ntl", "mean_token_accuracy"} <= set(entry)
    evaluation = trainer.evaluate()
    labels = torch.cat([batch["labels"][:, 1:].flatten() for batch in trainer.get_eval_dataloader()])
    vocabulary = handle_of(trainer.model).loss.vocabulary
    numbers = torch.isin(labels, torch.tensor(vocabulary.token_ids)).sum()
    assert evaluation["eval_number_tokens"] == numbers > 0
    # The trainer computes this itself.
    shares = [numbers, (labels != -100).sum() - numbers]
    ce = (evaluation["eval_number_ce"] * shares[0] + evaluation["eval_text_ce"] * shares[1]) / sum(shares)
    assert evaluation["eval_ce"] == approx(float(ce))
    assert {"eval_mean_token_accuracy", "eval_number_error_place_0"} <= set(evaluation)
