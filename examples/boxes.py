"""Boxes, points and clocks in images: numbers that a model with eyes writes, and how sure it is of each.

    python examples/boxes.py

A small vision-language model is trained from scratch to answer three questions about a drawn image: the box
of a square (`[12, 30, 41, 59]`), its center (`(26,44)`), and the time on a clock, in minutes after twelve.
It is trained once for each loss. Printed are the overlap of the boxes (intersection over union), the error of
the centers in pixels and of the clocks in minutes, with greedy answers and with medians, and how often the
90 % interval of a number holds the truth.
"""

import argparse
import math
import time
import warnings
from typing import Any

import torch
from tiny import make_tokenizer, report
from torch import Tensor
from transformers import LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import HLGauss
from ntloss.numbers import parse_numbers
from ntloss.reading import UnlikelyNumberWarning, number_quantiles

SIDE, PATCH = 32, 8  # pixels of an image and of a patch; answers count in hundredths of the side
QUESTIONS = ("B", "P", "T")  # box, point, time
CRITERIA = {
    "cross-entropy": ("ntl_was", 0.0),
    "NTL-WAS": ("ntl_was", 0.3),
    "HL-Gauss": (HLGauss(sigma=(8.0, 2.0)), 1.0),
}
LEVELS = (0.05, 0.5, 0.95)


def draw_square(draw: torch.Generator) -> tuple[Tensor, list[int]]:
    """Draw a colored square on noise; return the image and the corners `x1, y1, x2, y2`."""
    side = int(torch.randint(20, 50, (1,), generator=draw))
    x, y = torch.randint(0, 100 - side, (2,), generator=draw).tolist()
    place = (torch.arange(SIDE) + 0.5) * 100 / SIDE
    inside = ((place >= y) & (place < y + side))[:, None] & ((place >= x) & (place < x + side))
    color = 0.5 + torch.rand(3, 1, 1, generator=draw) / 2
    return 0.2 * torch.rand(3, SIDE, SIDE, generator=draw) + color * inside, [x, y, x + side, y + side]


def draw_clock(draw: torch.Generator) -> tuple[Tensor, list[int]]:
    """Draw the hands of a clock; return the image and the minutes after twelve."""
    minutes = int(torch.randint(0, 720, (1,), generator=draw))
    places = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, SIDE)] * 2, indexing="xy"))
    image = 0.2 * torch.rand(3, SIDE, SIDE, generator=draw)
    for channel, (turns, length) in enumerate([(minutes / 720, 0.5), (minutes % 60 / 60, 0.9)]):
        tip = torch.tensor([math.sin(2 * math.pi * turns), -math.cos(2 * math.pi * turns)])
        along = (places * tip[:, None, None]).sum(0).clamp(0, length)
        distance = (places - along * tip[:, None, None]).norm(dim=0)
        image[channel] += (distance < 1.5 / SIDE * 2).float()
    return image, [minutes]


def make_rows(count: int, seed: int) -> list[tuple[str, Tensor, list[int], str]]:
    """Draw rows of a question, an image, the numbers of the answer, and the answer."""
    draw, rows = torch.Generator().manual_seed(seed), []
    for i in range(count):
        question = QUESTIONS[i % 3]
        image, numbers = draw_clock(draw) if question == "T" else draw_square(draw)
        if question == "P":
            numbers = [(numbers[0] + numbers[2]) // 2, (numbers[1] + numbers[3]) // 2]
        rows.append((question, image, numbers, write(question, numbers)))
    return rows


def write(question: str, numbers: list[int]) -> str:
    """Write an answer in one of the formats of models that point."""
    if question == "T":
        return str(numbers[0])
    return f"[{', '.join(map(str, numbers))}]" if question == "B" else f"({numbers[0]},{numbers[1]})"


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlavaForConditionalGeneration:
    """A vision-language model of about two million weights."""
    size = {"hidden_size": 160, "intermediate_size": 480, "num_hidden_layers": 3, "num_attention_heads": 4}
    vision = {
        "model_type": "clip_vision_model",
        "image_size": SIDE,
        "patch_size": PATCH,
        "projection_dim": 160,
    }
    ends = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = LlavaConfig(
        text_config={"model_type": "llama", "vocab_size": len(tokenizer), **size, **ends},
        vision_config={**size, **vision},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config)


def encode(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], answers: list[str], images: Tensor
) -> dict[str, Tensor]:
    """Encode a batch, padded on the left; each text follows its image's tokens."""
    patches = [tokenizer.convert_tokens_to_ids("<image>")] * (SIDE // PATCH) ** 2
    rows = []
    for text, answer in zip(texts, answers, strict=True):
        asked = patches + tokenizer.encode(text)
        written = [*tokenizer.encode(answer), tokenizer.eos_token_id] if answer else []
        rows.append((asked + written, [-100] * len(asked) + written))
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([[pad] * (longest - len(ids)) + ids for ids, _ in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _ in rows]),
        "labels": torch.tensor([[-100] * (longest - len(ids)) + labels for ids, labels in rows]),
        "pixel_values": images,
    }


def read_answers(
    model: Any, tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, Tensor, list[int], str]]
) -> Tensor:
    """Read each number of the answers after the medians before it; returns `[rows, levels, numbers]`."""
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, thousands="")
    question, most = rows[0][0], 719 if rows[0][0] == "T" else 99
    images, before = torch.stack([image for _, image, *_ in rows]), [question] * len(rows)
    columns = []
    warnings.simplefilter("ignore", UnlikelyNumberWarning)  # an untrained model writes no numbers
    for separator in {"B": ["[", ", ", ", ", ", "], "P": ["(", ","], "T": [""]}[question]:
        before = [text + separator for text in before]
        inputs = encode(tokenizer, before, [""] * len(rows), images)
        del inputs["labels"]
        read = number_quantiles(model, inputs, vocabulary, LEVELS, low=0, high=most, max_digits=3)
        columns.append(read.values)
        medians = read.values[:, 1].nan_to_num().tolist()
        before = [f"{text}{median:.0f}" for text, median in zip(before, medians, strict=True)]
    return torch.stack(columns, -1)


def overlap(boxes: Tensor, others: Tensor) -> Tensor:
    """Compute the intersection over union of each box and another one, `[boxes]`."""
    sides = torch.minimum(boxes[:, 2:], others[:, 2:]) - torch.maximum(boxes[:, :2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = [(corners[:, 2:] - corners[:, :2]).clamp(min=0).prod(-1) for corners in (boxes, others)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=1e-9)


def score(question: str, found: Tensor, truth: Tensor) -> float:
    """Return the mean overlap of boxes, distance of points in pixels, or error of clocks in minutes."""
    if question == "B":
        return float(overlap(found, truth).mean())
    if question == "P":
        return float((found - truth).norm(dim=-1).mean() * SIDE / 100)
    off = (found - truth).abs() % 720
    return float(torch.minimum(off, 720 - off).mean())


@torch.no_grad()
def evaluate(
    model: Any, tokenizer: PreTrainedTokenizerFast, rows: list[tuple[str, Tensor, list[int], str]]
) -> list[str]:
    """Return the scores of greedy answers and of medians, and the coverage, for each question."""
    cells = []
    for question in QUESTIONS:
        own = [row for row in rows if row[0] == question]
        truth = torch.tensor([numbers for _, _, numbers, _ in own], dtype=torch.float64)
        read = read_answers(model, tokenizer, own)
        inputs = encode(
            tokenizer, [question] * len(own), [""] * len(own), torch.stack([image for _, image, *_ in own])
        )
        del inputs["labels"]
        written = model.generate(**inputs, max_new_tokens=20, do_sample=False)[
            :, inputs["input_ids"].shape[1] :
        ]
        answers = [parse_numbers(tokenizer.decode(ids, skip_special_tokens=True), "") for ids in written]
        count = truth.shape[1]
        greedy = torch.tensor([(numbers + [0.0] * count)[:count] for numbers in answers], dtype=torch.float64)
        covered = ((read[:, 0] <= truth) & (truth <= read[:, 2])).double().mean()
        cells += [f"{score(question, found, truth):.2f}" for found in (greedy, read[:, 1])]
        cells.append(f"{float(covered):.0%}")
    return cells


def train(
    name: str, tokenizer: PreTrainedTokenizerFast, steps: int, batch: int, seed: int
) -> LlavaForConditionalGeneration:
    """Train a model with one of the losses."""
    torch.manual_seed(seed)
    model = make_model(tokenizer)
    criterion, weight = CRITERIA[name]
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, thousands="")
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion, weight=weight, shift=True, return_terms=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps + 1, pct_start=0.1)
    for step in range(steps + 1):
        loss_fn.anneal(step / steps)
        rows = make_rows(batch, seed=1 + 1_000_000 * seed + step)
        inputs = encode(
            tokenizer, [r[0] for r in rows], [r[3] for r in rows], torch.stack([r[1] for r in rows])
        )
        labels = inputs.pop("labels")
        terms = loss_fn(model(**inputs).logits, labels)
        if step in (0, steps):
            report("before" if step == 0 else "after", *(term.detach() for term in terms[:3]))
        terms.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps of each training")
    parser.add_argument("--batch", type=int, default=32, help="images of a step")
    parser.add_argument("--images", type=int, default=150, help="images that are read afterwards")
    parser.add_argument("--losses", nargs="+", default=[*CRITERIA], choices=CRITERIA, metavar="LOSS")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    tokenizer = make_tokenizer()
    tokenizer.add_tokens([*"[](),BPT", "<image>"])
    rows = make_rows(arguments.images, seed=0)
    table = [
        "| loss | boxes: IoU greedy | median | covered | points: pixels greedy | median | covered "
        "| clocks: minutes greedy | median | covered | training |",
        "| --- |" + " ---: |" * 10,
    ]
    for name in arguments.losses:
        started = time.process_time()
        model = train(name, tokenizer, arguments.steps, arguments.batch, arguments.seed)
        seconds = time.process_time() - started
        table.append(f"| {name} | {' | '.join(evaluate(model, tokenizer, rows))} | {seconds:.0f} s |")
        print("\n".join(table), flush=True)


if __name__ == "__main__":
    main()
