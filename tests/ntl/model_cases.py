"""Tiny models of the lab for tests, and checks that several tests share."""

import json
import tempfile
from pathlib import Path

import torch

from ntl.losses import library_options
from ntl.models import build
from ntl.models.source import get_shape
from ntl.models.xval import Xval
from ntl.settings import LossSettings, ModelArgs, Weights, choose_loss
from ntloss import NTLCrossEntropyLoss
from ntloss.trainers.models import inputs_for_logits

QUESTIONS = ["1 + 1", "12 + 3", "0.5 * 3", "-7 - 8", "5 - 5", "99 * 99"]
ANSWERS = ["2", "15", "1.5", "-15", "0", "9801"]
GREEDY = (1, 12)  # beams, and the most new tokens
BEAMS = (3, 12)
NTL = LossSettings(criterion="ntl_was")
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


def make(shape="t5-tiny", *, seed=42, lora=None, trained_layers=None, **settings):
    """Build a tiny model from scratch, without dropout."""
    config = get_shape(shape) if isinstance(shape, str) else shape
    if config["model_type"] == "t5":
        config |= {"dropout_rate": 0.0}
    weights = Weights(trained_layers=trained_layers, lora={"r": lora, "lora_alpha": 2 * lora} if lora else {})
    return build(model_args(config=config, **settings), weights, seed)


def rows_of(built, questions=QUESTIONS, answers=ANSWERS):
    columns = built.encode(questions, answers)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def logits_of(built, rows, model=None):
    """Compute the logits that predict each label, `[batch, seq, vocab]`, and these labels."""
    batch = built.collate(rows)
    labels = batch.pop("labels")
    logits = (model or built.model)(**inputs_for_logits(built.model, batch, labels)).logits
    if built.model.config.is_encoder_decoder:
        return logits, labels
    return logits[:, -labels.shape[1] : -1], labels[:, 1:]


def loss_of(built, rows, loss=NTL):
    """Compute what training minimizes for rows that are one batch."""
    if isinstance(built, Xval):
        return built.model(**built.collate(rows)).loss
    if not built.number_ids:
        batch = built.collate(rows)
        labels = batch.pop("labels")
        return built.loss(built.model(**batch), labels)
    options = library_options(choose_loss(loss, ModelArgs()), ModelArgs())
    made = NTLCrossEntropyLoss(built.vocabulary, **options)
    return made(*logits_of(built, rows))


def gradient(built, rows, loss=NTL):
    """Compute the gradient of all trained weights, and the loss."""
    built.model.zero_grad()
    found = loss_of(built, rows, loss)
    found.backward()
    grads = [p.grad.flatten() for p in built.model.parameters() if p.grad is not None]
    return torch.cat(grads), found.detach()


def overfit(built, steps=150, learning_rate=3e-3, until=0.0, loss=NTL):
    """Overfit a model to the examples, at most until the loss is below `until`."""
    rows = rows_of(built)
    optimizer = torch.optim.Adam(built.model.parameters(), learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        found = loss_of(built, rows, loss)
        if found < until:
            break
        found.backward()
        optimizer.step()
    return built


def saved(built, folder, settings):
    """Save a model as the trainer does, and build it again from the folder alone."""
    built.model.save_pretrained(folder)
    built.tokenizer.save_pretrained(folder)
    return build(model_args(checkpoint=str(folder), **settings))


def save_pretrained(folder, built=None):
    """Save a model that knows nothing of the lab, by default a tiny Llama, and return its folder."""
    built = built or make("llama-tiny", family="decoder_only")
    del built.model.config.ntl
    for part in (built.model, built.tokenizer):
        part.save_pretrained(folder)
    return folder
