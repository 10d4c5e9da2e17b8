"""Training does not depend on how a batch is split, in any kind of loop: micro-batches, processes, shards."""

import loops_worker
import pytest
import torch
from loops_worker import DIGITS, STEPS, Model
from processes import results_of
from tolerances import assert_close
from torch import Tensor

from ntloss import NTLCrossEntropyLoss


@pytest.fixture(scope="module")
def expected():
    """Weights after training on whole batches in one process."""
    return loops_worker.train_on_means(Model(), momentum=0.9)


@pytest.mark.parametrize("chunked", [False, True], ids=["logits", "chunked"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulated_micro_batches_train_the_weights_of_one_batch(accumulate, chunked, expected):
    model = Model()
    loops_worker.train(model, accumulate, chunked)
    assert_close(loops_worker.weights(model), expected)


def test_means_of_micro_batches_train_other_weights(expected):
    # Otherwise the test above could not fail.
    trained = loops_worker.train_on_means(Model(), 4, momentum=0.9)
    assert max(float((trained[name] - expected[name]).abs().max()) for name in expected) > 1e-3


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """Weights in each of two gloo processes, for each way of training."""
    pytest.importorskip("accelerate")
    return results_of(loops_worker.main, (2,), tmp_path_factory.mktemp("loops"))


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_two_processes_of_accelerate_train_the_weights_of_one(accumulate, sharded, of_two, expected):
    for results in of_two:
        assert_close(results[accumulate, sharded], expected)


def test_lightning_trains_the_weights_of_one_batch(expected, tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning")
    loss_fn = NTLCrossEntropyLoss(DIGITS, weight=7.0)  # the step sets that of `expected`
    steps_seen = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            loss_fn.weight = 0.3
            steps_seen.append(self.global_step)
            loss: Tensor = loss_fn(self.model(batch["ids"]), batch["labels"], count=batch["items"])
            return loss * 4  # Lightning divides by the micro-batches

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    module = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=4,
        accelerator="cpu",
        precision="64-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    loader = []
    for step in loops_worker.batched(loops_worker.micro_batches(0, 1, 4), 4):
        items = loops_worker.items_in_step([batch["labels"] for batch in step])
        loader += [{**batch, "items": items} for batch in step]
    trainer.fit(module, torch.utils.data.DataLoader(loader, batch_size=None))
    assert_close(loops_worker.weights(module.model), expected)
    assert steps_seen == [step for step in range(STEPS) for _ in range(4)]
