"""Training does not depend on how a batch is split, in the loops of docs/train.md."""

import pytest
import torch
import trainer_cases as cases
from tolerances import TRAINED, assert_close
from torch import Tensor
from trainer_cases import RATE, ROWS, STEPS

from ntloss import NTLCrossEntropyLoss


def micro_batches(accumulate):
    """Each step's micro-batches, some without numbers and some without labels, with the step's count."""
    rows, size = cases.samples(), ROWS // accumulate
    for step in range(STEPS):
        batches = [cases.stack(rows[i : i + size]) for i in range(step * ROWS, (step + 1) * ROWS, size)]
        count = sum((batch["labels"][:, 1:] != -100).sum() for batch in batches)
        yield [{**batch, "count": count} for batch in batches]


@pytest.fixture(scope="module")
def expected():
    """Weights after training on whole batches."""
    return cases.train_plainly("llama").weights


def loss_of(model, batch, chunked=False):
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=True)
    labels, count = batch["labels"], batch["count"]
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if not chunked:
        return loss_fn(model(**given).logits, labels, count=count)
    states = model.model(**given).last_hidden_state
    return loss_fn.from_hidden(states, model.lm_head.weight, labels, count=count)


@pytest.mark.parametrize("chunked", [False, True], ids=["logits", "chunked"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulated_micro_batches_train_the_weights_of_one_batch(accumulate, chunked, expected):
    model = cases.llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in micro_batches(accumulate):
        for batch in step:
            loss_of(model, batch, chunked).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_close({name: w.detach() for name, w in model.state_dict().items()}, expected, TRAINED)


def test_lightning_trains_the_weights_of_one_batch(expected, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = cases.llama()

        def training_step(self, batch, index):
            loss: Tensor = loss_of(self.model, batch)
            return loss * 4  # Lightning divides by the micro-batches

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=RATE)

    module = Module()
    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    options = {"max_epochs": 1, "accumulate_grad_batches": 4, "accelerator": "cpu"}
    trainer = lightning.Trainer(**options, **quiet, default_root_dir=tmp_path)
    loader = [batch for step in micro_batches(4) for batch in step]
    trainer.fit(module, torch.utils.data.DataLoader(loader, batch_size=None))
    assert_close({name: w.detach() for name, w in module.model.state_dict().items()}, expected, TRAINED)
