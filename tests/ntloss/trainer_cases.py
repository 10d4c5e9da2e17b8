"""Small models, batches and training runs to test `ntloss.trainers` with."""

import inspect
from typing import NamedTuple

import torch
from tolerances import TRAINED, approx, assert_close
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.trainers import make_number_aware

# Older releases of transformers also count the first label of causal models, which nothing predicts, and log
# losses with four decimals.
_TRAINER = inspect.getsource(Trainer)
COUNTS_FIRST_LABEL = "_loss_shifts_labels" not in _TRAINER
LOSS_ROUNDING = 1e-4 if 'logs["loss"] = round(' in _TRAINER else 0.0

VOCAB, LENGTH, ROWS, STEPS = 48, 9, 8, 3
DIGITS = NumberVocabulary.from_mapping({d + 3: str(d) for d in range(10)}, vocab_size=VOCAB)
RATE = 0.5
WAYS = ("logits", "chunked")


def llama(**options):
    torch.manual_seed(0)
    options = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 16, "pad_token_id": 0} | options
    config = LlamaConfig(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=32, **options)
    return LlamaForCausalLM(config).train()


def t5(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2} | options
    config = T5Config(num_layers=1, dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    return T5ForConditionalGeneration(config).train()


MODELS = {"llama": llama, "t5": t5}


def samples(count=ROWS * STEPS):
    """Rows with some numbers: the first two of each batch have none, the next two have no label."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for row in range(count):
        ids = torch.randint(13, VOCAB, (LENGTH,), generator=generator)
        labels = ids.clone()
        if row % ROWS >= 2:
            share = torch.rand(LENGTH, generator=generator) < 0.1 * (row % ROWS)
            ids = torch.where(share, torch.randint(3, 13, (LENGTH,), generator=generator), ids)
            labels = ids.clone()
            labels[: row % ROWS] = -100
        labels[0] = -100  # older releases of transformers count it, and a causal model does not predict it
        if row % ROWS in (2, 3):
            labels[:] = -100
        made.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return made


def stack(rows):
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def batch(rows=4, first=4):
    return stack(samples(first + rows)[first:])


def count_items(labels, model):
    """Count the labels `[batch, seq]` that a model predicts: all but the first of a causal one."""
    return (labels[:, 0 if model.config.is_encoder_decoder else 1 :] != -100).sum()


def gradients_of(model):
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


def gradients(trainer, **inputs):
    """Loss, and gradients of the trainer's model, of one batch."""
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model.train(), inputs)
    loss.backward()
    return loss.detach(), gradients_of(trainer.model)


# Plain gradient descent, which does not depend on how a batch is split.
PLAIN_STEPS = {
    "max_steps": STEPS,
    "learning_rate": RATE,
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "use_cpu": True,
}


def split(accumulate, ranks=1):
    """Arguments that split the 8 rows of a step into micro-batches, on each rank."""
    size = ROWS // accumulate // ranks
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulate}


def trainer_for(
    model, folder, cls=Trainer, accumulate=1, compute_loss_func=None, arguments=TrainingArguments, **options
):
    """A Trainer on the CPU that takes rows in order."""
    made = arguments(str(folder), **PLAIN_STEPS | split(accumulate) | options)
    trainer = cls(model, made, train_dataset=samples(), compute_loss_func=compute_loss_func)
    trainer.remove_callback(PrinterCallback)
    return in_order(trainer)


def number_aware_trainer(model, folder, way="logits", loss=(), **options):
    """A trainer with a number-aware loss; `loss` holds the arguments of `make_number_aware`."""
    trainer = trainer_for(model, folder, **options)
    make_number_aware(trainer, **{"vocabulary": DIGITS, "chunked": way == "chunked", **dict(loss)})
    return trainer


def logged(losses):
    """Losses to compare with those that a trainer logs in a repeated training run."""
    return approx(losses, max(TRAINED[torch.float32], LOSS_ROUNDING), scale=1)


def in_order(trainer):
    """Make a Trainer take rows in order; only newer releases have `train_sampling_strategy` for this."""
    trainer._get_train_sampler = lambda dataset=None: SequentialSampler(trainer.train_dataset)
    return trainer


class Trained(NamedTuple):
    """The loss of each step of a training run, and the weights after the last one."""

    losses: list[float]
    weights: dict[str, Tensor]


def assert_same_training(trained, expected):
    assert_close(trained.weights, expected.weights, TRAINED)
    assert trained.losses == logged(expected.losses)


def train_with(trainer):
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Trained(losses, {key: w.detach().clone() for key, w in trainer.model.state_dict().items()})


def train_plainly(name, criterion="ntl_was", steps=STEPS, before_step=None, prepare=None, rows=None):
    """Train in a loop of plain torch, with all rows of a step as one batch; set the loss before each.

    `prepare` makes inputs and labels of the rows of a step, given the loss.
    """
    model, rows, losses = MODELS[name](), rows or samples(ROWS * steps), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion, shift=name == "llama")
    for step in range(steps):
        of_step = rows[step * ROWS : (step + 1) * ROWS]
        inputs, labels = (stack(of_step), None) if prepare is None else prepare(loss_fn, of_step)
        if before_step is not None:
            before_step(loss_fn, step)
        loss = loss_fn(model(**inputs).logits, inputs["labels"] if labels is None else labels)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, {key: w.detach().clone() for key, w in model.state_dict().items()})
