"""Train a small vision-language model from scratch to point at squares and to read clocks, and read it.

    python -m studies.boxes.train --seeds 0 1 2

A run that has a file is skipped. Each run takes a few minutes on one core, and is made at once.
"""

import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import parse_numbers
from ntloss.reading import Limits, UnlikelyNumberWarning, number_quantiles
from studies.boxes.task import LARGEST, QUESTIONS, SEPARATORS, SIDE, Row, draw_rows
from studies.fine_tuning import provenance
from studies.packs import make_runs

ARMS = ("ce", "ntl_was", "hl_gauss")
PATCH = 8  # pixels
STEPS, BATCH, RATE = 1500, 32, 3e-3
TEST = 300  # rows
LEVELS = (0.05, 0.5, 0.95)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, seed by seed."""
    make_runs(
        arguments,
        __doc__,
        ARMS,
        STEPS,
        Path("outputs/boxes"),
        lambda arm, seed, steps, _: make_run(arm, seed, steps),
    )


def make_run(arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Train a model, and return what it answers and how the run was made."""
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, thousands="")
    begin = time.process_time()
    losses = train(model, tokenizer, make_loss(arm, vocabulary), steps, seed)
    seconds = time.process_time() - begin
    rows = draw_rows(TEST, torch.Generator().manual_seed(2 * seed + 1))
    return {
        **{"arm": arm, "seed": seed, "steps": steps, "seconds": seconds, "losses": losses},
        "weights": sum(parameter.numel() for parameter in model.parameters()),
        "read": {
            question: read(
                model.eval(), tokenizer, vocabulary, [row for row in rows if row.question == question]
            )
            for question in QUESTIONS
        },
        "made": provenance(torch.device("cpu")),
    }


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are characters, and one for a patch of an image."""
    words = ["<pad>", "</s>", "<image>", *"0123456789[](), ", *QUESTIONS]
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    plain.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="</s>", additional_special_tokens=["<image>"]
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """Build a vision-language model of about 215,000 weights."""
    size = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision = {
        "model_type": "clip_vision_model",
        "image_size": SIDE,
        "patch_size": PATCH,
        "projection_dim": 64,
    }
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlavaConfig(
        text_config={"model_type": "llama", "vocab_size": len(tokenizer), **size, **ends},
        vision_config={**size, **vision},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    model = LlavaForConditionalGeneration(config)
    # As large as the embeddings of patches, so that the model sees from the start where a patch is.
    torch.nn.init.normal_(model.model.vision_tower.embeddings.position_embedding.weight, std=0.2)
    return model


def make_loss(arm: str, vocabulary: NumberVocabulary) -> NTLCrossEntropyLoss:
    """Make the loss of an arm."""
    if arm == "hl_gauss":
        return NTLCrossEntropyLoss(vocabulary, HLGauss(sigma=(8.0, 2.0)), shift=True)
    return NTLCrossEntropyLoss(vocabulary, "ntl_was", 0.3 if arm == "ntl_was" else 0.0, shift=True)


def train(
    model: Any, tokenizer: PreTrainedTokenizerFast, loss_fn: NTLCrossEntropyLoss, steps: int, seed: int
) -> list[float]:
    """Train on rows that are drawn anew for each step; return the mean loss of each tenth of training."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    draw = torch.Generator().manual_seed(2 * seed)
    losses = []
    for step in range(steps):
        loss_fn.anneal(step / steps)
        rows = draw_rows(BATCH, draw)
        inputs = encode(tokenizer, rows, [row.question for row in rows], [row.answer for row in rows])
        labels = inputs.pop("labels")
        loss = loss_fn(model(**inputs).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return [round(float(tenth.mean()), 4) for tenth in torch.tensor(losses).tensor_split(10)]


def encode(
    tokenizer: PreTrainedTokenizerFast,
    rows: Sequence[Row],
    prompts: Sequence[str],
    answers: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Encode prompts, each after its row's image, padded on the left; with answers, labels, too."""
    patches = [tokenizer.convert_tokens_to_ids("<image>")] * (SIDE // PATCH) ** 2
    asked = [patches + tokenizer.encode(prompt) for prompt in prompts]
    written = [[*tokenizer.encode(answer), tokenizer.eos_token_id] for answer in answers or []]
    written = written or [[] for _ in asked]
    longest = max(len(a) + len(w) for a, w in zip(asked, written, strict=True))
    padding = [longest - len(a) - len(w) for a, w in zip(asked, written, strict=True)]
    parts = list(zip(padding, asked, written, strict=True))
    encoded = {
        "input_ids": torch.tensor([[tokenizer.pad_token_id] * p + a + w for p, a, w in parts]),
        "attention_mask": torch.tensor([[0] * p + [1] * (longest - p) for p in padding]),
        "pixel_values": torch.stack([row.image for row in rows]),
    }
    if answers is not None:
        encoded["labels"] = torch.tensor([[-100] * (p + len(a)) + w for p, a, w in parts])
    return encoded


@torch.no_grad()
def read(
    model: Any, tokenizer: PreTrainedTokenizerFast, vocabulary: NumberVocabulary, rows: Sequence[Row]
) -> dict[str, Any]:
    """Read answers to one question: greedy ones, and quantiles of each number after the medians before it."""
    question = rows[0].question
    inputs = encode(tokenizer, rows, [question] * len(rows))
    tokens = model.generate(**inputs, max_new_tokens=20, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    greedy = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    columns, prompts = [], [question] * len(rows)
    for separator in SEPARATORS[question]:
        prompts = [prompt + separator for prompt in prompts]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlikelyNumberWarning)  # an untrained model writes no numbers
            found = number_quantiles(
                model,
                encode(tokenizer, rows, prompts),
                vocabulary,
                LEVELS,
                limits=Limits(0, LARGEST[question], max_digits=3),
            ).values
        columns.append(found)
        prompts = [
            f"{prompt}{median:.0f}"
            for prompt, median in zip(prompts, found[:, 1].nan_to_num().tolist(), strict=True)
        ]
    return {
        "truths": [row.numbers for row in rows],
        "greedy": [parse_numbers(answer, thousands="") for answer in greedy],
        "quantiles": torch.stack(columns, 1).tolist(),  # [rows, numbers, levels]
    }


if __name__ == "__main__":
    main()
