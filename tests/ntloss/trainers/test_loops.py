"""In Lightning, micro-batches train the weights of one batch, as docs/train.md says."""

import pytest
import torch
import trainer_cases as cases
from tolerances import TRAINED, assert_close
from trainer_cases import ROWS, STEPS

from ntloss import NTLCrossEntropyLoss

MICRO_BATCHES = 4


def test_lightning_trains_the_weights_of_one_batch(tmp_path):
    lightning = pytest.importorskip("lightning")
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=True)
    rows, size = cases.samples(), ROWS // MICRO_BATCHES
    batches = [cases.stack(rows[start : start + size]) for start in range(0, ROWS * STEPS, size)]
    model = cases.llama()
    items = [cases.count_items(batch["labels"], model) for batch in batches]
    counts = [sum(items[i - i % MICRO_BATCHES :][:MICRO_BATCHES]) for i in range(len(items))]

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            labels = batch.pop("labels")
            # Lightning averages over the micro-batches.
            return loss_fn(self.model(**batch).logits, labels, count=counts[index] / MICRO_BATCHES)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=cases.RATE)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {"max_epochs": 1, "accumulate_grad_batches": MICRO_BATCHES, "accelerator": "cpu"}
    trainer = lightning.Trainer(**options, **dict.fromkeys(quiet, False), default_root_dir=tmp_path)
    trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
    weights = {name: weight.detach() for name, weight in model.state_dict().items()}
    assert_close(weights, cases.train_plainly("llama").weights, TRAINED)
