"""Time a training step of every loss and model of the lab.

    python benchmarks/lab_step.py
    python benchmarks/lab_step.py dataset_args=arithmetic dataset_args.data_dir=sample --threads 2
    python benchmarks/lab_step.py model_args.tokenizer_name_or_path=FOLDER

Arguments are overrides of `ntl compare`. A step is the lab's trainer's own forward and backward pass, then
AdamW, on a batch of the first training questions, the same for all. There are two baselines: `stock` is
transformers' Trainer with the same model and transformers' own loss; `ce` is the lab's `loss=ce`, the
library's cross-entropy with its number term off. Steps are timed alternately, and ratios are of medians.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from measure import Contender, time_interleaved
from transformers import Trainer

from ntl.data import TaskData
from ntl.identity import identify
from ntl.models import build
from ntl.run import add_loss, remember
from ntl.settings import Config, compose_config
from ntl.trainer import EncodedRows, LabTrainer, XvalTrainer, trainer_arguments

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
    data = first.dataset_args.read()
    with TemporaryDirectory() as folder:
        trainers = {name: make_trainer(config, data, Path(folder)) for name, config in configs.items()}
        baseline = trainers[BASELINE]
        rows = baseline.train_dataset
        size = min(size, len(rows))
        batch = baseline.data_collator([rows[i] for i in range(size)])
        model = build(first.model_args).model
        stock = Trainer(model, baseline.args, train_dataset=rows, eval_dataset=rows)
        contenders = {STOCK: contender(stock, batch)}
        for name, trainer in trainers.items():
            own = [trainer.train_dataset[i] for i in range(size)]
            contenders[name] = contender(trainer, trainer.get_train_dataloader().collate_fn(own))
    for each in contenders.values():
        each.run()
    timings = time_interleaved(contenders, "cpu", options.rounds, float("inf"))
    labels = int((batch["labels"] != -100).sum())
    print(
        f"{model.num_parameters():,} parameters, vocabulary {len(baseline.processing_class):,}, batch {size} "
        f"with {labels} labels, {options.threads} thread(s), torch {torch.__version__}\n"
    )
    print(f"| step | ms | over {BASELINE} | over {STOCK} |\n|---|---:|---:|---:|")
    for name, timing in timings.items():
        ratios = " | ".join(f"{timing.median / timings[base].median:.3f}" for base in (BASELINE, STOCK))
        print(f"| {name} | {timing.median * 1e3:.2f} | {ratios} |")


def make_trainer(config: Config, data: TaskData, folder: Path) -> LabTrainer:
    """Make the trainer of a configuration, with its loss."""
    config.training_args.disable_tqdm = True
    built = build(config.model_args)
    built.fit(example.answer for example in data.train)
    remember(built, config, data, identify(config, data)[0])
    rows = EncodedRows(data.train, built)
    arguments = trainer_arguments(config.training_args, folder)
    kind = XvalTrainer if config.model_args.encoding == "xval" else LabTrainer
    trainer = kind(arguments, built, lambda *_: None, train_dataset=rows, eval_dataset=rows)
    add_loss(trainer, config)
    return trainer


def contender(trainer: Trainer, batch: dict[str, Any]) -> Contender:
    """Return a training step on a batch."""
    optimizer = torch.optim.AdamW(trainer.model.train().parameters())

    def run() -> None:
        batches, items = trainer.get_batch_samples(iter([dict(batch)]), 1, trainer.args.device)
        trainer.training_step(trainer.model, batches[0], items)
        optimizer.step()
        optimizer.zero_grad()

    return Contender(run)


if __name__ == "__main__":
    main()
