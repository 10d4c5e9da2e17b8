"""Time a training step of every loss and model of the lab.

    python benchmarks/lab_step.py
    python benchmarks/lab_step.py dataset_args=arithmetic dataset_args.data_dir=sample --threads 2
    python benchmarks/lab_step.py model_args.tokenizer_name_or_path=FOLDER

Arguments are overrides of `ntl compare`. A step is forward, backward and AdamW on a batch of the first
training questions, the same for all. `stock` is the first objective's model with transformers' own loss
(`model(labels=...).loss`). Steps are timed alternately, and ratios are of medians.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch
from measure import Contender, time_interleaved

from ntl.approaches import Approach, Batch, build_approach
from ntl.config import compose_config
from ntl.data import Example, load_task

LOSSES = (
    "ntl_was", "crps", "ntl_mse", "ntl_mae", "ntl_huber", "gaussian_smoothing", "hl_gauss", "dist2",
    "del_loss", "smmd", "ntil", "number_level", "raft",
)  # fmt: skip
MODELS = ("vanilla_t5_regression_head", "xval")  # which predict a number as a number
STOCK, BASELINE = "stock", "ce"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", help="overrides of `ntl compare`")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    groups = dict.fromkeys([BASELINE, *LOSSES], "loss") | dict.fromkeys(MODELS, "model_args")
    configs = {
        name: compose_config([f"{group}={name}", *options.overrides], "compare")
        for name, group in groups.items()
    }
    first = configs[BASELINE]
    size = first.training_args.per_device_train_batch_size
    train = load_task(first.dataset_args).train
    made = {name: build_approach(config.model_args, config.loss) for name, config in configs.items()}
    for approach in made.values():
        approach.fit(example.answer for example in train)
    batches = {name: encode(approach, train[:size]) for name, approach in made.items()}
    stock = build_approach(first.model_args, first.loss).model
    contenders = {STOCK: contender(stock, lambda: stock(**batches[BASELINE], use_cache=False).loss)}
    for name, approach in made.items():
        contenders[name] = contender(approach.model, partial(loss_of, approach, batches[name]))
    for each in contenders.values():
        each.run()
    timings = time_interleaved(contenders, "cpu", options.rounds, float("inf"))
    labels = int((batches[BASELINE]["labels"] != -100).sum())
    print(
        f"{stock.num_parameters():,} parameters, vocabulary {len(made[BASELINE].tokenizer):,}, batch {size} "
        f"with {labels} labels, {options.threads} thread(s), torch {torch.__version__}\n"
    )
    print(f"| step | ms | over {BASELINE} | over {STOCK} |\n|---|---:|---:|---:|")
    for name, timing in timings.items():
        ratios = " | ".join(f"{timing.median / timings[base].median:.3f}" for base in (BASELINE, STOCK))
        print(f"| {name} | {timing.median * 1e3:.2f} | {ratios} |")


def encode(approach: Approach, examples: list[Example]) -> Batch:
    """Make a batch of examples as an approach encodes them."""
    columns = approach.encode([e.question for e in examples], [e.answer for e in examples])
    rows = zip(*columns.values(), strict=True)
    return approach.collate([dict(zip(columns, row, strict=True)) for row in rows])


def loss_of(approach: Approach, batch: Batch) -> torch.Tensor:
    """Compute the loss of an approach."""
    return approach.loss(approach.model, batch, approach.count(batch)).loss


def contender(model: torch.nn.Module, loss) -> Contender:
    """Return a training step that minimizes what a function computes."""
    optimizer = torch.optim.AdamW(model.train().parameters())

    def run() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Contender(run)


if __name__ == "__main__":
    main()
