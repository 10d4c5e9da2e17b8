"""Compare a training step of the lab with and without a number token loss.

    python benchmarks/lab_step.py
    python benchmarks/lab_step.py --tokenizer ../shared/tokenizers/t5 --shape t5-small --threads 2

`stock` is transformers' own loss (`model(labels=...).loss`), `CE` is the lab's loss without a number term. A
step is forward, backward and AdamW. Steps are timed alternately on the same batch; ratios are of medians.
"""

from __future__ import annotations

import argparse

import torch
from measure import Contender, time_interleaved
from torch import nn

from ntl.approaches import Approach, build_approach
from ntl.approaches.shapes import get_shape
from ntl.config.compose import compose_config
from ntl.config.settings import LossSettings, ModelSettings
from ntl.data import load_task

LOSSES = {
    "CE": LossSettings(),
    "CE + NTL-WAS": LossSettings("wasserstein"),
    "CE + NTL-MSE": LossSettings("expected_value", {"loss": "squared"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="t5-tiny", help="shape of the model; default: t5-tiny")
    parser.add_argument("--tokenizer", help="a folder; default: the small one that ships with the lab")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    settings = ModelSettings(tokenizer=options.tokenizer, config=get_shape(options.shape))
    made = {name: build_approach(settings, loss) for name, loss in LOSSES.items()}
    batch = sample_batch(made["CE"], options.batch_size)
    contenders = {"stock": Contender(stock_step(build_approach(settings, LossSettings()).model, batch))}
    contenders |= {name: Contender(step(approach, batch)) for name, approach in made.items()}
    for contender in contenders.values():
        contender.run()
    timings = time_interleaved(contenders, "cpu", options.rounds, float("inf"))
    base, stock = timings["CE"].median, timings["stock"].median
    labels = int((batch["labels"] != -100).sum())
    print(
        f"{options.shape}, vocabulary {len(made['CE'].tokenizer):,}, batch {options.batch_size}, {labels} "
        f"labels, {options.threads} thread(s), torch {torch.__version__}\n"
    )
    print("| step | ms | over stock | over CE |\n|---|---:|---:|---:|")
    for name, timing in timings.items():
        print(
            f"| {name} | {timing.median * 1e3:.2f} | {timing.median / stock:.3f} "
            f"| {timing.median / base:.3f} |"
        )


def sample_batch(approach: Approach, size: int) -> dict[str, torch.Tensor]:
    """Make a batch of the first training questions of the shipped arithmetic sample."""
    overrides = ["dataset_args=arithmetic", "dataset_args.data_dir=sample"]
    settings = compose_config("run_language_modeling", overrides, "benchmark")["dataset_args"]
    examples = load_task({**settings, "name": "arithmetic"}).train[:size]
    columns = approach.encode([e.question for e in examples], [e.answer for e in examples])
    return approach.collate(
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    )


def step(approach: Approach, batch: dict[str, torch.Tensor]):
    optimizer = torch.optim.AdamW(approach.model.parameters())
    approach.model.train()

    def run() -> None:
        approach.loss(approach.model, batch, approach.count(batch)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def stock_step(model: nn.Module, batch: dict[str, torch.Tensor]):
    optimizer = torch.optim.AdamW(model.parameters())
    model.train()

    def run() -> None:
        model(**batch, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


if __name__ == "__main__":
    main()
