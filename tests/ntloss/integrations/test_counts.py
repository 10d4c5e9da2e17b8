"""Training does not depend on how a batch is split, in any kind of loop: micro-batches, processes, shards."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import loops_worker
import pytest
import torch
from loops_worker import DIGITS, STEPS, Model
from processes import results_of
from tolerances import assert_close
from torch import Tensor

from ntloss import NTLCrossEntropyLoss, NumberLevel, WeightScheduler
from ntloss.integrations.counts import CountedBatches

HAS_ACCELERATE = importlib.util.find_spec("accelerate") is not None


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """Weights after training on whole batches in one process."""
    return loops_worker.train_on_means(Model(), momentum=0.9)


@pytest.mark.parametrize("chunked", [False, True], ids=["logits", "chunked"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_accumulated_micro_batches_train_the_weights_of_one_batch(
    accumulate: int, chunked: bool, expected: dict[str, Tensor]
) -> None:
    model = Model()
    loops_worker.train(model, 0, 1, accumulate, chunked, lambda last: None)
    assert_close(loops_worker.weights(model), expected)


def test_means_of_micro_batches_train_other_weights(expected: dict[str, Tensor]) -> None:
    # Otherwise the test above could not fail.
    trained = loops_worker.train_on_means(Model(), 4, momentum=0.9)
    assert max(float((trained[name] - expected[name]).abs().max()) for name in expected) > 1e-3


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    """Weights in each of two gloo processes, for each way of training."""
    return results_of(loops_worker.main, (2, HAS_ACCELERATE), tmp_path_factory.mktemp("loops"))


WAYS = (
    "DDP, {}",
    "FSDP, {}, logits",
    "FSDP, {}, chunked",
    "TP, {}, logits",
    "TP, {}, chunked",
    "accelerate, {}, DDP",
    "accelerate, {}, FSDP",
)


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_train_the_weights_of_one(
    way: str, accumulate: int, of_two: list[dict[str, dict[str, Tensor]]], expected: dict[str, Tensor]
) -> None:
    if way.startswith("accelerate") and not HAS_ACCELERATE:
        pytest.skip("needs accelerate")
    for results in of_two:
        assert_close(results[way.format(accumulate)], expected)


def test_lightning_trains_the_weights_of_one_batch(
    expected: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lightning = pytest.importorskip("lightning")
    loss_fn = NTLCrossEntropyLoss(DIGITS, weight=7.0)  # the schedule sets that of `expected`
    schedule = WeightScheduler(loss_fn, lambda step: 1.0, weight=0.3)
    steps_seen = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, counted: tuple[dict[str, Tensor], dict[str, Tensor]], index: int) -> Tensor:
            batch, counts = counted
            schedule.set_step(self.global_step)
            steps_seen.append(self.global_step)
            return loss_fn(self.model(batch["ids"]), batch["labels"], **counts)

        def configure_optimizers(self) -> torch.optim.Optimizer:
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
    trainer.fit(module, CountedBatches(loops_worker.micro_batches(0, 1, 4), loss_fn, 4))
    assert_close(loops_worker.weights(module.model), expected)
    assert steps_seen == [step for step in range(STEPS) for _ in range(4)]


def test_a_last_step_with_fewer_micro_batches_counts_its_own_labels() -> None:
    loss_fn = NTLCrossEntropyLoss(DIGITS)
    rows = [[3, 11], [11, 11], [4, 5]]
    batches = CountedBatches([{"labels": torch.tensor([row])} for row in rows], loss_fn, accumulate=2)
    counts = [tuple(count.item() for count in counts.values()) for _, counts in batches]
    # The loss is always divided by two micro-batches.
    assert counts == [(2.0, 0.5), (2.0, 0.5), (1.0, 1.0)]
    assert len(batches) == 3


def test_weights_and_packed_sequences_are_counted_as_the_loss_counts_them() -> None:
    loss_fn = NTLCrossEntropyLoss(DIGITS, NumberLevel())
    labels = torch.tensor([[3, 4, 5, 6], [11, 12, 13, 4]])
    inputs = {
        "loss_weights": torch.tensor([[0.5, 1.0, 2.0, 1.0], [1.0, 0.0, 1.0, 3.0]]),
        "sequence_ids": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]),  # the first row has two numbers
    }
    logits = torch.randn(2, 4, loops_worker.VOCAB, generator=torch.Generator().manual_seed(0))
    expected = loss_fn(logits, labels, **inputs)
    rows = [{"labels": labels[i : i + 1], **{n: x[i : i + 1] for n, x in inputs.items()}} for i in (0, 1)]
    total = torch.zeros(())
    for i, (batch, counts) in enumerate(CountedBatches(rows, loss_fn, 2, labels=lambda batch: batch)):
        total += loss_fn(logits[i : i + 1], **batch, **counts) / 2
    assert_close(total, expected)


def test_a_loss_counts_the_same_if_compiled_or_on_another_device() -> None:
    loss_fn, elsewhere = NTLCrossEntropyLoss(DIGITS), NTLCrossEntropyLoss(DIGITS).to("meta")
    batches = [{"input_ids": torch.tensor([[0, 3]]), "labels": torch.tensor([[3, 11]])}]
    for other in (torch.compile(loss_fn, backend="eager"), elsewhere):
        assert list(CountedBatches(batches, other)) == list(CountedBatches(batches, loss_fn))
    assert elsewhere.tables.values.device.type == "meta"


@pytest.mark.parametrize(
    ("batch", "given"),
    [
        ({"input_ids": torch.tensor([1])}, r"a dict with \['input_ids'\]"),
        ((torch.tensor([1]), torch.tensor([1])), "a tuple:"),
    ],
    ids=["no such name", "pair"],
)
@pytest.mark.parametrize("of_model", [False, True], ids=["loss", "handle"])
def test_a_batch_without_labels_is_an_error(batch: object, given: str, of_model: bool) -> None:
    counting = NTLCrossEntropyLoss(DIGITS)
    if of_model:
        cases = pytest.importorskip("integration_cases")
        from ntloss.integrations.transformers import make_number_aware

        counting = make_number_aware(cases.llama(), cases.DIGITS)
    with pytest.raises(ValueError, match=rf"no labels found in a batch, {given}.*labels=lambda batch"):
        list(CountedBatches([batch], counting))


def test_an_invalid_accumulate_or_loss_is_an_error() -> None:
    for accumulate in (0, 1.5, "2"):
        with pytest.raises(ValueError, match=r"accumulate=.*expected 1 or more"):
            CountedBatches([], NTLCrossEntropyLoss(DIGITS), accumulate)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Linear does not count numbers: expected .*make_number_aware"):
        CountedBatches([], torch.nn.Linear(2, 2))  # type: ignore[arg-type]
