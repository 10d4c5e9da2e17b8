"""Checks shared by the tests of all approaches."""

import json
import tempfile
from pathlib import Path

import torch
from tolerances import ONE_COMPUTATION, TRAINED_BY_ADAM, TWO_PATHS, approx, assert_close, assert_identical
from transformers import T5Config, T5ForConditionalGeneration

from ntl.approaches import build_approach
from ntl.approaches.shapes import get_shape
from ntl.config import Evaluation, LossSettings, ModelArgs, Weights
from ntloss.numbers.parsing import parse_number

QUESTIONS = ["1 + 1", "12 + 3", "0.5 * 3", "-7 - 8", "5 - 5", "99 * 99"]
ANSWERS = ["2", "15", "1.5", "-15", "0", "9801"]
GREEDY = Evaluation(beams=1, max_new_tokens=12)
BEAMS = Evaluation(beams=3, max_new_tokens=12)
NTL = LossSettings(criterion="ntl_was")
CE = LossSettings()
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4}
GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)


def model_args(
    encoding="digits", head="language", checkpoint=None, tokenizer=None, log_scale=True, config=None, **more
):
    """Write settings of a model by short names; `config` is an architecture, by default a tiny T5."""
    folder = tempfile.mkdtemp()
    Path(folder, "config.json").write_text(json.dumps(config or get_shape("t5-tiny")))
    kinds = {"number_encoding": encoding} if encoding in ("rt", "xval") else {"tokenizer_type": encoding}
    if head == "regression":
        kinds["number_encoding"] = "none_regression_head"
    return ModelArgs(
        model_name_or_path=checkpoint,
        tokenizer_name_or_path=tokenizer,
        log_scale_embeddings=log_scale,
        config_name=folder,
        **kinds,
        **more,
    )


def make(shape="t5-tiny", loss=NTL, *, seed=42, lora=None, trained_layers=None, **settings):
    """Build a tiny approach from scratch, without dropout."""
    config = get_shape(shape) if isinstance(shape, str) else shape
    if config["model_type"] == "t5":
        config |= {"dropout_rate": 0.0}
    weights = Weights(trained_layers=trained_layers, lora={"r": lora, "lora_alpha": 2 * lora} if lora else {})
    return build_approach(model_args(config=config, **settings), loss, weights, seed)


def rows_of(approach, questions=QUESTIONS, answers=ANSWERS):
    columns = approach.encode(questions, answers)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def gradient(approach, rows, size):
    """Compute the gradient, loss and terms of one update with micro-batches of `size` rows."""
    batches = [approach.collate(rows[i : i + size]) for i in range(0, len(rows), size)]
    counts = torch.stack([approach.count(batch) for batch in batches]).sum(0)
    assert counts.dtype == torch.float64
    approach.model.zero_grad()
    shares = [approach.loss(approach.model, batch, counts) for batch in batches]
    for share in shares:
        share.loss.backward()
    grads = [p.grad.flatten().clone() for p in approach.model.parameters() if p.grad is not None]
    terms = {name: sum(share.terms[name] for share in shares) for name in shares[0].terms}
    return torch.cat(grads), sum(share.loss.detach() for share in shares), terms


def assert_split_does_not_matter(approach, rows, tolerance=TWO_PATHS):
    approach.model.double()
    whole, loss, terms = gradient(approach, rows, len(rows))
    assert whole.norm() > 1e-4
    for size in (1, 2):
        split, split_loss, split_terms = gradient(approach, rows, size)
        assert_close(split, whole, tolerance)
        assert_close(split_loss, loss, tolerance)
        assert_close(split_terms, terms, tolerance)


def overfit(approach, steps=150, learning_rate=3e-3, until=0.0):
    """Overfit an approach to the examples, at most until the loss is below `until`."""
    batch = approach.collate(rows_of(approach))
    counts = approach.count(batch)
    optimizer = torch.optim.Adam(approach.model.parameters(), learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = approach.loss(approach.model, batch, counts).loss
        if loss < until:
            break
        loss.backward()
        optimizer.step()
    return approach


def saved(approach, folder, settings, loss=NTL):
    """Save an approach as the trainer does, and rebuild it from the folder alone."""
    approach.model.save_pretrained(folder)
    approach.tokenizer.save_pretrained(folder)
    return build_approach(model_args(checkpoint=str(folder), **settings), loss)


def save_pretrained(folder, approach=None):
    """Save a model that knows nothing of the lab, by default a tiny Llama, and return its folder."""
    approach = approach or make("llama-tiny", family="decoder_only")
    del approach.model.config.ntl
    for part in (approach.model, approach.tokenizer):
        part.save_pretrained(folder)
    return folder


def save_pretrained_t5(folder, **config):
    """Save a tiny T5 with the shipped tokenizer, and return the model."""
    config = get_shape("t5-tiny") | {"decoder_start_token_id": 0, "dropout_rate": 0.0, **config}
    model = T5ForConditionalGeneration(T5Config(**config))
    model.save_pretrained(folder)
    make().tokenizer.save_pretrained(folder)
    return model


def assert_the_same(approach, other, generation=BEAMS):
    """Check that two approaches have bitwise equal weights, the same loss and the same answers."""
    batch = approach.collate(rows_of(approach))
    assert_close(other.collate(rows_of(other)), batch)
    assert_identical(other.model.state_dict(), approach.model.state_dict())
    approach.model.eval()
    other.model.eval()
    counts = approach.count(batch)
    mine, theirs = (a.loss(a.model, batch, counts) for a in (approach, other))
    assert_close(
        theirs.loss, mine.loss, ONE_COMPUTATION, scale=1
    )  # an overfitted model's loss is almost zero
    answers = approach.answer(approach.model, QUESTIONS, generation)
    assert_same_answers(other.answer(other.model, QUESTIONS, generation), answers)


def assert_same_answers(found, expected):
    """Check that answers are the same, up to the last digits of numbers that a head computes."""
    for one, other in zip(found, expected, strict=True):
        if one != other:
            numbers = parse_number(one, "whole"), parse_number(other, "whole")
            assert None not in numbers
            assert numbers[0] == approx(numbers[1], TRAINED_BY_ADAM, scale=1)
