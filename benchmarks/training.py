"""The table `integrations`: training steps with and without a number term.

On the CPU of tiny models, on a GPU of a model of the shape of Llama 3.2 1B with 8,192 tokens in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import measure
import torch

from ntloss import NumberVocabulary

STOCK, OFF = "transformers", "make_number_aware, number term off"
OURS, CHUNKED = "make_number_aware", "make_number_aware, chunked"
CONTENDERS = (STOCK, OFF, OURS, CHUNKED)
# Rows of a training batch, and tokens per row.
MODELS = {"cpu": {"T5": (16, 64), "Llama": (8, 128)}, "cuda": {"Llama 1B": (2, 4096)}}
VOCAB, SHARE = {"cpu": 32_000, "cuda": 128_256}, 0.3


def measurements(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure time and peak memory of each contender on each model."""
    made, device = [], options.device
    for model in MODELS[device]:
        print(f"integrations: {model}", file=sys.stderr)
        steps = {
            name: measure.Contender(training_step(model, name, options.quick, device)) for name in CONTENDERS
        }
        for step in steps.values():
            step.run()
        # Differences of a few per cent need as many rounds as the table on_off.
        timings = measure.time_interleaved(steps, device, 3 * options.repeats, 2 * options.seconds)
        peaks: dict[str, int | None] = {}
        if not options.no_memory:
            if device == "cpu":
                builders = {
                    name: partial(build_and_warm_up, model, name, options.quick) for name in CONTENDERS
                }
                peaks = measure.peaks_in_fresh_processes(builders)
            else:
                peaks = {name: measure.peak_memory(step, device) for name, step in steps.items()}
        for name, timing in timings.items():
            peak = peaks.get(name)
            made.append(
                {
                    "table": "integrations",
                    "model": model,
                    "contender": name,
                    "criterion": None,
                    "median_ms": timing.median * 1e3,
                    "least_ms": timing.least * 1e3,
                    "rounds": timing.rounds,
                    "peak_mib": None if peak is None else peak / 2**20,
                }
            )
    return made


def training_step(name: str, contender: str, quick: bool, device: str = "cpu") -> Callable[[], None]:
    """Make a function that runs forward, backward and AdamW once."""
    torch.manual_seed(0)
    vocab = 200 if quick else VOCAB[device]
    model = build(name, vocab, quick).to(device)
    rows, tokens = (2, 8) if quick else MODELS[device][name]
    ids = torch.randint(10, vocab, (rows, tokens))
    ids = torch.where(torch.rand(rows, tokens) < SHARE, ids % 10, ids).to(device)
    compute_loss = _trainer(model, contender, vocab, device).compute_loss
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        compute_loss(model, {"input_ids": ids, "labels": ids}).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _trainer(model: Any, contender: str, vocab: int, device: str) -> Any:
    from transformers import PrinterCallback, ProgressCallback, Trainer, TrainingArguments

    from ntloss.trainers import make_number_aware

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, use_cpu=device == "cpu", report_to="none")
        trainer = Trainer(model, arguments)
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    if contender != STOCK:
        digits = NumberVocabulary.from_mapping({d: str(d) for d in range(10)}, vocab_size=vocab)
        criterion = None if contender == OFF else "ntl_was"
        make_number_aware(trainer, criterion, vocabulary=digits, chunked=contender == CHUNKED)
    return trainer


def build(name: str, vocab: int, quick: bool = False) -> Any:
    """Build a model of transformers with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    if name == "T5":
        config = T5Config(
            vocab_size=vocab, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4,
            decoder_start_token_id=0, dropout_rate=0.0,
        )  # fmt: skip
        return T5ForConditionalGeneration(config).train()
    if name == "Llama 1B":
        config = LlamaConfig(
            vocab_size=vocab, hidden_size=64 if quick else 2048, intermediate_size=128 if quick else 8192,
            num_hidden_layers=1 if quick else 16, num_attention_heads=32, num_key_value_heads=8,
            max_position_embeddings=8192, tie_word_embeddings=True,
        )  # fmt: skip
        return LlamaForCausalLM(config).to(torch.bfloat16).train()
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config).train()


def build_and_warm_up(model: str, contender: str, quick: bool) -> measure.Contender:
    """Build a contender on the CPU and run it twice: the optimizer's state, the check of a head."""
    step = measure.Contender(training_step(model, contender, quick))
    for _ in range(2):
        step.run()
    return step


def table(measured: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the table: time relative to both baselines, and memory to stock."""
    found = {(m["model"], m["contender"]): m for m in measured}
    rows = []
    for (model, name), mine in found.items():
        stock, peak = found[model, STOCK], mine["peak_mib"]
        if name == STOCK:
            figures = [f"{stock['median_ms']:.0f} ms", "", "", "-" if peak is None else f"{peak:.0f} MiB"]
        else:
            figures = [f"{mine[time] / stock[time]:.2f}" for time in ("median_ms", "least_ms")]
            off = found.get((model, OFF))
            figures.append("" if off is None else f"{mine['median_ms'] / off['median_ms']:.2f}")
            figures.append("-" if peak is None else f"{peak / stock['peak_mib']:.2f}")
        rows.append([model, name, *figures])
    headings = ["model", "loss", "time over transformers", "of the fastest rounds", "over number term off"]
    return [*headings, "peak memory"], rows
