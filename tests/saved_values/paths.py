"""How `saved_values.py` computes a case: its inputs, its path and the saved results.

It uses only the public API, so the same file runs with older and newer versions of the library.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from cases import PUBLISHED, Case, make_criterion
from torch import Tensor, nn

import ntloss
from ntloss import (
    LossTerms,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberTokenLoss,
    NumberVocabulary,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "ntloss"))

import tiny_tokenizers

VOCAB = 17
HIDDEN = 5
# Two forms of 4; digits, points and commas; values that are irregular, negative, or of several digits.
MAPPINGS: dict[str, dict[int, str]] = {
    "digits": {**{i + 1: str(i) for i in range(10)}, 12: ".", 13: " 4", 14: ","},
    "irregular": {1: "7", 2: " 7", 4: "007", 5: "-3", 7: "0", 8: "-0", 9: "3.14", 11: "1e3", 12: "250",
                  14: ".5"},
    "multi": {0: "7", 2: "12", 3: " 12", 5: "250", 6: ".", 8: "007", 9: "-", 10: "3", 13: "99", 14: "0",
              16: "1"},
}  # fmt: skip
_OF_MODULE = {"reweigh", "mode", "weight", "ignore_index", "label_smoothing", "z_loss", "softcap",
              "logit_scale", "reduction", "shift", "return_terms", "validate", "chunk_size",
              "drop_ignored"}  # fmt: skip
_OF_NUMBER_MODULE = {"reweigh", "validate"}
_OF_NUMBER_CALL = {"reduction", "ignore_index", "softcap", "logit_scale", "sparse_grad"}
_ATTRIBUTES = ("number_values", "number_values_dense", "is_number_token", "number_token_ids", "dist_lookup",
               "vocab_to_dist_idx", "max_dist")  # fmt: skip


class Shards(NamedTuple):
    """This process, among those over which the vocabulary is sharded."""

    rank: int
    world: int
    group: Any
    mesh: Any

    def part(self, whole: Tensor, dim: int, as_dtensor: bool) -> Tensor:
        """Return this rank's part of a tensor that is sharded along the vocabulary."""
        from torch.distributed.tensor import DTensor, Shard

        each = -(-VOCAB // self.world)
        start = self.rank * each
        mine = whole.narrow(dim, start, min(each, VOCAB - start)).contiguous().clone()
        if not as_dtensor:
            return mine
        dim %= whole.dim()
        return DTensor.from_local(mine, self.mesh, [Shard(dim)], shape=whole.shape, stride=whole.stride())


@cache
def vocabulary_of(name: str) -> NumberVocabulary:
    """Make the vocabulary of one of MAPPINGS."""
    return NumberVocabulary.from_mapping(MAPPINGS[name], vocab_size=VOCAB)


@cache
def tokenizer_of(name: str) -> Any:
    """Make the tokenizer or vocabulary of a published class."""
    return vocabulary_of(name) if name in MAPPINGS else tiny_tokenizers.MAKES[name]()


class Inputs:
    """A case's tensors, drawn in float64 on the CPU with the case's name as the seed.

    Hidden states are multiples of 1/2, head and bias of 1/8. So their products and sums are exact in float32,
    and a bfloat16 logit does not depend on the order of summation.
    """

    def __init__(
        self, case: Case, numbers: list[int], marks: list[int], vocab_size: int, ignore_index: int
    ) -> None:
        self.random = torch.Generator().manual_seed(zlib.crc32(case.name.encode()))
        edge = case.inputs
        shape = {"single position": (1, 1), "no positions": (0, 7), "one row": (7,)}.get(edge, (3, 7))
        texts = [i for i in range(vocab_size) if i not in numbers and i not in marks]
        scale = 40 if edge == "large" else 1
        self.hidden = scale * self._integers(-4, 5, *shape, HIDDEN) / 2
        self.head = self._integers(-8, 9, vocab_size, HIDDEN) / 8
        self.bias = self._integers(-8, 9, vocab_size) / 8
        self.logits = scale * 2 * self._normal(*shape, vocab_size)
        gone: list[int] = []
        if edge == "texts gone":
            gone, texts, numbers = [texts[0], numbers[-1]], texts[1:], numbers[:-1]
        elif edge == "numbers gone":
            gone, numbers, marks = numbers, texts, []
        self.bias[gone] = self.logits[..., gone] = -torch.inf
        share = {"no numbers": 0.0, "only numbers": 1.0}.get(edge, 0.65)
        chance = torch.rand(shape, generator=self.random)
        labels = torch.where(chance < share, self._choice(numbers, shape), self._choice(texts, shape))
        if marks and edge == "plain":
            labels = torch.where(
                (chance > share - 0.12) & (chance < share), self._choice(marks, shape), labels
            )
        ignored = torch.rand(shape, generator=self.random) < (1.1 if edge == "all ignored" else 0.12)
        self.labels = torch.where(ignored, ignore_index, labels)
        if edge == "NaN where ignored":
            self.logits[ignored] = self.hidden[ignored] = torch.nan
        self.halves = self._integers(0, 4, *shape) / 2
        self.upstream = self._integers(1, 8, *shape) / 4
        self.sequence_ids = torch.arange(shape[-1]).div(3, rounding_mode="floor").expand(shape).contiguous()

    def _integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.random).double()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def _choice(self, ids: list[int], shape: tuple[int, ...]) -> Tensor:
        return torch.tensor(ids)[torch.randint(len(ids), shape, generator=self.random)]


def compute(case: Case, shards: Shards | None = None) -> dict[str, Tensor]:
    """Compute the values and gradients of a case, by name.

    Args:
        case: the case.
        shards: this process among several, for the paths with a sharded vocabulary.
    """
    options = dict(case.options)
    if options.get("weight") == "tensor":
        options["weight"] = torch.tensor(0.5)
    if case.path == "published":
        return _published(case, options)
    vocabulary = vocabulary_of(case.vocabulary)
    commas = [i for i, text in MAPPINGS[case.vocabulary].items() if text == ","]
    marks = [*vocabulary.point_ids, *vocabulary.sign_ids, *commas]
    ignore_index = options.get("ignore_index", -100)
    inputs = Inputs(case, list(vocabulary.token_ids), marks, VOCAB, ignore_index)
    criterion = make_criterion(case.criterion)
    leaves = _leaves(case, inputs, options, shards)
    with _autocast(options):
        found = _call(case, inputs, vocabulary, criterion, leaves, options, shards)
    if isinstance(criterion, nn.Module):
        leaves |= dict(criterion.named_parameters())
    return _with_gradients(found, leaves, inputs.upstream)


def _leaves(case: Case, inputs: Inputs, options: dict[str, Any], shards: Shards | None) -> dict[str, Tensor]:
    """Make the leaves of the gradients."""
    given = {"logits": inputs.logits}
    if case.path.endswith(("linear", "from_hidden")):
        given = {"hidden": inputs.hidden, "weight": inputs.head, "bias": inputs.bias}
        if options.get("bias") is False:
            del given["bias"]
    dtype = getattr(torch, case.dtype)
    leaves = {}
    for name, tensor in given.items():
        leaf = tensor.to(dtype, copy=True)
        if shards is not None and name != "hidden":
            leaf = shards.part(leaf, -1 if name == "logits" else 0, case.path.startswith("DTensor"))
        frozen = options.get("frozen") in ("all", name)
        leaves[name] = leaf.detach().requires_grad_(not frozen)
    return leaves


def _call(
    case: Case,
    inputs: Inputs,
    vocabulary: NumberVocabulary,
    criterion: Any,
    leaves: dict[str, Tensor],
    options: dict[str, Any],
    shards: Shards | None,
) -> dict[str, Tensor]:
    """Compute the loss on the case's path."""
    kind = case.path.split()[-1]
    labels = inputs.labels.to(torch.int32) if options.get("labels") == "int32" else inputs.labels
    rest = _rest(inputs, options)
    if kind in ("number", "from_hidden"):
        return _number(case, vocabulary, criterion, leaves, labels, options, rest)
    made = {"return_terms": True, **{k: v for k, v in options.items() if k in _OF_MODULE}}
    made["criterion"] = criterion
    rest |= _counts(options)
    if case.path.startswith("sharded"):
        assert shards is not None
        made["group"] = shards.group
    if kind == "linear":
        module: Any = NTLLinearCrossEntropyLoss(vocabulary, **made)
    else:
        module = NTLCrossEntropyLoss(vocabulary, inplace_backward=kind == "inplace", **made)
        # A product, so that writing in place does not overwrite the leaf.
        leaves = {"logits": leaves["logits"] * 1} if kind == "inplace" else leaves
    found = dict(
        zip(
            ("items", "numbers"),
            module.normalizers(labels, rest["loss_weights"], rest["sequence_ids"]),
            strict=True,
        )
    )
    loss = _compiled(module) if case.path.startswith("compiled") else module
    return found | _named(loss(*_in_order(leaves, labels), **rest))


def _number(
    case: Case,
    vocabulary: NumberVocabulary,
    criterion: Any,
    leaves: dict[str, Tensor],
    labels: Tensor,
    options: dict[str, Any],
    rest: dict[str, Any],
) -> dict[str, Tensor]:
    """Compute the number term alone."""
    made = {k: v for k, v in options.items() if k in _OF_NUMBER_MODULE}
    rest = rest | {k: v for k, v in options.items() if k in _OF_NUMBER_CALL}
    module = NumberTokenLoss(vocabulary, criterion, **made)
    if case.path == "from_hidden":
        if options.get("log_normalizer") is not False:
            logits = F.linear(leaves["hidden"], leaves["weight"], leaves.get("bias")).double()
            logits = logits * options.get("logit_scale", 1.0)
            cap = options.get("softcap")
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            rest["log_normalizer"] = logits.logsumexp(-1)
        return _named(module.from_hidden(*_in_order(leaves, labels), **rest))
    loss = _compiled(module) if case.path.startswith("compiled") else module
    return _named(loss(leaves["logits"], labels, **rest))


def _published(case: Case, options: dict[str, Any]) -> dict[str, Tensor]:
    """Compute the value, gradient and attributes of a published class."""
    kind, settings = PUBLISHED[case.criterion]
    module = getattr(ntloss, kind)(tokenizer_of(case.vocabulary), **settings)
    inputs = Inputs(case, module.number_token_ids.tolist(), [], module.vocab_size, -100)
    logits = inputs.logits.to(getattr(torch, case.dtype)).requires_grad_()
    rest = {k: v for k, v in options.items() if k in _OF_NUMBER_CALL}
    found = _named(module(logits, inputs.labels, **_rest(inputs, options), **rest))
    found |= {name: torch.as_tensor(getattr(module, name)) for name in _ATTRIBUTES if hasattr(module, name)}
    if hasattr(module, "predict_numbers"):
        found |= dict(zip(("yhat", "nt_mass"), module.predict_numbers(logits.detach()), strict=True))
    return _with_gradients(found, {"logits": logits}, inputs.upstream)


def _rest(inputs: Inputs, options: dict[str, Any]) -> dict[str, Any]:
    weights = {"halves": inputs.halves, "zeros": torch.zeros_like(inputs.halves)}
    return {
        "loss_weights": weights.get(options.get("loss_weights", "")),
        "sequence_ids": inputs.sequence_ids if options.get("sequence_ids") else None,
    }


def _counts(options: dict[str, Any]) -> dict[str, Any]:
    if "counts" not in options:
        return {}
    counts = {"num_items_in_batch": 20.0, "num_numbers_in_batch": 7.0}
    as_tensors = options["counts"] == "tensors"
    return {name: torch.tensor(count) if as_tensors else count for name, count in counts.items()}


def _in_order(leaves: dict[str, Tensor], labels: Tensor, *behind: Any) -> tuple[Any, ...]:
    if "logits" in leaves:
        return (leaves["logits"], labels, *behind)
    return (leaves["hidden"], leaves["weight"], labels, *behind, leaves.get("bias"))


def _compiled(module: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(module, backend="aot_eager")


def _autocast(options: dict[str, Any]) -> Any:
    return torch.autocast("cpu", torch.bfloat16) if options.get("autocast") else nullcontext()


def _named(loss: Tensor | LossTerms) -> dict[str, Tensor]:
    return (
        {"loss": loss} if isinstance(loss, Tensor) else {k: getattr(loss, k) for k in ("loss", "ce", "ntl")}
    )


def _with_gradients(
    found: dict[str, Tensor], leaves: dict[str, Tensor], upstream: Tensor
) -> dict[str, Tensor]:
    """Return the results, detached, and the gradients of the loss."""
    loss = found["loss"]
    if loss.requires_grad:
        (loss * (upstream if loss.dim() else 1.5)).sum().backward()
    found = {name: tensor.detach().clone() for name, tensor in found.items()}
    for name, leaf in leaves.items():
        gradient = leaf.grad
        if gradient is None:
            continue
        if hasattr(gradient, "to_local"):  # torch 2.7 makes whole gradients of uneven shards
            gradient = gradient.redistribute(placements=leaf.placements).to_local()
        found[f"gradient of {name}"] = gradient.to_dense() if gradient.is_sparse else gradient
    return found
