"""Boxes as text: each coordinate is read given those that are already written.

    python examples/boxes.py --steps 300

A box's center and size are given, `45 60 20 10=`, and its corners are asked for, `35 55 55 65`. A detector
that answers in text is trained and read in the same way.
"""

import argparse
import random
from typing import Any

import torch
from tiny import causal_batch, make_llama, make_tokenizer, report

from ntloss import NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import number_quantiles


def make_boxes(count: int, seed: int) -> list[tuple[str, str]]:
    """Draw questions and answers such as `("45 60 20 10=", "35 55 55 65")`."""
    draw, texts = random.Random(seed), []
    for _ in range(count):
        half_width, half_height = draw.randrange(5, 20), draw.randrange(5, 20)
        x, y = draw.randrange(half_width, 100 - half_width), draw.randrange(half_height, 100 - half_height)
        corners = (x - half_width, y - half_height, x + half_width, y + half_height)
        question = f"{x:02} {y:02} {2 * half_width:02} {2 * half_height:02}="
        texts.append((question, " ".join(f"{corner:02}" for corner in corners)))
    return texts


def read_boxes(
    model: Any, tokenizer: Any, vocabulary: NumberVocabulary, questions: list[str]
) -> torch.Tensor:
    """Read the median of each coordinate; returns `[questions, 4]`."""
    columns: list[torch.Tensor] = []
    for _ in range(4):
        inputs = tokenizer(questions, return_tensors="pt", return_token_type_ids=False)  # all of one length
        read = number_quantiles(model, inputs, vocabulary, (0.5,), NumberFormat(digits=2))
        columns.append(read.values[:, 0])
        questions = [f"{text}{value:02.0f} " for text, value in zip(questions, columns[-1], strict=True)]
    return torch.stack(columns, 1)


def overlap(boxes: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Compute the intersection over union of each box and another one, `[boxes]`."""
    sides = torch.minimum(boxes[:, 2:], others[:, 2:]) - torch.maximum(boxes[:, :2], others[:, :2])
    shared = sides.clamp(min=0).prod(-1)
    areas = [(corners[:, 2:] - corners[:, :2]).clamp(min=0).prod(-1) for corners in (boxes, others)]
    return shared / (areas[0] + areas[1] - shared)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    model = make_llama(tokenizer)
    loss_fn = NTLCrossEntropyLoss(tokenizer, shift=True, return_terms=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    held_out = make_boxes(64, seed=0)

    def terms_of(boxes: list[tuple[str, str]]) -> Any:
        inputs = causal_batch(tokenizer, boxes)
        labels = inputs.pop("labels")
        return loss_fn(model(**inputs).logits, labels)

    for step in range(arguments.steps + 1):
        if step in (0, arguments.steps):
            with torch.no_grad():
                report("before" if step == 0 else "after", *terms_of(held_out)[:3])
        terms_of(make_boxes(32, seed=1 + step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    found = read_boxes(model, tokenizer, vocabulary, [question for question, _ in held_out])
    true = torch.tensor([[float(corner) for corner in answer.split()] for _, answer in held_out])
    print(f"overlap with the true boxes (IoU): {overlap(found, true).mean():.3f}")


if __name__ == "__main__":
    main()
