"""Small models, batches and training runs to test `ntloss.trainers` with, in one process or two."""

import inspect
from dataclasses import dataclass

import torch
import torch.distributed as dist
from processes import results_of
from tolerances import TRAINED, approx
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.torch_version import TorchVersion
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

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.trainers import make_number_aware

# Older releases of transformers also count the first label of causal models, which nothing predicts, and log
# losses with four decimals.
_TRAINER = inspect.getsource(Trainer)
COUNTS_FIRST_LABEL = "_loss_shifts_labels" not in _TRAINER
LOSS_ROUNDING = 1e-4 if 'logs["loss"] = round(' in _TRAINER else 0.0
# Over gloo, torch 2.7 sums FSDP2's gradients instead of averaging them.
AVERAGES_SHARDS = torch.__version__ >= TorchVersion("2.8")

VOCAB, LENGTH, ROWS, STEPS = 48, 9, 8, 3
DIGITS = NumberVocabulary.from_mapping({d + 3: str(d) for d in range(10)}, vocab_size=VOCAB)
RATE = 0.5
LAYERS = {"llama": "model.layers", "t5": "decoder.block"}


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


@dataclass(frozen=True)
class Setting:
    """How a model is trained, always on the same rows.

    Args:
        way: "logits" or "chunked".
        accumulate: micro-batches of a step, on each rank.
        ranks: processes.
        sharded: "no", in a Trainer; otherwise in a plain loop: "model" or "head" (a group by itself) with
            FSDP2; "tensor" with transformers' tensor parallelism, whose ranks share a batch.
    """

    way: str = "logits"
    accumulate: int = 1
    ranks: int = 1
    sharded: str = "no"

    def __str__(self):
        return f"{self.way}, {self.ranks} x {self.accumulate}, sharded: {self.sharded}"

    @property
    def data_ranks(self):
        return 1 if self.sharded == "tensor" else self.ranks

    @property
    def rows(self):
        return ROWS // self.accumulate // self.data_ranks


WAYS = ("logits", "chunked")
ALONE = [Setting(way, accumulate) for way in WAYS for accumulate in (1, 4)]
TOGETHER = [Setting(way, accumulate, 2) for way in WAYS for accumulate in (1, 2)]
TOGETHER += [
    Setting(way, accumulate, 2, sharded)
    for way, accumulate in zip(WAYS, (1, 2), strict=True)
    for sharded in ("model", "head", "tensor")
]


@dataclass
class Trained:
    """The result of a training run.

    Args:
        losses: one per step.
        weights: after the last step, by name.
    """

    losses: list[float]
    weights: dict[str, Tensor]

    def differences(self, other):
        """Largest difference of losses, and of weights; NaN if any is NaN."""
        assert self.weights.keys() == other.weights.keys()
        losses = [0.0, *(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))]
        weights = [(w - other.weights[name]).abs().max() for name, w in self.weights.items()]
        return torch.tensor(losses).max().item(), torch.stack(weights).max().item()


def train_with(trainer):
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Trained(losses, {key: w.detach().clone() for key, w in trainer.model.state_dict().items()})


def train(name, setting, folder):
    model = MODELS[name]()
    if setting.sharded != "no":
        return _train_sharded(name, model, setting, folder)
    options = split(setting.accumulate, setting.ranks)
    options |= {"ddp_backend": "gloo"} if setting.ranks > 1 else {}
    return train_with(number_aware_trainer(model, folder, setting.way, **options))


def _shard(name, model, setting):
    for layer in model.get_submodule(LAYERS[name]):
        fully_shard(layer)
    if setting.sharded == "head":
        fully_shard(model.lm_head)
    fully_shard(model)


def _with_tensor_parallelism(model, folder):
    model.save_pretrained(folder)  # only the first rank saves
    dist.barrier()
    return type(model).from_pretrained(folder, tp_plan="auto").train()


def _train_sharded(name, model, setting, folder):
    # Only its loss is used: on the CPU, accelerate shards no models, and a Trainer refuses sharded ones.
    trainer = number_aware_trainer(model, folder, setting.way, ddp_backend="gloo")
    trainer.args.average_tokens_across_devices = setting.data_ranks > 1  # multiplies by the ranks
    if setting.sharded == "tensor":
        model = _with_tensor_parallelism(model, folder)
    else:
        _shard(name, model, setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    size, data_rank = setting.rows, dist.get_rank() % setting.data_ranks
    rows, losses = samples(), []
    for step in range(STEPS):
        mine = []
        for micro in range(setting.accumulate):
            first = step * ROWS + (micro * setting.data_ranks + data_rank) * size
            mine.append(stack(rows[first : first + size]))
        items = sum((count_items(inputs["labels"], model) for inputs in mine), torch.zeros(()))
        if setting.data_ranks > 1:
            dist.all_reduce(items)
        total = torch.zeros(())
        for inputs in mine:
            loss = trainer.compute_loss(model, inputs, num_items_in_batch=items)
            loss.backward()  # FSDP averages over the ranks
            total += loss.detach() / setting.data_ranks
        if setting.data_ranks > 1:
            dist.all_reduce(total)
        losses.append(total.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, {key: _whole(w).detach() for key, w in model.state_dict().items()})


def train_plainly(name, criterion="ntl_was", steps=STEPS, before_step=None):
    """Train in a loop of plain torch, with all rows of a step as one batch; set the loss before each."""
    model, rows, losses = MODELS[name](), samples(ROWS * steps), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss_fn = NTLCrossEntropyLoss(DIGITS, criterion, shift=name == "llama")
    for step in range(steps):
        inputs = stack(rows[step * ROWS : (step + 1) * ROWS])
        if before_step is not None:
            before_step(loss_fn, step)
        loss = loss_fn(model(**inputs).logits, inputs["labels"])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return Trained(losses, {key: w.detach().clone() for key, w in model.state_dict().items()})


def _whole(weight):
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight.clone()


def train_together(_rank, trainings, folder):
    trained = {}
    for name, setting in trainings:
        try:
            trained[name, setting] = train(name, setting, folder)
        except Exception as error:
            raise RuntimeError(f"{name}, {setting}: {error}") from error
    return trained


# How accelerate divides batches over ranks, and the rows of a batch: of one rank, or of both.
LOADERS = {
    "each rank reads": ({"dispatch_batches": False}, ROWS // 2),
    "each rank reads, batches are split": ({"dispatch_batches": False, "split_batches": True}, ROWS),
    "one rank reads": ({"dispatch_batches": True}, ROWS // 2),
    "one rank reads, batches are split": ({"dispatch_batches": True, "split_batches": True}, ROWS),
}


def train_with_loaders(_rank, folder):
    """Train on whole numbers, which travel with the batches, by each of the loaders."""
    trained = {}
    for how, (loader, size) in LOADERS.items():
        options = {"per_device_train_batch_size": size, "accelerator_config": loader, "ddp_backend": "gloo"}
        trainer = number_aware_trainer(llama(), folder, loss={"criterion": HLGauss(2.0)}, **options)
        trained[how] = train_with(trainer)
    return trained


def possible(name, setting):
    """Whether a model supports a setting: T5's head is its embedding and is sharded with it."""
    if name == "t5" and setting.sharded not in ("no", "model"):
        return False
    return AVERAGES_SHARDS or setting.sharded not in ("model", "head")


def trained_together(folder):
    """All training runs of two processes, in one job: starting it takes longer than they do."""
    trainings = [(name, setting) for setting in TOGETHER for name in MODELS if possible(name, setting)]
    return results_of(train_together, (trainings, folder), folder)[0]
