"""DeepSpeed on two gloo processes trains the same weights as one process; skipped without DeepSpeed."""

import os

import pytest
import torch
import torch.distributed as dist
import trainer_cases as cases
from processes import results_of
from tolerances import TRAINED, assert_close

from ntloss import NTLCrossEntropyLoss

ACCUMULATE, RATE = 2, 0.1
PARTS = 2 * ACCUMULATE  # over which DeepSpeed averages


def engine_of(model, stage, rows):
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": rows // (2 * ACCUMULATE),
        "gradient_accumulation_steps": ACCUMULATE,
        "zero_optimization": {"stage": stage},
        "gradient_clipping": 0.0,  # the default is 1
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine, deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def by_model(rank, stage, folder):
    """Train a Llama for one step, with a trainer's loss from hidden states."""
    model = cases.llama()
    trainer = cases.number_aware_trainer(model, folder, "chunked", ddp_backend="gloo")
    trainer.args.average_tokens_across_devices = False  # no factor of the ranks, which is in PARTS
    engine, gathered = engine_of(model, stage, cases.ROWS)
    size = cases.ROWS // (2 * ACCUMULATE)
    mine = [cases.batch(size, (2 * micro + rank) * size) for micro in range(ACCUMULATE)]
    items = sum(cases.count_items(inputs["labels"], model) for inputs in mine)
    dist.all_reduce(items)
    for inputs in mine:
        engine.backward(trainer.compute_loss(engine, inputs, num_items_in_batch=items) * PARTS)
        engine.step()
    with gathered:
        return weights_of(model)


def work(rank, folder):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.init_distributed("gloo")
    return {stage: by_model(rank, stage, folder) for stage in (0, 2, 3)}


def test_two_processes_train_the_same_weights_as_one(tmp_path):
    pytest.importorskip("deepspeed")
    of_two = results_of(work, (tmp_path,), tmp_path, seconds=300)
    model = cases.llama()
    inputs = cases.batch(cases.ROWS, 0)
    loss_fn = NTLCrossEntropyLoss(cases.DIGITS, shift=True)
    loss_fn(model(input_ids=inputs["input_ids"]).logits, inputs["labels"]).backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    for stage, weights in of_two[0].items():
        assert_close(weights, weights_of(model), TRAINED, f"stage {stage}")
