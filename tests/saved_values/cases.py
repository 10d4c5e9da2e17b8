"""The cases of `saved_values.py`: every criterion, option, path and dtype, but not their full product."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ntloss import criterion_names, get_criterion

# Names and options for `get_criterion`, except those in OWN.
CRITERIA: list[tuple[str, dict[str, Any]]] = [
    ("wasserstein", {}),
    ("wasserstein", {"squash_factor": 3.0}),
    ("crps", {}),
    ("expected_value", {}),
    ("expected_value", {"over": "vocabulary"}),
    ("expected_value", {"loss": "absolute"}),
    ("expected_value", {"loss": "huber"}),
    ("expected_value", {"loss": F.smooth_l1_loss}),
    ("gaussian_cross_entropy", {}),
    ("gaussian_cross_entropy", {"sigma": 0.5}),
    ("smoothed_wasserstein", {}),
    ("smoothed_wasserstein", {"sigma": 2.0}),
    ("dist2", {}),
    ("dist2", {"tau": 0.5, "distance": "absolute"}),
    ("digit_entropy", {}),
    ("smmd", {}),
    ("smmd", {"sigma": (1.0, 4.0), "kernel": "laplace", "squash_factor": None}),
    ("smmd", {"form": "mmd"}),
    ("smmd", {"form": "smoothness", "alpha": 0.3}),
    ("number_level", {}),
    ("number_level", {"decimals": True}),
    ("relative_error", {}),
    ("relative_error", {"temperature": 0.5, "hard": False, "decimals": True}),
    ("magnitude", {}),
    ("magnitude", {"temperature": 0.5, "hard": False, "decimals": True}),
    ("ntil", {}),
    ("ntil", {"place_base": 1.5, "token": 0.5, "relative": 1.0, "magnitude": 0.4, "decimals": True}),
    ("place_weighted", {"criterion": "wasserstein"}),
    ("place_weighted", {"criterion": "expected_value", "weighting": "linear"}),
    ("place_weighted", {"criterion": "wasserstein", "weighting": "decimal"}),
    ("place_weighted", {"criterion": "smmd", "place_base": 2.0, "decimals": True}),
    ("place_weighted", {"criterion": "dist2", "weighting": "linear"}),
    ("place_weighted", {"criterion": "digit_entropy", "weighting": "decimal"}),
    ("per_number", {"criterion": "wasserstein"}),
    ("per_number", {"criterion": {"name": "place_weighted", "criterion": "dist2"}, "decimals": True}),
    ("weighted_sum", {"criteria": ["wasserstein", "expected_value"], "weights": [0.5, 2.0]}),
    ("weighted_sum", {"criteria": ["smmd", "gaussian_cross_entropy", "digit_entropy"]}),
    ("weighted_sum", {"criteria": [{"name": "per_number", "criterion": "smmd"}, "number_level"]}),
    ("user's own", {}),
    ("with a parameter", {}),
]
WHOLE_NUMBERS = "number_level"

# The values of each option besides its default; `paths` interprets them.
OPTIONS: dict[str, list[Any]] = {
    "reweigh": [True, False],
    "mode": ["replace"],
    "weight": [0.7, 0.0, "tensor"],
    "ignore_index": [-1, 3],
    "label_smoothing": [0.1],
    "z_loss": [0.01],
    "softcap": [2.0],
    "logit_scale": [0.5],
    "reduction": ["sum", "none"],
    "shift": [True],
    "return_terms": [False],
    "validate": [True, False],
    "loss_weights": ["halves", "zeros"],
    "counts": ["floats", "tensors"],
    "sequence_ids": [True],
    "labels": ["int32"],
    "frozen": ["all", "hidden", "weight"],
    "chunk_size": [1, 4, 100],
    "drop_ignored": [False],
    "bias": [False],
    "log_normalizer": [False],
    "sparse_grad": [False],
    "autocast": [True],
}
_OF_NUMBER = {"reweigh", "validate", "loss_weights", "reduction", "ignore_index", "sequence_ids", "labels",
              "autocast"}  # fmt: skip
_OF_COMBINED = _OF_NUMBER | {"mode", "weight", "label_smoothing", "z_loss", "softcap", "logit_scale", "shift",
                             "return_terms", "counts"}  # fmt: skip
_OF_LINEAR = _OF_COMBINED | {"chunk_size", "drop_ignored", "bias", "frozen"}
_OF_HIDDEN = _OF_NUMBER | {"softcap", "logit_scale", "bias", "log_normalizer", "sparse_grad", "frozen"}
# The options that each path takes.
TAKES = {
    "logits": _OF_COMBINED,
    "inplace": _OF_COMBINED,
    "linear": _OF_LINEAR,
    "number": _OF_NUMBER,
    "from_hidden": _OF_HIDDEN,
    "published": _OF_NUMBER - {"reweigh", "validate"},
    "sharded logits": _OF_COMBINED,
    "sharded linear": _OF_LINEAR,
    "DTensor logits": _OF_COMBINED,
    "DTensor linear": _OF_LINEAR,
    "compiled logits": _OF_COMBINED,
    "compiled linear": _OF_LINEAR,
    "compiled number": _OF_NUMBER,
}
EAGER = ("logits", "inplace", "linear", "number", "from_hidden")
SHARDED = tuple(path for path in TAKES if path.startswith("sharded"))
PARALLEL = (*SHARDED, *(path for path in TAKES if path.startswith("DTensor")))
COMPILED = tuple(path for path in TAKES if path.startswith("compiled"))
VOCABULARIES = ("digits", "irregular", "multi")
EDGES = ("texts gone", "numbers gone", "no numbers", "only numbers", "all ignored", "single position",
         "no positions", "one row", "large", "NaN where ignored")  # fmt: skip

# The published classes with their settings.
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "NTLoss": ("NTLoss", {}),
    "NTLoss, paper": ("NTLoss", {"reweigh": False}),
    "NTLoss, squashed": ("NTLoss", {"squash_factor": 3.0}),
    "NTLoss, wide": ("NTLoss", {"vocab_size": 99}),
    "NTLoss, all numbers": ("NTLoss", {"digit_level": False, "space_prefixed": True}),
    "NTLossDotProduct": ("NTLossDotProduct", {}),
    "NTLossDotProduct, paper": ("NTLossDotProduct", {"reweigh": False}),
    "NTLossDotProduct, absolute": ("NTLossDotProduct", {"loss_function": F.l1_loss}),
    "NTLossDotProduct, huber": ("NTLossDotProduct", {"loss_function": F.huber_loss, "digit_level": False}),
    "NumberLevelLoss": ("NumberLevelLoss", {}),
    "NumberLevelLoss, floats": ("NumberLevelLoss", {"float_level": True, "reweigh": False}),
}


@dataclass(frozen=True)  # so that its repr, which error messages hold, is the same in every process
class UsersOwn:
    """A user's criterion."""

    def __call__(self, x: Any) -> Tensor:
        return (x.probs * (x.values - x.target_values.unsqueeze(-1)).square()).sum(-1)

    def worst(self, values: Tensor) -> float:
        return float((values[-1] - values[0]) ** 2)


class WithParameter(nn.Module):
    """A criterion with a parameter to train."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.25))

    def forward(self, x: Any) -> Tensor:
        return self.scale * ((x.probs * x.values).sum(-1) - x.target_values).abs()

    def worst(self, values: Tensor) -> None:
        return None


OWN = {"user's own": UsersOwn, "with a parameter": WithParameter}


@dataclass(frozen=True)
class Case:
    """One computation.

    Args:
        path: key of TAKES.
        criterion: name of one of `criteria()`; for the published classes, key of PUBLISHED.
        options: name and value of each option that is not at its default.
        dtype: of logits, hidden states and head.
        vocabulary: one of VOCABULARIES; for the published classes, also a make of `tiny_tokenizers`.
        inputs: "plain" or one of EDGES.
    """

    path: str
    criterion: str = "wasserstein"
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float64"
    vocabulary: str = "digits"
    inputs: str = "plain"

    @property
    def name(self) -> str:
        """The case's key in the saved file."""
        options = ", ".join(f"{key}={value}" for key, value in self.options) or "default options"
        return " | ".join((self.path, self.dtype, self.vocabulary, self.inputs, self.criterion, options))


def label(name: str, options: dict[str, Any]) -> str:
    """Describe a criterion with its options, the same in every process."""
    texts = (f"{k}={v.__name__ if callable(v) else v!r}" for k, v in options.items())
    return f"{name}({', '.join(texts)})" if options else name


def criteria() -> dict[str, tuple[str, dict[str, Any]]]:
    """The criteria by label, and later ones with their default options."""
    known = {name for name, _ in CRITERIA}
    new = [(name, {}) for name in criterion_names() if name not in known]
    return {label(*made): made for made in [*CRITERIA, *new]}


def make_criterion(of: str) -> Any:
    """Make the criterion of a label."""
    name, options = criteria()[of]
    return OWN[name]() if name in OWN else get_criterion(name, **options)


def cases() -> list[Case]:
    """All cases, in the same order in every process."""
    made = [*_each_option(), *_each_criterion(), *_edges(), *_published(), *_compiled(), *_sample(500)]
    return list({case.name: case for case in made}.values())


def _each_option() -> Iterator[Case]:
    """Each option on each path, with a criterion on tokens and one on whole numbers."""
    dtypes = ("float32", "bfloat16", "float16")
    for path in (*EAGER, *PARALLEL):
        turn = 0
        for dtype in ("float64", *dtypes):
            yield Case(path, dtype=dtype)
        for option, values in OPTIONS.items():
            if option not in TAKES[path]:
                continue
            for value in values:
                case = Case(path, options=((option, value),))
                yield case
                yield replace(case, criterion=WHOLE_NUMBERS)
                # Every path meets every dtype, and every option another dtype on each path.
                yield replace(case, dtype=dtypes[turn % 3], vocabulary="irregular")
                turn += 1


def _each_criterion() -> Iterator[Case]:
    """Each criterion on each path."""
    for criterion in criteria():
        for path in (*EAGER, *SHARDED):
            yield Case(path, criterion)
        for path in EAGER:
            yield Case(path, criterion, dtype="float32", vocabulary="multi")
            yield Case(path, criterion, vocabulary="irregular")
            yield Case(path, criterion, (("reduction", "none"),), "bfloat16")


def _edges() -> Iterator[Case]:
    for path in (*EAGER, *SHARDED):
        for inputs in EDGES:
            for criterion in ("wasserstein", WHOLE_NUMBERS, "gaussian_cross_entropy"):
                yield Case(path, criterion, inputs=inputs)
            yield Case(path, options=(("reduction", "none"),), dtype="float32", inputs=inputs)


def _published() -> Iterator[Case]:
    for kind in PUBLISHED:
        for make in ("digits", "word_level", "word_piece"):
            yield Case("published", kind, vocabulary=make)
            yield Case(
                "published", kind, (("loss_weights", "halves"), ("reduction", "none")), "float32", make
            )
        for dtype in ("float32", "bfloat16"):
            yield Case("published", kind, dtype=dtype, vocabulary="word_level")


def _compiled() -> Iterator[Case]:
    for path in COMPILED:
        yield Case(path)
        yield Case(path, dtype="bfloat16", options=(("loss_weights", "halves"), ("reduction", "none")))
        for criterion in (WHOLE_NUMBERS, "smmd", "expected_value"):
            yield Case(path, criterion, dtype="float32")
    yield Case("compiled logits", options=(("softcap", 2.0), ("z_loss", 0.01), ("weight", "tensor")))


def _sample(count: int) -> Iterator[Case]:
    """Draws of the full product."""
    draw = random.Random(0)
    names = [label(*made) for made in CRITERIA]  # not those that come later: the draws stay the same
    for _ in range(count):
        path = draw.choice((*EAGER, *EAGER, *PARALLEL))
        options = []
        for option, values in OPTIONS.items():
            taken, value = draw.random() < 0.25, draw.choice(values)
            if taken and option in TAKES[path]:
                options.append((option, value))
        yield Case(
            path,
            draw.choice(names),
            tuple(options),
            draw.choice(("float64", "float64", "float32", "bfloat16")),
            draw.choice(VOCABULARIES),
            draw.choice(("plain",) * len(EDGES) + EDGES),
        )
