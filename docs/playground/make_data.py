"""Make the data of the interactive page: two small models, and what tokenizers do to numbers.

    ntl compare model_args.number_format=padded dataset_args.train_size=1000 loss=ce,hl_gauss \\
        training_args.seed=0,1,2,3,4,5 training_args.output_dir=outputs/page
    python docs/playground/make_data.py models \\
        outputs/page/train_size-1000_loss-{ce,hl_gauss}_number_format-padded_seed-0
    python docs/playground/make_data.py tokenizers t5=<folder of T5's tokenizer> gpt2=<folder of GPT-2's>
    python docs/playground/make_data.py criteria    # the titles of the criteria
    python docs/playground/make_data.py test-set    # let the models of models.js answer the test set again
    python docs/playground/make_data.py answers outputs/stored/run   # see stored_answers.py

They write JavaScript files that assign one constant, because pages that are opened from disk cannot load
JSON.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from ntl.encodings.digits import character_tokenizer, split_digits
from ntl.settings import compose_config
from ntloss import NumberVocabulary
from ntloss.criteria import CRITERIA, fact
from ntloss.numbers import inspect_tokenizer

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
PAGE_BUDGET = 1_000_000
"""Bytes that the page may have with its data."""

TRAIN_SIZE = 1000
"""Examples that the models were trained on: few, where HL-Gauss has lower error than cross-entropy."""
LABELS = ("cross-entropy", "HL-Gauss")
QUANTILES = (0.05, 0.5, 0.95)
SHOWN = 500
"""Questions of the test set that the page draws."""

RARE, RARE_SIZE = 0.01, 200
"""A question is rare if this share of the training questions has a smaller true mean, or a larger one."""

# T5's names of weights, and the page's.
_NAMES = (
    (r"^shared\.weight$", "embedding"),
    (r"^(\w+)\.final_layer_norm\.weight$", r"\1.norm"),
    (r"^(\w+)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight$", r"\1.bias"),
    (r"^(\w+)\.block\.(\d)\.layer\.0\.SelfAttention\.([qkvo])\.weight$", r"\1.\2.self.\3"),
    (r"^(\w+)\.block\.(\d)\.layer\.1\.EncDecAttention\.([qkvo])\.weight$", r"\1.\2.cross.\3"),
    (r"^(\w+)\.block\.(\d)\.layer\.[12]\.DenseReluDense\.(wi|wo)\.weight$", r"\1.\2.\3"),
    (r"^(\w+)\.block\.(\d)\.layer\.0\.layer_norm\.weight$", r"\1.\2.self_norm"),
    (r"^(encoder)\.block\.(\d)\.layer\.1\.layer_norm\.weight$", r"\1.\2.ff_norm"),
    (r"^(decoder)\.block\.(\d)\.layer\.1\.layer_norm\.weight$", r"\1.\2.cross_norm"),
    (r"^(decoder)\.block\.(\d)\.layer\.2\.layer_norm\.weight$", r"\1.\2.ff_norm"),
)
SENTENCES = (
    "The answer is 42, or 3.14 in 2019.",
    "It costs 1,299.99 dollars after a 15% discount.",
    "Add 7, 12 and 350000; the sum is 350019.",
    "Version 2.10 of 3 May needs 16GB.",
)


def write_constant(name: str, content: Any) -> Path:
    """Write a JavaScript file that assigns a constant; returns its path."""
    path = DATA / f"{name}.js"
    path.parent.mkdir(exist_ok=True)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_text(f'"use strict";\nconst {name.upper()} = {text};\n', encoding="utf-8")
    return path


def read_constant(name: str) -> Any:
    """Read what `write_constant` wrote."""
    text = (DATA / f"{name}.js").read_text(encoding="utf-8")
    return json.loads(text.partition(" = ")[2].removesuffix(";\n"))


# Models


def pack(model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Describe a T5 for the page: matrices as int8 with a float32 scale per row, other weights as float32."""
    tensors, integers, floats = [], [], []
    for name, rows in page_weights(model).items():
        rounded = not name.endswith(("norm", ".bias"))
        tensors.append({"name": name, "rows": rows.shape[0], "columns": rows.shape[1], "rounded": rounded})
        if rounded:
            scales = rows.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
            integers.append((rows / scales).round().to(torch.int8).numpy().tobytes())
            rows = scales
        floats.append(rows.numpy().astype("<f4").tobytes())
    config = model.config
    scaled = config.scale_decoder_outputs
    return {
        "config": {
            "layers": config.num_layers,
            "heads": config.num_heads,
            "buckets": config.relative_attention_num_buckets,
            "maxDistance": config.relative_attention_max_distance,
            "logitScale": config.d_model**-0.5 if scaled else 1.0,
        },
        "tokens": {
            t: i for t, i in tokenizer.get_vocab().items() if t in ("<pad>", "</s>", "▁", *"0123456789")
        },
        "tensors": tensors,
        "int8": base64.b64encode(b"".join(integers)).decode(),
        "float32": base64.b64encode(b"".join(floats)).decode(),
    }


def page_weights(model: T5ForConditionalGeneration) -> dict[str, Tensor]:
    """The weights by their names in the page, each as rows; they share memory with the model's."""
    parameters = dict(model.named_parameters())  # tied ones once
    return {
        page_name(name): weight.detach().reshape(-1, weight.shape[-1]) for name, weight in parameters.items()
    }


def page_name(name: str) -> str:
    """The page's name of one of T5's weights."""
    for pattern, replacement in _NAMES:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name)
    raise ValueError(f"{name!r} is no weight of a T5 with ReLU and tied embeddings, which the page computes")


def unpack(packed: Mapping[str, Any]) -> T5ForConditionalGeneration:
    """Make the T5 with the rounded weights of the page, in float64 and in evaluation mode."""
    integers = np.frombuffer(base64.b64decode(packed["int8"]), np.int8)
    floats = np.frombuffer(base64.b64decode(packed["float32"]), "<f4").astype(np.float64)
    rows = {tensor["name"]: tensor for tensor in packed["tensors"]}
    config, width = packed["config"], rows["embedding"]["columns"]
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=rows["embedding"]["rows"], d_model=width, num_layers=config["layers"],
            num_heads=config["heads"], d_kv=width // config["heads"], d_ff=rows["encoder.0.wi"]["rows"],
            relative_attention_num_buckets=config["buckets"],
            relative_attention_max_distance=config["maxDistance"],
            decoder_start_token_id=packed["tokens"]["<pad>"], eos_token_id=packed["tokens"]["</s>"],
        )
    ).double().eval()  # fmt: skip
    weights = page_weights(model)
    for tensor in packed["tensors"]:
        size = tensor["rows"] * tensor["columns"]
        count = tensor["rows"] if tensor["rounded"] else size
        values, floats = floats[:count].reshape(tensor["rows"], -1), floats[count:]
        if tensor["rounded"]:
            values, integers = values * integers[:size].reshape(tensor["rows"], -1), integers[size:]
        weights[tensor["name"]].copy_(torch.from_numpy(np.ascontiguousarray(values)))
    return model


@torch.no_grad()
def distributions(
    model: T5ForConditionalGeneration, packed: Mapping[str, Any], questions: Sequence[str]
) -> Tensor:
    """The model's distributions over 000 to 999, masked to three digits: `[questions, 1000]`, float64."""
    tokens = packed["tokens"]
    digits = torch.tensor([tokens[str(digit)] for digit in range(10)])
    pairs = torch.cartesian_prod(digits, digits)
    starts = torch.cat([torch.full((100, 1), tokens["<pad>"]), pairs], dim=-1)
    found = []
    for question in questions:
        ids = encode_question(packed, question)
        encoded = model.get_encoder()(ids).last_hidden_state.expand(100, -1, -1)
        logits = model(encoder_outputs=(encoded,), decoder_input_ids=starts).logits
        first, second, third = logits[..., digits].double().softmax(-1).unbind(1)
        index = torch.arange(100)
        found.append((first[index, index // 10] * second[index, index % 10])[:, None] * third)
    return torch.stack(found).reshape(len(questions), 1000)


def encode_question(packed: Mapping[str, Any], question: str) -> Tensor:
    """Token ids of a question, `[1, seq]`, with the end token."""
    tokens = packed["tokens"]
    return torch.tensor([[*(tokens["▁" if c == " " else c] for c in question), tokens["</s>"]]])


def read_distributions(probs: Tensor) -> dict[str, Tensor]:
    """Greedy number, median, mean and the ends of the 90 % interval of distributions `[rows, 1000]`."""
    tree = probs.reshape(-1, 10, 10, 10)
    rows = torch.arange(len(probs))
    first = tree.sum((2, 3)).argmax(-1)
    second = tree[rows, first].sum(-1).argmax(-1)
    third = tree[rows, first, second].argmax(-1)
    below = probs.cumsum(-1)
    low, median, high = (((below < q).sum(-1)).double() for q in QUANTILES)
    mean = probs @ torch.arange(1000, dtype=probs.dtype)
    greedy = (100 * first + 10 * second + third).double()
    return {"greedy": greedy, "median": median, "mean": mean, "low": low, "high": high}


def score(read: Mapping[str, Tensor], answers: Tensor) -> dict[str, float]:
    """The share of answers that the 90 % intervals cover, and how wide these are."""
    covered = (read["low"] <= answers) & (answers <= read["high"])
    return {
        "coverage": round(covered.double().mean().item(), 3),
        "width": round((read["high"] - read["low"]).mean().item(), 1),
    }


def errors_of(read: Mapping[str, Tensor], means: Tensor) -> dict[str, float]:
    """How far the readings are off the true means, on average."""
    return {name: round((read[name] - means).abs().mean().item(), 3) for name in ("greedy", "median", "mean")}


def make_models(folders: Sequence[Path]) -> Path:
    """Write `models.js` from the run folders of the models."""
    models = []
    for label, folder in zip(LABELS, folders, strict=True):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = T5ForConditionalGeneration.from_pretrained(folder)
        models.append({"label": label, **pack(model, tokenizer)})
    return write_answers(models)


def write_answers(models: Sequence[dict[str, Any]]) -> Path:
    """Write `models.js` with what packed models answer to the test set, and to rare questions."""
    settings: Any = compose_config([f"dataset_args.train_size={TRAIN_SIZE}"], "compare").dataset_args
    data = settings.read()
    test = data.tests["test"]
    answers, means = (
        torch.tensor([float(getattr(example, name)) for example in test], dtype=torch.float64)
        for name in ("answer", "expected")
    )
    usual = torch.tensor([example.expected for example in data.train], dtype=torch.float64)
    limits = usual.quantile(torch.tensor([RARE, 1 - RARE], dtype=torch.float64))
    rare = draw_rare(settings, *limits.tolist())
    rare_means = torch.tensor([mean for _, mean in rare], dtype=torch.float64)
    off = []
    for model in models:
        probs = distributions(unpack(model), model, [example.question for example in test])
        read = read_distributions(probs)
        of_rare = read_distributions(distributions(unpack(model), model, [question for question, _ in rare]))
        off.append([(read[name] - means).abs() for name in ("greedy", "median")])
        model["test"] = score(read, answers)
        model["off"], model["off_rare"] = errors_of(read, means), errors_of(of_rare, rare_means)
        columns = [read[name] for name in ("greedy", "median")]
        model["answers"] = [[int(x) for x in row] for row in torch.stack(columns, 1)[:SHOWN].tolist()]
        print(f"{model['label']}: {model['test']}, {model['off']}, rare {model['off_rare']}")
    # The question whose errors are most like the means.
    errors = torch.stack([column for of_model in off for column in of_model])
    typical = (errors - errors.mean(-1, keepdim=True)).abs().sum(0).argmin()
    keys = ("weights", "noise", "smallest", "largest", "train_size", "test_size")
    task = {key: getattr(settings, key) for key in keys} | {
        "rare": {"below": int(limits[0]), "above": int(limits[1]), "share": RARE, "size": len(rare)},
        "example": test[int(typical)].question,
        "questions": [example.question for example in test[:SHOWN]],
    }
    return write_constant("models", {"task": task, "models": models})


def draw_rare(settings: Any, low: float, high: float) -> list[tuple[str, float]]:
    """Draw questions whose true means are below or above two limits, with these means."""
    rng, found = np.random.default_rng(0), []
    while len(found) < RARE_SIZE:
        integers = rng.integers(settings.smallest, settings.largest, 3, endpoint=True)
        mean = float(integers @ np.asarray(settings.weights))
        if not low <= mean <= high:
            found.append((" ".join(map(str, integers)), mean))
    return found


# Tokenizers


def make_tokenizers(folders: Mapping[str, Path]) -> Path:
    """Write `tokenizers.js` from the folders of T5's and GPT-2's tokenizers."""
    t5, gpt2 = (AutoTokenizer.from_pretrained(folders[name]) for name in ("t5", "gpt2"))
    described = (
        ("T5", "as published", t5),
        ("GPT-2", "as published", gpt2),
        ("T5, digits split", "what the lab trains T5 with", split_digits(t5)),
        ("the lab's own", "one token per character", character_tokenizer()),
    )
    return write_constant(
        "tokenizers",
        [{"name": name, "about": about, **inspect(tokenizer)} for name, about, tokenizer in described],
    )


def inspect(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """What `ntloss inspect` says about a tokenizer and each sentence, and the sentences' tokens."""
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    kinds = {token.token_id: "digit" if token.is_digit else "number" for token in vocabulary.tokens}
    sentences = []
    for sentence in SENTENCES:
        inspection = inspect_tokenizer(tokenizer, sentence)
        ids = tokenizer(sentence, add_special_tokens=False)["input_ids"]
        pieces = tokenizer.convert_ids_to_tokens(ids)
        digits = sum(c in "0123456789" for c in sentence)
        sentences.append(
            {
                "text": sentence,
                "tokens": [
                    [p.replace("▁", " ").replace("Ġ", " "), kinds.get(i, "")]
                    for i, p in zip(ids, pieces, strict=True)
                ],
                "digits": digits,
                "rows": [
                    {"tokens": tokens, "seen": round((share or 0) * digits)}
                    for tokens, share in inspection.coverage.items()
                ],
                "chosen": inspection.tokens,
                "verdict": inspection.verdict,
                "notes": list(inspection.notes),
            }
        )
    return {
        "vocab_size": inspection.vocab_size,
        "number_tokens": len(vocabulary.tokens),
        "sentences": sentences,
    }


# Losses


def make_criteria() -> Path:
    """Write `criteria.js`, the title of each criterion of the library."""
    return write_constant("criteria", {name: fact(each, "title") for name, each in CRITERIA.items()})


# Stored answers


def make_answers(run: Path) -> Path:
    """Write `answers.js` from the folder of a run; see stored_answers.py."""
    from stored_answers import answer

    return write_constant("answers", answer(run))


def page_files() -> Iterator[Path]:
    """The files that make up the page."""
    folder = Path(__file__).parent
    return (path for path in sorted(folder.rglob("*")) if path.suffix in (".html", ".css", ".js"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    models = commands.add_parser("models", help="write models.js")
    models.add_argument(
        "runs", nargs=2, type=Path, metavar="RUN", help="folder of a run: cross-entropy, HL-Gauss"
    )
    tokenizers = commands.add_parser("tokenizers", help="write tokenizers.js")
    tokenizers.add_argument("folders", nargs=2, metavar="NAME=FOLDER", help="t5=<folder> gpt2=<folder>")
    commands.add_parser("test-set", help="write the answers in models.js again")
    commands.add_parser("criteria", help="write criteria.js")
    answers = commands.add_parser("answers", help="write answers.js")
    answers.add_argument("run", type=Path, metavar="RUN", help="folder of a run of the sentiment sweep")
    given = parser.parse_args(arguments)
    if given.command == "models":
        written = make_models(given.runs)
    elif given.command == "test-set":
        written = write_answers(read_constant("models")["models"])
    elif given.command == "criteria":
        written = make_criteria()
    elif given.command == "answers":
        written = make_answers(given.run)
    else:
        folders = {name: Path(folder) for name, _, folder in (each.partition("=") for each in given.folders)}
        if set(folders) != {"t5", "gpt2"}:
            parser.error(f"{given.folders}: expected t5=<folder> gpt2=<folder>")
        written = make_tokenizers(folders)
    total = sum(path.stat().st_size for path in page_files())
    print(f"{written}: {written.stat().st_size:,} bytes; the page has {total:,} of {PAGE_BUDGET:,}")
    return 0 if total <= PAGE_BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
